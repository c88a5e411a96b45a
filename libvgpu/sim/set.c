/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * set.c - filling device memory. At once, like copies (see copy.c); no call waits for the time that it takes.
 */
#include <string.h>

#include "copy.h"

CUresult gs_fill_check(const struct cu_memset_node *fill) {
  uint64_t row;
  uint64_t span;
  unsigned element = fill->element_bytes;
  if (element != 1 && element != 2 && element != 4) return CUDA_ERROR_INVALID_VALUE;
  if (fill->width == 0 || fill->height == 0) return CUDA_SUCCESS;
  if (fill->target % element || (fill->height > 1 && fill->pitch % element)) return CUDA_ERROR_INVALID_VALUE;
  if (__builtin_mul_overflow(fill->width, (uint64_t)element, &row) || (fill->height > 1 && fill->pitch < row))
    return CUDA_ERROR_INVALID_VALUE;
  if (__builtin_mul_overflow(fill->height - 1, fill->pitch, &span) || __builtin_add_overflow(span, row, &span))
    return CUDA_ERROR_INVALID_VALUE;
  return gs_side_of(fill->target, span) == GS_SIDE_BAD ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult gs_fill_run(struct gs_context *context, CUstream stream, const struct cu_memset_node *fill) {
  CUresult result = gs_fill_check(fill);
  size_t row = fill->width * fill->element_bytes;
  if (result != CUDA_SUCCESS || fill->width == 0 || fill->height == 0) return result;
  gs_fill_spend(context, stream, row * fill->height);
  gs_arena_touch(fill->target);
  if (gs_arena_covers(fill->target) && !gs_arena_accessible()) return CUDA_SUCCESS;
  for (size_t y = 0; y < fill->height; y++) {
    char *at = (char *)(uintptr_t)(fill->target + y * fill->pitch);
    if (fill->element_bytes == 1) memset(at, (int)fill->value, row);
    for (size_t x = 0; fill->element_bytes > 1 && x < row; x += fill->element_bytes)
      memcpy(at + x, &fill->value, fill->element_bytes);
  }
  return CUDA_SUCCESS;
}

/* A fill by a call without a stream. */
static CUresult fill_now(const struct cu_memset_node *fill) {
  NEED_CONTEXT(context);
  NOT_CAPTURED(gs_capture_legacy(context, false));
  gs_wait_all(context);
  return gs_fill_run(context, NULL, fill);
}

/* One by a call with a stream. */
static CUresult fill_in(CUstream stream, const struct cu_memset_node *fill) {
  NEED_CONTEXT(context);
  NEED_STREAM(stream);
  CAPTURE(context, stream, branch);
  if (!branch) return gs_fill_run(context, stream, fill);
  CUresult result = gs_fill_check(fill);
  if (result != CUDA_SUCCESS) return result;
  return gs_capture_add(branch, &(struct gs_action){.type = CU_NODE_MEMSET, .fill = *fill});
}

/* `value` in `height` rows of `width` elements. */
#define FILL(bits, pitch, width, height)                  \
  &(struct cu_memset_node) {                              \
    target, (pitch), value, (bits) / 8, (width), (height) \
  }

#define DEFINE_FILLS(bits, type)                                                                              \
  CU_API(cuMemsetD##bits##_v2)(CUdeviceptr target, type value, size_t count) {                                \
    ENTER(cuMemsetD##bits##_v2);                                                                              \
    return fill_now(FILL(bits, 0, count, 1));                                                                 \
  }                                                                                                           \
  CU_API(cuMemsetD##bits##Async)(CUdeviceptr target, type value, size_t count, CUstream stream) {             \
    ENTER(cuMemsetD##bits##Async);                                                                            \
    return fill_in(stream, FILL(bits, 0, count, 1));                                                          \
  }                                                                                                           \
  CU_API(cuMemsetD2D##bits##_v2)(CUdeviceptr target, size_t pitch, type value, size_t width, size_t height) { \
    ENTER(cuMemsetD2D##bits##_v2);                                                                            \
    return fill_now(FILL(bits, pitch, width, height));                                                        \
  }                                                                                                           \
  CU_API(cuMemsetD2D##bits##Async)                                                                            \
  (CUdeviceptr target, size_t pitch, type value, size_t width, size_t height, CUstream stream) {              \
    ENTER(cuMemsetD2D##bits##Async);                                                                          \
    return fill_in(stream, FILL(bits, pitch, width, height));                                                 \
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
