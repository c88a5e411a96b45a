/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * graph_add.c - making nodes of each type.
 */
#include "graph.h"

enum { KERNEL_BYTES_V1 = offsetof(struct cu_kernel_node, kernel), KERNEL_BYTES_V2 = sizeof(struct cu_kernel_node) };

static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                    struct gs_action *action) {
  if (!out || !gs_graph_valid(graph) || !gs_graph_has_nodes(graph, dependencies, count))
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gs_action_check(action);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&gs_driver.mutex);
  result = gs_action_own(action);
  struct gs_node *node = result == CUDA_SUCCESS ? gs_graph_add(graph, dependencies, count, action) : NULL;
  if (result == CUDA_SUCCESS && !node) result = CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_unlock(&gs_driver.mutex);
  if (node) *out = node;
  return result;
}

CU_API(cuGraphAddKernelNode)
(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
 const struct cu_kernel_node *parameters) {
  ENTER(cuGraphAddKernelNode);
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  struct gs_action action = gs_kernel_action(parameters, KERNEL_BYTES_V1);
  return add(out, graph, dependencies, count, &action);
}

CU_API(cuGraphAddKernelNode_v2)
(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
 const struct cu_kernel_node *parameters) {
  ENTER(cuGraphAddKernelNode_v2);
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  struct gs_action action = gs_kernel_action(parameters, KERNEL_BYTES_V2);
  return add(out, graph, dependencies, count, &action);
}

CU_API(cuGraphAddMemcpyNode)
(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count, const struct cu_memcpy3d *copy,
 CUcontext context) {
  ENTER(cuGraphAddMemcpyNode);
  (void)context;
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  struct gs_action action = {.type = CU_NODE_MEMCPY, .copy = *copy};
  return add(out, graph, dependencies, count, &action);
}

CU_API(cuGraphAddMemsetNode)
(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count, const struct cu_memset_node *fill,
 CUcontext context) {
  ENTER(cuGraphAddMemsetNode);
  (void)context;
  if (!fill) return CUDA_ERROR_INVALID_VALUE;
  struct gs_action action = {.type = CU_NODE_MEMSET, .fill = *fill};
  return add(out, graph, dependencies, count, &action);
}

CU_API(cuGraphAddHostNode)
(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count, const struct cu_host_node *host) {
  ENTER(cuGraphAddHostNode);
  if (!host) return CUDA_ERROR_INVALID_VALUE;
  struct gs_action action = {.type = CU_NODE_HOST, .host = *host};
  return add(out, graph, dependencies, count, &action);
}

CU_API(cuGraphAddChildGraphNode)
(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraph child) {
  ENTER(cuGraphAddChildGraphNode);
  struct gs_action action = {.type = CU_NODE_GRAPH, .child = child};
  return add(out, graph, dependencies, count, &action);
}

CU_API(cuGraphAddEmptyNode)(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count) {
  ENTER(cuGraphAddEmptyNode);
  struct gs_action action = {.type = CU_NODE_EMPTY};
  return add(out, graph, dependencies, count, &action);
}

CU_API(cuGraphAddEventRecordNode)
(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUevent event) {
  ENTER(cuGraphAddEventRecordNode);
  struct gs_action action = {.type = CU_NODE_EVENT_RECORD, .event = event};
  return add(out, graph, dependencies, count, &action);
}

CU_API(cuGraphAddEventWaitNode)
(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUevent event) {
  ENTER(cuGraphAddEventWaitNode);
  struct gs_action action = {.type = CU_NODE_WAIT_EVENT, .event = event};
  return add(out, graph, dependencies, count, &action);
}

static CUresult add_alloc(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                          struct cu_mem_alloc_node *alloc) {
  if (alloc->bytes == 0 || alloc->pool.allocation_type != 1 || alloc->pool.handle_types != 0)
    return CUDA_ERROR_INVALID_VALUE;
  struct gs_device *device = alloc->pool.location.type == 1 ? gs_device_of(alloc->pool.location.id) : NULL;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_graph_memory *memory = gs_graph_memory_new(device, alloc->bytes);
  pthread_mutex_unlock(&gs_driver.mutex);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  struct gs_action action = {.type = CU_NODE_MEM_ALLOC, .memory = memory};
  CUresult result = add(out, graph, dependencies, count, &action);
  if (result == CUDA_SUCCESS) {
    alloc->address = gs_graph_memory_address(memory);
  } else {
    pthread_mutex_lock(&gs_driver.mutex);
    gs_graph_memory_drop(memory);
    pthread_mutex_unlock(&gs_driver.mutex);
  }
  return result;
}

CU_API(cuGraphAddMemAllocNode)
(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count, struct cu_mem_alloc_node *alloc) {
  ENTER(cuGraphAddMemAllocNode);
  if (!alloc) return CUDA_ERROR_INVALID_VALUE;
  return add_alloc(out, graph, dependencies, count, alloc);
}

bool gs_graph_frees(const struct gs_graph *graph, const struct gs_graph_memory *memory) {
  for (size_t i = 0; i < graph->count; i++) {
    const struct gs_action *action = &graph->nodes[i]->action;
    if (action->type == CU_NODE_MEM_FREE && action->memory == memory) return true;
  }
  return false;
}

static CUresult add_free(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                         CUdeviceptr address) {
  if (!gs_graph_valid(graph)) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_graph_memory *memory = gs_graph_memory_find(address);
  if (memory && gs_graph_frees(graph, memory)) memory = NULL;
  if (memory) gs_graph_memory_hold(memory);
  pthread_mutex_unlock(&gs_driver.mutex);
  struct gs_action action = {.type = CU_NODE_MEM_FREE, .memory = memory};
  CUresult result = add(out, graph, dependencies, count, &action);
  if (result != CUDA_SUCCESS && memory) {
    pthread_mutex_lock(&gs_driver.mutex);
    gs_graph_memory_drop(memory);
    pthread_mutex_unlock(&gs_driver.mutex);
  }
  return result;
}

CU_API(cuGraphAddMemFreeNode)
(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUdeviceptr address) {
  ENTER(cuGraphAddMemFreeNode);
  return add_free(out, graph, dependencies, count, address);
}

CU_API(cuGraphAddNode)
(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count, struct cu_node *node) {
  struct gs_action action;
  ENTER(cuGraphAddNode);
  if (!node) return CUDA_ERROR_INVALID_VALUE;
  if (node->type == CU_NODE_MEM_ALLOC) return add_alloc(out, graph, dependencies, count, &node->alloc);
  if (node->type == CU_NODE_MEM_FREE) return add_free(out, graph, dependencies, count, node->free);
  CUresult result = gs_action_of(node, &action);
  if (result != CUDA_SUCCESS) return result;
  result = add(out, graph, dependencies, count, &action);
  if (result == CUDA_SUCCESS && node->type == CU_NODE_GRAPH) node->graph = (*out)->action.child;
  return result;
}
