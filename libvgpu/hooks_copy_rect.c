/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hooks_copy_rect.c - copies of rectangles and boxes: counted with the bytes that they copy, without the gaps between rows.
 */
#include "copies.h"
#include "table.h"
#include "where.h"

/* Where one side of a copy is: of an array, on the current device. */
static int side_of(CUmemorytype type, CUdeviceptr address) {
  if (type == CU_MEMORYTYPE_HOST) return VGPU_ON_HOST;
  if (type == CU_MEMORYTYPE_ARRAY || (type == CU_MEMORYTYPE_DEVICE && vgpu_has_one_device())) return VGPU_CURRENT;
  return vgpu_where(address);
}

/* The copy that a descriptor of any form describes; of a rectangle, `depth_` is 1. A NULL is the driver's to refuse. */
#define BEGIN(depth_, meant, is_async_)                                                                          \
  copy.traffic = NULL;                                                                                           \
  if (what && vgpu_is_limiting()) {                                                                              \
    vgpu_copy_sides(&copy, side_of(what->dst_type, what->dst_device), side_of(what->src_type, what->src_device), \
                    (uint64_t)what->width_bytes * what->height * (depth_));                                      \
    vgpu_copy_on(&copy, meant, is_async_);                                                                       \
  }

#define COPY(name, type, depth, meant)            \
  CUresult name(const type *what) {               \
    __typeof__(&name) real = VGPU_REAL(name);     \
    struct vgpu_copy copy;                        \
    if (!real) return CUDA_ERROR_NOT_INITIALIZED; \
    BEGIN(depth, meant, false)                    \
    return vgpu_copy_end(&copy, real(what));      \
  }

#define COPY_ASYNC(name, type, depth, meant)         \
  CUresult name(const type *what, CUstream stream) { \
    __typeof__(&name) real = VGPU_REAL(name);        \
    struct vgpu_copy copy;                           \
    if (!real) return CUDA_ERROR_NOT_INITIALIZED;    \
    BEGIN(depth, meant, true)                        \
    return vgpu_copy_end(&copy, real(what, stream)); \
  }

#define PER_THREAD CU_STREAM_PER_THREAD
#define MEANT vgpu_stream_per_thread(stream)

COPY(cuMemcpy2D, CUDA_MEMCPY2D_v1, 1, NULL)
COPY(cuMemcpy2D_v2, CUDA_MEMCPY2D, 1, NULL)
COPY(cuMemcpy2D_v2_ptds, CUDA_MEMCPY2D, 1, PER_THREAD)
COPY(cuMemcpy2DUnaligned, CUDA_MEMCPY2D_v1, 1, NULL)
COPY(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, 1, NULL)
COPY(cuMemcpy2DUnaligned_v2_ptds, CUDA_MEMCPY2D, 1, PER_THREAD)
COPY_ASYNC(cuMemcpy2DAsync, CUDA_MEMCPY2D_v1, 1, stream)
COPY_ASYNC(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, 1, stream)
COPY_ASYNC(cuMemcpy2DAsync_v2_ptsz, CUDA_MEMCPY2D, 1, MEANT)
COPY(cuMemcpy3D, CUDA_MEMCPY3D_v1, what->depth, NULL)
COPY(cuMemcpy3D_v2, CUDA_MEMCPY3D, what->depth, NULL)
COPY(cuMemcpy3D_v2_ptds, CUDA_MEMCPY3D, what->depth, PER_THREAD)
COPY_ASYNC(cuMemcpy3DAsync, CUDA_MEMCPY3D_v1, what->depth, stream)
COPY_ASYNC(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, what->depth, stream)
COPY_ASYNC(cuMemcpy3DAsync_v2_ptsz, CUDA_MEMCPY3D, what->depth, MEANT)

/* Sides on devices say on which by their contexts. */
static void begin_peer(struct vgpu_copy *copy, const CUDA_MEMCPY3D *what, CUstream meant, bool is_async) {
  copy->traffic = NULL;
  if (!what || !vgpu_is_limiting()) return;
  uint64_t bytes = (uint64_t)what->width_bytes * what->height * what->depth;
  int to = side_of(what->dst_type, what->dst_device), from = side_of(what->src_type, what->src_device);
  if (to != VGPU_ON_HOST && from != VGPU_ON_HOST) {
    vgpu_copy_peer(copy, what->dst_context, what->src_context, bytes, meant, is_async);
    return;
  }
  vgpu_copy_sides(copy, to, from, bytes);
  vgpu_copy_on(copy, meant, is_async);
}

static CUresult peer(CUresult (*real)(const CUDA_MEMCPY3D *), const CUDA_MEMCPY3D *what, CUstream meant) {
  struct vgpu_copy copy;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  begin_peer(&copy, what, meant, false);
  return vgpu_copy_end(&copy, real(what));
}

static CUresult peer_async(CUresult (*real)(const CUDA_MEMCPY3D *, CUstream), const CUDA_MEMCPY3D *what,
                           CUstream stream, CUstream meant) {
  struct vgpu_copy copy;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  begin_peer(&copy, what, meant, true);
  return vgpu_copy_end(&copy, real(what, stream));
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D *what) {
  return peer(VGPU_REAL(cuMemcpy3DPeer), what, NULL);
}

CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D *what) {
  return peer(VGPU_REAL(cuMemcpy3DPeer_ptds), what, PER_THREAD);
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D *what, CUstream stream) {
  return peer_async(VGPU_REAL(cuMemcpy3DPeerAsync), what, stream, stream);
}

CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D *what, CUstream stream) {
  return peer_async(VGPU_REAL(cuMemcpy3DPeerAsync_ptsz), what, stream, MEANT);
}

/* Elements of the box: of an array where there is one; the driver demands that two of them agree. */
static uint64_t element_bytes(const CUDA_MEMCPY3D_BATCH_OP *box) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor;
  __typeof__(&cuArray3DGetDescriptor_v2) get = VGPU_REAL(cuArray3DGetDescriptor_v2);
  const CUmemcpy3DOperand *with = box->src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY ? &box->src : &box->dst;
  if (with->type != CU_MEMCPY_OPERAND_TYPE_ARRAY || !get) return 1;
  if (get(&descriptor, with->array.array) != CUDA_SUCCESS) return 1;
  return vgpu_element_bytes(descriptor.format, descriptor.channels);
}

static int operand_side(const CUmemcpy3DOperand *side) {
  return side->type == CU_MEMCPY_OPERAND_TYPE_ARRAY ? VGPU_CURRENT : vgpu_where(side->pointer.address);
}

/* Boxes of a batch, and one with hints: each counts. None is measured. */
static CUresult boxes(CUresult result, const CUDA_MEMCPY3D_BATCH_OP *list, size_t count, CUstream meant) {
  if (result != CUDA_SUCCESS || !list || !vgpu_is_limiting() || vgpu_capture_has(meant)) return result;
  for (size_t i = 0; i < count; i++) {
    struct vgpu_copy copy;
    uint64_t elements = (uint64_t)list[i].width * list[i].height * list[i].depth;
    vgpu_copy_sides(&copy, operand_side(&list[i].dst), operand_side(&list[i].src), elements * element_bytes(&list[i]));
    vgpu_copy_end(&copy, result);
  }
  return result;
}

#define BOXES(name, declared, passed, count, meant) \
  CUresult name declared {                          \
    __typeof__(&name) real = VGPU_REAL(name);       \
    if (!real) return CUDA_ERROR_NOT_INITIALIZED;   \
    return boxes(real passed, list, count, meant);  \
  }
#define LIST size_t count, CUDA_MEMCPY3D_BATCH_OP *list
#define FLAGS unsigned long long flags, CUstream stream

BOXES(cuMemcpy3DBatchAsync, (LIST, size_t *failed, FLAGS), (count, list, failed, flags, stream), count, stream)
BOXES(cuMemcpy3DBatchAsync_ptsz, (LIST, size_t *failed, FLAGS), (count, list, failed, flags, stream), count, MEANT)
BOXES(cuMemcpy3DBatchAsync_v2, (LIST, FLAGS), (count, list, flags, stream), count, stream)
BOXES(cuMemcpy3DBatchAsync_v2_ptsz, (LIST, FLAGS), (count, list, flags, stream), count, MEANT)
BOXES(cuMemcpy3DWithAttributesAsync, (CUDA_MEMCPY3D_BATCH_OP * list, FLAGS), (list, flags, stream), 1, stream)
BOXES(cuMemcpy3DWithAttributesAsync_ptsz, (CUDA_MEMCPY3D_BATCH_OP * list, FLAGS), (list, flags, stream), 1, MEANT)
