/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_capture_rules.c - what is forbidden while a stream captures: to whom, with which result, and what becomes of the
 * capture.
 */
#include <pthread.h>

#include "api_graph.h"

/* What never goes with a capture, whatever its mode and the thread's. */
void test_capture_forbids_waiting(void) {
  float milliseconds;
  begin_capture_case();
  CUevent event = new_event();
  CUevent second = new_event();
  for (int mode = GLOBAL; mode <= RELAXED; mode++) {
    for (unsigned flags = 0; flags <= NON_BLOCKING; flags++) {
      CUstream stream = begin_capture(flags, mode);
      CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
      end_invalid_capture(stream);
      stream = begin_capture(flags, mode);
      CHECK_EQUAL(cuStreamQuery(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      end_invalid_capture(stream);
      stream = begin_capture(flags, mode);
      CHECK_EQUAL(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      end_invalid_capture(stream);
      stream = begin_capture(flags, mode);
      CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
      CHECK_EQUAL(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
      end_invalid_capture(stream);
      stream = begin_capture(flags, mode);
      CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
      CHECK_EQUAL(cuEventRecord(second, stream), CUDA_SUCCESS);
      CHECK_EQUAL(cuEventElapsedTime(&milliseconds, event, second), CUDA_ERROR_CAPTURED_EVENT);
      end_invalid_capture(stream);
      stream = begin_capture(flags, mode);
      CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
      CHECK_EQUAL(cuEventSynchronize(event), CUDA_ERROR_CAPTURED_EVENT);
      end_invalid_capture(stream);
    }
  }
}

/* The legacy stream waits for blocking streams, so it cannot be used while one captures. */
void test_capture_and_the_legacy_stream(void) {
  CUdeviceptr memory;
  char byte = 0;
  int status;
  begin_capture_case();
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 16), CUDA_SUCCESS);
  const struct cu_memcpy2d copy = {.src_type = CU_MEMORYTYPE_HOST,
                                   .src_host = &byte,
                                   .dst_type = CU_MEMORYTYPE_DEVICE,
                                   .dst_device = memory,
                                   .width_bytes = 1,
                                   .height = 1};
  for (int mode = GLOBAL; mode <= RELAXED; mode++) {
    CUstream stream = begin_capture(0, mode);
    CHECK_EQUAL(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CHECK_EQUAL(capture_status(stream), CAPTURING); /* asking is no harm */
    CHECK_EQUAL(launch_in(NULL, "plain"), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    end_invalid_capture(stream);
    stream = begin_capture(0, mode);
    CHECK_EQUAL(cuMemcpyHtoD_v2(memory, &byte, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    end_invalid_capture(stream);
    stream = begin_capture(0, mode);
    CHECK_EQUAL(cuMemcpy2D_v2(&copy), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    end_invalid_capture(stream);
    stream = begin_capture(0, mode);
    CHECK_EQUAL(cuMemsetD8_v2(memory, 0, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    end_invalid_capture(stream);
    stream = begin_capture(NON_BLOCKING, mode);
    CHECK_EQUAL(launch_in(NULL, "plain"), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemsetD8_v2(memory, 0, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemcpyHtoD_v2(memory, &byte, 1),
                mode == RELAXED ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQUAL(capture_status(stream), mode == RELAXED ? CAPTURING : INVALIDATED);
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
  begin_capture_case();
  recorded = new_event();
  bystander = new_stream(NON_BLOCKING);
  CHECK_EQUAL(cuEventRecord(recorded, bystander), CUDA_SUCCESS);
}

/* In the thread that captures, by the capture's mode and by the thread's. */
void test_capture_forbids_unsafe_calls(void) {
  prepare_unsafe_calls();
  for (int which = 0; which < UNSAFE_CALLS; which++) {
    for (int mode = GLOBAL; mode <= RELAXED; mode++) {
      CUstream stream = begin_capture(NON_BLOCKING, mode);
      CHECK_EQUAL(unsafe_call(which), mode == RELAXED ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      if (mode == RELAXED)
        (void)end_capture(stream);
      else
        end_invalid_capture(stream);
      int exchanged = RELAXED;
      CHECK_EQUAL(cuThreadExchangeStreamCaptureMode(&exchanged), CUDA_SUCCESS);
      stream = begin_capture(NON_BLOCKING, mode);
      CHECK_EQUAL(unsafe_call(which), CUDA_SUCCESS);
      (void)end_capture(stream);
      CHECK_EQUAL(cuThreadExchangeStreamCaptureMode(&exchanged), CUDA_SUCCESS);
      CHECK_EQUAL(exchanged, RELAXED);
    }
  }
}

/* In other threads: a global capture forbids it to those that have not chosen another mode. */
void test_capture_and_other_threads(void) {
  prepare_unsafe_calls();
  for (int which = 0; which < UNSAFE_CALLS; which++) {
    CUstream stream = begin_capture(NON_BLOCKING, GLOBAL);
    CHECK_EQUAL(elsewhere(which, THREAD_LOCAL), CUDA_SUCCESS);
    CHECK_EQUAL(elsewhere(which, RELAXED), CUDA_SUCCESS);
    CHECK_EQUAL(capture_status(stream), CAPTURING);
    CHECK_EQUAL(elsewhere(which, GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_invalid_capture(stream);
    stream = begin_capture(NON_BLOCKING, THREAD_LOCAL);
    CHECK_EQUAL(elsewhere(which, GLOBAL), CUDA_SUCCESS);
    (void)end_capture(stream);
  }
}

/* Harmless in a capture of any kind. */
void test_capture_allows(void) {
  size_t free_bytes;
  size_t total_bytes;
  int value;
  CUcontext context = begin_capture_case();
  CUfunction plain = graph_kernel("plain");
  CUevent never = new_event();
  CUstream stream = begin_capture(0, GLOBAL);
  CHECK_EQUAL(cuEventQuery(never), CUDA_SUCCESS); /* stands for no work */
  CHECK_EQUAL(cuEventDestroy_v2(new_event()), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamDestroy_v2(new_stream(0)), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
  CHECK_EQUAL(cuFuncGetAttribute(&value, 0, plain), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
  CHECK_EQUAL(launch_in(new_stream(0), "plain"), CUDA_SUCCESS); /* runs */
  CHECK_EQUAL(node_count(end_capture(stream)), 0);
}

void test_capture_unsupported_work(void) {
  CUdeviceptr memory;
  begin_capture_case();
  CUstream stream = begin_capture(0, RELAXED);
  struct cu_device_launch many = {graph_kernel("plain"), 1, 1, 1, 32, 1, 1, 0, stream, NULL};
  CHECK_EQUAL(cuLaunchCooperativeKernelMultiDevice(&many, 1, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  end_invalid_capture(stream);
  stream = begin_capture(0, RELAXED);
  CHECK_EQUAL(cuStreamAddCallback(stream, (void (*)(CUstream, CUresult, void *))(uintptr_t)1, NULL, 0),
              CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  end_invalid_capture(stream);
  stream = begin_capture(0, RELAXED);
  CHECK_EQUAL(cuMemFreeAsync(0x1234, stream), CUDA_ERROR_INVALID_VALUE); /* not what a graph allocated */
  end_invalid_capture(stream);
  stream = begin_capture(0, RELAXED);
  CHECK_EQUAL(cuMemAllocAsync(&memory, 16, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFreeAsync(memory, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFreeAsync(memory, stream), CUDA_ERROR_INVALID_VALUE); /* twice */
  end_invalid_capture(stream);
}

/* Errors of the call itself leave the capture as it is. */
void test_capture_survives_bad_arguments(void) {
  begin_capture_case();
  CUstream stream = begin_capture(0, GLOBAL);
  CHECK_EQUAL(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
  CHECK_EQUAL(cuMemsetD8Async(0, 0, 16, stream), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(launch_in(stream, "plain"), CUDA_SUCCESS);
  CHECK_EQUAL(node_count(end_capture(stream)), 1);
}
