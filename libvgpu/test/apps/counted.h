/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * counted.h - what the clients of the driver that logs its calls (test/fake_gpu.h) have in common.
 */
#ifndef VGPU_TEST_COUNTED_H
#define VGPU_TEST_COUNTED_H

#include "../fake_gpu.h"
#include "cases.h"
#include "gpu_time.h"

/* Calls of the driver since `from` with this name (NULL: any) and stream (NULL: any). */
static inline uint64_t calls_since(uint64_t from, const char *name, CUstream stream) {
  uint64_t count = 0;
  for (uint64_t i = from; i < fake_calls; i++) {
    const struct fake_call *call = &fake_log[i % FAKE_LOG];
    count += (!name || strcmp(call->name, name) == 0) && (!stream || call->stream == stream);
  }
  return count;
}

/* The share of a GPU that launches got in `seconds`. */
static inline double share_got(int gpu, CUfunction function, CUstream stream, double seconds) {
  uint64_t busy = fake_busy_ns[gpu];
  double begun = seconds_now();
  while (seconds_now() - begun < seconds)
    CHECK_EQUAL(launch_on(function, stream), 0, "launch");
  return (double)(fake_busy_ns[gpu] - busy) / 1e9 / (seconds_now() - begun);
}

/* main of a client: CASE. */
static inline int run_counted_case(const struct test *tests, size_t count, int argc, char **argv) {
  return argc < 2 ? 2 : run_case(tests, count, argv[1]);
}

#endif
