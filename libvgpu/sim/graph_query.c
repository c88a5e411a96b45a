/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * graph_query.c - asking for the shape of a graph.
 */
#include <stdio.h>

#include "graph.h"

CU_API(cuGraphNodeGetType)(CUgraphNode node, int *type) {
  ENTER(cuGraphNodeGetType);
  if (!gs_node_valid(node) || !type) return CUDA_ERROR_INVALID_VALUE;
  *type = node->action.type;
  return CUDA_SUCCESS;
}

CU_API(cuGraphNodeFindInClone)(CUgraphNode *out, CUgraphNode original, CUgraph clone) {
  ENTER(cuGraphNodeFindInClone);
  if (!out || !gs_node_valid(original) || !gs_graph_valid(clone)) return CUDA_ERROR_INVALID_VALUE;
  if (clone->origin != original->graph) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < clone->count; i++) {
    if (clone->nodes[i]->origin != original) continue;
    *out = clone->nodes[i];
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

/* Answers a list: its length without `out`; else as much of it as fits, the rest of the caller's room empty. */
struct answer {
  CUgraphNode *out;
  size_t room, count;
};

static void answer(struct answer *list, CUgraphNode node) {
  if (list->out && list->count < list->room) list->out[list->count] = node;
  list->count++;
}

static CUresult finish(struct answer *list, size_t *count) {
  for (size_t i = list->count; list->out && i < list->room; i++)
    list->out[i] = NULL;
  *count = list->out && list->count > list->room ? list->room : list->count;
  return CUDA_SUCCESS;
}

CU_API(cuGraphGetNodes)(CUgraph graph, CUgraphNode *out, size_t *count) {
  ENTER(cuGraphGetNodes);
  if (!gs_graph_valid(graph) || !count) return CUDA_ERROR_INVALID_VALUE;
  struct answer list = {.out = out, .room = *count};
  for (size_t i = 0; i < graph->count; i++)
    answer(&list, graph->nodes[i]);
  return finish(&list, count);
}

CU_API(cuGraphGetRootNodes)(CUgraph graph, CUgraphNode *out, size_t *count) {
  ENTER(cuGraphGetRootNodes);
  if (!gs_graph_valid(graph) || !count) return CUDA_ERROR_INVALID_VALUE;
  struct answer list = {.out = out, .room = *count};
  for (size_t i = 0; i < graph->count; i++)
    if (graph->nodes[i]->dependency_count == 0) answer(&list, graph->nodes[i]);
  return finish(&list, count);
}

CU_API(cuGraphGetEdges)(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
  ENTER(cuGraphGetEdges);
  if (!gs_graph_valid(graph) || !count || !from != !to) return CUDA_ERROR_INVALID_VALUE;
  struct answer sources = {.out = from, .room = *count};
  struct answer targets = {.out = to, .room = *count};
  for (size_t i = 0; i < graph->count; i++) {
    for (size_t j = 0; j < graph->nodes[i]->dependency_count; j++) {
      answer(&sources, graph->nodes[i]->dependencies[j]);
      answer(&targets, graph->nodes[i]);
    }
  }
  (void)finish(&sources, count);
  return finish(&targets, count);
}

CU_API(cuGraphNodeGetDependencies)(CUgraphNode node, CUgraphNode *out, size_t *count) {
  ENTER(cuGraphNodeGetDependencies);
  if (!gs_node_valid(node) || !count) return CUDA_ERROR_INVALID_VALUE;
  struct answer list = {.out = out, .room = *count};
  for (size_t i = 0; i < node->dependency_count; i++)
    answer(&list, node->dependencies[i]);
  return finish(&list, count);
}

CU_API(cuGraphNodeGetDependentNodes)(CUgraphNode node, CUgraphNode *out, size_t *count) {
  ENTER(cuGraphNodeGetDependentNodes);
  if (!gs_node_valid(node) || !count) return CUDA_ERROR_INVALID_VALUE;
  struct answer list = {.out = out, .room = *count};
  for (size_t i = 0; i < node->graph->count; i++)
    if (gs_node_depends(node->graph->nodes[i], node)) answer(&list, node->graph->nodes[i]);
  return finish(&list, count);
}

/* The graph's shape alone, in Graphviz' language. */
CU_API(cuGraphDebugDotPrint)(CUgraph graph, const char *path, unsigned flags) {
  ENTER(cuGraphDebugDotPrint);
  (void)flags;
  if (!gs_graph_valid(graph) || !path) return CUDA_ERROR_INVALID_VALUE;
  FILE *file = fopen(path, "we");
  if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
  fprintf(file, "digraph dot {\n");
  for (size_t i = 0; i < graph->count; i++) {
    fprintf(file, "\"%zu\" [label=\"type %d\"];\n", i, graph->nodes[i]->action.type);
    for (size_t j = 0; j < graph->nodes[i]->dependency_count; j++)
      fprintf(file, "\"%zu\" -> \"%zu\";\n", graph->nodes[i]->dependencies[j]->number, i);
  }
  fprintf(file, "}\n");
  return fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
