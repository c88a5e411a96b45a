/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_capture.c - stream capture: what becomes nodes, forks and joins, and what is forbidden meanwhile, to whom, with which
 * result and what becomes of the capture.
 */
#include <pthread.h>
#include <string.h>

#include "api_graph.h"

/* The module is loaded before anything captures, since that is forbidden then. */
static CUcontext start(void) {
  CUcontext context = begin_cuda();
  (void)graph_kernel("plain");
  return context;
}

static CUstream begin(unsigned flags, int mode) {
  CUstream stream = new_stream(flags);
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, mode), CUDA_SUCCESS);
  return stream;
}

static int status_of(CUstream stream) {
  int status;
  CHECK_EQUAL(cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
  return status;
}

static CUgraph end(CUstream stream) {
  CUgraph graph;
  CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  CHECK(graph != NULL);
  return graph;
}

/* Ends a capture that must have been invalidated. */
static void end_invalid(CUstream stream) {
  CUgraph graph = (CUgraph)(uintptr_t)1;
  CHECK_EQUAL(status_of(stream), INVALIDATED);
  CHECK_EQUAL(launch_in(stream, "plain"), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(graph == NULL);
  CHECK_EQUAL(status_of(stream), NOT_CAPTURING);
  CHECK_EQUAL(launch_in(stream, "plain"), CUDA_SUCCESS);
}

static size_t node_count(CUgraph graph) {
  size_t count = 0;
  CHECK_EQUAL(cuGraphGetNodes(graph, NULL, &count), CUDA_SUCCESS);
  return count;
}

static unsigned long long launch_ms(CUgraph graph) {
  CUgraphExec exec;
  CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  unsigned long long before = busy_ms();
  CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
  return busy_ms() - before;
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
  start();
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 16), CUDA_SUCCESS);
  CUstream stream = begin(0, GLOBAL);
  CHECK_EQUAL(launch_in(stream, "busy_1ms"), CUDA_SUCCESS);
  CUgraph graph = end(stream);
  CHECK_EQUAL(cuGraphInstantiateWithFlags(&inner, graph, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, GLOBAL), CUDA_SUCCESS);
  CHECK_EQUAL(launch_in(stream, "busy_10ms"), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemsetD8Async(memory, 9, 16, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemcpyDtoHAsync_v2(bytes, memory, 16, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuLaunchHostFunc(stream, append, calls), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphLaunch(inner, stream), CUDA_SUCCESS);
  graph = end(stream);
  CHECK_EQUAL(busy_ms(), 0); /* nothing has run */
  CHECK(calls[0] == 0 && bytes[0] == 0);
  CHECK_EQUAL(cuGraphGetNodes(graph, nodes, &count), CUDA_SUCCESS);
  CHECK_EQUAL(count, COUNT);
  for (size_t i = 0; i < COUNT; i++) {
    CHECK_EQUAL(cuGraphNodeGetType(nodes[i], &type), CUDA_SUCCESS);
    CHECK_EQUAL(type, types[i]);
  }
  CHECK_EQUAL(launch_ms(graph), 11);
  CHECK_EQUAL(bytes[15], 9);
  CHECK_EQUAL(strlen(calls), 1);
}

void test_capture_begin_and_end(void) {
  CUgraph graph;
  int status;
  uint64_t id;
  uint64_t later;
  start();
  CUstream stream = new_stream(0);
  CHECK_EQUAL(cuStreamBeginCapture_v2(NULL, GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, 3), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
  CHECK_EQUAL(cuStreamEndCapture(NULL, &graph), CUDA_ERROR_ILLEGAL_STATE);
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, GLOBAL), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
  CHECK_EQUAL(cuStreamGetCaptureInfo(stream, &status, &id), CUDA_SUCCESS);
  CHECK(status == CAPTURING && id != 0);
  CHECK_EQUAL(node_count(end(stream)), 0);
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, GLOBAL), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamGetCaptureInfo(stream, &status, &later), CUDA_SUCCESS);
  CHECK(later != id);
  CHECK_EQUAL(node_count(end(stream)), 0);
  CHECK_EQUAL(status_number("cuStreamGetCaptureInfo"), 2);
}

void test_capture_fork_and_join(void) {
  CUgraphNode nodes[3];
  CUgraphNode list[3];
  CUgraph graph;
  size_t count = 3;
  start();
  CUevent forked = new_event();
  CUevent joined = new_event();
  CUstream other = new_stream(0);
  CUstream stream = begin(0, GLOBAL);
  CHECK_EQUAL(launch_in(stream, "busy_1ms"), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventRecord(forked, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(other, forked, 0), CUDA_SUCCESS);
  CHECK_EQUAL(status_of(other), CAPTURING);
  CHECK_EQUAL(launch_in(other, "busy_10ms"), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamBeginCapture_v2(other, GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
  CHECK_EQUAL(cuStreamEndCapture(other, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  CHECK_EQUAL(cuEventRecord(joined, other), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(stream, joined, 0), CUDA_SUCCESS);
  CHECK_EQUAL(launch_in(stream, "busy_1ms"), CUDA_SUCCESS);
  graph = end(stream);
  CHECK_EQUAL(status_of(other), NOT_CAPTURING);
  CHECK_EQUAL(cuGraphGetNodes(graph, nodes, &count), CUDA_SUCCESS);
  CHECK_EQUAL(count, 3);
  CHECK_EQUAL(cuGraphNodeGetDependencies(nodes[1], list, &count), CUDA_SUCCESS);
  CHECK(count == 1 && list[0] == nodes[0]);
  count = 3;
  CHECK_EQUAL(cuGraphNodeGetDependencies(nodes[2], list, &count), CUDA_SUCCESS);
  CHECK(count == 2 && list[0] == nodes[0] && list[1] == nodes[1]);
  CHECK_EQUAL(launch_ms(graph), 12);
  CHECK_EQUAL(cuEventQuery(joined), CUDA_ERROR_CAPTURED_EVENT); /* still */
  CHECK_EQUAL(cuStreamWaitEvent(stream, joined, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  CHECK_EQUAL(cuEventRecord(joined, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventSynchronize(joined), CUDA_SUCCESS);
}

void test_capture_unjoined(void) {
  CUgraph graph;
  start();
  CUevent event = new_event();
  CUstream other = new_stream(0);
  CUstream stream = begin(0, GLOBAL);
  CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
  CHECK_EQUAL(launch_in(stream, "plain"), CUDA_SUCCESS);
  CHECK_EQUAL(node_count(end(stream)), 1); /* a fork without work needs no join */
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, GLOBAL), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
  CHECK_EQUAL(launch_in(other, "plain"), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventRecord(event, other), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
  CHECK_EQUAL(launch_in(other, "plain"), CUDA_SUCCESS); /* behind the join */
  CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  CHECK(graph == NULL);
  CHECK_EQUAL(status_of(stream), NOT_CAPTURING);
  CHECK_EQUAL(status_of(other), NOT_CAPTURING);
}

/* Dependencies across the borders of captures. */
void test_capture_isolation(void) {
  start();
  CUevent outside = new_event();
  CUevent event = new_event();
  CHECK_EQUAL(cuEventRecord(outside, NULL), CUDA_SUCCESS);
  CUstream stream = begin(0, GLOBAL);
  CHECK_EQUAL(cuStreamWaitEvent(stream, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  end_invalid(stream);
  stream = begin(0, GLOBAL);
  CUstream other = begin(0, GLOBAL);
  CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(other, event, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
  end_invalid(other);
  end_invalid(stream);
}

/* Events that stay outside become nodes. */
void test_capture_external_events(void) {
  CUgraphNode nodes[2];
  size_t count = 2;
  int type;
  start();
  CUevent event = new_event();
  CHECK_EQUAL(cuEventRecordWithFlags(event, NULL, 1), CUDA_ERROR_INVALID_VALUE); /* nothing is captured */
  CHECK_EQUAL(cuStreamWaitEvent(NULL, event, 1), CUDA_ERROR_INVALID_VALUE);
  CUstream stream = begin(0, GLOBAL);
  CHECK_EQUAL(cuStreamWaitEvent(stream, event, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventRecordWithFlags(event, stream, 1), CUDA_SUCCESS);
  CUgraph graph = end(stream);
  CHECK_EQUAL(cuGraphGetNodes(graph, nodes, &count), CUDA_SUCCESS);
  CHECK_EQUAL(count, 2);
  CHECK_EQUAL(cuGraphNodeGetType(nodes[0], &type), CUDA_SUCCESS);
  CHECK_EQUAL(type, CU_NODE_WAIT_EVENT);
  CHECK_EQUAL(cuGraphNodeGetType(nodes[1], &type), CUDA_SUCCESS);
  CHECK_EQUAL(type, CU_NODE_EVENT_RECORD);
  CHECK_EQUAL(launch_ms(graph), 0);
  CHECK_EQUAL(cuEventSynchronize(event), CUDA_SUCCESS);
}

/* What never goes with a capture, whatever its mode and the thread's. */
void test_capture_forbids_waiting(void) {
  float milliseconds;
  start();
  CUevent event = new_event();
  CUevent second = new_event();
  for (int mode = GLOBAL; mode <= RELAXED; mode++) {
    for (unsigned flags = 0; flags <= NON_BLOCKING; flags++) {
      CUstream stream = begin(flags, mode);
      CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
      end_invalid(stream);
      stream = begin(flags, mode);
      CHECK_EQUAL(cuStreamQuery(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      end_invalid(stream);
      stream = begin(flags, mode);
      CHECK_EQUAL(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      end_invalid(stream);
      stream = begin(flags, mode);
      CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
      CHECK_EQUAL(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
      end_invalid(stream);
      stream = begin(flags, mode);
      CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
      CHECK_EQUAL(cuEventRecord(second, stream), CUDA_SUCCESS);
      CHECK_EQUAL(cuEventElapsedTime(&milliseconds, event, second), CUDA_ERROR_CAPTURED_EVENT);
      end_invalid(stream);
      stream = begin(flags, mode);
      CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
      CHECK_EQUAL(cuEventSynchronize(event), CUDA_ERROR_CAPTURED_EVENT);
      end_invalid(stream);
    }
  }
}

/* The legacy stream waits for blocking streams, so it cannot be used while one captures. */
void test_capture_and_the_legacy_stream(void) {
  CUdeviceptr memory;
  char byte = 0;
  int status;
  start();
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 16), CUDA_SUCCESS);
  for (int mode = GLOBAL; mode <= RELAXED; mode++) {
    CUstream stream = begin(0, mode);
    CHECK_EQUAL(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CHECK_EQUAL(status_of(stream), CAPTURING); /* asking is no harm */
    CHECK_EQUAL(launch_in(NULL, "plain"), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    end_invalid(stream);
    stream = begin(0, mode);
    CHECK_EQUAL(cuMemcpyHtoD_v2(memory, &byte, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    end_invalid(stream);
    stream = begin(0, mode);
    CHECK_EQUAL(cuMemsetD8_v2(memory, 0, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    end_invalid(stream);
    stream = begin(NON_BLOCKING, mode);
    CHECK_EQUAL(launch_in(NULL, "plain"), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemsetD8_v2(memory, 0, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemcpyHtoD_v2(memory, &byte, 1),
                mode == RELAXED ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQUAL(status_of(stream), mode == RELAXED ? CAPTURING : INVALIDATED);
    CUgraph graph;
    (void)cuStreamEndCapture(stream, &graph);
  }
}

/* Calls that a capture does not see; each answers `expected`. */
static CUevent recorded;
static CUstream bystander;

static CUresult unsafe_call(int which) {
  CUdeviceptr memory = 0;
  CUmodule module;
  void *host;
  switch (which) {
  case 0:
    return cuMemAlloc_v2(&memory, 16);
  case 1:
    return cuMemFree_v2(0);
  case 2:
    return cuMemHostAlloc(&host, 16, 0);
  case 3:
    return cuModuleLoadData(&module, graph_ptx);
  case 4:
    return cuEventQuery(recorded);
  case 5:
    return cuEventSynchronize(recorded);
  case 6:
    return cuStreamQuery(bystander);
  default:
    return cuStreamSynchronize(bystander);
  }
}
enum { UNSAFE_CALLS = 8 };

struct caller {
  CUcontext context;
  int which, mode;
  CUresult result;
};

static void *call_elsewhere(void *data) {
  struct caller *caller = data;
  CHECK_EQUAL(cuCtxSetCurrent(caller->context), CUDA_SUCCESS);
  CHECK_EQUAL(cuThreadExchangeStreamCaptureMode(&caller->mode), CUDA_SUCCESS);
  CHECK_EQUAL(caller->mode, GLOBAL); /* every thread's to begin with */
  caller->result = unsafe_call(caller->which);
  return NULL;
}

static CUresult elsewhere(int which, int mode) {
  struct caller caller = {.which = which, .mode = mode};
  pthread_t thread;
  CHECK_EQUAL(cuCtxGetCurrent(&caller.context), CUDA_SUCCESS);
  CHECK_EQUAL(pthread_create(&thread, NULL, call_elsewhere, &caller), 0);
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  return caller.result;
}

static void prepare_unsafe_calls(void) {
  start();
  recorded = new_event();
  bystander = new_stream(NON_BLOCKING);
  CHECK_EQUAL(cuEventRecord(recorded, bystander), CUDA_SUCCESS);
}

/* In the thread that captures, by the capture's mode and by the thread's. */
void test_capture_forbids_unsafe_calls(void) {
  prepare_unsafe_calls();
  for (int which = 0; which < UNSAFE_CALLS; which++) {
    for (int mode = GLOBAL; mode <= RELAXED; mode++) {
      CUstream stream = begin(NON_BLOCKING, mode);
      CHECK_EQUAL(unsafe_call(which), mode == RELAXED ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      if (mode == RELAXED)
        (void)end(stream);
      else
        end_invalid(stream);
      int exchanged = RELAXED;
      CHECK_EQUAL(cuThreadExchangeStreamCaptureMode(&exchanged), CUDA_SUCCESS);
      stream = begin(NON_BLOCKING, mode);
      CHECK_EQUAL(unsafe_call(which), CUDA_SUCCESS);
      (void)end(stream);
      CHECK_EQUAL(cuThreadExchangeStreamCaptureMode(&exchanged), CUDA_SUCCESS);
      CHECK_EQUAL(exchanged, RELAXED);
    }
  }
}

/* In other threads: a global capture forbids it to those that have not chosen another mode. */
void test_capture_and_other_threads(void) {
  prepare_unsafe_calls();
  for (int which = 0; which < UNSAFE_CALLS; which++) {
    CUstream stream = begin(NON_BLOCKING, GLOBAL);
    CHECK_EQUAL(elsewhere(which, THREAD_LOCAL), CUDA_SUCCESS);
    CHECK_EQUAL(elsewhere(which, RELAXED), CUDA_SUCCESS);
    CHECK_EQUAL(status_of(stream), CAPTURING);
    CHECK_EQUAL(elsewhere(which, GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_invalid(stream);
    stream = begin(NON_BLOCKING, THREAD_LOCAL);
    CHECK_EQUAL(elsewhere(which, GLOBAL), CUDA_SUCCESS);
    (void)end(stream);
  }
}

/* Harmless in a capture of any kind. */
void test_capture_allows(void) {
  size_t free_bytes;
  size_t total_bytes;
  int value;
  CUcontext context = start();
  CUfunction plain = graph_kernel("plain");
  CUevent never = new_event();
  CUstream stream = begin(0, GLOBAL);
  CHECK_EQUAL(cuEventQuery(never), CUDA_SUCCESS); /* stands for no work */
  CHECK_EQUAL(cuEventDestroy_v2(new_event()), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamDestroy_v2(new_stream(0)), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
  CHECK_EQUAL(cuFuncGetAttribute(&value, 0, plain), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
  CHECK_EQUAL(launch_in(new_stream(0), "plain"), CUDA_SUCCESS); /* runs */
  CHECK_EQUAL(node_count(end(stream)), 0);
}

void test_capture_unsupported_work(void) {
  start();
  CUstream stream = begin(0, RELAXED);
  struct cu_device_launch many = {graph_kernel("plain"), 1, 1, 1, 32, 1, 1, 0, stream, NULL};
  CHECK_EQUAL(cuLaunchCooperativeKernelMultiDevice(&many, 1, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  end_invalid(stream);
  stream = begin(0, RELAXED);
  CHECK_EQUAL(cuStreamAddCallback(stream, (void (*)(CUstream, CUresult, void *))(uintptr_t)1, NULL, 0),
              CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  end_invalid(stream);
  stream = begin(0, RELAXED);
  CHECK_EQUAL(cuMemFreeAsync(0x1234, stream), CUDA_ERROR_INVALID_VALUE); /* not what a graph allocated */
  end_invalid(stream);
}

/* Errors of the call itself leave the capture as it is. */
void test_capture_survives_bad_arguments(void) {
  start();
  CUstream stream = begin(0, GLOBAL);
  CHECK_EQUAL(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
  CHECK_EQUAL(cuMemsetD8Async(0, 0, 16, stream), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(launch_in(stream, "plain"), CUDA_SUCCESS);
  CHECK_EQUAL(node_count(end(stream)), 1);
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
  start();
  CUstream stream = begin(0, GLOBAL);
  CHECK_EQUAL(ended_by_another_thread(stream), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  end_invalid(stream);
  CHECK_EQUAL(ended_by_another_thread(begin(0, RELAXED)), CUDA_SUCCESS);
}

void test_capture_dependencies(void) {
  const CUgraphNode *nodes;
  CUgraphNode list[2];
  CUgraph graph;
  uint64_t id;
  size_t count;
  int status;
  start();
  CUstream stream = begin(0, GLOBAL);
  CHECK_EQUAL(launch_in(stream, "plain"), CUDA_SUCCESS);
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
  CHECK_EQUAL(node_count(end(stream)), 2);
  CHECK_EQUAL(cuStreamUpdateCaptureDependencies(stream, &list[0], 1, 0), CUDA_ERROR_ILLEGAL_STATE);
  CHECK_EQUAL(cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, NULL, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(status, NOT_CAPTURING);
}

void test_capture_memory(void) {
  CUdeviceptr memory;
  CUdeviceptr kept;
  CUgraphExec exec;
  start();
  CUstream stream = begin(0, GLOBAL);
  CHECK_EQUAL(cuMemAllocAsync(&memory, 8u << 20, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAllocAsync(&kept, 4u << 20, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemsetD8Async(memory, 1, 8u << 20, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFreeAsync(memory, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, end(stream), 1), CUDA_SUCCESS); /* free on launch */
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
  start();
  CHECK_EQUAL(cuStreamBeginCapture_v2_ptsz(NULL, GLOBAL), CUDA_SUCCESS);
  CHECK_EQUAL(cuLaunchKernel_ptsz(graph_kernel("busy_10ms"), 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamIsCapturing_ptsz(NULL, &status), CUDA_SUCCESS);
  CHECK_EQUAL(status, CAPTURING);
  CHECK_EQUAL(status_of((CUstream)(uintptr_t)CU_STREAM_PER_THREAD), CAPTURING);
  CHECK_EQUAL(cuStreamEndCapture_ptsz(NULL, &graph), CUDA_SUCCESS);
  CHECK_EQUAL(busy_ms(), 0);
  CHECK_EQUAL(launch_ms(graph), 10);
}

/* A capture goes with its stream, and with its context. */
void test_capture_ends_with_its_stream(void) {
  CUdeviceptr memory;
  CUcontext context;
  start();
  CUevent event = new_event();
  CUstream other = new_stream(0);
  CUstream stream = begin(0, GLOBAL);
  CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamDestroy_v2(other), CUDA_SUCCESS);
  end_invalid(stream);
  CHECK_EQUAL(cuStreamDestroy_v2(begin(0, GLOBAL)), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 16), CUDA_SUCCESS); /* nothing is captured any more */
  CHECK_EQUAL(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  (void)begin(0, GLOBAL);
  CHECK_EQUAL(cuCtxDestroy_v2(context), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 16), CUDA_SUCCESS);
}
