/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * graph_action.c - what one node of a graph does, checked and carried out with the code behind the plain calls.
 */
#include <string.h>

#include "copy.h"
#include "graph.h"
#include "module.h"

CUresult gs_action_check(const struct gs_action *action) {
  switch (action->type) {
  case CU_NODE_KERNEL:
    return gs_launch_check(&action->kernel);
  case CU_NODE_MEMCPY:
    return gs_copy_check(&action->copy);
  case CU_NODE_MEMSET:
    return gs_fill_check(&action->fill);
  case CU_NODE_HOST:
    return action->host.function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  case CU_NODE_GRAPH:
    if (!gs_graph_valid(action->child)) return CUDA_ERROR_INVALID_VALUE;
    return gs_graph_has_memory(action->child) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
  case CU_NODE_WAIT_EVENT:
  case CU_NODE_EVENT_RECORD:
    return gs_event_valid(action->event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  case CU_NODE_MEM_ALLOC:
  case CU_NODE_MEM_FREE:
    return action->memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  default:
    return action->type == CU_NODE_EMPTY ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult gs_action_run(struct gs_context *context, CUstream stream, const struct gs_action *action) {
  switch (action->type) {
  case CU_NODE_KERNEL:
    return gs_launch_run(context, stream, &action->kernel);
  case CU_NODE_MEMCPY:
    return gs_copy_run(context, stream, &action->copy, NULL);
  case CU_NODE_MEMSET:
    return gs_fill_run(context, stream, &action->fill);
  case CU_NODE_HOST:
    gs_stream_finish(context, stream);
    action->host.function(action->host.data);
    return CUDA_SUCCESS;
  case CU_NODE_WAIT_EVENT:
    if (!gs_event_valid(action->event)) return CUDA_ERROR_INVALID_HANDLE;
    gs_event_wait_now(action->event, context, stream);
    return CUDA_SUCCESS;
  case CU_NODE_EVENT_RECORD:
    if (!gs_event_valid(action->event)) return CUDA_ERROR_INVALID_HANDLE;
    gs_event_record_now(action->event, context, stream);
    return CUDA_SUCCESS;
  case CU_NODE_MEM_ALLOC:
    return gs_graph_memory_allocate(action->memory);
  case CU_NODE_MEM_FREE:
    return gs_graph_memory_release(action->memory);
  default:
    return CUDA_SUCCESS;
  }
}

CUresult gs_action_own(struct gs_action *action) {
  if (action->type != CU_NODE_GRAPH) return CUDA_SUCCESS;
  action->child = gs_graph_copy(action->child);
  if (!action->child) return CUDA_ERROR_OUT_OF_MEMORY;
  action->child->owned = true;
  return CUDA_SUCCESS;
}

struct gs_action gs_kernel_action(const struct cu_kernel_node *parameters, size_t bytes) {
  struct gs_action action = {.type = CU_NODE_KERNEL};
  memcpy(&action.kernel, parameters, bytes);
  if (!action.kernel.context) action.kernel.context = gs_thread.current;
  return action;
}

CUresult gs_action_of(const struct cu_node *node, struct gs_action *action) {
  if (!node) return CUDA_ERROR_INVALID_VALUE;
  *action = (struct gs_action){.type = node->type};
  switch (node->type) {
  case CU_NODE_KERNEL:
    *action = gs_kernel_action(&node->kernel, sizeof node->kernel);
    return CUDA_SUCCESS;
  case CU_NODE_MEMCPY:
    action->copy = node->memcpy.copy;
    return CUDA_SUCCESS;
  case CU_NODE_MEMSET:
    action->fill = node->memset;
    return CUDA_SUCCESS;
  case CU_NODE_HOST:
    action->host = node->host;
    return CUDA_SUCCESS;
  case CU_NODE_GRAPH:
    action->child = node->graph;
    return CUDA_SUCCESS;
  case CU_NODE_WAIT_EVENT:
  case CU_NODE_EVENT_RECORD:
    action->event = node->event;
    return CUDA_SUCCESS;
  default:
    return node->type == CU_NODE_EMPTY ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  }
}
