/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * fake_gpu_memory.c - contract in fake_gpu.h: memory, of which there is always enough.
 */
#include "fake_gpu.h"

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  NOTE(NULL);
  *free_bytes = *total_bytes = (size_t)16 << 30;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
  NOTE(NULL);
  static CUdeviceptr next = 1 << 20;
  CUdeviceptr device = fake_current ? (CUdeviceptr)fake_current->device : 0;
  *pointer = __atomic_fetch_add(&next, bytes, __ATOMIC_RELAXED) | device << FAKE_DEVICE_SHIFT;
  return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
  NOTE(NULL);
  (void)pointer;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
  NOTE(stream);
  *pointer = (CUdeviceptr)1 << 40 | bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  NOTE(stream);
  (void)pointer;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
  NOTE(NULL);
  *pool = (CUmemoryPool)&fake_contexts[device];
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
  NOTE(NULL);
  (void)pool, (void)attribute;
  *(uint64_t *)value = 0;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t min_bytes_to_keep) {
  NOTE(NULL);
  (void)pool, (void)min_bytes_to_keep;
  return fake_unsafe();
}
