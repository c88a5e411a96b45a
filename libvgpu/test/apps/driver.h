/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * driver.h - what the client programs call of the driver beyond what libvgpu hooks, and a few short cuts.
 */
#ifndef VGPU_TEST_DRIVER_H
#define VGPU_TEST_DRIVER_H

#include "../../include/cuda_api.h"
#include "../../include/nvml_api.h"
#include "../check.h"

#define MIB ((uint64_t)1 << 20)

enum { CU_POINTER_ATTRIBUTE_IS_MANAGED = 8 };

CUresult cuInit(unsigned int flags);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetName(char *name, int length, CUdevice device);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuCtxAttach(CUcontext *context, unsigned int flags);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags);
CUresult cuGraphUpload(CUgraphExec graph, CUstream stream);
CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **values, CUdeviceptr pointer);

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);

/* The primary context of a device, current. Ends the program when it cannot be had. */
static inline CUcontext use_device(CUdevice device) {
  CUcontext context = NULL;
  CUresult result = cuInit(0);
  if (result == CUDA_SUCCESS) result = cuDevicePrimaryCtxRetain(&context, device);
  if (result == CUDA_SUCCESS) result = cuCtxSetCurrent(context);
  if (result != CUDA_SUCCESS) {
    printf("FAIL no context on device %d: %d\n0 passed, 1 failed, 0 skipped\n", device, (int)result);
    exit(1);
  }
  return context;
}

/* Bytes in use as a program sees them. */
static inline uint64_t used_bytes(void) {
  size_t free_bytes = 0, total_bytes = 0;
  CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total_bytes), 0, "cuMemGetInfo");
  CHECK(free_bytes <= total_bytes, "free %zu is not above total %zu", free_bytes, total_bytes);
  return total_bytes - free_bytes;
}

static inline uint64_t total_bytes(void) {
  size_t free_bytes = 0, total = 0;
  CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), 0, "cuMemGetInfo");
  return total;
}

#endif
