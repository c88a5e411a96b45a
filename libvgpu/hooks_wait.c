/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hooks_wait.c - calls after which the GPU has done what it was given: the launches before them can be paid for, which a
 * program that ends now would otherwise not do. Polling counts when the answer is yes. Nothing is changed about them.
 */
#include "marks.h"
#include "table.h"

static inline CUresult waited(CUresult result) {
  if (__builtin_expect(__atomic_load_n(&vgpu_marks_under_way, __ATOMIC_RELAXED) != 0, 0)) vgpu_marks_harvest(true);
  return result;
}

CUresult cuCtxSynchronize(void) {
  __typeof__(&cuCtxSynchronize) real = VGPU_REAL(cuCtxSynchronize);
  return real ? waited(real()) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
  __typeof__(&cuCtxSynchronize_v2) real = VGPU_REAL(cuCtxSynchronize_v2);
  return real ? waited(real(context)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuStreamSynchronize(CUstream stream) {
  __typeof__(&cuStreamSynchronize) real = VGPU_REAL(cuStreamSynchronize);
  return real ? waited(real(stream)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  __typeof__(&cuStreamSynchronize) real = VGPU_REAL(cuStreamSynchronize_ptsz);
  return real ? waited(real(stream)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuEventSynchronize(CUevent event) {
  __typeof__(&cuEventSynchronize) real = VGPU_REAL(cuEventSynchronize);
  return real ? waited(real(event)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
  __typeof__(&cuMemcpyDtoH_v2) real = VGPU_REAL(cuMemcpyDtoH_v2);
  return real ? waited(real(to, from, bytes)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes) {
  __typeof__(&cuMemcpyDtoH_v2) real = VGPU_REAL(cuMemcpyDtoH_v2_ptds);
  return real ? waited(real(to, from, bytes)) : CUDA_ERROR_NOT_INITIALIZED;
}

static inline CUresult asked(CUresult result) {
  return result == CUDA_SUCCESS ? waited(result) : result;
}

CUresult cuStreamQuery(CUstream stream) {
  __typeof__(&cuStreamQuery) real = VGPU_REAL(cuStreamQuery);
  return real ? asked(real(stream)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuStreamQuery_ptsz(CUstream stream) {
  __typeof__(&cuStreamQuery) real = VGPU_REAL(cuStreamQuery_ptsz);
  return real ? asked(real(stream)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuEventQuery(CUevent event) {
  __typeof__(&cuEventQuery) real = VGPU_REAL(cuEventQuery);
  return real ? asked(real(event)) : CUDA_ERROR_NOT_INITIALIZED;
}
