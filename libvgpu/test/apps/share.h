/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * share.h - what the clients about shares have in common: PROGRAM CASE SHARE, the share in percent from outside. What a
 * loop of launches got is the GPU time of its kernels over the time until the last one ended.
 */
#ifndef VGPU_TEST_SHARE_H
#define VGPU_TEST_SHARE_H

#include "cases.h"
#include "gpu_time.h"

static double wanted; /* share, 0..1 */

enum { PATH_US = 1000 };

static CUfunction path_kernel;
static CUstream path_stream;

static inline CUresult by_plain(void) {
  return launch_on(path_kernel, path_stream);
}

/* Launches for `seconds`; each launch runs `us` on the GPU. The share that it got; negative: an error. */
static inline double share_of(CUresult (*launch)(void), double us, double seconds) {
  double begun = seconds_now();
  int launches = 0;
  while (seconds_now() - begun < seconds) {
    CUresult result = launch();
    if (result != CUDA_SUCCESS) return -(double)result;
    launches++;
  }
  cuCtxSynchronize();
  return launches * us / 1e6 / (seconds_now() - begun);
}

static inline double least_share(void) {
  return wanted * 0.85 - 0.01;
}

/* The same, again when it was too little: a machine that is busy with other things gives less, never more. */
static inline double good_share_of(CUresult (*launch)(void), double us, double seconds) {
  double share = 0;
  for (int i = 0; i < 4 && share >= 0 && share <= least_share(); i++)
    share = share_of(launch, us, seconds);
  return share;
}

static inline void check_share(double share, const char *what) {
  CHECK(share > least_share() && share < wanted * 1.1 + 0.015, "%s: got %.3f of the GPU, want %.3f", what, share,
        wanted);
}

/* main of a client: CASE SHARE. */
static inline int run_share_case(const struct test *tests, size_t count, int argc, char **argv) {
  if (argc < 3) return 2;
  wanted = atof(argv[2]) / 100;
  return run_case(tests, count, argv[1]);
}

#endif
