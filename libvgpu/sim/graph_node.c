/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * graph_node.c - making nodes of each type, and asking for and exchanging what they do. The arrays that a kernel's
 * parameters point to are not copied, since nothing reads them; what was given is given back.
 */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

/* Makes the action's own copy of a child graph. */
static CUresult own_child(struct gs_action *action) {
  if (action->type != CU_NODE_GRAPH) return CUDA_SUCCESS;
  action->child = gs_graph_copy(action->child);
  if (!action->child) return CUDA_ERROR_OUT_OF_MEMORY;
  action->child->owned = true;
  return CUDA_SUCCESS;
}

static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                    struct gs_action *action) {
  if (!out || !gs_graph_valid(graph) || !gs_graph_has_nodes(graph, dependencies, count))
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gs_action_check(action);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&gs_driver.mutex);
  result = own_child(action);
  struct gs_node *node = result == CUDA_SUCCESS ? gs_graph_add(graph, dependencies, count, action) : NULL;
  if (result == CUDA_SUCCESS && !node) result = CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_unlock(&gs_driver.mutex);
  if (node) *out = node;
  return result;
}

CUresult gs_node_exchange(struct gs_node *node, const struct gs_action *action) {
  struct gs_action exchanged = *action;
  CUresult result = own_child(&exchanged);
  if (result != CUDA_SUCCESS) return result;
  if (node->action.type == CU_NODE_GRAPH) gs_graph_free(node->action.child);
  node->action = exchanged;
  return CUDA_SUCCESS;
}

static CUresult set(CUgraphNode node, const struct gs_action *action) {
  if (!gs_node_valid(node) || node->action.type != action->type) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gs_action_check(action);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&gs_driver.mutex);
  result = gs_node_exchange(node, action);
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

static bool is_of_type(CUgraphNode node, int type) {
  return gs_node_valid(node) && node->action.type == type;
}

/* The first interface's structure in the form of the second. */
static struct gs_action kernel_action(const struct cu_kernel_node *parameters, size_t bytes) {
  struct gs_action action = {.type = CU_NODE_KERNEL};
  memcpy(&action.kernel, parameters, bytes);
  if (!action.kernel.context) action.kernel.context = gs_thread.current;
  return action;
}

enum { KERNEL_BYTES_V1 = offsetof(struct cu_kernel_node, kernel), KERNEL_BYTES_V2 = sizeof(struct cu_kernel_node) };

CU_API(cuGraphAddKernelNode)
(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
 const struct cu_kernel_node *parameters) {
  ENTER(cuGraphAddKernelNode);
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  struct gs_action action = kernel_action(parameters, KERNEL_BYTES_V1);
  return add(out, graph, dependencies, count, &action);
}

CU_API(cuGraphAddKernelNode_v2)
(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
 const struct cu_kernel_node *parameters) {
  ENTER(cuGraphAddKernelNode_v2);
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  struct gs_action action = kernel_action(parameters, KERNEL_BYTES_V2);
  return add(out, graph, dependencies, count, &action);
}

CU_API(cuGraphKernelNodeGetParams)(CUgraphNode node, struct cu_kernel_node *out) {
  ENTER(cuGraphKernelNodeGetParams);
  if (!is_of_type(node, CU_NODE_KERNEL) || !out) return CUDA_ERROR_INVALID_VALUE;
  memcpy(out, &node->action.kernel, KERNEL_BYTES_V1);
  if (!out->function) out->function = node->action.kernel.kernel;
  return CUDA_SUCCESS;
}

CU_API(cuGraphKernelNodeGetParams_v2)(CUgraphNode node, struct cu_kernel_node *out) {
  ENTER(cuGraphKernelNodeGetParams_v2);
  if (!is_of_type(node, CU_NODE_KERNEL) || !out) return CUDA_ERROR_INVALID_VALUE;
  *out = node->action.kernel;
  return CUDA_SUCCESS;
}

CU_API(cuGraphKernelNodeSetParams)(CUgraphNode node, const struct cu_kernel_node *parameters) {
  ENTER(cuGraphKernelNodeSetParams);
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  struct gs_action action = kernel_action(parameters, KERNEL_BYTES_V1);
  return set(node, &action);
}

CU_API(cuGraphKernelNodeSetParams_v2)(CUgraphNode node, const struct cu_kernel_node *parameters) {
  ENTER(cuGraphKernelNodeSetParams_v2);
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  struct gs_action action = kernel_action(parameters, KERNEL_BYTES_V2);
  return set(node, &action);
}

CU_API(cuGraphKernelNodeGetAttribute)(CUgraphNode node, int id, void *out) {
  ENTER(cuGraphKernelNodeGetAttribute);
  if (!is_of_type(node, CU_NODE_KERNEL) || !out || id <= 0 || id >= CU_LAUNCH_ATTRIBUTES)
    return CUDA_ERROR_INVALID_VALUE;
  const struct cu_launch_attribute unset = {.id = id};
  const struct cu_launch_attribute *attribute = node->attributes ? &node->attributes[id] : &unset;
  memcpy(out, &attribute->value, sizeof attribute->value);
  return CUDA_SUCCESS;
}

/* The node's attributes, to be written to; NULL: no room. The caller holds gs_driver.mutex. */
static struct cu_launch_attribute *attributes_of(struct gs_node *node) {
  if (!node->attributes) node->attributes = calloc(CU_LAUNCH_ATTRIBUTES, sizeof *node->attributes);
  return node->attributes;
}

CU_API(cuGraphKernelNodeSetAttribute)(CUgraphNode node, int id, const void *value) {
  ENTER(cuGraphKernelNodeSetAttribute);
  if (!is_of_type(node, CU_NODE_KERNEL) || !value || id <= 0 || id >= CU_LAUNCH_ATTRIBUTES)
    return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  struct cu_launch_attribute *attributes = attributes_of(node);
  if (attributes) memcpy(&attributes[id].value, value, sizeof attributes[id].value);
  pthread_mutex_unlock(&gs_driver.mutex);
  return attributes ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API(cuGraphKernelNodeCopyAttributes)(CUgraphNode to, CUgraphNode from) {
  ENTER(cuGraphKernelNodeCopyAttributes);
  if (!is_of_type(to, CU_NODE_KERNEL) || !is_of_type(from, CU_NODE_KERNEL)) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  const struct cu_launch_attribute *source = attributes_of(from);
  struct cu_launch_attribute *target = attributes_of(to);
  if (source && target && source != target) memcpy(target, source, CU_LAUNCH_ATTRIBUTES * sizeof *target);
  pthread_mutex_unlock(&gs_driver.mutex);
  return source && target ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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

CU_API(cuGraphMemcpyNodeGetParams)(CUgraphNode node, struct cu_memcpy3d *out) {
  ENTER(cuGraphMemcpyNodeGetParams);
  if (!is_of_type(node, CU_NODE_MEMCPY) || !out) return CUDA_ERROR_INVALID_VALUE;
  *out = node->action.copy;
  return CUDA_SUCCESS;
}

CU_API(cuGraphMemcpyNodeSetParams)(CUgraphNode node, const struct cu_memcpy3d *copy) {
  ENTER(cuGraphMemcpyNodeSetParams);
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  const struct gs_action action = {.type = CU_NODE_MEMCPY, .copy = *copy};
  return set(node, &action);
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

CU_API(cuGraphMemsetNodeGetParams)(CUgraphNode node, struct cu_memset_node *out) {
  ENTER(cuGraphMemsetNodeGetParams);
  if (!is_of_type(node, CU_NODE_MEMSET) || !out) return CUDA_ERROR_INVALID_VALUE;
  *out = node->action.fill;
  return CUDA_SUCCESS;
}

CU_API(cuGraphMemsetNodeSetParams)(CUgraphNode node, const struct cu_memset_node *fill) {
  ENTER(cuGraphMemsetNodeSetParams);
  if (!fill) return CUDA_ERROR_INVALID_VALUE;
  const struct gs_action action = {.type = CU_NODE_MEMSET, .fill = *fill};
  return set(node, &action);
}

CU_API(cuGraphAddHostNode)
(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count, const struct cu_host_node *host) {
  ENTER(cuGraphAddHostNode);
  if (!host) return CUDA_ERROR_INVALID_VALUE;
  struct gs_action action = {.type = CU_NODE_HOST, .host = *host};
  return add(out, graph, dependencies, count, &action);
}

CU_API(cuGraphHostNodeGetParams)(CUgraphNode node, struct cu_host_node *out) {
  ENTER(cuGraphHostNodeGetParams);
  if (!is_of_type(node, CU_NODE_HOST) || !out) return CUDA_ERROR_INVALID_VALUE;
  *out = node->action.host;
  return CUDA_SUCCESS;
}

CU_API(cuGraphHostNodeSetParams)(CUgraphNode node, const struct cu_host_node *host) {
  ENTER(cuGraphHostNodeSetParams);
  if (!host) return CUDA_ERROR_INVALID_VALUE;
  const struct gs_action action = {.type = CU_NODE_HOST, .host = *host};
  return set(node, &action);
}

CU_API(cuGraphAddChildGraphNode)
(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraph child) {
  ENTER(cuGraphAddChildGraphNode);
  struct gs_action action = {.type = CU_NODE_GRAPH, .child = child};
  return add(out, graph, dependencies, count, &action);
}

CU_API(cuGraphChildGraphNodeGetGraph)(CUgraphNode node, CUgraph *out) {
  ENTER(cuGraphChildGraphNodeGetGraph);
  if (!is_of_type(node, CU_NODE_GRAPH) || !out) return CUDA_ERROR_INVALID_VALUE;
  *out = node->action.child;
  return CUDA_SUCCESS;
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

CU_API(cuGraphEventRecordNodeGetEvent)(CUgraphNode node, CUevent *out) {
  ENTER(cuGraphEventRecordNodeGetEvent);
  if (!is_of_type(node, CU_NODE_EVENT_RECORD) || !out) return CUDA_ERROR_INVALID_VALUE;
  *out = node->action.event;
  return CUDA_SUCCESS;
}

CU_API(cuGraphEventWaitNodeGetEvent)(CUgraphNode node, CUevent *out) {
  ENTER(cuGraphEventWaitNodeGetEvent);
  if (!is_of_type(node, CU_NODE_WAIT_EVENT) || !out) return CUDA_ERROR_INVALID_VALUE;
  *out = node->action.event;
  return CUDA_SUCCESS;
}

CU_API(cuGraphEventRecordNodeSetEvent)(CUgraphNode node, CUevent event) {
  ENTER(cuGraphEventRecordNodeSetEvent);
  const struct gs_action action = {.type = CU_NODE_EVENT_RECORD, .event = event};
  return set(node, &action);
}

CU_API(cuGraphEventWaitNodeSetEvent)(CUgraphNode node, CUevent event) {
  ENTER(cuGraphEventWaitNodeSetEvent);
  const struct gs_action action = {.type = CU_NODE_WAIT_EVENT, .event = event};
  return set(node, &action);
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

CU_API(cuGraphMemAllocNodeGetParams)(CUgraphNode node, struct cu_mem_alloc_node *out) {
  ENTER(cuGraphMemAllocNodeGetParams);
  if (!is_of_type(node, CU_NODE_MEM_ALLOC) || !out) return CUDA_ERROR_INVALID_VALUE;
  const struct gs_graph_memory *memory = node->action.memory;
  *out = (struct cu_mem_alloc_node){
      .pool = {.allocation_type = 1, .location = {.type = 1, .id = gs_graph_memory_device(memory)->ordinal}},
      .bytes = gs_graph_memory_bytes(memory),
      .address = gs_graph_memory_address(memory)};
  return CUDA_SUCCESS;
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

CU_API(cuGraphMemFreeNodeGetParams)(CUgraphNode node, CUdeviceptr *out) {
  ENTER(cuGraphMemFreeNodeGetParams);
  if (!is_of_type(node, CU_NODE_MEM_FREE) || !out) return CUDA_ERROR_INVALID_VALUE;
  *out = gs_graph_memory_address(node->action.memory);
  return CUDA_SUCCESS;
}

CUresult gs_action_of(const struct cu_node *node, struct gs_action *action) {
  if (!node) return CUDA_ERROR_INVALID_VALUE;
  *action = (struct gs_action){.type = node->type};
  switch (node->type) {
  case CU_NODE_KERNEL:
    *action = kernel_action(&node->kernel, KERNEL_BYTES_V2);
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

CU_API(cuGraphNodeSetParams)(CUgraphNode node, const struct cu_node *parameters) {
  struct gs_action action;
  ENTER(cuGraphNodeSetParams);
  CUresult result = gs_action_of(parameters, &action);
  return result == CUDA_SUCCESS ? set(node, &action) : result;
}
