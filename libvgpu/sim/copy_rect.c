/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * copy_rect.c - copies of rectangles and boxes between linear memories. CUDA arrays are not modelled.
 */
#include <string.h>

#include "copy.h"

/* One side of such a copy. */
struct place {
  uint64_t base, pitch, slice; /* address of the first byte to copy; bytes from row to row, layer to layer */
  enum gs_side side;
};

/* Finds a side's place. Offsets and sizes are those of the descriptor; rows 0: as many as are copied. */
static CUresult locate(struct place *place, unsigned type, const void *on_host, CUdeviceptr on_device,
                       const size_t at[3], size_t pitch, size_t rows, const size_t extent[3]) {
  uint64_t last;
  if (type == CU_MEMORYTYPE_ARRAY) return CUDA_ERROR_NOT_SUPPORTED;
  if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
    return CUDA_ERROR_INVALID_VALUE;
  place->pitch = pitch ? pitch : at[0] + extent[0];
  if (place->pitch < at[0] + extent[0]) return CUDA_ERROR_INVALID_VALUE;
  if (rows == 0) rows = at[1] + extent[1];
  if (__builtin_mul_overflow(place->pitch, (uint64_t)rows, &place->slice)) return CUDA_ERROR_INVALID_VALUE;
  if (__builtin_mul_overflow(place->slice, (uint64_t)(at[2] + extent[2]), &last)) return CUDA_ERROR_INVALID_VALUE;
  place->base = type == CU_MEMORYTYPE_HOST ? (uintptr_t)on_host : on_device;
  if (place->base == 0) return CUDA_ERROR_INVALID_VALUE;
  place->base += at[2] * place->slice + at[1] * place->pitch + at[0];
  uint64_t span = (extent[2] - 1) * place->slice + (extent[1] - 1) * place->pitch + extent[0];
  place->side = gs_side_of(place->base, span);
  return place->side == GS_SIDE_BAD ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static bool is_empty(const struct cu_memcpy3d *copy) {
  return copy->width_bytes == 0 || copy->height == 0 || copy->depth == 0;
}

/* Finds both sides of a copy that is not empty. */
static CUresult locate_both(const struct cu_memcpy3d *copy, struct place *from, struct place *to) {
  const size_t extent[3] = {copy->width_bytes, copy->height, copy->depth};
  const size_t source_at[3] = {copy->src_x_bytes, copy->src_y, copy->src_z};
  const size_t target_at[3] = {copy->dst_x_bytes, copy->dst_y, copy->dst_z};
  CUresult result = locate(from, copy->src_type, copy->src_host, copy->src_device, source_at, copy->src_pitch,
                           copy->src_height, extent);
  if (result != CUDA_SUCCESS) return result;
  return locate(to, copy->dst_type, copy->dst_host, copy->dst_device, target_at, copy->dst_pitch, copy->dst_height,
                extent);
}

CUresult gs_copy_check(const struct cu_memcpy3d *copy) {
  struct place from;
  struct place to;
  return is_empty(copy) ? CUDA_SUCCESS : locate_both(copy, &from, &to);
}

CUresult gs_copy_run(struct gs_context *context, CUstream stream, const struct cu_memcpy3d *copy, uint64_t *mark) {
  struct place from;
  struct place to;
  if (mark) *mark = 0;
  if (is_empty(copy)) return CUDA_SUCCESS;
  CUresult result = locate_both(copy, &from, &to);
  if (result != CUDA_SUCCESS) return result;
  struct gs_transfer all = {.target = to.base,
                            .source = from.base,
                            .bytes = copy->width_bytes * copy->height * copy->depth,
                            .to = to.side,
                            .from = from.side};
  uint64_t spent = gs_copy_spend(context, stream, &all);
  if (mark) *mark = spent;
  struct gs_transfer row = all;
  row.bytes = copy->width_bytes;
  for (size_t z = 0; z < copy->depth; z++)
    for (size_t y = 0; y < copy->height; y++) {
      row.target = to.base + z * to.slice + y * to.pitch;
      row.source = from.base + z * from.slice + y * from.pitch;
      gs_move(&row);
    }
  return CUDA_SUCCESS;
}

/* A copy by a call without a stream. */
static CUresult copy_3d(const struct cu_memcpy3d *copy) {
  uint64_t mark;
  NEED_CONTEXT(context);
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  NOT_CAPTURED(gs_capture_legacy(context, true));
  CUresult result = gs_copy_check(copy);
  if (result != CUDA_SUCCESS) return result;
  if (!is_empty(copy)) gs_wait_all(context);
  result = gs_copy_run(context, NULL, copy, &mark);
  gs_engine_wait(context->device->gpu, mark);
  return result;
}

/* One by a call with a stream. */
static CUresult copy_3d_in(CUstream stream, const struct cu_memcpy3d *copy) {
  NEED_CONTEXT(context);
  NEED_STREAM(stream);
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  CAPTURE(context, stream, branch);
  if (!branch) return gs_copy_run(context, stream, copy, NULL);
  CUresult result = gs_copy_check(copy);
  if (result != CUDA_SUCCESS) return result;
  return gs_capture_add(branch, &(struct gs_action){.type = CU_NODE_MEMCPY, .copy = *copy});
}

static struct cu_memcpy3d box_of(const struct cu_memcpy2d *copy) {
  return (struct cu_memcpy3d){
      .src_x_bytes = copy->src_x_bytes,
      .src_y = copy->src_y,
      .src_type = copy->src_type,
      .src_host = copy->src_host,
      .src_device = copy->src_device,
      .src_pitch = copy->src_pitch,
      .dst_x_bytes = copy->dst_x_bytes,
      .dst_y = copy->dst_y,
      .dst_type = copy->dst_type,
      .dst_host = copy->dst_host,
      .dst_device = copy->dst_device,
      .dst_pitch = copy->dst_pitch,
      .width_bytes = copy->width_bytes,
      .height = copy->height,
      .depth = 1,
  };
}

static CUresult copy_2d(const struct cu_memcpy2d *copy) {
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  const struct cu_memcpy3d box = box_of(copy);
  return copy_3d(&box);
}

static CUresult copy_2d_in(CUstream stream, const struct cu_memcpy2d *copy) {
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  const struct cu_memcpy3d box = box_of(copy);
  return copy_3d_in(stream, &box);
}

CU_API(cuMemcpy2D_v2)(const struct cu_memcpy2d *copy) {
  ENTER(cuMemcpy2D_v2);
  return copy_2d(copy);
}

CU_API(cuMemcpy2DUnaligned_v2)(const struct cu_memcpy2d *copy) {
  ENTER(cuMemcpy2DUnaligned_v2);
  return copy_2d(copy);
}

CU_API(cuMemcpy2DAsync_v2)(const struct cu_memcpy2d *copy, CUstream stream) {
  ENTER(cuMemcpy2DAsync_v2);
  return copy_2d_in(stream, copy);
}

CU_API(cuMemcpy3D_v2)(const struct cu_memcpy3d *copy) {
  ENTER(cuMemcpy3D_v2);
  return copy_3d(copy);
}

CU_API(cuMemcpy3DAsync_v2)(const struct cu_memcpy3d *copy, CUstream stream) {
  ENTER(cuMemcpy3DAsync_v2);
  return copy_3d_in(stream, copy);
}

CU_API(cuMemcpy3DPeer)(const struct cu_memcpy3d *copy) {
  ENTER(cuMemcpy3DPeer);
  return copy_3d(copy);
}

CU_API(cuMemcpy3DPeerAsync)(const struct cu_memcpy3d *copy, CUstream stream) {
  ENTER(cuMemcpy3DPeerAsync);
  return copy_3d_in(stream, copy);
}
