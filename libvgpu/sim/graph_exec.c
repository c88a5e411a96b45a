/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * graph_exec.c - executable graphs: copies of graphs that have no cycle. A launch gives the nodes' work to one stream, each
 * node's after that of the nodes it depends on; branches do not overlap.
 */
#include "graph_exec.h"

#include <stdio.h>
#include <stdlib.h>

#include "capture.h"
#include "copy.h"

enum { FREE_ON_LAUNCH = 1, UPLOAD = 2, DEVICE_LAUNCH = 4, NODE_PRIORITY = 8 };
enum { RESULT_SUCCESS = 0, RESULT_INVALID_STRUCTURE = 2, RESULT_NOT_SUPPORTED = 3 };

static struct gs_objects execs = {.object_bytes = sizeof(struct gs_exec), .capacity = 1u << 18};

bool gs_exec_valid(const struct gs_exec *exec) {
  return gs_object_alive(&execs, exec);
}

/* Whether nodes can be put in an order, in embedded graphs too. */
static bool can_be_ordered(const struct gs_graph *graph, struct gs_node **culprit) {
  struct gs_node **order = gs_graph_order(graph, culprit);
  free(order);
  for (size_t i = 0; order && i < graph->count; i++) {
    const struct gs_action *action = &graph->nodes[i]->action;
    if (action->type == CU_NODE_GRAPH && !can_be_ordered(action->child, culprit)) return false;
  }
  return order != NULL;
}

/* The caller holds gs_driver.mutex. */
static struct gs_exec *make(struct gs_graph *graph, uint64_t flags) {
  struct gs_exec *exec = gs_object_new(&execs, (struct gs_context *)&execs);
  if (!exec) return NULL;
  exec->flags = flags;
  exec->origin = graph;
  exec->graph = gs_graph_copy(graph);
  if (!exec->graph) {
    gs_object_free(&execs, exec);
    return NULL;
  }
  exec->graph->owned = true;
  graph->executables++;
  return exec;
}

/* The reason of a failure goes to `result`, a node at fault to `culprit`. */
static CUresult instantiate(CUgraphExec *out, CUgraph graph, uint64_t flags, struct gs_node **culprit, int *result) {
  *result = RESULT_INVALID_STRUCTURE;
  if (!out || !gs_graph_valid(graph) || flags > (FREE_ON_LAUNCH | UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY))
    return CUDA_ERROR_INVALID_VALUE;
  *result = RESULT_NOT_SUPPORTED;
  if (flags & DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
  if (gs_graph_has_memory(graph) && graph->executables > 0) return CUDA_ERROR_NOT_SUPPORTED;
  pthread_mutex_lock(&gs_driver.mutex);
  *result = RESULT_INVALID_STRUCTURE;
  bool ordered = can_be_ordered(graph, culprit);
  struct gs_exec *exec = ordered ? make(graph, flags) : NULL;
  pthread_mutex_unlock(&gs_driver.mutex);
  if (!ordered) return CUDA_ERROR_INVALID_VALUE;
  if (!exec) return CUDA_ERROR_OUT_OF_MEMORY;
  *result = RESULT_SUCCESS;
  *out = exec;
  return CUDA_SUCCESS;
}

/* What the older interfaces answer: a node and a text. */
static CUresult instantiate_with_log(CUgraphExec *out, CUgraph graph, CUgraphNode *error_node, char *log,
                                     size_t bytes) {
  struct gs_node *culprit = NULL;
  int reason;
  CUresult result = instantiate(out, graph, 0, &culprit, &reason);
  if (error_node) *error_node = culprit;
  if (log && bytes > 0) snprintf(log, bytes, "%s", culprit ? "the graph has a cycle" : "");
  return result;
}

CU_API(cuGraphInstantiate)(CUgraphExec *out, CUgraph graph, CUgraphNode *error_node, char *log, size_t bytes) {
  ENTER(cuGraphInstantiate);
  return instantiate_with_log(out, graph, error_node, log, bytes);
}

CU_API(cuGraphInstantiate_v2)(CUgraphExec *out, CUgraph graph, CUgraphNode *error_node, char *log, size_t bytes) {
  ENTER(cuGraphInstantiate_v2);
  return instantiate_with_log(out, graph, error_node, log, bytes);
}

CU_API(cuGraphInstantiateWithFlags)(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
  struct gs_node *culprit = NULL;
  int reason;
  ENTER(cuGraphInstantiateWithFlags);
  return instantiate(out, graph, flags & ~(unsigned long long)UPLOAD, &culprit, &reason);
}

/* Memory first: a launch that the card has no room for does nothing. */
static CUresult reserve_memory(const struct gs_exec *exec, bool launching) {
  if (!gs_graph_has_memory(exec->graph)) return CUDA_SUCCESS;
  struct gs_node **order = gs_graph_order(exec->graph, NULL);
  if (!order) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = gs_graph_memory_reserve(order, exec->graph->count, launching, exec->flags & FREE_ON_LAUNCH);
  free(order);
  return result;
}

static CUresult upload(CUgraphExec exec) {
  return reserve_memory(exec, false);
}

CU_API(cuGraphInstantiateWithParams)(CUgraphExec *out, CUgraph graph, struct cu_instantiation *parameters) {
  ENTER(cuGraphInstantiateWithParams);
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  parameters->error_node = NULL;
  CUresult result = instantiate(out, graph, parameters->flags, &parameters->error_node, &parameters->result);
  if (result == CUDA_SUCCESS && (parameters->flags & UPLOAD)) result = upload(*out);
  return result;
}

CU_API(cuGraphExecGetFlags)(CUgraphExec exec, unsigned long long *flags) {
  ENTER(cuGraphExecGetFlags);
  if (!gs_exec_valid(exec) || !flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags & ~(uint64_t)UPLOAD;
  return CUDA_SUCCESS;
}

CU_API(cuGraphExecDestroy)(CUgraphExec exec) {
  ENTER(cuGraphExecDestroy);
  if (!gs_exec_valid(exec)) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  if (gs_graph_valid(exec->origin)) exec->origin->executables--;
  gs_graph_free(exec->graph);
  gs_object_free(&execs, exec);
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}

static CUresult run(struct gs_context *context, CUstream stream, const struct gs_graph *graph) {
  struct gs_node **order = gs_graph_order(graph, NULL);
  CUresult result = order ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  for (size_t i = 0; result == CUDA_SUCCESS && i < graph->count; i++) {
    if (order[i]->disabled) continue;
    const struct gs_action *action = &order[i]->action;
    result =
        action->type == CU_NODE_GRAPH ? run(context, stream, action->child) : gs_action_run(context, stream, action);
  }
  free(order);
  return result;
}

/* Captured, a launch becomes a node with a copy of the graph. */
static CUresult capture_launch(struct gs_branch *branch, const struct gs_exec *exec) {
  if (gs_graph_has_memory(exec->graph)) return gs_capture_fail(branch, CUDA_ERROR_NOT_SUPPORTED);
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_graph *child = gs_graph_copy(exec->graph);
  if (child) child->owned = true;
  pthread_mutex_unlock(&gs_driver.mutex);
  if (!child) return CUDA_ERROR_OUT_OF_MEMORY;
  const struct gs_action action = {.type = CU_NODE_GRAPH, .child = child};
  return gs_capture_add(branch, &action);
}

CU_API(cuGraphLaunch)(CUgraphExec exec, CUstream stream) {
  ENTER(cuGraphLaunch);
  NEED_CONTEXT(context);
  NEED_STREAM(stream);
  if (!gs_exec_valid(exec)) return CUDA_ERROR_INVALID_VALUE;
  CAPTURE(context, stream, branch);
  if (branch) return capture_launch(branch, exec);
  CUresult result = reserve_memory(exec, true);
  return result == CUDA_SUCCESS ? run(context, stream, exec->graph) : result;
}

CU_API(cuGraphUpload)(CUgraphExec exec, CUstream stream) {
  ENTER(cuGraphUpload);
  NEED_CONTEXT(context);
  NEED_STREAM(stream);
  if (!gs_exec_valid(exec)) return CUDA_ERROR_INVALID_VALUE;
  CAPTURE(context, stream, branch);
  if (branch) return gs_capture_fail(branch, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  return upload(exec);
}
