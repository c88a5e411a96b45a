/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pairs.c - contract in pairs.h.
 */
#include "pairs.h"

#include "claim.h"
#include "holds.h"
#include "table.h"

void vgpu_pair_drop_events(struct vgpu_pair *pair, bool destroy) {
  __typeof__(&cuEventDestroy_v2) real = VGPU_REAL(cuEventDestroy_v2);
  CUcontext context = vgpu_pair_context(pair);
  int mode;
  __atomic_store_n(&pair->context, NULL, __ATOMIC_RELAXED);
  if (!destroy || !context || !real || !vgpu_hold_enter(&mode)) return;
  real(pair->begin);
  real(pair->end);
  vgpu_hold_leave(mode);
}

static bool create_events(struct vgpu_pair *pair, CUcontext context) {
  __typeof__(&cuEventCreate) create = VGPU_REAL(cuEventCreate);
  __typeof__(&cuEventDestroy_v2) destroy = VGPU_REAL(cuEventDestroy_v2);
  bool is_made = false;
  int mode;
  if (!create || !destroy || !vgpu_hold_enter(&mode)) return false;
  if (create(&pair->begin, 0) == CUDA_SUCCESS) {
    is_made = create(&pair->end, 0) == CUDA_SUCCESS;
    if (!is_made) destroy(pair->begin);
  }
  vgpu_hold_leave(mode);
  if (is_made) __atomic_store_n(&pair->context, context, __ATOMIC_RELAXED);
  return is_made;
}

static bool record(CUevent event, CUstream stream) {
  __typeof__(&cuEventRecord) real = VGPU_REAL(cuEventRecord);
  return real && !vgpu_is_held() && real(event, stream) == CUDA_SUCCESS;
}

bool vgpu_pair_begin(struct vgpu_pair *pair, CUcontext context, CUstream stream) {
  if (vgpu_pair_context(pair) != context) {
    vgpu_pair_drop_events(pair, true);
    if (!create_events(pair, context)) return false;
  }
  return record(pair->begin, stream);
}

bool vgpu_pair_end(const struct vgpu_pair *pair, CUstream stream) {
  bool is_pushed = vgpu_push_context_of(stream), is_recorded = record(pair->end, stream);
  if (is_pushed) vgpu_pop_context();
  return is_recorded;
}

CUresult vgpu_pair_look(const struct vgpu_pair *pair, float *milliseconds) {
  __typeof__(&cuEventQuery) query = VGPU_REAL(cuEventQuery);
  __typeof__(&cuEventElapsedTime) elapsed = VGPU_REAL(cuEventElapsedTime);
  if (!query || !elapsed) return CUDA_ERROR_NOT_INITIALIZED;
  int mode;
  if (!vgpu_hold_enter(&mode)) return CUDA_ERROR_NOT_READY;
  CUresult result = query(pair->end);
  if (result == CUDA_SUCCESS) result = elapsed(milliseconds, pair->begin, pair->end);
  vgpu_hold_leave(mode);
  return result == CUDA_ERROR_INVALID_CONTEXT ? CUDA_ERROR_NOT_READY : result; /* no context is current here */
}
