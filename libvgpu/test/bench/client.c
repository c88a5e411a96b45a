/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * client.c - times one driver call, in this process: client CALL ROUNDS. One line a round: nanoseconds of CPU time
 * per call. Found by link-time binding, as most programs find the driver.
 */
#include <sched.h>
#include <time.h>

#include "../apps/driver.h"

static CUfunction kernel;

static void alloc_free(int count) {
  CUdeviceptr pointer;
  for (int i = 0; i < count; i++) {
    if (cuMemAlloc_v2(&pointer, 1 << 20) != CUDA_SUCCESS || cuMemFree_v2(pointer) != CUDA_SUCCESS) exit(3);
  }
}

/* Each process holds a little, so that those beside it have something to add up. */
static void query(int count) {
  static CUdeviceptr held;
  size_t free_bytes, total;
  if (!held && cuMemAlloc_v2(&held, 1 << 20) != CUDA_SUCCESS) exit(3);
  for (int i = 0; i < count; i++) {
    if (cuMemGetInfo_v2(&free_bytes, &total) != CUDA_SUCCESS) exit(3);
  }
}

static void launch(int count) {
  for (int i = 0; i < count; i++) {
    if (cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != CUDA_SUCCESS) exit(3);
  }
}

static void unhooked(int count) {
  CUcontext context;
  for (int i = 0; i < count; i++) {
    if (cuCtxGetCurrent(&context) != CUDA_SUCCESS) exit(3);
  }
}

static void pool(int count) {
  CUdeviceptr pointer;
  for (int i = 0; i < count; i++) {
    if (cuMemAllocAsync(&pointer, 1 << 20, NULL) != CUDA_SUCCESS) exit(3);
    if (cuMemFreeAsync(pointer, NULL) != CUDA_SUCCESS) exit(3);
  }
}

static void refuse(int count) {
  CUdeviceptr pointer;
  for (int i = 0; i < count; i++) {
    if (cuMemAlloc_v2(&pointer, (size_t)1 << 40) != CUDA_ERROR_OUT_OF_MEMORY) exit(3);
  }
}

struct call {
  const char *name;
  void (*run)(int count);
  int count; /* calls of one round */
};

static const struct call calls[] = {
    {"alloc_free", alloc_free, 20000}, {"query", query, 20000}, {"launch", launch, 500},
    {"unhooked", unhooked, 200000},    {"pool", pool, 20000},   {"refuse", refuse, 5000}};

static double cpu_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void load_kernel(void) {
  static const char image[] = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry bench_1ns()\n{ ret; }\n";
  CUmodule module;
  if (cuModuleLoadData(&module, image) != CUDA_SUCCESS) exit(4);
  if (cuModuleGetFunction(&kernel, module, "bench_1ns") != CUDA_SUCCESS) exit(4);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  use_device(0);
  for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
    const struct call *call = &calls[i];
    if (strcmp(call->name, argv[1]) != 0) continue;
    if (call->run == launch) load_kernel();
    call->run(call->count / 10);
    for (int round = atoi(argv[2]); round > 0; round--) {
      cuCtxSynchronize();
      double before = cpu_ns();
      call->run(call->count);
      printf("%.2f\n", (cpu_ns() - before) / call->count);
    }
    return 0;
  }
  return 2;
}
