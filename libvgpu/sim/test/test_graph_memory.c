/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_graph_memory.c - what graphs hold: memory that their nodes allocate, and objects of the program.
 */
#include "api_graph.h"

static uint64_t graph_memory(int attribute) {
  uint64_t value;
  CHECK_EQUAL(cuDeviceGetGraphMemAttribute(0, attribute, &value), CUDA_SUCCESS);
  return value;
}

enum { USED = 0, RESERVED = 2, MIB = 1 << 20 };

static struct cu_mem_alloc_node allocation(size_t bytes) {
  return (struct cu_mem_alloc_node){.pool = {.allocation_type = 1, .location = {1, 0}}, .bytes = bytes};
}

void test_graph_memory(void) {
  CUgraphNode alloc;
  CUgraphNode node;
  CUgraphExec second;
  CUgraph clone;
  begin_cuda();
  CUgraph graph = new_graph();
  struct cu_mem_alloc_node memory = allocation(100 * (size_t)MIB);
  CHECK_EQUAL(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &memory), CUDA_SUCCESS);
  CHECK(memory.address != 0);
  const struct cu_memset_node fill = {memory.address, 0, 1, 1, 4096, 1};
  CHECK_EQUAL(cuGraphAddMemsetNode(&node, graph, &alloc, 1, &fill, NULL), CUDA_SUCCESS);
  CUgraphExec exec = instantiate(graph);
  CHECK_EQUAL(status_number("used_bytes"), 0); /* an address is no memory yet */
  CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(status_number("used_bytes"), 100ull * MIB);
  CHECK_EQUAL(graph_memory(USED), 100ull * MIB);
  CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_ERROR_INVALID_VALUE); /* not freed in between */
  CHECK_EQUAL(cuMemFree_v2(memory.address), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFree_v2(memory.address), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(graph_memory(USED), 0);
  CHECK_EQUAL(status_number("used_bytes"), 100ull * MIB); /* kept for the next launch */
  CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphClone(&clone, graph), CUDA_ERROR_NOT_SUPPORTED);
  CHECK_EQUAL(cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_ERROR_NOT_SUPPORTED); /* one at a time */
  CHECK_EQUAL(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
  CHECK_EQUAL(graph_memory(USED), 100ull * MIB); /* outlives its graphs */
  CHECK_EQUAL(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  CHECK_EQUAL(status_number("used_bytes"), 100ull * MIB);
  CHECK_EQUAL(cuMemFreeAsync(memory.address, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFreeAsync(memory.address, NULL), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(graph_memory(RESERVED), 100ull * MIB);
  CHECK_EQUAL(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  CHECK_EQUAL(status_number("used_bytes"), 0);
}

/* A graph that frees what it allocates can be launched again; one the card has no room for does nothing. */
void test_graph_memory_within(void) {
  CUgraphNode alloc;
  CUgraphNode node;
  CUdeviceptr other;
  begin_cuda();
  CUgraph graph = new_graph();
  struct cu_mem_alloc_node memory = allocation(40 * (size_t)MIB);
  CHECK_EQUAL(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &memory), CUDA_SUCCESS);
  node = add_kernel(graph, alloc, "busy_1ms");
  CHECK_EQUAL(cuGraphAddMemFreeNode(&node, graph, &node, 1, memory.address), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphAddMemFreeNode(&node, graph, &node, 1, memory.address), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuMemAlloc_v2(&other, 4096), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphAddMemFreeNode(&node, graph, &node, 1, other), CUDA_ERROR_INVALID_VALUE); /* not a graph's */
  CHECK_EQUAL(cuMemFree_v2(other), CUDA_SUCCESS);
  CUgraphExec exec = instantiate(graph);
  CHECK_EQUAL(cuMemAlloc_v2(&other, 40 * (size_t)MIB), CUDA_SUCCESS); /* of 64 */
  CHECK_EQUAL(cuGraphUpload(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(busy_ms(), 0);
  CHECK_EQUAL(cuMemFree_v2(other), CUDA_SUCCESS);
  CHECK_EQUAL(launch_ms(exec), 1);
  CHECK_EQUAL(launch_ms(exec), 1);
  CHECK_EQUAL(graph_memory(USED), 0);
  CHECK_EQUAL(status_number("used_bytes"), 40ull * MIB);
  CHECK_EQUAL(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
  CHECK_EQUAL(status_number("used_bytes"), 0);
}

static void count_up(void *data) {
  ++*(int *)data;
}

void test_user_objects(void) {
  CUuserObject object;
  CUgraph clone;
  int destroyed = 0;
  begin_cuda();
  CUgraph graph = new_graph();
  CHECK_EQUAL(cuUserObjectCreate(&object, &destroyed, count_up, 1, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphRetainUserObject(graph, object, 1, 1), CUDA_SUCCESS); /* the caller's reference moves */
  CHECK_EQUAL(cuGraphClone(&clone, graph), CUDA_SUCCESS);
  CUgraphExec exec = instantiate(graph);
  CHECK_EQUAL(cuGraphReleaseUserObject(graph, object, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphReleaseUserObject(graph, object, 1), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphDestroy(clone), CUDA_SUCCESS);
  CHECK_EQUAL(destroyed, 0);
  CHECK_EQUAL(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  CHECK_EQUAL(destroyed, 1);
  CHECK_EQUAL(cuUserObjectRelease(object, 1), CUDA_ERROR_INVALID_VALUE);
}
