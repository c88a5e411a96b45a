/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hooks_vmm.c - physical memory of the virtual memory management calls. It is charged when it is created, to the
 * device in its properties, and lives until its handle is released as often as it was made or retained and all
 * its mappings are gone. Address space is free of charge.
 */
#include "blocks.h"
#include "claim.h"
#include "table.h"

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
  __typeof__(&cuMemCreate) real = VGPU_REAL(cuMemCreate);
  struct vgpu_claim claim = {.place.book = NULL};
  CUresult why = CUDA_SUCCESS;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  bool is_device = handle && bytes && properties && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (!is_device || !vgpu_is_limiting()) return real(handle, bytes, properties, flags);
  vgpu_check_fork();
  why = vgpu_claim_on(&claim, vgpu_device_at(properties->location.id, &why), why, VGPU_KIND_DEVICE, bytes);
  if (why != CUDA_SUCCESS) return why;
  CUresult result = real(handle, bytes, properties, flags);
  if (result == CUDA_SUCCESS && vgpu_claim_keep(&claim, VGPU_BLOCK_HANDLE, *handle, NULL)) return result;
  if (result == CUDA_SUCCESS) VGPU_REAL(cuMemRelease)(*handle);
  vgpu_claim_drop(&claim);
  return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

/* Takes one reference off a handle; the last one gives the charge back. */
static void unreference(CUmemGenericAllocationHandle handle) {
  struct vgpu_block block;
  if (vgpu_block_add_references(VGPU_BLOCK_HANDLE, handle, -1, &block)) vgpu_block_release(&block);
}

/* The reference goes before the driver is asked, which may give the handle out again at once. */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  __typeof__(&cuMemRelease) real = VGPU_REAL(cuMemRelease);
  struct vgpu_block block;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!vgpu_is_limiting()) return real(handle);
  vgpu_check_fork();
  bool is_last = vgpu_block_add_references(VGPU_BLOCK_HANDLE, handle, -1, &block);
  CUresult result = real(handle);
  if (is_last) {
    block.references = 1;
    return vgpu_free_end(true, &block, result);
  }
  if (result != CUDA_SUCCESS) vgpu_block_add_references(VGPU_BLOCK_HANDLE, handle, 1, &block);
  return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
  __typeof__(&cuMemRetainAllocationHandle) real = VGPU_REAL(cuMemRetainAllocationHandle);
  struct vgpu_block block;
  CUresult result = real ? real(handle, address) : CUDA_ERROR_NOT_INITIALIZED;
  if (result == CUDA_SUCCESS && vgpu_is_limiting()) vgpu_block_add_references(VGPU_BLOCK_HANDLE, *handle, 1, &block);
  return result;
}

/* The mapping counts before the driver is asked: a release in another thread must not give the charge back. */
CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  __typeof__(&cuMemMap) real = VGPU_REAL(cuMemMap);
  struct vgpu_block block;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!vgpu_is_limiting()) return real(pointer, bytes, offset, handle, flags);
  vgpu_check_fork();
  vgpu_block_add_references(VGPU_BLOCK_HANDLE, handle, 1, &block);
  CUresult result = real(pointer, bytes, offset, handle, flags);
  struct vgpu_block mapping = {.key = pointer, .bytes = bytes, .link = handle, .block_class = VGPU_BLOCK_MAPPING};
  if (result != CUDA_SUCCESS) {
    unreference(handle);
  } else {
    vgpu_block_put(&mapping); /* if it cannot be noted, the handle stays charged */
  }
  return result;
}

/* The range may begin a mapping of another thread as soon as the driver has unmapped it: its first one is taken before. */
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
  __typeof__(&cuMemUnmap) real = VGPU_REAL(cuMemUnmap);
  struct vgpu_block mapping;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!vgpu_is_limiting()) return real(pointer, bytes);
  vgpu_check_fork();
  bool is_ours = vgpu_block_take(VGPU_BLOCK_MAPPING, pointer, &mapping);
  CUresult result = real(pointer, bytes);
  if (!is_ours) return result;
  if (result != CUDA_SUCCESS) {
    mapping.references = 1;
    vgpu_block_put(&mapping);
    return result;
  }
  uint64_t end = pointer + bytes;
  do {
    unreference(mapping.link);
    pointer += mapping.bytes;
  } while (pointer < end && vgpu_block_take(VGPU_BLOCK_MAPPING, pointer, &mapping));
  return result;
}
