/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * captures.c - captures, counted: what the driver sees meanwhile, and what other streams get.
 */
#include <pthread.h>
#include <unistd.h>

#include "counted.h"

static bool is_over;

static void *allocate_meanwhile(void *context) {
  CUdeviceptr pointer;
  cuCtxSetCurrent(context);
  while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1 << 20), 0, "allocate beside a capture");
    CHECK_EQUAL(cuMemFree_v2(pointer), 0, "free beside a capture");
    usleep(1000);
  }
  return NULL;
}

enum { CAPTURED = 200 };

/* The program's own calls on `stream` and `second`, which joins and comes back. */
static void capture_much(CUfunction kernel, CUstream stream, CUstream second, CUevent fork_event, CUevent join_event) {
  CUdeviceptr pointer;
  CHECK_EQUAL(cuEventRecord(fork_event, stream), 0, "record");
  CHECK_EQUAL(cuStreamWaitEvent(second, fork_event, 0), 0, "join");
  for (int i = 0; i < CAPTURED; i++)
    CHECK_EQUAL(launch_on(kernel, i % 2 ? stream : second), 0, "launch into a capture");
  CHECK_EQUAL(cuMemAllocAsync(&pointer, 1 << 20, stream), 0, "allocate in a capture");
  CHECK_EQUAL(cuMemFreeAsync(pointer, stream), 0, "free in a capture");
  CHECK_EQUAL(cuEventRecord(join_event, second), 0, "record");
  CHECK_EQUAL(cuStreamWaitEvent(stream, join_event, 0), 0, "come back");
}

/* The driver sees on capturing streams what the program calls, and nothing is kept waiting or charged. */
static void capture_in(int mode, CUfunction kernel, CUcontext context) {
  CUstream stream, second;
  CUevent fork_event, join_event;
  CUgraph graph = NULL;
  CUgraphExec executable;
  pthread_t thread;
  cuStreamCreate(&stream, 1);
  cuStreamCreate(&second, 1);
  cuEventCreate(&fork_event, 2);
  cuEventCreate(&join_event, 2);
  launch_on(kernel, stream); /* there is something to measure */
  __atomic_store_n(&is_over, mode != CU_STREAM_CAPTURE_MODE_RELAXED, __ATOMIC_RELAXED);
  pthread_create(&thread, NULL, allocate_meanwhile, context);
  double begun = seconds_now();
  uint64_t from = fake_calls;
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, mode), 0, "begin");
  capture_much(kernel, stream, second, fork_event, join_event);
  CHECK_EQUAL(cuStreamEndCapture(stream, &graph), 0, "the capture is whole");
  double took = seconds_now() - begun;
  CHECK_EQUAL(calls_since(from, NULL, stream), 1 + 1 + CAPTURED / 2 + 2 + 1 + 1, "calls on the stream");
  CHECK_EQUAL(calls_since(from, NULL, second), 1 + CAPTURED / 2 + 1, "calls on the second one");
  CHECK_EQUAL(calls_since(from, "cuEventQuery", NULL), 0, "questions");
  CHECK_EQUAL(calls_since(from, "cuEventCreate", NULL), 0, "events");
  CHECK(took < 0.5, "%d launches of 10 ms were captured in %.3f s", CAPTURED, took);
  __atomic_store_n(&is_over, true, __ATOMIC_RELAXED);
  pthread_join(thread, NULL);
  CHECK_EQUAL(cuGraphInstantiateWithFlags(&executable, graph, 0), 0, "instantiate");
  begun = seconds_now();
  uint64_t busy = fake_busy_ns[0];
  CHECK_EQUAL(launch_on(kernel, stream), 0, "launches on it run again");
  CHECK_EQUAL(fake_busy_ns[0] - busy, 10000000, "on the GPU");
  cuStreamDestroy_v2(second);
}

static void test_capture(void) {
  CUfunction kernel = kernel_of(10000);
  CUcontext context = NULL;
  cuCtxGetCurrent(&context);
  for (int mode = 0; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++)
    capture_in(mode, kernel, context);
}

/* A capture that is held open lifts the limit from no other stream, not even for new functions. */
static void test_held(void) {
  enum { US = 2000 };
  CUstream held, stream;
  CUfunction known = kernel_of(US), unknown = kernel_of(US);
  cuStreamCreate(&held, 1);
  cuStreamCreate(&stream, 1);
  for (int i = 0; i < 20; i++)
    launch_on(known, stream);
  CHECK_EQUAL(cuStreamBeginCapture_v2(held, CU_STREAM_CAPTURE_MODE_RELAXED), 0, "begin");
  uint64_t busy = fake_busy_ns[0];
  double begun = seconds_now();
  while (seconds_now() - begun < 1)
    launch_on(known, stream);
  double share = (double)(fake_busy_ns[0] - busy) / 1e9 / (seconds_now() - begun);
  CHECK(share > 0.24 && share < 0.34, "got %.3f, want 0.3", share);
  busy = fake_busy_ns[0];
  begun = seconds_now();
  while (seconds_now() - begun < 1)
    launch_on(unknown, stream);
  share = (double)(fake_busy_ns[0] - busy) / 1e9 / (seconds_now() - begun);
  CHECK(share > 0.2 && share < 0.45, "a new function: got %.3f, want 0.3, but for the first 200 ms", share);
  CHECK_EQUAL(launch_on(unknown, held), 0, "the capture goes on");
}

static const struct test tests[] = {{"capture", test_capture, false}, {"held", test_held, false}};

int main(int argc, char **argv) {
  return run_counted_case(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
