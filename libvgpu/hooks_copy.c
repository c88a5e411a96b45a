/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hooks_copy.c - every call that copies between addresses and arrays: what went well is counted (copies.h). Rectangles and
 * boxes are in hooks_copy_rect.c.
 */
#include "copies.h"
#include "marks.h"
#include "table.h"
#include "where.h"

/* A hook. `begin`: the call of copies.h that begins `copy`. */
#define COPY(name, declared, passed, begin)       \
  CUresult name declared {                        \
    __typeof__(&name) real = VGPU_REAL(name);     \
    struct vgpu_copy copy;                        \
    if (!real) return CUDA_ERROR_NOT_INITIALIZED; \
    begin;                                        \
    return vgpu_copy_end(&copy, real passed);     \
  }

/* A copy to the host that waits for the GPU: the launches before it can be paid for (hooks_wait.c). */
#define COPY_BACK(name, declared, passed, begin)     \
  CUresult name declared {                           \
    __typeof__(&name) real = VGPU_REAL(name);        \
    struct vgpu_copy copy;                           \
    if (!real) return CUDA_ERROR_NOT_INITIALIZED;    \
    begin;                                           \
    return heard(vgpu_copy_end(&copy, real passed)); \
  }

static inline CUresult heard(CUresult result) {
  if (__builtin_expect(__atomic_load_n(&vgpu_marks_under_way, __ATOMIC_RELAXED) != 0, 0)) vgpu_marks_harvest(true);
  if (__builtin_expect(__atomic_load_n(&vgpu_samples_under_way, __ATOMIC_RELAXED) != 0, 0)) vgpu_samples_harvest();
  return result;
}

/* The default streams of calls without a stream, and what a call with one means. */
#define LEGACY NULL
#define THREADS CU_STREAM_PER_THREAD
#define SAME stream
#define MEANT vgpu_stream_per_thread(stream)

#define UP(on, stream, is_async) vgpu_copy_begin(&copy, VGPU_HOST_TO_DEVICE, on, bytes, stream, is_async)
#define DOWN(on, stream, is_async) vgpu_copy_begin(&copy, VGPU_DEVICE_TO_HOST, on, bytes, stream, is_async)
#define WITHIN(on, stream, is_async) vgpu_copy_begin(&copy, VGPU_WITHIN_DEVICE, on, bytes, stream, is_async)
#define ANY(stream, is_async) vgpu_copy_any(&copy, to, from, bytes, stream, is_async)
#define BOTH(stream, is_async) vgpu_copy_within(&copy, to, from, bytes, stream, is_async)
#define PEER(stream, is_async) vgpu_copy_peer(&copy, to_context, from_context, bytes, stream, is_async)

/* The first API's form, today's, and that with per-thread default streams, of calls without and with a stream. */
#define FORMS(hook, name, first, today, passed, begin_legacy, begin_threads)           \
  hook(name, first, passed, begin_legacy) hook(name##_v2, today, passed, begin_legacy) \
      hook(name##_v2_ptds, today, passed, begin_threads)
#define FORMS_ASYNC(name, first, today, passed, begin_same, begin_meant) \
  COPY(name, first, passed, begin_same)                                  \
  COPY(name##_v2, today, passed, begin_same)                             \
  COPY(name##_v2_ptsz, today, passed, begin_meant)

FORMS(COPY, cuMemcpyHtoD, (CUdeviceptr_v1 to, const void *from, unsigned int bytes),
      (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes), UP(to, LEGACY, false),
      UP(to, THREADS, false))
FORMS(COPY_BACK, cuMemcpyDtoH, (void *to, CUdeviceptr_v1 from, unsigned int bytes),
      (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes), DOWN(from, LEGACY, false),
      DOWN(from, THREADS, false))
FORMS(COPY, cuMemcpyDtoD, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes),
      (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes), BOTH(LEGACY, false), BOTH(THREADS, false))
FORMS(COPY, cuMemcpyDtoA, (CUarray to, unsigned int to_offset, CUdeviceptr_v1 from, unsigned int bytes),
      (CUarray to, size_t to_offset, CUdeviceptr from, size_t bytes), (to, to_offset, from, bytes),
      WITHIN(from, LEGACY, false), WITHIN(from, THREADS, false))
FORMS(COPY, cuMemcpyAtoD, (CUdeviceptr_v1 to, CUarray from, unsigned int from_offset, unsigned int bytes),
      (CUdeviceptr to, CUarray from, size_t from_offset, size_t bytes), (to, from, from_offset, bytes),
      WITHIN(to, LEGACY, false), WITHIN(to, THREADS, false))
FORMS(COPY, cuMemcpyHtoA, (CUarray to, unsigned int to_offset, const void *from, unsigned int bytes),
      (CUarray to, size_t to_offset, const void *from, size_t bytes), (to, to_offset, from, bytes),
      UP(0, LEGACY, false), UP(0, THREADS, false))
FORMS(COPY_BACK, cuMemcpyAtoH, (void *to, CUarray from, unsigned int from_offset, unsigned int bytes),
      (void *to, CUarray from, size_t from_offset, size_t bytes), (to, from, from_offset, bytes),
      DOWN(0, LEGACY, false), DOWN(0, THREADS, false))
FORMS(COPY, cuMemcpyAtoA,
      (CUarray to, unsigned int to_offset, CUarray from, unsigned int from_offset, unsigned int bytes),
      (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
      (to, to_offset, from, from_offset, bytes), WITHIN(0, LEGACY, false), WITHIN(0, THREADS, false))

FORMS_ASYNC(cuMemcpyHtoDAsync, (CUdeviceptr_v1 to, const void *from, unsigned int bytes, CUstream stream),
            (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), (to, from, bytes, stream),
            UP(to, SAME, true), UP(to, MEANT, true))
FORMS_ASYNC(cuMemcpyDtoHAsync, (void *to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),
            (void *to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream),
            DOWN(from, SAME, true), DOWN(from, MEANT, true))
FORMS_ASYNC(cuMemcpyDtoDAsync, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),
            (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream),
            BOTH(SAME, true), BOTH(MEANT, true))
FORMS_ASYNC(cuMemcpyHtoAAsync,
            (CUarray to, unsigned int to_offset, const void *from, unsigned int bytes, CUstream stream),
            (CUarray to, size_t to_offset, const void *from, size_t bytes, CUstream stream),
            (to, to_offset, from, bytes, stream), UP(0, SAME, true), UP(0, MEANT, true))
FORMS_ASYNC(cuMemcpyAtoHAsync, (void *to, CUarray from, unsigned int from_offset, unsigned int bytes, CUstream stream),
            (void *to, CUarray from, size_t from_offset, size_t bytes, CUstream stream),
            (to, from, from_offset, bytes, stream), DOWN(0, SAME, true), DOWN(0, MEANT, true))

#define ADDRESSES CUdeviceptr to, CUdeviceptr from, size_t bytes
COPY(cuMemcpy, (ADDRESSES), (to, from, bytes), ANY(LEGACY, false))
COPY(cuMemcpy_ptds, (ADDRESSES), (to, from, bytes), ANY(THREADS, false))
COPY(cuMemcpyAsync, (ADDRESSES, CUstream stream), (to, from, bytes, stream), ANY(SAME, true))
COPY(cuMemcpyAsync_ptsz, (ADDRESSES, CUstream stream), (to, from, bytes, stream), ANY(MEANT, true))
COPY(cuMemcpyWithAttributesAsync, (ADDRESSES, void *attributes, CUstream stream), (to, from, bytes, attributes, stream),
     ANY(SAME, true))
COPY(cuMemcpyWithAttributesAsync_ptsz, (ADDRESSES, void *attributes, CUstream stream),
     (to, from, bytes, attributes, stream), ANY(MEANT, true))

#define CONTEXTS CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes
COPY(cuMemcpyPeer, (CONTEXTS), (to, to_context, from, from_context, bytes), PEER(LEGACY, false))
COPY(cuMemcpyPeer_ptds, (CONTEXTS), (to, to_context, from, from_context, bytes), PEER(THREADS, false))
COPY(cuMemcpyPeerAsync, (CONTEXTS, CUstream stream), (to, to_context, from, from_context, bytes, stream),
     PEER(SAME, true))
COPY(cuMemcpyPeerAsync_ptsz, (CONTEXTS, CUstream stream), (to, to_context, from, from_context, bytes, stream),
     PEER(MEANT, true))

/* Many copies by one call: each counts. None is measured. */
static CUresult batch(CUresult result, const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes,
                      size_t count, CUstream meant) {
  if (result != CUDA_SUCCESS || !vgpu_is_limiting() || vgpu_capture_has(meant)) return result;
  for (size_t i = 0; i < count; i++) {
    struct vgpu_copy copy;
    vgpu_copy_sides(&copy, vgpu_where(to[i]), vgpu_where(from[i]), bytes[i]);
    vgpu_copy_end(&copy, result);
  }
  return result;
}

#define BATCH                                                                                                   \
  CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes, size_t *attribute_indices, \
      size_t attribute_count
#define BATCH_PASSED to, from, bytes, count, attributes, attribute_indices, attribute_count

CUresult cuMemcpyBatchAsync(BATCH, size_t *failed, CUstream stream) {
  __typeof__(&cuMemcpyBatchAsync) real = VGPU_REAL(cuMemcpyBatchAsync);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  return batch(real(BATCH_PASSED, failed, stream), to, from, bytes, count, stream);
}

CUresult cuMemcpyBatchAsync_ptsz(BATCH, size_t *failed, CUstream stream) {
  __typeof__(&cuMemcpyBatchAsync_ptsz) real = VGPU_REAL(cuMemcpyBatchAsync_ptsz);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  return batch(real(BATCH_PASSED, failed, stream), to, from, bytes, count, vgpu_stream_per_thread(stream));
}

CUresult cuMemcpyBatchAsync_v2(BATCH, CUstream stream) {
  __typeof__(&cuMemcpyBatchAsync_v2) real = VGPU_REAL(cuMemcpyBatchAsync_v2);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  return batch(real(BATCH_PASSED, stream), to, from, bytes, count, stream);
}

CUresult cuMemcpyBatchAsync_v2_ptsz(BATCH, CUstream stream) {
  __typeof__(&cuMemcpyBatchAsync_v2_ptsz) real = VGPU_REAL(cuMemcpyBatchAsync_v2_ptsz);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  return batch(real(BATCH_PASSED, stream), to, from, bytes, count, vgpu_stream_per_thread(stream));
}
