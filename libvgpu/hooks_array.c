/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hooks_array.c - arrays and mipmapped arrays. What their elements take is claimed before, what the driver says
 * that they take is charged after (it may pad); drivers before 11.7 do not say, and then the elements count.
 */
#include "blocks.h"
#include "claim.h"
#include "table.h"

enum {
  FORMAT_HALF = 0x10,
  FORMAT_NV12 = 0xb0, /* one and a half bytes per pixel, counted as two */
  FLAG_LAYERED = 1,
  FLAG_CUBEMAP = 4,
  FLAGS_WITHOUT_MEMORY = 0x40 | 0x80 /* sparse, deferred mapping: memory comes from cuMemCreate */
};

static uint64_t multiply(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* Bytes of one element. 0x01..0x03 and 0x08..0x0a are integers of 1, 2 and 4 bytes, 0x10 and 0x20 floats of 2
 * and 4; newer formats are counted as 8 bytes a channel at most. */
uint64_t vgpu_element_bytes(int format, unsigned int channels) {
  uint64_t one = 8;
  if (format == 0x01 || format == 0x08) one = 1;
  if (format == 0x02 || format == 0x09 || format == FORMAT_HALF || format == FORMAT_NV12) one = 2;
  if (format == 0x03 || format == 0x0a || format == 0x20) one = 4;
  return one * channels;
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int level) {
  uint64_t width = shape->width >> level, height = shape->height >> level, depth = shape->depth;
  if (!(shape->flags & (FLAG_LAYERED | FLAG_CUBEMAP))) depth >>= level;
  uint64_t bytes = vgpu_element_bytes(shape->format, shape->channels);
  bytes = multiply(bytes, width ? width : 1);
  bytes = multiply(bytes, height ? height : 1);
  return multiply(bytes, depth ? depth : 1);
}

static CUresult begin(struct vgpu_claim *claim, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels) {
  uint64_t bytes = 0;
  for (unsigned int level = 0; level < levels && level < 32; level++) {
    if (__builtin_add_overflow(bytes, level_bytes(shape, level), &bytes)) bytes = UINT64_MAX;
  }
  return vgpu_claim_begin(claim, VGPU_KIND_DEVICE, bytes);
}

/* The claim becomes what the driver took, and is kept. False: it must be given back. */
static bool keep(struct vgpu_claim *claim, enum vgpu_block_class block_class, void *array, CUresult asked,
                 const CUDA_ARRAY_MEMORY_REQUIREMENTS *took) {
  if (asked == CUDA_SUCCESS && took->size > 0 && !vgpu_claim_resize(claim, took->size)) return false;
  return vgpu_claim_keep(claim, block_class, (uintptr_t)array, vgpu_current_context());
}

static CUresult finish(struct vgpu_claim *claim, CUresult result, const CUarray *array) {
  __typeof__(&cuArrayGetMemoryRequirements) ask = VGPU_REAL(cuArrayGetMemoryRequirements);
  CUDA_ARRAY_MEMORY_REQUIREMENTS took = {.size = 0};
  if (!claim->place.book) return result;
  if (result == CUDA_SUCCESS) {
    CUresult asked = ask ? ask(&took, *array, claim->device->ordinal) : CUDA_ERROR_NOT_INITIALIZED;
    if (keep(claim, VGPU_BLOCK_ARRAY, *array, asked, &took)) return result;
    VGPU_REAL(cuArrayDestroy)(*array);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  vgpu_claim_drop(claim);
  return result;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor) {
  __typeof__(&cuArrayCreate_v2) real = VGPU_REAL(cuArrayCreate_v2);
  struct vgpu_claim claim;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!array || !descriptor) return real(array, descriptor);
  CUDA_ARRAY3D_DESCRIPTOR shape = {descriptor->width,  descriptor->height,   0,
                                   descriptor->format, descriptor->channels, 0};
  CUresult refused = begin(&claim, &shape, 1);
  return refused != CUDA_SUCCESS ? refused : finish(&claim, real(array, descriptor), array);
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor) {
  __typeof__(&cuArrayCreate) real = VGPU_REAL(cuArrayCreate);
  struct vgpu_claim claim;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!array || !descriptor) return real(array, descriptor);
  CUDA_ARRAY3D_DESCRIPTOR shape = {descriptor->width,  descriptor->height,   0,
                                   descriptor->format, descriptor->channels, 0};
  CUresult refused = begin(&claim, &shape, 1);
  return refused != CUDA_SUCCESS ? refused : finish(&claim, real(array, descriptor), array);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
  __typeof__(&cuArray3DCreate_v2) real = VGPU_REAL(cuArray3DCreate_v2);
  struct vgpu_claim claim;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!array || !descriptor || descriptor->flags & FLAGS_WITHOUT_MEMORY) return real(array, descriptor);
  CUresult refused = begin(&claim, descriptor, 1);
  return refused != CUDA_SUCCESS ? refused : finish(&claim, real(array, descriptor), array);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor) {
  __typeof__(&cuArray3DCreate) real = VGPU_REAL(cuArray3DCreate);
  struct vgpu_claim claim;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!array || !descriptor || descriptor->flags & FLAGS_WITHOUT_MEMORY) return real(array, descriptor);
  CUDA_ARRAY3D_DESCRIPTOR shape = {descriptor->width,  descriptor->height,   descriptor->depth,
                                   descriptor->format, descriptor->channels, descriptor->flags};
  CUresult refused = begin(&claim, &shape, 1);
  return refused != CUDA_SUCCESS ? refused : finish(&claim, real(array, descriptor), array);
}

static CUresult finish_mipmap(struct vgpu_claim *claim, CUresult result, const CUmipmappedArray *array) {
  __typeof__(&cuMipmappedArrayGetMemoryRequirements) ask = VGPU_REAL(cuMipmappedArrayGetMemoryRequirements);
  CUDA_ARRAY_MEMORY_REQUIREMENTS took = {.size = 0};
  if (!claim->place.book) return result;
  if (result == CUDA_SUCCESS) {
    CUresult asked = ask ? ask(&took, *array, claim->device->ordinal) : CUDA_ERROR_NOT_INITIALIZED;
    if (keep(claim, VGPU_BLOCK_MIPMAP, *array, asked, &took)) return result;
    VGPU_REAL(cuMipmappedArrayDestroy)(*array);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  vgpu_claim_drop(claim);
  return result;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                unsigned int levels) {
  __typeof__(&cuMipmappedArrayCreate) real = VGPU_REAL(cuMipmappedArrayCreate);
  struct vgpu_claim claim;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!array || !descriptor || descriptor->flags & FLAGS_WITHOUT_MEMORY) return real(array, descriptor, levels);
  CUresult refused = begin(&claim, descriptor, levels);
  return refused != CUDA_SUCCESS ? refused : finish_mipmap(&claim, real(array, descriptor, levels), array);
}

CUresult cuArrayDestroy(CUarray array) {
  __typeof__(&cuArrayDestroy) real = VGPU_REAL(cuArrayDestroy);
  struct vgpu_block block;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  bool is_ours = vgpu_free_begin(VGPU_BLOCK_ARRAY, (uintptr_t)array, &block);
  return vgpu_free_end(is_ours, &block, real(array));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  __typeof__(&cuMipmappedArrayDestroy) real = VGPU_REAL(cuMipmappedArrayDestroy);
  struct vgpu_block block;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  bool is_ours = vgpu_free_begin(VGPU_BLOCK_MIPMAP, (uintptr_t)array, &block);
  return vgpu_free_end(is_ours, &block, real(array));
}
