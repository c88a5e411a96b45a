/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hooks_memory.c - linear, pitched and managed memory. Each allocating hook: claim, ask the driver, keep the
 * claim under the pointer, or drop it. Each freeing one: take the block, ask the driver, settle by its result.
 * Which context a block belongs to is not asked here, but when a context ends (hooks_context.c).
 */
#include "claim.h"
#include "pools.h"
#include "table.h"

/* Ends an allocation: `result` is the driver's. Memory that cannot be kept account of is given back. */
static CUresult finish(struct vgpu_claim *claim, CUresult result, CUdeviceptr pointer) {
  if (result == CUDA_SUCCESS && vgpu_claim_keep(claim, VGPU_BLOCK_POINTER, pointer, NULL)) return CUDA_SUCCESS;
  if (result == CUDA_SUCCESS) {
    VGPU_REAL(cuMemFree_v2)(pointer);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  vgpu_claim_drop(claim);
  return result;
}

VGPU_ONE_RUN CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
  __typeof__(&cuMemAlloc_v2) real = VGPU_REAL(cuMemAlloc_v2);
  struct vgpu_claim claim;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!pointer || bytes == 0) return real(pointer, bytes);
  CUresult refused = vgpu_claim_begin(&claim, VGPU_KIND_DEVICE, bytes);
  if (refused != CUDA_SUCCESS) return refused;
  CUresult result = real(pointer, bytes);
  return claim.place.book ? finish(&claim, result, *pointer) : result;
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes) {
  __typeof__(&cuMemAlloc) real = VGPU_REAL(cuMemAlloc);
  struct vgpu_claim claim;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!pointer || bytes == 0) return real(pointer, bytes);
  CUresult refused = vgpu_claim_begin(&claim, VGPU_KIND_DEVICE, bytes);
  if (refused != CUDA_SUCCESS) return refused;
  CUresult result = real(pointer, bytes);
  return claim.place.book ? finish(&claim, result, *pointer) : result;
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
  __typeof__(&cuMemAllocManaged) real = VGPU_REAL(cuMemAllocManaged);
  struct vgpu_claim claim;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!pointer || bytes == 0) return real(pointer, bytes, flags);
  CUresult refused = vgpu_claim_begin(&claim, VGPU_KIND_MANAGED, bytes);
  if (refused != CUDA_SUCCESS) return refused;
  CUresult result = real(pointer, bytes, flags);
  return claim.place.book ? finish(&claim, result, *pointer) : result;
}

/* What a pitched block of these sides takes at most, for rows of the alignment learnt so far. */
static uint64_t pitched_bytes(const struct vgpu_device *device, uint64_t width_bytes, uint64_t height) {
  uint64_t alignment = device ? __atomic_load_n(&device->pitch_alignment, __ATOMIC_RELAXED) : 1, bytes;
  if (__builtin_add_overflow(width_bytes, alignment - 1, &width_bytes)) return UINT64_MAX;
  return __builtin_mul_overflow(width_bytes / alignment * alignment, height, &bytes) ? UINT64_MAX : bytes;
}

/* Corrects the alignment by a pitch that the driver gave: too small is raised, too large is lowered. */
static void learn_pitch(struct vgpu_device *device, uint64_t width_bytes, uint64_t pitch) {
  uint64_t expected = pitched_bytes(device, width_bytes, 1);
  if (pitch == expected || pitch == 0) return;
  __atomic_store_n(&device->pitch_alignment, pitch & (0 - pitch), __ATOMIC_RELAXED);
}

/* Ends a pitched allocation: the claim becomes what the driver took. */
static CUresult finish_pitched(struct vgpu_claim *claim, CUresult result, CUdeviceptr pointer, uint64_t width_bytes,
                               uint64_t height, uint64_t pitch) {
  if (!claim->place.book || result != CUDA_SUCCESS) return finish(claim, result, pointer);
  learn_pitch(claim->device, width_bytes, pitch);
  if (vgpu_claim_resize(claim, pitch * height)) return finish(claim, result, pointer);
  VGPU_REAL(cuMemFree_v2)(pointer);
  vgpu_claim_drop(claim);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult claim_pitched(struct vgpu_claim *claim, uint64_t width_bytes, uint64_t height) {
  CUresult why = CUDA_SUCCESS;
  claim->place.book = NULL;
  if (!vgpu_is_limiting()) return CUDA_SUCCESS;
  vgpu_check_fork();
  struct vgpu_device *device = vgpu_device_current(&why);
  return vgpu_claim_on(claim, device, why, VGPU_KIND_DEVICE, pitched_bytes(device, width_bytes, height));
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width_bytes, size_t height,
                            unsigned int element_bytes) {
  __typeof__(&cuMemAllocPitch_v2) real = VGPU_REAL(cuMemAllocPitch_v2);
  struct vgpu_claim claim;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!pointer || !pitch || width_bytes == 0 || height == 0) {
    return real(pointer, pitch, width_bytes, height, element_bytes);
  }
  CUresult refused = claim_pitched(&claim, width_bytes, height);
  if (refused != CUDA_SUCCESS) return refused;
  CUresult result = real(pointer, pitch, width_bytes, height, element_bytes);
  return finish_pitched(&claim, result, *pointer, width_bytes, height, *pitch);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width_bytes, unsigned int height,
                         unsigned int element_bytes) {
  __typeof__(&cuMemAllocPitch) real = VGPU_REAL(cuMemAllocPitch);
  struct vgpu_claim claim;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!pointer || !pitch || width_bytes == 0 || height == 0) {
    return real(pointer, pitch, width_bytes, height, element_bytes);
  }
  CUresult refused = claim_pitched(&claim, width_bytes, height);
  if (refused != CUDA_SUCCESS) return refused;
  CUresult result = real(pointer, pitch, width_bytes, height, element_bytes);
  return finish_pitched(&claim, result, *pointer, width_bytes, height, *pitch);
}

VGPU_ONE_RUN CUresult cuMemFree_v2(CUdeviceptr pointer) {
  __typeof__(&cuMemFree_v2) real = VGPU_REAL(cuMemFree_v2);
  struct vgpu_block block;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  bool is_ours = vgpu_free_begin(VGPU_BLOCK_POINTER, pointer, &block);
  CUresult result = vgpu_free_end(is_ours, &block, real(pointer));
  if (!is_ours) vgpu_pools_refresh(); /* it may have been a pool's */
  return result;
}

CUresult cuMemFree(CUdeviceptr_v1 pointer) {
  __typeof__(&cuMemFree) real = VGPU_REAL(cuMemFree);
  struct vgpu_block block;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  bool is_ours = vgpu_free_begin(VGPU_BLOCK_POINTER, pointer, &block);
  return vgpu_free_end(is_ours, &block, real(pointer));
}
