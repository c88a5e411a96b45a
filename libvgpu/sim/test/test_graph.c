/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_graph.c - graphs: their shape, what each type of node does when they are launched, and changes to executable ones.
 */
#include <string.h>

#include "api_graph.h"

CUgraph new_graph(void) {
  CUgraph graph;
  CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  return graph;
}

struct cu_kernel_node kernel_of(const char *name) {
  return (struct cu_kernel_node){graph_kernel(name), 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL, NULL};
}

CUgraphNode add_kernel(CUgraph graph, CUgraphNode after, const char *name) {
  const struct cu_kernel_node kernel = kernel_of(name);
  CUgraphNode node;
  CHECK_EQUAL(cuGraphAddKernelNode_v2(&node, graph, &after, after ? 1 : 0, &kernel), CUDA_SUCCESS);
  return node;
}

CUgraphExec instantiate(CUgraph graph) {
  CUgraphExec exec;
  CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  return exec;
}

unsigned long long launch_ms(CUgraphExec exec) {
  unsigned long long before = busy_ms();
  CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
  return busy_ms() - before;
}

void test_graph_shape(void) {
  CUgraphNode list[8];
  CUgraphNode targets[8];
  CUgraphNode found;
  CUgraph clone;
  size_t count = 0;
  int type;
  begin_cuda();
  CUgraph graph = new_graph();
  CUgraphNode a = add_kernel(graph, NULL, "plain");
  CUgraphNode b = add_kernel(graph, a, "plain");
  CUgraphNode c = add_kernel(graph, a, "plain");
  CHECK_EQUAL(cuGraphAddDependencies(graph, &b, &c, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphAddDependencies(graph, &b, &c, 1), CUDA_ERROR_INVALID_VALUE); /* there already */
  CHECK_EQUAL(cuGraphGetNodes(graph, NULL, &count), CUDA_SUCCESS);
  CHECK_EQUAL(count, 3);
  count = 8;
  CHECK_EQUAL(cuGraphGetNodes(graph, list, &count), CUDA_SUCCESS);
  CHECK(count == 3 && list[0] == a && list[2] == c && list[3] == NULL);
  count = 8;
  CHECK_EQUAL(cuGraphGetRootNodes(graph, list, &count), CUDA_SUCCESS);
  CHECK(count == 1 && list[0] == a);
  count = 8;
  CHECK_EQUAL(cuGraphGetEdges(graph, list, targets, &count), CUDA_SUCCESS);
  CHECK(count == 3 && list[2] == b && targets[2] == c);
  count = 1;
  CHECK_EQUAL(cuGraphNodeGetDependencies(c, list, &count), CUDA_SUCCESS);
  CHECK(count == 1 && list[0] == a);
  CHECK_EQUAL(cuGraphNodeGetDependentNodes(a, NULL, &count), CUDA_SUCCESS);
  CHECK_EQUAL(count, 2);
  CHECK_EQUAL(cuGraphClone(&clone, graph), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphNodeFindInClone(&found, b, clone), CUDA_SUCCESS);
  CHECK(found != b);
  count = 8;
  CHECK_EQUAL(cuGraphNodeGetDependencies(found, list, &count), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphNodeFindInClone(&targets[0], a, clone), CUDA_SUCCESS);
  CHECK(count == 1 && list[0] == targets[0]); /* of the clone, too */
  CHECK_EQUAL(cuGraphDestroyNode(b), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphNodeGetType(b, &type), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuGraphNodeGetDependencies(c, NULL, &count), CUDA_SUCCESS);
  CHECK_EQUAL(count, 1);
  CHECK_EQUAL(cuGraphRemoveDependencies(graph, &a, &c, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphRemoveDependencies(graph, &a, &c, 1), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuGraphNodeGetType(found, &type), CUDA_SUCCESS);
  CHECK_EQUAL(type, CU_NODE_KERNEL);
  CHECK_EQUAL(cuGraphDestroy(clone), CUDA_SUCCESS);
}

void test_graph_cycle(void) {
  CUgraphExec exec;
  CUgraphNode culprit = NULL;
  char log[64] = "";
  begin_cuda();
  CUgraph graph = new_graph();
  CUgraphNode a = add_kernel(graph, NULL, "plain");
  CUgraphNode b = add_kernel(graph, a, "plain");
  CHECK_EQUAL(cuGraphAddDependencies(graph, &b, &a, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphInstantiate(&exec, graph, &culprit, log, sizeof log), CUDA_ERROR_INVALID_VALUE);
  CHECK(culprit != NULL && log[0] != 0);
}

static void append(void *data) {
  strcat(data, "h");
}

/* All types in one graph, launched twice. */
void test_graph_nodes(void) {
  CUdeviceptr memory;
  CUgraphNode node;
  CUgraphNode fill;
  char calls[8] = "";
  unsigned char bytes[16] = {0};
  begin_cuda();
  CUevent event = new_event();
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 16), CUDA_SUCCESS);
  CUgraph child = new_graph();
  (void)add_kernel(child, NULL, "busy_10ms");
  CUgraph graph = new_graph();
  CUgraphNode first = add_kernel(graph, NULL, "busy_10ms");
  const struct cu_memset_node of_fill = {memory, 0, 7, 1, 16, 1};
  const struct cu_memcpy3d copy = {.src_type = CU_MEMORYTYPE_DEVICE,
                                   .src_device = memory,
                                   .dst_type = CU_MEMORYTYPE_HOST,
                                   .dst_host = bytes,
                                   .width_bytes = 16,
                                   .height = 1,
                                   .depth = 1};
  const struct cu_host_node host = {append, calls};
  CHECK_EQUAL(cuGraphAddMemsetNode(&fill, graph, &first, 1, &of_fill, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphAddMemcpyNode(&node, graph, &fill, 1, &copy, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphAddHostNode(&node, graph, &node, 1, &host), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphAddEmptyNode(&node, graph, &node, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphAddChildGraphNode(&node, graph, &node, 1, child), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphDestroy(child), CUDA_SUCCESS); /* the node has its own */
  CHECK_EQUAL(cuGraphAddEventRecordNode(&node, graph, &node, 1, event), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphAddEventWaitNode(&node, graph, &node, 1, event), CUDA_SUCCESS);
  CUgraphExec exec = instantiate(graph);
  CHECK_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphUpload(exec, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(launch_ms(exec), 20);
  CHECK_EQUAL(cuEventQuery(event), CUDA_SUCCESS);
  CHECK_EQUAL(bytes[15], 7);
  CHECK_EQUAL(launch_ms(exec), 20);
  CHECK_EQUAL(strlen(calls), 2);
  CHECK_EQUAL(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_ERROR_INVALID_VALUE);
}

void test_graph_bad_nodes(void) {
  CUgraphNode node;
  begin_cuda();
  CUgraph graph = new_graph();
  CUgraph other = new_graph();
  CUgraphNode foreign = add_kernel(other, NULL, "plain");
  struct cu_kernel_node kernel = kernel_of("plain");
  CHECK_EQUAL(cuGraphAddKernelNode_v2(&node, graph, &foreign, 1, &kernel), CUDA_ERROR_INVALID_VALUE);
  kernel.grid_x = 0;
  CHECK_EQUAL(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &kernel), CUDA_ERROR_INVALID_VALUE);
  kernel = kernel_of("plain");
  kernel.function = NULL;
  CHECK_EQUAL(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &kernel), CUDA_ERROR_INVALID_HANDLE);
  const struct cu_memset_node nowhere = {0x1234, 0, 0, 1, 16, 1};
  CHECK_EQUAL(cuGraphAddMemsetNode(&node, graph, NULL, 0, &nowhere, NULL),
              CUDA_SUCCESS); /* host memory, for all it knows */
  const struct cu_memset_node odd = {0x1234, 0, 0, 3, 16, 1};
  CHECK_EQUAL(cuGraphAddMemsetNode(&node, graph, NULL, 0, &odd, NULL), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuGraphAddEventRecordNode(&node, graph, NULL, 0, NULL), CUDA_ERROR_INVALID_HANDLE);
  CHECK_EQUAL(cuGraphAddKernelNode_v2(&node, (CUgraph)(uintptr_t)&node, NULL, 0, &kernel), CUDA_ERROR_INVALID_VALUE);
}

void test_graph_any_node(void) {
  CUgraphNode nodes[3];
  int type;
  begin_cuda();
  CUgraph graph = new_graph();
  struct cu_node any = {.type = CU_NODE_KERNEL, .kernel = kernel_of("busy_10ms")};
  CHECK_EQUAL(cuGraphAddNode(&nodes[0], graph, NULL, 0, &any), CUDA_SUCCESS);
  any = (struct cu_node){.type = CU_NODE_GRAPH, .graph = graph};
  CUgraph outer = new_graph();
  CHECK_EQUAL(cuGraphAddNode(&nodes[1], outer, NULL, 0, &any), CUDA_SUCCESS);
  CHECK(any.graph != graph); /* the node's own copy is answered */
  CHECK_EQUAL(cuGraphDestroy(any.graph), CUDA_ERROR_INVALID_VALUE);
  any = (struct cu_node){.type = 8}; /* semaphores */
  CHECK_EQUAL(cuGraphAddNode(&nodes[2], outer, NULL, 0, &any), CUDA_ERROR_NOT_SUPPORTED);
  CHECK_EQUAL(cuGraphNodeGetType(nodes[1], &type), CUDA_SUCCESS);
  CHECK_EQUAL(type, CU_NODE_GRAPH);
  CHECK_EQUAL(launch_ms(instantiate(outer)), 10);
}

void test_graph_changes(void) {
  CUgraphNode in_child;
  CUgraphNode node;
  CUgraph inner;
  size_t count = 1;
  unsigned enabled;
  begin_cuda();
  CUgraph child = new_graph();
  (void)add_kernel(child, NULL, "busy_1ms");
  CUgraph graph = new_graph();
  CUgraphNode kernel = add_kernel(graph, NULL, "busy_1ms");
  CHECK_EQUAL(cuGraphAddChildGraphNode(&node, graph, &kernel, 1, child), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphChildGraphNodeGetGraph(node, &inner), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphGetNodes(inner, &in_child, &count), CUDA_SUCCESS);
  CUgraphExec exec = instantiate(graph);
  CHECK_EQUAL(launch_ms(exec), 2);
  struct cu_kernel_node longer = kernel_of("busy_10ms");
  CHECK_EQUAL(cuGraphExecKernelNodeSetParams_v2(exec, kernel, &longer), CUDA_SUCCESS);
  CHECK_EQUAL(launch_ms(exec), 11);
  CHECK_EQUAL(cuGraphExecKernelNodeSetParams(exec, in_child, &longer), CUDA_SUCCESS);
  CHECK_EQUAL(launch_ms(exec), 20);
  CHECK_EQUAL(cuGraphExecKernelNodeSetParams(exec, node, &longer), CUDA_ERROR_INVALID_VALUE); /* no kernel */
  CHECK_EQUAL(cuGraphNodeSetEnabled(exec, kernel, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphNodeGetEnabled(exec, kernel, &enabled), CUDA_SUCCESS);
  CHECK_EQUAL(enabled, 0);
  CHECK_EQUAL(launch_ms(exec), 10);
  CHECK_EQUAL(cuGraphNodeSetEnabled(exec, node, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuGraphExecChildGraphNodeSetParams(exec, node, child), CUDA_SUCCESS);
  CHECK_EQUAL(launch_ms(exec), 1);
  (void)add_kernel(child, NULL, "busy_1ms");
  CHECK_EQUAL(cuGraphExecChildGraphNodeSetParams(exec, node, child), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(launch_ms(instantiate(graph)), 2); /* the graph itself is as it was */
  CHECK_EQUAL(cuGraphKernelNodeSetParams_v2(kernel, &longer), CUDA_SUCCESS);
  CHECK_EQUAL(launch_ms(instantiate(graph)), 11);
}

void test_graph_update(void) {
  struct cu_update_result result;
  begin_cuda();
  CUgraph graph = new_graph();
  (void)add_kernel(graph, add_kernel(graph, NULL, "busy_1ms"), "busy_1ms");
  CUgraphExec exec = instantiate(graph);
  CUgraph same = new_graph();
  (void)add_kernel(same, add_kernel(same, NULL, "busy_10ms"), "busy_1ms");
  CHECK_EQUAL(cuGraphExecUpdate_v2(exec, same, &result), CUDA_SUCCESS);
  CHECK_EQUAL(result.result, 0);
  CHECK_EQUAL(launch_ms(exec), 11);
  CUgraph flat = new_graph();
  (void)add_kernel(flat, NULL, "busy_1ms");
  (void)add_kernel(flat, NULL, "busy_1ms");
  CHECK_EQUAL(cuGraphExecUpdate_v2(exec, flat, &result), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK_EQUAL(result.result, 2); /* the topology changed */
  CHECK(result.error_node != NULL);
  CUgraph forks[2];
  for (int i = 0; i < 2; i++) {
    forks[i] = new_graph();
    CUgraphNode roots[] = {add_kernel(forks[i], NULL, "busy_1ms"), add_kernel(forks[i], NULL, "busy_1ms")};
    (void)add_kernel(forks[i], roots[i], "busy_1ms");
  }
  CHECK_EQUAL(cuGraphExecUpdate_v2(instantiate(forks[0]), forks[1], &result), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK_EQUAL(result.result, 2);
  CUgraph other = new_graph();
  CUgraphNode node;
  CHECK_EQUAL(cuGraphAddEmptyNode(&node, other, NULL, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphAddEmptyNode(&node, other, &node, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphExecUpdate_v2(exec, other, &result), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK_EQUAL(result.result, 3); /* a type changed */
  CHECK_EQUAL(launch_ms(exec), 11);
}

void test_graph_parameters(void) {
  struct cu_kernel_node got;
  struct cu_memset_node fill;
  union {
    unsigned char bytes[64];
    int number;
  } value = {.number = -3};
  begin_cuda();
  CUgraph graph = new_graph();
  CUgraphNode a = add_kernel(graph, NULL, "plain");
  CUgraphNode b = add_kernel(graph, NULL, "busy_1ms");
  memset(&got, 0xaa, sizeof got);
  CHECK_EQUAL(cuGraphKernelNodeGetParams(a, &got), CUDA_SUCCESS);
  CHECK(got.function == graph_kernel("plain") && got.block_x == 32);
  CHECK((uintptr_t)got.context == 0xaaaaaaaaaaaaaaaau); /* the first interface's structure is shorter */
  CHECK_EQUAL(cuGraphKernelNodeGetParams_v2(b, &got), CUDA_SUCCESS);
  CHECK(got.function == graph_kernel("busy_1ms") && got.kernel == NULL && got.context != NULL);
  CHECK_EQUAL(cuGraphMemsetNodeGetParams(a, &fill), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuGraphKernelNodeSetAttribute(a, CU_LAUNCH_PRIORITY, &value), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphKernelNodeCopyAttributes(b, a), CUDA_SUCCESS);
  value.number = 0;
  CHECK_EQUAL(cuGraphKernelNodeGetAttribute(b, CU_LAUNCH_PRIORITY, &value), CUDA_SUCCESS);
  CHECK_EQUAL(value.number, -3);
}
