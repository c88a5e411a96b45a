/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * fake_gpu_copy.c - contract in fake_gpu.h: every call that copies. Nothing is moved: a copy takes a nanosecond for each 8
 * bytes, in its place in the queue.
 */
#include "fake_gpu.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { BYTES_PER_NS = 8 };

static CUresult copy(const char *name, uint64_t bytes, CUstream stream, bool waits) {
  fake_note(name, stream);
  if (fake_is_failing(name)) return (CUresult)ERROR_UNKNOWN;
  if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT;
  CUgraph graph = fake_capture_of(stream);
  if (graph) {
    graph->ns += bytes / BYTES_PER_NS;
    return CUDA_SUCCESS;
  }
  fake_enqueue(stream, bytes / BYTES_PER_NS);
  return waits ? cuCtxSynchronize() : CUDA_SUCCESS;
}

#define COPY(name, declared)                  \
  CUresult name declared {                    \
    return copy(__func__, bytes, NULL, true); \
  }
#define COPY_ASYNC(name, declared)               \
  CUresult name declared {                       \
    return copy(__func__, bytes, stream, false); \
  }
#define FORMS(name, first, today) \
  COPY(name, first)               \
  COPY(name##_v2, today)          \
  COPY(name##_v2_ptds, today)
#define FORMS_ASYNC(name, first, today) \
  COPY_ASYNC(name, first)               \
  COPY_ASYNC(name##_v2, today)          \
  COPY_ASYNC(name##_v2_ptsz, today)

FORMS(cuMemcpyHtoD, (CUdeviceptr_v1 to, const void *from, unsigned int bytes),
      (CUdeviceptr to, const void *from, size_t bytes))
FORMS(cuMemcpyDtoH, (void *to, CUdeviceptr_v1 from, unsigned int bytes), (void *to, CUdeviceptr from, size_t bytes))
FORMS(cuMemcpyDtoD, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes),
      (CUdeviceptr to, CUdeviceptr from, size_t bytes))
FORMS(cuMemcpyDtoA, (CUarray to, unsigned int at, CUdeviceptr_v1 from, unsigned int bytes),
      (CUarray to, size_t at, CUdeviceptr from, size_t bytes))
FORMS(cuMemcpyAtoD, (CUdeviceptr_v1 to, CUarray from, unsigned int at, unsigned int bytes),
      (CUdeviceptr to, CUarray from, size_t at, size_t bytes))
FORMS(cuMemcpyHtoA, (CUarray to, unsigned int at, const void *from, unsigned int bytes),
      (CUarray to, size_t at, const void *from, size_t bytes))
FORMS(cuMemcpyAtoH, (void *to, CUarray from, unsigned int at, unsigned int bytes),
      (void *to, CUarray from, size_t at, size_t bytes))
FORMS(cuMemcpyAtoA, (CUarray to, unsigned int to_at, CUarray from, unsigned int from_at, unsigned int bytes),
      (CUarray to, size_t to_at, CUarray from, size_t from_at, size_t bytes))
FORMS_ASYNC(cuMemcpyHtoDAsync, (CUdeviceptr_v1 to, const void *from, unsigned int bytes, CUstream stream),
            (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))
FORMS_ASYNC(cuMemcpyDtoHAsync, (void *to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),
            (void *to, CUdeviceptr from, size_t bytes, CUstream stream))
FORMS_ASYNC(cuMemcpyDtoDAsync, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),
            (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))
FORMS_ASYNC(cuMemcpyHtoAAsync, (CUarray to, unsigned int at, const void *from, unsigned int bytes, CUstream stream),
            (CUarray to, size_t at, const void *from, size_t bytes, CUstream stream))
FORMS_ASYNC(cuMemcpyAtoHAsync, (void *to, CUarray from, unsigned int at, unsigned int bytes, CUstream stream),
            (void *to, CUarray from, size_t at, size_t bytes, CUstream stream))

#define ADDRESSES CUdeviceptr to, CUdeviceptr from, size_t bytes
COPY(cuMemcpy, (ADDRESSES))
COPY(cuMemcpy_ptds, (ADDRESSES))
COPY_ASYNC(cuMemcpyAsync, (ADDRESSES, CUstream stream))
COPY_ASYNC(cuMemcpyAsync_ptsz, (ADDRESSES, CUstream stream))
COPY_ASYNC(cuMemcpyWithAttributesAsync, (ADDRESSES, void *attributes, CUstream stream))
COPY_ASYNC(cuMemcpyWithAttributesAsync_ptsz, (ADDRESSES, void *attributes, CUstream stream))

#define CONTEXTS CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes
COPY(cuMemcpyPeer, (CONTEXTS))
COPY(cuMemcpyPeer_ptds, (CONTEXTS))
COPY_ASYNC(cuMemcpyPeerAsync, (CONTEXTS, CUstream stream))
COPY_ASYNC(cuMemcpyPeerAsync_ptsz, (CONTEXTS, CUstream stream))

#define BOX(name, type, depth)                                                               \
  CUresult name(const type *what) {                                                          \
    return copy(__func__, (uint64_t)what->width_bytes * what->height * (depth), NULL, true); \
  }
#define BOX_ASYNC(name, type, depth)                                                            \
  CUresult name(const type *what, CUstream stream) {                                            \
    return copy(__func__, (uint64_t)what->width_bytes * what->height * (depth), stream, false); \
  }
BOX(cuMemcpy2D, CUDA_MEMCPY2D_v1, 1)
BOX(cuMemcpy2D_v2, CUDA_MEMCPY2D, 1)
BOX(cuMemcpy2D_v2_ptds, CUDA_MEMCPY2D, 1)
BOX(cuMemcpy2DUnaligned, CUDA_MEMCPY2D_v1, 1)
BOX(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, 1)
BOX(cuMemcpy2DUnaligned_v2_ptds, CUDA_MEMCPY2D, 1)
BOX_ASYNC(cuMemcpy2DAsync, CUDA_MEMCPY2D_v1, 1)
BOX_ASYNC(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, 1)
BOX_ASYNC(cuMemcpy2DAsync_v2_ptsz, CUDA_MEMCPY2D, 1)
BOX(cuMemcpy3D, CUDA_MEMCPY3D_v1, what->depth)
BOX(cuMemcpy3D_v2, CUDA_MEMCPY3D, what->depth)
BOX(cuMemcpy3D_v2_ptds, CUDA_MEMCPY3D, what->depth)
BOX_ASYNC(cuMemcpy3DAsync, CUDA_MEMCPY3D_v1, what->depth)
BOX_ASYNC(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, what->depth)
BOX_ASYNC(cuMemcpy3DAsync_v2_ptsz, CUDA_MEMCPY3D, what->depth)
BOX(cuMemcpy3DPeer, CUDA_MEMCPY3D, what->depth)
BOX(cuMemcpy3DPeer_ptds, CUDA_MEMCPY3D, what->depth)
BOX_ASYNC(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D, what->depth)
BOX_ASYNC(cuMemcpy3DPeerAsync_ptsz, CUDA_MEMCPY3D, what->depth)

static uint64_t sum(const size_t *bytes, size_t count) {
  uint64_t total = 0;
  for (size_t i = 0; i < count; i++)
    total += bytes[i];
  return total;
}

#define BATCH                                                                                                   \
  CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes, size_t *attribute_indices, \
      size_t attribute_count
CUresult cuMemcpyBatchAsync(BATCH, size_t *failed, CUstream stream) {
  return copy(__func__, sum(bytes, count), stream, false);
}
CUresult cuMemcpyBatchAsync_ptsz(BATCH, size_t *failed, CUstream stream) {
  return copy(__func__, sum(bytes, count), stream, false);
}
CUresult cuMemcpyBatchAsync_v2(BATCH, CUstream stream) {
  return copy(__func__, sum(bytes, count), stream, false);
}
CUresult cuMemcpyBatchAsync_v2_ptsz(BATCH, CUstream stream) {
  return copy(__func__, sum(bytes, count), stream, false);
}

static uint64_t boxes(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count) {
  uint64_t total = 0;
  for (size_t i = 0; i < count; i++)
    total += list[i].width * list[i].height * list[i].depth;
  return total;
}

#define LIST size_t count, CUDA_MEMCPY3D_BATCH_OP *list
#define FLAGS unsigned long long flags, CUstream stream
CUresult cuMemcpy3DBatchAsync(LIST, size_t *failed, FLAGS) {
  return copy(__func__, boxes(list, count), stream, false);
}
CUresult cuMemcpy3DBatchAsync_ptsz(LIST, size_t *failed, FLAGS) {
  return copy(__func__, boxes(list, count), stream, false);
}
CUresult cuMemcpy3DBatchAsync_v2(LIST, FLAGS) {
  return copy(__func__, boxes(list, count), stream, false);
}
CUresult cuMemcpy3DBatchAsync_v2_ptsz(LIST, FLAGS) {
  return copy(__func__, boxes(list, count), stream, false);
}
CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *what, FLAGS) {
  return copy(__func__, boxes(what, 1), stream, false);
}
CUresult cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP *what, FLAGS) {
  return copy(__func__, boxes(what, 1), stream, false);
}

/* Every array has elements of two floats. */
CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray array) {
  NOTE(NULL);
  *descriptor = (CUDA_ARRAY3D_DESCRIPTOR){.format = 0x20, .channels = 2};
  return CUDA_SUCCESS;
}

/* Device memory is where cuMemAlloc says; all else is on the host, and not known. */
CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer) {
  NOTE(NULL);
  int device = (int)(pointer >> FAKE_DEVICE_SHIFT & 1);
  if (pointer >> (FAKE_DEVICE_SHIFT + 1) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) *(unsigned int *)value = CU_MEMORYTYPE_DEVICE;
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *(int *)value = device;
  if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT) *(CUcontext *)value = &fake_contexts[device];
  return CUDA_SUCCESS;
}
