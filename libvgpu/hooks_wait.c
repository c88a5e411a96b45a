/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hooks_wait.c - calls after which the GPU has done what it was given: the launches before them can be paid for, which a
 * program that ends now would otherwise not do, and how long they waited is counted in the traffic book. Polling counts
 * when the answer is yes. Nothing is changed about them.
 */
#include "clock.h"
#include "marks.h"
#include "state.h"
#include "table.h"

static inline CUresult waited(CUresult result) {
  if (__builtin_expect(__atomic_load_n(&vgpu_marks_under_way, __ATOMIC_RELAXED) != 0, 0)) vgpu_marks_harvest(true);
  if (__builtin_expect(__atomic_load_n(&vgpu_samples_under_way, __ATOMIC_RELAXED) != 0, 0)) vgpu_samples_harvest();
  return result;
}

/* A thread that waits. */
struct stall {
  struct vgpu_usage_traffic *traffic; /* of the device of the current context; NULL: it is not counted */
  uint64_t since_ns;
};

static inline struct stall stall_begin(void) {
  struct stall stall = {NULL, 0};
  CUresult why;
  if (!vgpu_is_limiting()) return stall;
  struct vgpu_device *device = vgpu_device_current(&why);
  stall.traffic = device ? device->traffic : NULL;
  if (stall.traffic) stall.since_ns = vgpu_now_ns();
  return stall;
}

static inline CUresult stall_end(const struct stall *stall, CUresult result) {
  if (stall->traffic && result == CUDA_SUCCESS) vgpu_traffic_stalled(stall->traffic, vgpu_now_ns() - stall->since_ns);
  return waited(result);
}

#define WAIT(name, declared, passed)              \
  CUresult name declared {                        \
    __typeof__(&name) real = VGPU_REAL(name);     \
    if (!real) return CUDA_ERROR_NOT_INITIALIZED; \
    struct stall stall = stall_begin();           \
    return stall_end(&stall, real passed);        \
  }

WAIT(cuCtxSynchronize, (void), ())
WAIT(cuCtxSynchronize_v2, (CUcontext context), (context))
WAIT(cuStreamSynchronize, (CUstream stream), (stream))
WAIT(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
WAIT(cuEventSynchronize, (CUevent event), (event))

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
