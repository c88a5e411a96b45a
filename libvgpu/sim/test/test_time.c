/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_time.c - modules, launches, simulated GPU time, streams, events, and what calls cost.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static const char ptx[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .global .align 4 .b8 table[4096];\n.visible .global .align 8 .f64 factor;\n"
    ".visible .entry plain(.param .u64 p)\n{ ret; }\n"
    ".visible .entry busy_20ms()\n{ ret; }\n.visible .entry _Z9busy_50msPf(.param .u64 p)\n{ ret; }\n"
    ".visible .entry busy_300ms()\n{ ret; }\n";

static CUfunction kernel(CUmodule module, const char *name) {
  CUfunction found;
  CHECK_EQUAL(cuModuleGetFunction(&found, module, name), CUDA_SUCCESS);
  return found;
}

static CUmodule load(void) {
  CUmodule module;
  CHECK_EQUAL(cuModuleLoadData(&module, ptx), CUDA_SUCCESS);
  return module;
}

static CUresult launch(CUfunction function, CUstream stream) {
  return cuLaunchKernel(function, 4, 1, 1, 128, 1, 1, 0, stream, NULL, NULL);
}

void test_modules(void) {
  CUdeviceptr address;
  CUfunction found;
  size_t bytes;
  int value;
  CUmodule module;
  begin_cuda();
  module = load();
  found = kernel(module, "plain");
  CHECK_EQUAL(cuModuleGetFunction(&found, module, "absent"), CUDA_ERROR_NOT_FOUND);
  CHECK_EQUAL(cuModuleGetFunction(&found, module, "plai"), CUDA_ERROR_NOT_FOUND);
  CHECK_EQUAL(cuModuleLoadData(&module, "no image at all"), CUDA_ERROR_INVALID_IMAGE);
  module = load();
  CHECK_EQUAL(cuModuleGetGlobal_v2(&address, &bytes, module, "table"), CUDA_SUCCESS);
  CHECK_EQUAL(bytes, 4096);
  CHECK_EQUAL(cuMemsetD8_v2(address, 1, bytes), CUDA_SUCCESS);
  CHECK_EQUAL(cuModuleGetGlobal_v2(&address, &bytes, module, "factor"), CUDA_SUCCESS);
  CHECK_EQUAL(bytes, 8);
  CHECK_EQUAL(cuModuleGetGlobal_v2(&address, &bytes, module, "plain"), CUDA_ERROR_NOT_FOUND);
  found = kernel(module, "plain");
  CHECK_EQUAL(cuFuncGetAttribute(&value, 0, found), CUDA_SUCCESS);
  CHECK(value >= 32 && value <= 1024);
  CHECK_EQUAL(cuFuncGetAttribute(&value, 4, found), CUDA_SUCCESS);
  CHECK(value > 0);
  CHECK_EQUAL(launch(found, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(launch(NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
  CHECK_EQUAL(launch((CUfunction)(uintptr_t)&value, NULL), CUDA_ERROR_INVALID_HANDLE);
  CHECK_EQUAL(launch(found, (CUstream)(uintptr_t)&value), CUDA_ERROR_INVALID_HANDLE);
  CHECK_EQUAL(cuLaunchKernel(found, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuLaunchKernel(found, 1, 1, 1, 1025, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
}

void test_linker(void) {
  static char more[] = ".version 7.0\n.target sm_80\n.visible .entry other()\n{ ret; }\n";
  CUmodule module;
  void *link;
  void *image;
  size_t bytes;
  begin_cuda();
  CHECK_EQUAL(cuLinkCreate_v2(0, NULL, NULL, &link), CUDA_SUCCESS);
  CHECK_EQUAL(cuLinkComplete(link, &image, &bytes), CUDA_ERROR_INVALID_IMAGE);
  CHECK_EQUAL(cuLinkAddData_v2(link, 1, (void *)(uintptr_t)ptx, sizeof ptx, "a", 0, NULL, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuLinkAddData_v2(link, 1, more, sizeof more, "b", 0, NULL, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuLinkAddData_v2(link, 4, more, sizeof more, "c", 0, NULL, NULL), CUDA_ERROR_NOT_SUPPORTED);
  CHECK_EQUAL(cuLinkComplete(link, &image, &bytes), CUDA_SUCCESS);
  CHECK_EQUAL(cuModuleLoadData(&module, image), CUDA_SUCCESS);
  CHECK_EQUAL(cuLinkDestroy(link), CUDA_SUCCESS);
  CHECK_EQUAL(cuLinkDestroy(link), CUDA_ERROR_INVALID_HANDLE);
  CHECK_EQUAL(launch(kernel(module, "plain"), NULL), CUDA_SUCCESS);
  CHECK_EQUAL(launch(kernel(module, "other"), NULL), CUDA_SUCCESS);
}

void test_kernel_time(void) {
  CUstream stream;
  begin_cuda();
  CUmodule module = load();
  CUfunction busy = kernel(module, "busy_20ms");
  CHECK_EQUAL(cuStreamCreate(&stream, 1), CUDA_SUCCESS);
  uint64_t start = now_ns();
  for (int i = 0; i < 10; i++)
    CHECK_EQUAL(launch(busy, stream), CUDA_SUCCESS);
  CHECK_EQUAL(launch(kernel(module, "_Z9busy_50msPf"), stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  CHECK(now_ns() - start < 200000000u); /* launches do not wait */
  uint64_t cpu = cpu_ns();
  CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
  CHECK(cpu_ns() - cpu < 20000000u); /* waiting is sleeping */
  CHECK(now_ns() - start >= 250000000u);
  CHECK_EQUAL(cuStreamQuery(stream), CUDA_SUCCESS);
  CHECK_EQUAL(status_number("busy_ns") / 1000000, 250);
}

/* Two processes with 300 ms of work each: both need about 600 ms, since each gets half the card. */
void test_kernels_share_the_card(void) {
  pid_t children[2];
  uint64_t start = now_ns();
  for (int i = 0; i < 2; i++) {
    children[i] = fork();
    if (children[i] > 0) continue;
    begin_cuda();
    CHECK_EQUAL(launch(kernel(load(), "busy_300ms"), NULL), CUDA_SUCCESS);
    uint64_t began = now_ns();
    CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK(now_ns() - began >= 400000000u);
    exit(0);
  }
  for (int i = 0; i < 2; i++)
    CHECK_EQUAL(wait_for(children[i]), 0);
  CHECK(now_ns() - start >= 600000000u);
}

void test_events(void) {
  CUevent start;
  CUevent end;
  float milliseconds;
  begin_cuda();
  CUfunction busy = kernel(load(), "busy_20ms");
  CHECK_EQUAL(cuEventCreate(&start, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventCreate(&end, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE); /* not recorded */
  CHECK_EQUAL(cuEventRecord(start, NULL), CUDA_SUCCESS);
  for (int i = 0; i < 3; i++)
    CHECK_EQUAL(launch(busy, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventRecord(end, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventQuery(end), CUDA_ERROR_NOT_READY);
  CHECK_EQUAL(cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
  CHECK_EQUAL(cuEventSynchronize(end), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventQuery(end), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventElapsedTime(&milliseconds, start, end), CUDA_SUCCESS);
  CHECK(milliseconds >= 59.9f && milliseconds < 90.0f);
}

static double median_of_3(double a, double b, double c) {
  return a > b ? (b > c ? b : a > c ? c : a) : (a > c ? a : b > c ? c : b);
}

enum { CALLS = 300000 };

static double pair_ns(void) {
  CUdeviceptr memory;
  uint64_t start = cpu_ns();
  for (int i = 0; i < CALLS; i++) {
    CHECK_EQUAL(cuMemAlloc_v2(&memory, 65536), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFree_v2(memory), CUDA_SUCCESS);
  }
  return (double)(cpu_ns() - start) / CALLS;
}

static double call_ns(void) {
  CUdevice device;
  uint64_t start = cpu_ns();
  for (int i = 0; i < CALLS; i++)
    CHECK_EQUAL(cuCtxGetDevice(&device), CUDA_SUCCESS);
  return (double)(cpu_ns() - start) / CALLS;
}

/* Bars far above what is measured on a quiet machine (60 and 7 ns): they catch a system call on the path. */
void test_cost(void) {
  begin_cuda();
  double pair = median_of_3(pair_ns(), pair_ns(), pair_ns());
  double call = median_of_3(call_ns(), call_ns(), call_ns());
  printf("         alloc+free pair %.0f ns, context query %.1f ns\n", pair, call);
  fflush(stdout);
  CHECK(pair < 1000);
  CHECK(call < 100);
}
