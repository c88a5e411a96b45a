/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * set.c - filling device memory. At once, like copies (see copy.c).
 */
#include <string.h>

#include "copy.h"

/* Fills `height` rows of `width` elements of `element` bytes. */
static CUresult fill(CUdeviceptr target, size_t pitch, uint32_t value, unsigned element, size_t width, size_t height) {
  NEED_CONTEXT(context);
  (void)context;
  uint64_t row;
  uint64_t span;
  if (width == 0 || height == 0) return CUDA_SUCCESS;
  if (target % element || (height > 1 && pitch % element)) return CUDA_ERROR_INVALID_VALUE;
  if (__builtin_mul_overflow(width, (uint64_t)element, &row) || (height > 1 && pitch < row))
    return CUDA_ERROR_INVALID_VALUE;
  if (__builtin_mul_overflow(height - 1, pitch, &span) || __builtin_add_overflow(span, row, &span))
    return CUDA_ERROR_INVALID_VALUE;
  if (gs_side_of(target, span) == GS_SIDE_BAD) return CUDA_ERROR_INVALID_VALUE;
  gs_arena_touch(target);
  if (gs_arena_covers(target) && !gs_arena_accessible()) return CUDA_SUCCESS;
  for (size_t y = 0; y < height; y++) {
    char *at = (char *)(uintptr_t)(target + y * pitch);
    if (element == 1) memset(at, (int)value, row);
    for (size_t x = 0; element > 1 && x < row; x += element)
      memcpy(at + x, &value, element);
  }
  return CUDA_SUCCESS;
}

static CUresult fill_now(CUdeviceptr target, size_t pitch, uint32_t value, unsigned element, size_t width,
                         size_t height) {
  if (gs_thread.current && gs_thread.current->alive) gs_wait_all(gs_thread.current);
  return fill(target, pitch, value, element, width, height);
}

#define DEFINE_FILLS(bits, type)                                                                              \
  CU_API(cuMemsetD##bits##_v2)(CUdeviceptr target, type value, size_t count) {                                \
    ENTER(cuMemsetD##bits##_v2);                                                                              \
    return fill_now(target, 0, value, (bits) / 8, count, 1);                                                  \
  }                                                                                                           \
  CU_API(cuMemsetD##bits##Async)(CUdeviceptr target, type value, size_t count, CUstream stream) {             \
    ENTER(cuMemsetD##bits##Async);                                                                            \
    NEED_STREAM(stream);                                                                                      \
    return fill(target, 0, value, (bits) / 8, count, 1);                                                      \
  }                                                                                                           \
  CU_API(cuMemsetD2D##bits##_v2)(CUdeviceptr target, size_t pitch, type value, size_t width, size_t height) { \
    ENTER(cuMemsetD2D##bits##_v2);                                                                            \
    return fill_now(target, pitch, value, (bits) / 8, width, height);                                         \
  }                                                                                                           \
  CU_API(cuMemsetD2D##bits##Async)                                                                            \
  (CUdeviceptr target, size_t pitch, type value, size_t width, size_t height, CUstream stream) {              \
    ENTER(cuMemsetD2D##bits##Async);                                                                          \
    NEED_STREAM(stream);                                                                                      \
    return fill(target, pitch, value, (bits) / 8, width, height);                                             \
  }

/* What the macro defines, by name, for generate.sh. */
CU_ALIAS(cuMemsetD8_v2, cuMemsetD8_v2)
CU_ALIAS(cuMemsetD8Async, cuMemsetD8Async)
CU_ALIAS(cuMemsetD2D8_v2, cuMemsetD2D8_v2)
CU_ALIAS(cuMemsetD2D8Async, cuMemsetD2D8Async)
CU_ALIAS(cuMemsetD16_v2, cuMemsetD16_v2)
CU_ALIAS(cuMemsetD16Async, cuMemsetD16Async)
CU_ALIAS(cuMemsetD2D16_v2, cuMemsetD2D16_v2)
CU_ALIAS(cuMemsetD2D16Async, cuMemsetD2D16Async)
CU_ALIAS(cuMemsetD32_v2, cuMemsetD32_v2)
CU_ALIAS(cuMemsetD32Async, cuMemsetD32Async)
CU_ALIAS(cuMemsetD2D32_v2, cuMemsetD2D32_v2)
CU_ALIAS(cuMemsetD2D32Async, cuMemsetD2D32Async)

DEFINE_FILLS(8, unsigned char)
DEFINE_FILLS(16, unsigned short)
DEFINE_FILLS(32, unsigned)
