/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hooks_context.c - a process has a slot in the usage pages before it has a context: from then on the driver names it
 * to whoever asks who uses the GPU. And a context that ends takes its memory with it, without a call for each block. What
 * the driver then holds no more is given back; only by the driver's own result.
 */
#include "blocks.h"
#include "capture.h"
#include "claim.h"
#include "log.h"
#include "marks.h"
#include "pools.h"
#include "table.h"

/* Without a slot nothing can be allocated; a context alone would only be one that nobody answers for. */
static bool may_begin(void) {
  static uint64_t next;
  if (!vgpu_is_limiting()) return true;
  vgpu_check_fork();
  if (vgpu_register_process()) return true;
  if (vgpu_log_is_due(&next)) vgpu_log("refused a context: as many processes as there may be use the GPU already");
  return false;
}

/* What a call that makes a context answers; the call itself only where it may. */
#define BEGIN(name, ...)                        \
  __typeof__(&name) real = VGPU_REAL(name);     \
  if (!real) return CUDA_ERROR_NOT_INITIALIZED; \
  return may_begin() ? real(__VA_ARGS__) : CUDA_ERROR_OUT_OF_MEMORY

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
  BEGIN(cuCtxCreate, context, flags, device);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
  BEGIN(cuCtxCreate_v2, context, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext *context, void *affinities, int count, unsigned int flags, CUdevice device) {
  BEGIN(cuCtxCreate_v3, context, affinities, count, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device) {
  BEGIN(cuCtxCreate_v4, context, parameters, flags, device);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  BEGIN(cuDevicePrimaryCtxRetain, context, device);
}

CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc resources, CUdevice device, unsigned int flags) {
  BEGIN(cuGreenCtxCreate, context, resources, device, flags);
}

CUresult cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
  BEGIN(cuGLCtxCreate, context, flags, device);
}

CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
  BEGIN(cuGLCtxCreate_v2, context, flags, device);
}

CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice device, uint32_t display, void *find) {
  BEGIN(cuVDPAUCtxCreate, context, flags, device, display, find);
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device, uint32_t display, void *find) {
  BEGIN(cuVDPAUCtxCreate_v2, context, flags, device, display, find);
}

static CUcontext context_of(uint64_t pointer) {
  CUcontext context = NULL;
  __typeof__(&cuPointerGetAttribute) get = VGPU_REAL(cuPointerGetAttribute);
  return get && get(&context, CU_POINTER_ATTRIBUTE_CONTEXT, pointer) == CUDA_SUCCESS ? context : NULL;
}

/* While the context lives, its driver still knows which blocks are its, and what has ended can still be measured. */
static struct vgpu_parked prepare(CUcontext context) {
  vgpu_check_fork();
  vgpu_blocks_learn_contexts(context_of);
  return vgpu_marks_park(context);
}

static void settle(CUcontext context, struct vgpu_parked parked, bool has_ended) {
  if (!has_ended) {
    vgpu_marks_resume(parked);
    return;
  }
  vgpu_marks_end_context(parked);
  vgpu_capture_context_gone(context);
  vgpu_blocks_drop_context(context, vgpu_block_release);
  vgpu_pools_refresh();
}

static CUresult destroy(CUresult (*real)(CUcontext), CUcontext context) {
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!vgpu_is_limiting()) return real(context);
  struct vgpu_parked parked = prepare(context);
  CUresult result = real(context);
  settle(context, parked, result == CUDA_SUCCESS);
  return result;
}

CUresult cuCtxDestroy_v2(CUcontext context) {
  return destroy(VGPU_REAL(cuCtxDestroy_v2), context);
}

CUresult cuCtxDestroy(CUcontext context) {
  return destroy(VGPU_REAL(cuCtxDestroy), context);
}

/* An old call: one user of the current context less. When it was the last one, the context is current no more. */
CUresult cuCtxDetach(CUcontext context) {
  __typeof__(&cuCtxDetach) real = VGPU_REAL(cuCtxDetach);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!vgpu_is_limiting() || vgpu_current_context() != context) return real(context);
  struct vgpu_parked parked = prepare(context);
  CUresult result = real(context);
  settle(context, parked, result == CUDA_SUCCESS && vgpu_current_context() != context);
  return result;
}

static bool is_active(CUdevice device) {
  unsigned int flags;
  int active = 0;
  __typeof__(&cuDevicePrimaryCtxGetState) get = VGPU_REAL(cuDevicePrimaryCtxGetState);
  return get && get(device, &flags, &active) == CUDA_SUCCESS && active;
}

/* The handle of the device's primary context if it is active; NULL. Retained and released once to learn it. */
static CUcontext primary_of(CUdevice device) {
  CUcontext context = NULL;
  __typeof__(&cuDevicePrimaryCtxRetain) retain = VGPU_REAL(cuDevicePrimaryCtxRetain);
  __typeof__(&cuDevicePrimaryCtxRelease) release = VGPU_REAL(cuDevicePrimaryCtxRelease_v2);
  if (!release) release = VGPU_REAL(cuDevicePrimaryCtxRelease);
  if (!vgpu_is_limiting() || !retain || !release || !is_active(device)) return NULL;
  if (retain(&context, device) != CUDA_SUCCESS) return NULL;
  release(device);
  return context;
}

/* Runs one of the four calls that may end a primary context. A reset ends what is in it in any case. */
static CUresult run(CUresult (*real)(CUdevice), CUdevice device, bool is_reset) {
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext context = primary_of(device);
  if (!context) return real(device);
  struct vgpu_parked parked = prepare(context);
  CUresult result = real(device);
  settle(context, parked, result == CUDA_SUCCESS && (is_reset || !is_active(device)));
  return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return run(VGPU_REAL(cuDevicePrimaryCtxRelease), device, false);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return run(VGPU_REAL(cuDevicePrimaryCtxRelease_v2), device, false);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return run(VGPU_REAL(cuDevicePrimaryCtxReset), device, true);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return run(VGPU_REAL(cuDevicePrimaryCtxReset_v2), device, true);
}
