/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * graph.c - graphs as a structure: nodes and what they depend on. Like handles of other objects, those of graphs and
 * nodes stay readable after they were destroyed. A graph belongs to no context.
 */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

static struct gs_objects graphs = {.object_bytes = sizeof(struct gs_graph), .capacity = 1u << 18};
static struct gs_objects nodes = {.object_bytes = sizeof(struct gs_node), .capacity = 1u << 22};

bool gs_graph_valid(const struct gs_graph *graph) {
  return gs_object_alive(&graphs, graph);
}

bool gs_node_valid(const struct gs_node *node) {
  return gs_object_alive(&nodes, node);
}

struct gs_graph *gs_graph_new(void) {
  return gs_object_new(&graphs, (struct gs_context *)&graphs);
}

static void free_node(struct gs_node *node) {
  if (node->action.type == CU_NODE_GRAPH && node->action.child) gs_graph_free(node->action.child);
  if (node->action.type == CU_NODE_MEM_ALLOC || node->action.type == CU_NODE_MEM_FREE)
    gs_graph_memory_drop(node->action.memory);
  free(node->dependencies);
  free(node->attributes);
  gs_object_free(&nodes, node);
}

void gs_graph_free(struct gs_graph *graph) {
  for (size_t i = 0; i < graph->count; i++)
    free_node(graph->nodes[i]);
  free(graph->nodes);
  gs_user_references_drop(graph);
  gs_object_free(&graphs, graph);
}

bool gs_graph_has_memory(const struct gs_graph *graph) {
  for (size_t i = 0; i < graph->count; i++) {
    int type = graph->nodes[i]->action.type;
    if (type == CU_NODE_MEM_ALLOC || type == CU_NODE_MEM_FREE) return true;
  }
  return false;
}

bool gs_graph_has_nodes(const struct gs_graph *graph, struct gs_node *const *list, size_t count) {
  if (count > 0 && !list) return false;
  for (size_t i = 0; i < count; i++)
    if (!gs_node_valid(list[i]) || list[i]->graph != graph) return false;
  return true;
}

bool gs_node_depends(const struct gs_node *node, const struct gs_node *on) {
  for (size_t i = 0; i < node->dependency_count; i++)
    if (node->dependencies[i] == on) return true;
  return false;
}

static bool add_dependencies(struct gs_node *node, struct gs_node *const *on, size_t count) {
  if (count == 0) return true;
  size_t room = (node->dependency_count + count) * sizeof(struct gs_node *);
  struct gs_node **grown = realloc(node->dependencies, room);
  if (!grown) return false;
  node->dependencies = grown;
  for (size_t i = 0; i < count; i++)
    if (!gs_node_depends(node, on[i])) grown[node->dependency_count++] = on[i];
  return true;
}

struct gs_node *gs_graph_add(struct gs_graph *graph, struct gs_node *const *dependencies, size_t count,
                             const struct gs_action *action) {
  if (graph->count == graph->room) {
    size_t room = graph->room ? 2 * graph->room : 16;
    struct gs_node **grown = realloc(graph->nodes, room * sizeof(struct gs_node *));
    if (!grown) return NULL;
    graph->nodes = grown;
    graph->room = room;
  }
  struct gs_node *node = gs_object_new(&nodes, (struct gs_context *)&nodes);
  if (!node) return NULL;
  if (!add_dependencies(node, dependencies, count)) {
    gs_object_free(&nodes, node);
    return NULL;
  }
  node->graph = graph;
  node->action = *action;
  node->number = graph->count;
  graph->nodes[graph->count++] = node;
  return node;
}

static bool copy_content(struct gs_node *node, const struct gs_node *from) {
  if (from->action.type == CU_NODE_GRAPH) {
    node->action.child = gs_graph_copy(from->action.child);
    if (!node->action.child) return false;
    node->action.child->owned = true;
  }
  if (from->action.type == CU_NODE_MEM_ALLOC || from->action.type == CU_NODE_MEM_FREE)
    gs_graph_memory_hold(from->action.memory);
  if (from->attributes) {
    node->attributes = malloc(CU_LAUNCH_ATTRIBUTES * sizeof *node->attributes);
    if (!node->attributes) return false;
    memcpy(node->attributes, from->attributes, CU_LAUNCH_ATTRIBUTES * sizeof *node->attributes);
  }
  return true;
}

struct gs_graph *gs_graph_copy(struct gs_graph *graph) {
  struct gs_graph *copy = gs_graph_new();
  bool good = copy && gs_user_references_copy(copy, graph);
  for (size_t i = 0; good && i < graph->count; i++) {
    struct gs_action action = graph->nodes[i]->action;
    if (action.type == CU_NODE_GRAPH) action.child = NULL;
    struct gs_node *node = gs_graph_add(copy, NULL, 0, &action);
    good = node && copy_content(node, graph->nodes[i]);
    if (node) node->origin = graph->nodes[i];
  }
  for (size_t i = 0; good && i < graph->count; i++) {
    const struct gs_node *from = graph->nodes[i];
    struct gs_node *node = copy->nodes[i];
    good = add_dependencies(node, from->dependencies, from->dependency_count);
    for (size_t j = 0; j < node->dependency_count; j++)
      node->dependencies[j] = copy->nodes[node->dependencies[j]->number];
  }
  if (copy) copy->origin = graph;
  if (copy && !good) gs_graph_free(copy);
  return good ? copy : NULL;
}

/* Nodes are taken as soon as nothing holds them, in the order they were added; a cycle leaves some over. */
struct gs_node **gs_graph_order(const struct gs_graph *graph, struct gs_node **culprit) {
  struct gs_node **order = malloc((graph->count + 1) * sizeof(struct gs_node *));
  bool *taken = calloc(graph->count + 1, sizeof *taken);
  size_t count = 0;
  bool found = order && taken;
  while (found && count < graph->count) {
    found = false;
    for (size_t i = 0; i < graph->count; i++) {
      struct gs_node *node = graph->nodes[i];
      bool free_to_go = !taken[i];
      for (size_t j = 0; free_to_go && j < node->dependency_count; j++)
        free_to_go = taken[node->dependencies[j]->number];
      if (!free_to_go) continue;
      taken[i] = true;
      order[count++] = node;
      found = true;
    }
  }
  for (size_t i = 0; taken && culprit && i < graph->count; i++)
    if (!taken[i]) *culprit = graph->nodes[i];
  free(taken);
  if (found && count == graph->count) return order;
  free(order);
  return NULL;
}

CU_API(cuGraphCreate)(CUgraph *out, unsigned flags) {
  ENTER(cuGraphCreate);
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_graph *graph = gs_graph_new();
  pthread_mutex_unlock(&gs_driver.mutex);
  if (graph) *out = graph;
  return graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API(cuGraphDestroy)(CUgraph graph) {
  ENTER(cuGraphDestroy);
  if (!gs_graph_valid(graph) || graph->owned) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  gs_graph_free(graph);
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}

CU_API(cuGraphClone)(CUgraph *out, CUgraph graph) {
  ENTER(cuGraphClone);
  if (!out || !gs_graph_valid(graph)) return CUDA_ERROR_INVALID_VALUE;
  if (gs_graph_has_memory(graph)) return CUDA_ERROR_NOT_SUPPORTED;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_graph *copy = gs_graph_copy(graph);
  pthread_mutex_unlock(&gs_driver.mutex);
  if (copy) *out = copy;
  return copy ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Removes `on` from what the node depends on. False: it did not depend on it. */
static bool remove_dependency(struct gs_node *node, const struct gs_node *on) {
  for (size_t i = 0; i < node->dependency_count; i++) {
    if (node->dependencies[i] != on) continue;
    node->dependencies[i] = node->dependencies[--node->dependency_count];
    return true;
  }
  return false;
}

CU_API(cuGraphDestroyNode)(CUgraphNode node) {
  ENTER(cuGraphDestroyNode);
  if (!gs_node_valid(node)) return CUDA_ERROR_INVALID_VALUE;
  struct gs_graph *graph = node->graph;
  if (gs_graph_has_memory(graph)) return CUDA_ERROR_NOT_SUPPORTED;
  pthread_mutex_lock(&gs_driver.mutex);
  for (size_t i = node->number + 1; i < graph->count; i++) {
    graph->nodes[i - 1] = graph->nodes[i];
    graph->nodes[i - 1]->number = i - 1;
  }
  graph->count--;
  for (size_t i = 0; i < graph->count; i++)
    (void)remove_dependency(graph->nodes[i], node);
  free_node(node);
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}

CU_API(cuGraphAddDependencies)(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
  ENTER(cuGraphAddDependencies);
  if (!gs_graph_valid(graph) || !gs_graph_has_nodes(graph, from, count) || !gs_graph_has_nodes(graph, to, count))
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++)
    if (from[i] == to[i] || gs_node_depends(to[i], from[i])) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&gs_driver.mutex);
  for (size_t i = 0; i < count; i++)
    if (!add_dependencies(to[i], &from[i], 1)) result = CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

CU_API(cuGraphRemoveDependencies)(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
  ENTER(cuGraphRemoveDependencies);
  if (!gs_graph_valid(graph) || !gs_graph_has_nodes(graph, from, count) || !gs_graph_has_nodes(graph, to, count))
    return CUDA_ERROR_INVALID_VALUE;
  if (gs_graph_has_memory(graph)) return CUDA_ERROR_NOT_SUPPORTED;
  for (size_t i = 0; i < count; i++)
    if (!gs_node_depends(to[i], from[i])) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  for (size_t i = 0; i < count; i++)
    (void)remove_dependency(to[i], from[i]);
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}
