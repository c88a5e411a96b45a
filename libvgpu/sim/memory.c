/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * memory.c - device memory: linear, pitched, managed; how much there is; which allocation an address is in.
 *
 * Model: an allocation takes exactly its bytes of the card (pitched: pitch times height). Managed memory takes
 * all its bytes of the card of the current context from the start.
 */
#define _GNU_SOURCE
#include <string.h>

#include "capture.h"
#include "node.h"

enum { FREEABLE = 1u << GS_BLOCK_DEVICE | 1u << GS_BLOCK_MANAGED | 1u << GS_BLOCK_POOL };

static CUresult allocate(struct gs_context *context, CUdeviceptr *out, uint64_t bytes, enum gs_block_kind kind) {
  struct gs_device *device = context->device;
  if (gs_memory_take(device->gpu, bytes) < 0) {
    gs_pool_empty_device(device); /* what pools keep unused goes before an allocation is refused */
    if (gs_memory_take(device->gpu, bytes) < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  gs_node_touch(device->gpu_index);
  struct gs_block model = {.held_bytes = bytes, .context = context, .device = device, .kind = kind};
  if (kind == GS_BLOCK_MANAGED) model.flags = GS_BLOCK_TOUCHED; /* the program may write it by itself */
  uint64_t address = gs_arena_alloc(bytes, &model);
  if (!address) {
    gs_memory_give(device->gpu, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = address;
  return CUDA_SUCCESS;
}

CUresult gs_memory_allocate(struct gs_context *context, CUdeviceptr *out, uint64_t bytes) {
  return allocate(context, out, bytes, GS_BLOCK_DEVICE);
}

CU_API(cuMemAlloc_v2)(CUdeviceptr *out, size_t bytes) {
  ENTER(cuMemAlloc_v2);
  NEED_CONTEXT(context);
  if (!out || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  NOT_CAPTURED(gs_capture_unsafe());
  return allocate(context, out, bytes, GS_BLOCK_DEVICE);
}

CU_API(cuMemAllocPitch_v2)(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
  ENTER(cuMemAllocPitch_v2);
  NEED_CONTEXT(context);
  uint64_t alignment = gs_driver.settings->pitch_alignment_bytes;
  uint64_t bytes;
  uint64_t row;
  if (!out || !pitch || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
  if (__builtin_add_overflow(width, alignment - 1, &row)) return CUDA_ERROR_OUT_OF_MEMORY;
  NOT_CAPTURED(gs_capture_unsafe());
  row &= ~(alignment - 1);
  if (__builtin_mul_overflow(row, height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = allocate(context, out, bytes, GS_BLOCK_DEVICE);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

CU_API(cuMemAllocManaged)(CUdeviceptr *out, size_t bytes, unsigned flags) {
  ENTER(cuMemAllocManaged);
  NEED_CONTEXT(context);
  if (!out || bytes == 0 || (flags != 1 && flags != 2)) return CUDA_ERROR_INVALID_VALUE;
  NOT_CAPTURED(gs_capture_unsafe());
  return allocate(context, out, bytes, GS_BLOCK_MANAGED);
}

static void give_back(const struct gs_block *block) {
  if (block->kind == GS_BLOCK_POOL)
    gs_pool_release(block->pool, block->held_bytes);
  else if (block->held_bytes)
    gs_memory_give(block->device->gpu, block->held_bytes);
}

CUresult gs_memory_free(CUdeviceptr pointer) {
  struct gs_block block;
  CUresult result;
  if (gs_graph_memory_free(pointer, &result)) return result;
  if (!gs_arena_free(pointer, FREEABLE, &block)) return CUDA_ERROR_INVALID_VALUE;
  give_back(&block);
  if (block.kind == GS_BLOCK_POOL) gs_pool_trim_device(block.device); /* this free waits for the device */
  return CUDA_SUCCESS;
}

CU_API(cuMemFree_v2)(CUdeviceptr pointer) {
  ENTER(cuMemFree_v2);
  NOT_CAPTURED(gs_capture_unsafe());
  return pointer == 0 ? CUDA_SUCCESS : gs_memory_free(pointer);
}

/* The caller holds gs_driver.mutex. */
void gs_memory_release_context(struct gs_context *context) {
  struct gs_block taken;
  while (context->blocks)
    if (gs_arena_free(gs_arena_address(context->blocks), UINT32_MAX, &taken)) give_back(&taken);
}

CU_API(cuMemGetInfo_v2)(size_t *free_bytes, size_t *total_bytes) {
  ENTER(cuMemGetInfo_v2);
  NEED_CONTEXT(context);
  struct gs_gpu *gpu = context->device->gpu;
  uint64_t total = gpu->card.memory_bytes - gpu->card.reserved_bytes;
  if (free_bytes) *free_bytes = total - gs_memory_used(gpu);
  if (total_bytes) *total_bytes = total;
  return CUDA_SUCCESS;
}

CU_API(cuMemGetAddressRange_v2)(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
  ENTER(cuMemGetAddressRange_v2);
  NEED_CONTEXT(context);
  (void)context;
  struct gs_block *block = gs_arena_find(pointer);
  if (!block) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = gs_arena_address(block);
  if (bytes) *bytes = block->bytes;
  return CUDA_SUCCESS;
}

CU_API(cuMemAdvise)(CUdeviceptr pointer, size_t bytes, int advice, CUdevice ordinal) {
  ENTER(cuMemAdvise);
  (void)advice;
  (void)ordinal;
  struct gs_block *block = gs_arena_find(pointer);
  return block && block->kind == GS_BLOCK_MANAGED && bytes > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API(cuMemPrefetchAsync)(CUdeviceptr pointer, size_t bytes, CUdevice ordinal, CUstream stream) {
  ENTER(cuMemPrefetchAsync);
  (void)ordinal;
  NEED_CONTEXT(context);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  CAPTURE(context, stream, branch);
  if (branch) return gs_capture_fail(branch, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  struct gs_block *block = gs_arena_find(pointer);
  return block && block->kind == GS_BLOCK_MANAGED && bytes > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
