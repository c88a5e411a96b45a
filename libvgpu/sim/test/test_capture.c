/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_capture.c - stream capture: beginning and ending, what becomes nodes, forks and joins.
 */
#include <pthread.h>
#include <string.h>

#include "api_graph.h"

/* The module is loaded before anything captures, since that is forbidden then. */
CUcontext begin_capture_case(void) {
  CUcontext context = begin_cuda();
  (void)graph_kernel("plain");
  return context;
}

CUstream begin_capture(unsigned flags, int mode) {
  CUstream stream = new_stream(flags);
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, mode), CUDA_SUCCESS);
  return stream;
}

int capture_status(CUstream stream) {
  int status;
  CHECK_EQUAL(cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
  return status;
}

CUgraph end_capture(CUstream stream) {
  CUgraph graph;
  CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  CHECK(graph != NULL);
  return graph;
}

/* Ends a capture that must have been invalidated. */
void end_invalid_capture(CUstream stream) {
  CUgraph graph = (CUgraph)(uintptr_t)1;
  CHECK_EQUAL(capture_status(stream), INVALIDATED);
  CHECK_EQUAL(launch_in(stream, "plain"), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(graph == NULL);
  CHECK_EQUAL(capture_status(stream), NOT_CAPTURING);
  CHECK_EQUAL(launch_in(stream, "plain"), CUDA_SUCCESS);
}

size_t node_count(CUgraph graph) {
  size_t count = 0;
  CHECK_EQUAL(cuGraphGetNodes(graph, NULL, &count), CUDA_SUCCESS);
  return count;
}

static void append(void *data) {
  strcat(data, "h");
}

void test_capture_records(void) {
  static const int types[] = {CU_NODE_KERNEL, CU_NODE_MEMSET, CU_NODE_MEMCPY, CU_NODE_HOST, CU_NODE_GRAPH};
  enum { COUNT = sizeof types / sizeof *types };
  CUgraphNode nodes[COUNT];
  CUdeviceptr memory;
  CUgraphExec inner;
  size_t count = COUNT;
  int type;
  char calls[8] = "";
  unsigned char bytes[16] = {0};
  begin_capture_case();
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 16), CUDA_SUCCESS);
  CUstream stream = begin_capture(0, GLOBAL);
  CHECK_EQUAL(launch_in(stream, "busy_1ms"), CUDA_SUCCESS);
  CUgraph graph = end_capture(stream);
  CHECK_EQUAL(cuGraphInstantiateWithFlags(&inner, graph, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, GLOBAL), CUDA_SUCCESS);
  CHECK_EQUAL(launch_in(stream, "busy_10ms"), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemsetD8Async(memory, 9, 16, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemcpyDtoHAsync_v2(bytes, memory, 16, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuLaunchHostFunc(stream, append, calls), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphLaunch(inner, stream), CUDA_SUCCESS);
  graph = end_capture(stream);
  CHECK_EQUAL(busy_ms(), 0); /* nothing has run */
  CHECK(calls[0] == 0 && bytes[0] == 0);
  CHECK_EQUAL(cuGraphGetNodes(graph, nodes, &count), CUDA_SUCCESS);
  CHECK_EQUAL(count, COUNT);
  for (size_t i = 0; i < COUNT; i++) {
    CHECK_EQUAL(cuGraphNodeGetType(nodes[i], &type), CUDA_SUCCESS);
    CHECK_EQUAL(type, types[i]);
  }
  CHECK_EQUAL(launch_ms(instantiate(graph)), 11);
  CHECK_EQUAL(bytes[15], 9);
  CHECK_EQUAL(strlen(calls), 1);
}

void test_capture_begin_and_end(void) {
  CUgraph graph;
  int status;
  uint64_t id;
  uint64_t later;
  begin_capture_case();
  CUstream stream = new_stream(0);
  CHECK_EQUAL(cuStreamBeginCapture_v2(NULL, GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, 3), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
  CHECK_EQUAL(cuStreamEndCapture(NULL, &graph), CUDA_ERROR_ILLEGAL_STATE);
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, GLOBAL), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
  CHECK_EQUAL(cuStreamGetCaptureInfo(stream, &status, &id), CUDA_SUCCESS);
  CHECK(status == CAPTURING && id != 0);
  CHECK_EQUAL(node_count(end_capture(stream)), 0);
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, GLOBAL), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamGetCaptureInfo(stream, &status, &later), CUDA_SUCCESS);
  CHECK(later != id);
  CHECK_EQUAL(node_count(end_capture(stream)), 0);
  CHECK_EQUAL(status_number("cuStreamGetCaptureInfo"), 2);
}

void test_capture_fork_and_join(void) {
  CUgraphNode nodes[3];
  CUgraphNode list[3];
  CUgraph graph;
  size_t count = 3;
  begin_capture_case();
  CUevent forked = new_event();
  CUevent joined = new_event();
  CUstream other = new_stream(0);
  CUstream stream = begin_capture(0, GLOBAL);
  CHECK_EQUAL(launch_in(stream, "busy_1ms"), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventRecord(forked, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(other, forked, 0), CUDA_SUCCESS);
  CHECK_EQUAL(capture_status(other), CAPTURING);
  CHECK_EQUAL(launch_in(other, "busy_10ms"), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamBeginCapture_v2(other, GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
  CHECK_EQUAL(cuStreamEndCapture(other, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  CHECK_EQUAL(cuEventRecord(joined, other), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(stream, joined, 0), CUDA_SUCCESS);
  CHECK_EQUAL(launch_in(stream, "busy_1ms"), CUDA_SUCCESS);
  graph = end_capture(stream);
  CHECK_EQUAL(capture_status(other), NOT_CAPTURING);
  CHECK_EQUAL(cuGraphGetNodes(graph, nodes, &count), CUDA_SUCCESS);
  CHECK_EQUAL(count, 3);
  CHECK_EQUAL(cuGraphNodeGetDependencies(nodes[1], list, &count), CUDA_SUCCESS);
  CHECK(count == 1 && list[0] == nodes[0]);
  count = 3;
  CHECK_EQUAL(cuGraphNodeGetDependencies(nodes[2], list, &count), CUDA_SUCCESS);
  CHECK(count == 2 && list[0] == nodes[0] && list[1] == nodes[1]);
  CHECK_EQUAL(launch_ms(instantiate(graph)), 12);
  CHECK_EQUAL(cuEventQuery(joined), CUDA_ERROR_CAPTURED_EVENT); /* still */
  CHECK_EQUAL(cuStreamWaitEvent(stream, joined, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  CHECK_EQUAL(cuEventRecord(joined, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventSynchronize(joined), CUDA_SUCCESS);
}

void test_capture_unjoined(void) {
  CUgraph graph;
  begin_capture_case();
  CUevent event = new_event();
  CUstream other = new_stream(0);
  CUstream stream = begin_capture(0, GLOBAL);
  CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
  CHECK_EQUAL(launch_in(stream, "plain"), CUDA_SUCCESS);
  CHECK_EQUAL(node_count(end_capture(stream)), 1); /* a fork without work needs no join */
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, GLOBAL), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
  CHECK_EQUAL(launch_in(other, "plain"), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventRecord(event, other), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
  CHECK_EQUAL(launch_in(other, "plain"), CUDA_SUCCESS); /* behind the join */
  CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  CHECK(graph == NULL);
  CHECK_EQUAL(capture_status(stream), NOT_CAPTURING);
  CHECK_EQUAL(capture_status(other), NOT_CAPTURING);
}

/* Dependencies across the borders of captures. */
void test_capture_isolation(void) {
  begin_capture_case();
  CUevent outside = new_event();
  CUevent event = new_event();
  CHECK_EQUAL(cuEventRecord(outside, NULL), CUDA_SUCCESS);
  CUstream stream = begin_capture(0, GLOBAL);
  CHECK_EQUAL(cuStreamWaitEvent(stream, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  end_invalid_capture(stream);
  stream = begin_capture(0, GLOBAL);
  CUstream other = begin_capture(0, GLOBAL);
  CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(other, event, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
  end_invalid_capture(other);
  end_invalid_capture(stream);
}

/* Events that stay outside become nodes. */
void test_capture_external_events(void) {
  CUgraphNode nodes[2];
  size_t count = 2;
  int type;
  begin_capture_case();
  CUevent event = new_event();
  CHECK_EQUAL(cuEventRecordWithFlags(event, NULL, 1), CUDA_ERROR_INVALID_VALUE); /* nothing is captured */
  CHECK_EQUAL(cuStreamWaitEvent(NULL, event, 1), CUDA_ERROR_INVALID_VALUE);
  CUstream stream = begin_capture(0, GLOBAL);
  CHECK_EQUAL(cuStreamWaitEvent(stream, event, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventRecordWithFlags(event, stream, 1), CUDA_SUCCESS);
  CUgraph graph = end_capture(stream);
  CHECK_EQUAL(cuGraphGetNodes(graph, nodes, &count), CUDA_SUCCESS);
  CHECK_EQUAL(count, 2);
  CHECK_EQUAL(cuGraphNodeGetType(nodes[0], &type), CUDA_SUCCESS);
  CHECK_EQUAL(type, CU_NODE_WAIT_EVENT);
  CHECK_EQUAL(cuGraphNodeGetType(nodes[1], &type), CUDA_SUCCESS);
  CHECK_EQUAL(type, CU_NODE_EVENT_RECORD);
  CHECK_EQUAL(launch_ms(instantiate(graph)), 0);
  CHECK_EQUAL(cuEventSynchronize(event), CUDA_SUCCESS);
}

static void *end_elsewhere(void *data) {
  CUgraph graph = NULL;
  CUresult result = cuStreamEndCapture(data, &graph);
  return (void *)(intptr_t)result;
}

static CUresult ended_by_another_thread(CUstream stream) {
  pthread_t thread;
  void *result;
  CHECK_EQUAL(pthread_create(&thread, NULL, end_elsewhere, stream), 0);
  CHECK_EQUAL(pthread_join(thread, &result), 0);
  return (CUresult)(intptr_t)result;
}

void test_capture_ended_elsewhere(void) {
  begin_capture_case();
  CUstream stream = begin_capture(0, GLOBAL);
  CHECK_EQUAL(ended_by_another_thread(stream), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  end_invalid_capture(stream);
  CHECK_EQUAL(ended_by_another_thread(begin_capture(0, RELAXED)), CUDA_SUCCESS);
}

void test_capture_dependencies(void) {
  const CUgraphNode *nodes;
  CUgraphNode list[2];
  CUgraph graph;
  uint64_t id;
  size_t count;
  int status;
  begin_capture_case();
  CUevent event = new_event();
  CUstream stream = begin_capture(0, GLOBAL);
  CHECK_EQUAL(launch_in(stream, "plain"), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS); /* waiting for itself adds nothing */
  CHECK_EQUAL(cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &nodes, &count), CUDA_SUCCESS);
  CHECK(status == CAPTURING && count == 1);
  list[0] = nodes[0];
  const struct cu_kernel_node kernel = {graph_kernel("plain"), 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL, NULL};
  CHECK_EQUAL(cuGraphAddKernelNode_v2(&list[1], graph, list, 1, &kernel), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE); /* the capture's */
  CHECK_EQUAL(cuStreamUpdateCaptureDependencies(stream, &list[1], 1, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &nodes, &count), CUDA_SUCCESS);
  CHECK(count == 1 && nodes[0] == list[1]);
  CHECK_EQUAL(cuStreamUpdateCaptureDependencies(stream, &list[0], 1, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &nodes, &count), CUDA_SUCCESS);
  CHECK_EQUAL(count, 2);
  CHECK_EQUAL(node_count(end_capture(stream)), 2);
  CHECK_EQUAL(cuStreamUpdateCaptureDependencies(stream, &list[0], 1, 0), CUDA_ERROR_ILLEGAL_STATE);
  CHECK_EQUAL(cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, NULL, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(status, NOT_CAPTURING);
}

void test_capture_memory(void) {
  CUdeviceptr memory;
  CUdeviceptr kept;
  CUgraphExec exec;
  begin_capture_case();
  CUstream stream = begin_capture(0, GLOBAL);
  CHECK_EQUAL(cuMemAllocAsync(&memory, 8u << 20, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAllocAsync(&kept, 4u << 20, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemsetD8Async(memory, 1, 8u << 20, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFreeAsync(memory, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, end_capture(stream), 1), CUDA_SUCCESS); /* free on launch */
  CHECK_EQUAL(status_number("used_bytes"), 0);
  CHECK_EQUAL(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
  CHECK_EQUAL(status_number("used_bytes"), 12u << 20);
  CHECK_EQUAL(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
  CHECK_EQUAL(status_number("used_bytes"), 12u << 20);
  CHECK_EQUAL(cuMemFreeAsync(kept, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  CHECK_EQUAL(status_number("used_bytes"), 0);
}

/* A thread's own default stream can be captured, the legacy one cannot. */
void test_capture_per_thread_stream(void) {
  CUgraph graph;
  int status;
  begin_capture_case();
  CHECK_EQUAL(cuStreamBeginCapture_v2_ptsz(NULL, GLOBAL), CUDA_SUCCESS);
  CHECK_EQUAL(cuLaunchKernel_ptsz(graph_kernel("busy_10ms"), 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamIsCapturing_ptsz(NULL, &status), CUDA_SUCCESS);
  CHECK_EQUAL(status, CAPTURING);
  CHECK_EQUAL(capture_status((CUstream)(uintptr_t)CU_STREAM_PER_THREAD), CAPTURING);
  CHECK_EQUAL(cuStreamEndCapture_ptsz(NULL, &graph), CUDA_SUCCESS);
  CHECK_EQUAL(busy_ms(), 0);
  CHECK_EQUAL(launch_ms(instantiate(graph)), 10);
}

/* A capture goes with its stream, and with its context. */
void test_capture_ends_with_its_stream(void) {
  CUdeviceptr memory;
  CUcontext context;
  begin_capture_case();
  CUevent event = new_event();
  CUstream other = new_stream(0);
  CUstream stream = begin_capture(0, GLOBAL);
  CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamDestroy_v2(other), CUDA_SUCCESS);
  end_invalid_capture(stream);
  CHECK_EQUAL(cuStreamDestroy_v2(begin_capture(0, GLOBAL)), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 16), CUDA_SUCCESS); /* nothing is captured any more */
  CHECK_EQUAL(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  (void)begin_capture(0, GLOBAL);
  CHECK_EQUAL(cuCtxDestroy_v2(context), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 16), CUDA_SUCCESS);
}
