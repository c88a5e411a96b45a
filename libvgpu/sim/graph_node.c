/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * graph_node.c - asking for and exchanging what nodes do. The arrays that a kernel's parameters point to are not copied,
 * since nothing reads them; what was given is given back.
 */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

/* Exchanges what the node does for something else of the same type. */
static CUresult set(CUgraphNode node, const struct gs_action *action) {
  if (!gs_node_valid(node) || node->action.type != action->type) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gs_action_check(action);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_action exchanged = *action;
  result = gs_action_own(&exchanged);
  if (result == CUDA_SUCCESS && action->type == CU_NODE_GRAPH) gs_graph_free(node->action.child);
  if (result == CUDA_SUCCESS) node->action = exchanged;
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

static bool is_of_type(CUgraphNode node, int type) {
  return gs_node_valid(node) && node->action.type == type;
}

enum { KERNEL_BYTES_V1 = offsetof(struct cu_kernel_node, kernel), KERNEL_BYTES_V2 = sizeof(struct cu_kernel_node) };

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
  struct gs_action action = gs_kernel_action(parameters, KERNEL_BYTES_V1);
  return set(node, &action);
}

CU_API(cuGraphKernelNodeSetParams_v2)(CUgraphNode node, const struct cu_kernel_node *parameters) {
  ENTER(cuGraphKernelNodeSetParams_v2);
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  struct gs_action action = gs_kernel_action(parameters, KERNEL_BYTES_V2);
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

CU_API(cuGraphChildGraphNodeGetGraph)(CUgraphNode node, CUgraph *out) {
  ENTER(cuGraphChildGraphNodeGetGraph);
  if (!is_of_type(node, CU_NODE_GRAPH) || !out) return CUDA_ERROR_INVALID_VALUE;
  *out = node->action.child;
  return CUDA_SUCCESS;
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

CU_API(cuGraphMemFreeNodeGetParams)(CUgraphNode node, CUdeviceptr *out) {
  ENTER(cuGraphMemFreeNodeGetParams);
  if (!is_of_type(node, CU_NODE_MEM_FREE) || !out) return CUDA_ERROR_INVALID_VALUE;
  *out = gs_graph_memory_address(node->action.memory);
  return CUDA_SUCCESS;
}

CU_API(cuGraphNodeSetParams)(CUgraphNode node, const struct cu_node *parameters) {
  struct gs_action action;
  ENTER(cuGraphNodeSetParams);
  CUresult result = gs_action_of(parameters, &action);
  return result == CUDA_SUCCESS ? set(node, &action) : result;
}
