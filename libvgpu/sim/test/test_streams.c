/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_streams.c - GPU time through the driver's interface, in real time: streams of one process and their events.
 */
#include "gpu_time.h"

/* Two streams of half-card kernels finish in the time of one, of whole-card kernels in that of both. */
void test_streams_overlap(void) {
  CUstream streams[2];
  CUevent starts[2];
  CUevent ends[2];
  begin_cuda();
  CUfunction busy = kernel("busy_20ms");
  for (int i = 0; i < 2; i++)
    CHECK_EQUAL(cuStreamCreate(&streams[i], 1), CUDA_SUCCESS);
  for (unsigned blocks = 108; blocks <= 216; blocks += 108) {
    for (int i = 0; i < 2; i++) {
      starts[i] = record(streams[i]);
      launch(busy, blocks, streams[i]);
      launch(busy, blocks, streams[i]);
      ends[i] = record(streams[i]);
    }
    double both = elapsed_ms(starts[0], ends[1]);
    double apart = elapsed_ms(starts[0], starts[1]); /* the calls of this program */
    CHECK(both >= (blocks == 108 ? 40 : 80) && both <= (blocks == 108 ? 40 : 80) + apart + 0.01);
  }
}

/* Events that tell twice what passed. */
void test_events_scaled(void) {
  begin_cuda();
  CUfunction busy = kernel("busy_20ms");
  CUevent start = record(NULL);
  launch(busy, 216, NULL);
  double told = elapsed_ms(start, record(NULL));
  CHECK(told >= 40 && told < 60);
}

/* An event keeps another stream's work back, and the default stream comes after and before all blocking ones. */
void test_streams_wait(void) {
  CUstream first;
  CUstream second;
  CUstream free_one;
  begin_cuda();
  CUfunction busy = kernel("busy_20ms");
  CHECK_EQUAL(cuStreamCreate(&first, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamCreate(&second, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamCreate(&free_one, 1), CUDA_SUCCESS);
  CUevent start = record(first);
  launch(busy, 1, first);
  CUevent middle = record(first);
  CHECK_EQUAL(cuStreamWaitEvent(second, middle, 0), CUDA_SUCCESS);
  launch(busy, 1, second);
  CUevent end = record(second);
  CHECK_EQUAL(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
  CHECK_EQUAL(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
  CHECK(elapsed_ms(middle, end) >= 19.99 && elapsed_ms(start, end) >= 39.99);
  start = record(first);
  launch(busy, 1, first);
  launch(busy, 1, NULL);
  launch(busy, 1, second);
  launch(busy, 1, free_one);
  CUevent free_end = record(free_one);
  end = record(second);
  CHECK(elapsed_ms(start, end) >= 59.99);
  CHECK(elapsed_ms(free_end, end) >= 1); /* was not kept back */
  CHECK_EQUAL(cuStreamQuery(NULL), CUDA_SUCCESS);
}

/* An event of one card keeps a stream of another back; and events of both are told apart. */
void test_streams_of_two_cards(void) {
  CUcontext contexts[2];
  CUfunction busy[2];
  CUevent ends[2];
  CUevent starts[2];
  CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
  for (int i = 0; i < 2; i++) {
    CHECK_EQUAL(cuCtxCreate_v2(&contexts[i], 0, i), CUDA_SUCCESS);
    busy[i] = kernel("busy_20ms");
    starts[i] = record(NULL);
    launch(busy[i], 216, NULL);
    ends[i] = record(NULL);
  }
  CHECK(elapsed_ms(starts[1], ends[1]) >= 19.99 && elapsed_ms(starts[0], ends[0]) >= 19.99);
  CHECK_EQUAL(cuCtxSetCurrent(contexts[0]), CUDA_SUCCESS);
  uint64_t began = now_ns();
  launch(busy[0], 216, NULL);
  CHECK_EQUAL(cuEventRecord(ends[0], NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxSetCurrent(contexts[1]), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(NULL, ends[0], 0), CUDA_SUCCESS);
  launch(busy[1], 216, NULL);
  CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
  CHECK(now_ns() - began >= 40000000u);
}

/* With more streams than channels some share one; each is told from the others all the same. */
void test_streams_share_channels(void) {
  enum { STREAMS = 70 };
  CUstream streams[STREAMS];
  CUevent start;
  begin_cuda();
  CUfunction busy = kernel("busy_1ms");
  start = record(NULL);
  for (int i = 0; i < STREAMS; i++) {
    CHECK_EQUAL(cuStreamCreate(&streams[i], 1), CUDA_SUCCESS);
    launch(busy, 1, streams[i]);
  }
  for (int i = 0; i < STREAMS; i++)
    CHECK_EQUAL(cuStreamSynchronize(streams[i]), CUDA_SUCCESS);
  CHECK(elapsed_ms(start, record(NULL)) >= 2.99); /* 70 in 31 channels are three deep */
  CHECK_EQUAL(cuStreamQuery(streams[STREAMS - 1]), CUDA_SUCCESS);
  for (int i = 0; i < STREAMS; i++)
    CHECK_EQUAL(cuStreamDestroy_v2(streams[i]), CUDA_SUCCESS);
  for (int i = 0; i < STREAMS; i++)
    CHECK_EQUAL(cuStreamCreate(&streams[i], 0), CUDA_SUCCESS);
  launch(busy, 1, streams[STREAMS - 1]);
  launch(busy, 1, NULL);
  CHECK_EQUAL(cuStreamQuery(streams[0]), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
}
