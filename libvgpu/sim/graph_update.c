/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * graph_update.c - changing what the nodes of an executable graph do: one node, named by the node of the graph that it was
 * made of, or all of them after another graph of the same shape.
 */
#include "graph_exec.h"

enum update_result {
  UPDATE_SUCCESS = 0,
  UPDATE_ERROR = 1,
  UPDATE_TOPOLOGY_CHANGED = 2,
  UPDATE_TYPE_CHANGED = 3,
  UPDATE_NOT_SUPPORTED = 6
};

/* The node that is the copy of `origin`, in the graph or one embedded in it; NULL: there is none. */
static struct gs_node *find(const struct gs_graph *graph, const struct gs_node *origin) {
  if (origin->number < graph->count && graph->nodes[origin->number]->origin == origin)
    return graph->nodes[origin->number];
  for (size_t i = 0; i < graph->count; i++) {
    struct gs_node *node = graph->nodes[i];
    if (node->origin == origin) return node;
    struct gs_node *inside = node->action.type == CU_NODE_GRAPH ? find(node->action.child, origin) : NULL;
    if (inside) return inside;
  }
  return NULL;
}

static struct gs_node *node_of(CUgraphExec exec, CUgraphNode origin) {
  return gs_exec_valid(exec) && gs_node_valid(origin) ? find(exec->graph, origin) : NULL;
}

/* Whether two graphs have nodes of the same types with the same dependencies, in the order they were added. Else
 * `culprit` gets a node of `to`, `result` the reason. */
static bool same_shape(const struct gs_graph *from, const struct gs_graph *to, struct gs_node **culprit, int *result) {
  *result = UPDATE_TOPOLOGY_CHANGED;
  if (from->count != to->count) return false;
  for (size_t i = 0; i < to->count; i++) {
    const struct gs_node *a = from->nodes[i];
    struct gs_node *b = to->nodes[i];
    *culprit = b;
    *result = UPDATE_TYPE_CHANGED;
    if (a->action.type != b->action.type) return false;
    *result = UPDATE_TOPOLOGY_CHANGED;
    if (a->dependency_count != b->dependency_count) return false;
    for (size_t j = 0; j < a->dependency_count; j++)
      if (a->dependencies[j]->number != b->dependencies[j]->number) return false;
    if (a->action.type == CU_NODE_GRAPH && !same_shape(a->action.child, b->action.child, culprit, result)) return false;
    *result = UPDATE_NOT_SUPPORTED;
    if (a->action.type == CU_NODE_MEM_ALLOC || a->action.type == CU_NODE_MEM_FREE) return false;
  }
  *result = UPDATE_SUCCESS;
  *culprit = NULL;
  return true;
}

/* Makes the nodes do what those of another graph of the same shape do. The caller holds gs_driver.mutex. */
static void take_over(struct gs_graph *graph, const struct gs_graph *from) {
  for (size_t i = 0; i < graph->count; i++) {
    if (graph->nodes[i]->action.type == CU_NODE_GRAPH)
      take_over(graph->nodes[i]->action.child, from->nodes[i]->action.child);
    else
      graph->nodes[i]->action = from->nodes[i]->action;
  }
}

static CUresult set(CUgraphExec exec, CUgraphNode origin, const struct gs_action *action) {
  struct gs_node *culprit;
  int reason;
  struct gs_node *node = node_of(exec, origin);
  if (!node || node->action.type != action->type) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gs_action_check(action);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&gs_driver.mutex);
  if (action->type != CU_NODE_GRAPH)
    node->action = *action;
  else if (same_shape(node->action.child, action->child, &culprit, &reason))
    take_over(node->action.child, action->child);
  else
    result = CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

/* `bytes` of the structure are there: the first interface's is shorter. */
static CUresult set_kernel(CUgraphExec exec, CUgraphNode node, const struct cu_kernel_node *kernel, size_t bytes) {
  if (!kernel) return CUDA_ERROR_INVALID_VALUE;
  const struct gs_action action = gs_kernel_action(kernel, bytes);
  return set(exec, node, &action);
}

CU_API(cuGraphExecKernelNodeSetParams)(CUgraphExec exec, CUgraphNode node, const struct cu_kernel_node *kernel) {
  ENTER(cuGraphExecKernelNodeSetParams);
  return set_kernel(exec, node, kernel, offsetof(struct cu_kernel_node, kernel));
}

CU_API(cuGraphExecKernelNodeSetParams_v2)(CUgraphExec exec, CUgraphNode node, const struct cu_kernel_node *kernel) {
  ENTER(cuGraphExecKernelNodeSetParams_v2);
  return set_kernel(exec, node, kernel, sizeof *kernel);
}

CU_API(cuGraphExecMemcpyNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const struct cu_memcpy3d *copy, CUcontext context) {
  ENTER(cuGraphExecMemcpyNodeSetParams);
  (void)context;
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  const struct gs_action action = {.type = CU_NODE_MEMCPY, .copy = *copy};
  return set(exec, node, &action);
}

CU_API(cuGraphExecMemsetNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const struct cu_memset_node *fill, CUcontext context) {
  ENTER(cuGraphExecMemsetNodeSetParams);
  (void)context;
  if (!fill) return CUDA_ERROR_INVALID_VALUE;
  const struct gs_action action = {.type = CU_NODE_MEMSET, .fill = *fill};
  return set(exec, node, &action);
}

CU_API(cuGraphExecHostNodeSetParams)(CUgraphExec exec, CUgraphNode node, const struct cu_host_node *host) {
  ENTER(cuGraphExecHostNodeSetParams);
  if (!host) return CUDA_ERROR_INVALID_VALUE;
  const struct gs_action action = {.type = CU_NODE_HOST, .host = *host};
  return set(exec, node, &action);
}

CU_API(cuGraphExecChildGraphNodeSetParams)(CUgraphExec exec, CUgraphNode node, CUgraph child) {
  ENTER(cuGraphExecChildGraphNodeSetParams);
  const struct gs_action action = {.type = CU_NODE_GRAPH, .child = child};
  return set(exec, node, &action);
}

CU_API(cuGraphExecEventRecordNodeSetEvent)(CUgraphExec exec, CUgraphNode node, CUevent event) {
  ENTER(cuGraphExecEventRecordNodeSetEvent);
  const struct gs_action action = {.type = CU_NODE_EVENT_RECORD, .event = event};
  return set(exec, node, &action);
}

CU_API(cuGraphExecEventWaitNodeSetEvent)(CUgraphExec exec, CUgraphNode node, CUevent event) {
  ENTER(cuGraphExecEventWaitNodeSetEvent);
  const struct gs_action action = {.type = CU_NODE_WAIT_EVENT, .event = event};
  return set(exec, node, &action);
}

CU_API(cuGraphExecNodeSetParams)(CUgraphExec exec, CUgraphNode node, const struct cu_node *parameters) {
  struct gs_action action;
  ENTER(cuGraphExecNodeSetParams);
  CUresult result = gs_action_of(parameters, &action);
  return result == CUDA_SUCCESS ? set(exec, node, &action) : result;
}

/* Kernels, copies and fills alone can be left out of launches. */
static struct gs_node *switchable(CUgraphExec exec, CUgraphNode origin) {
  struct gs_node *node = node_of(exec, origin);
  return node && node->action.type <= CU_NODE_MEMSET ? node : NULL;
}

CU_API(cuGraphNodeSetEnabled)(CUgraphExec exec, CUgraphNode node, unsigned enabled) {
  ENTER(cuGraphNodeSetEnabled);
  struct gs_node *of_exec = switchable(exec, node);
  if (!of_exec) return CUDA_ERROR_INVALID_VALUE;
  of_exec->disabled = !enabled;
  return CUDA_SUCCESS;
}

CU_API(cuGraphNodeGetEnabled)(CUgraphExec exec, CUgraphNode node, unsigned *enabled) {
  ENTER(cuGraphNodeGetEnabled);
  const struct gs_node *of_exec = switchable(exec, node);
  if (!of_exec || !enabled) return CUDA_ERROR_INVALID_VALUE;
  *enabled = !of_exec->disabled;
  return CUDA_SUCCESS;
}

static CUresult update(CUgraphExec exec, CUgraph graph, struct gs_node **culprit, int *reason) {
  *culprit = NULL;
  *reason = UPDATE_ERROR;
  if (!gs_exec_valid(exec) || !gs_graph_valid(graph)) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  bool same = same_shape(exec->graph, graph, culprit, reason);
  if (same) take_over(exec->graph, graph);
  pthread_mutex_unlock(&gs_driver.mutex);
  return same ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CU_API(cuGraphExecUpdate)(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, int *reason) {
  ENTER(cuGraphExecUpdate);
  if (!error_node || !reason) return CUDA_ERROR_INVALID_VALUE;
  return update(exec, graph, error_node, reason);
}

CU_API(cuGraphExecUpdate_v2)(CUgraphExec exec, CUgraph graph, struct cu_update_result *out) {
  ENTER(cuGraphExecUpdate_v2);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  out->error_from_node = NULL;
  return update(exec, graph, &out->error_node, &out->result);
}
