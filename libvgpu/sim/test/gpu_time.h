/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * gpu_time.h - kernels that take time, and the events that tell how long, for tests of GPU time.
 */
#ifndef GPUSIM_TEST_GPU_TIME_H
#define GPUSIM_TEST_GPU_TIME_H

#include "check.h"

static const char ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                          ".visible .entry busy_20us()\n{ ret; }\n.visible .entry busy_1ms()\n{ ret; }\n"
                          ".visible .entry busy_20ms()\n{ ret; }\n.visible .entry busy_10s()\n{ ret; }\n";

static inline CUfunction kernel(const char *name) {
  CUmodule module;
  CUfunction found;
  CHECK_EQUAL(cuModuleLoadData(&module, ptx), CUDA_SUCCESS);
  CHECK_EQUAL(cuModuleGetFunction(&found, module, name), CUDA_SUCCESS);
  return found;
}

/* 108 multiprocessors take 216 blocks of this size. */
static inline void launch(CUfunction function, unsigned blocks, CUstream stream) {
  CHECK_EQUAL(cuLaunchKernel(function, blocks, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL), CUDA_SUCCESS);
}

static inline CUevent record(CUstream stream) {
  CUevent event;
  CHECK_EQUAL(cuEventCreate(&event, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
  return event;
}

static inline double elapsed_ms(CUevent start, CUevent end) {
  float milliseconds;
  CHECK_EQUAL(cuEventSynchronize(end), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventElapsedTime(&milliseconds, start, end), CUDA_SUCCESS);
  return milliseconds;
}

#endif
