/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * fake_gpu.c - contract in fake_gpu.h: devices, contexts, streams, and the work that devices are given. Contexts are handles
 * without contents, one or more a device.
 */
#include "fake_gpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

EXPORT uint64_t fake_calls;
EXPORT struct fake_call fake_log[FAKE_LOG];
EXPORT uint64_t fake_busy_ns[FAKE_DEVICES];
EXPORT uint64_t fake_kernels;
EXPORT uint64_t fake_stale_events;
EXPORT int fake_fail_launches;
EXPORT const char *fake_fail_call;
EXPORT int fake_loading_us;
EXPORT CUstream fake_blocked_stream;

struct CUctx_st fake_contexts[FAKE_DEVICES] = {{.device = 0}, {.device = 1}};
__thread CUcontext fake_current;
int fake_captures;

static uint64_t busy_until_ns[FAKE_DEVICES];
static int references[FAKE_DEVICES]; /* of the primary contexts */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

uint64_t fake_now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

void fake_note(const char *name, CUstream stream) {
  uint64_t at = __atomic_fetch_add(&fake_calls, 1, __ATOMIC_RELAXED);
  fake_log[at % FAKE_LOG] = (struct fake_call){name, stream};
}

bool fake_is_named(CUstream stream) {
  return (uintptr_t)stream <= 2;
}

CUgraph fake_capture_of(CUstream stream) {
  return fake_is_named(stream) ? NULL : stream->capture;
}

CUcontext fake_context_of(CUstream stream) {
  return fake_is_named(stream) ? fake_current : stream->context;
}

uint64_t fake_enqueue(CUstream stream, uint64_t ns) {
  int device = fake_context_of(stream)->device;
  if (stream && stream == fake_blocked_stream) return UINT64_MAX;
  pthread_mutex_lock(&mutex);
  uint64_t now = fake_now_ns();
  if (busy_until_ns[device] < now) busy_until_ns[device] = now;
  busy_until_ns[device] += ns;
  fake_busy_ns[device] += ns;
  uint64_t until = busy_until_ns[device];
  pthread_mutex_unlock(&mutex);
  return until;
}

bool fake_is_failing(const char *name) {
  return fake_fail_call && strcmp(fake_fail_call, name) == 0;
}

static __thread int capture_mode;

CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  NOTE(NULL);
  int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

CUresult fake_unsafe(void) {
  return __atomic_load_n(&fake_captures, __ATOMIC_RELAXED) && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED
             ? (CUresult)ERROR_UNSUPPORTED
             : CUDA_SUCCESS;
}

EXPORT CUresult cuInit(unsigned int flags) {
  (void)flags;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
  *version = 12040;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
  NOTE(NULL);
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  *count = visible && !strchr(visible, ',') ? 1 : FAKE_DEVICES;
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  NOTE(NULL);
  *bytes = (size_t)(16 + device) << 30;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  NOTE(NULL);
  *uuid = (CUuuid){{(uint8_t)(0xa0 + device)}};
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  NOTE(NULL);
  (void)attribute, (void)device;
  *value = 512;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
  NOTE(NULL);
  (void)flags;
  *context = fake_current = calloc(1, sizeof(struct CUctx_st));
  fake_current->device = device;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device) {
  (void)parameters;
  return cuCtxCreate_v2(context, flags, device);
}

CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc resources, CUdevice device, unsigned int flags) {
  (void)resources;
  return cuCtxCreate_v2((CUcontext *)context, flags, device);
}

/* Until all is done that the device was given. */
static void wait_for(int device) {
  uint64_t now = fake_now_ns(), until = busy_until_ns[device];
  if (until <= now) return;
  nanosleep(&(struct timespec){(time_t)((until - now) / 1000000000), (long)((until - now) % 1000000000)}, NULL);
}

/* Contexts are kept: a handle is never given out again, but for the primary ones. */
CUresult cuCtxDestroy_v2(CUcontext context) {
  NOTE(NULL);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  wait_for(context->device);
  context->is_gone = true;
  if (fake_current == context) fake_current = NULL;
  return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext context) {
  NOTE(NULL);
  return context && context == fake_current ? cuCtxDestroy_v2(context) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  NOTE(NULL);
  references[device]++;
  fake_contexts[device].is_gone = false;
  *context = &fake_contexts[device];
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  NOTE(NULL);
  if (references[device] == 0) return CUDA_ERROR_INVALID_CONTEXT;
  return --references[device] == 0 ? cuCtxDestroy_v2(&fake_contexts[device]) : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  NOTE(NULL);
  references[device] = 0;
  return cuCtxDestroy_v2(&fake_contexts[device]);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
  NOTE(NULL);
  *flags = 0;
  *active = references[device] != 0;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  NOTE(NULL);
  fake_current = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  NOTE(NULL);
  *context = fake_current;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
  NOTE(NULL);
  if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT;
  *device = fake_current->device;
  return CUDA_SUCCESS;
}

static __thread CUcontext pushed[8];
static __thread int pushed_count;

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  NOTE(NULL);
  pushed[pushed_count++] = fake_current;
  fake_current = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  NOTE(NULL);
  if (context) *context = fake_current;
  fake_current = pushed[--pushed_count];
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
  NOTE(NULL);
  if (fake_unsafe() != CUDA_SUCCESS) return fake_unsafe();
  wait_for(fake_current->device);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
  NOTE(NULL);
  (void)flags;
  *stream = calloc(1, sizeof(struct CUstream_st));
  (*stream)->context = fake_current;
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  NOTE(stream);
  if (stream->capture) __atomic_fetch_sub(&fake_captures, 1, __ATOMIC_RELAXED);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
  NOTE(stream);
  *context = fake_context_of(stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  NOTE(stream);
  if (fake_capture_of(stream)) fake_capture_of(stream)->is_spoilt = true;
  return fake_unsafe() != CUDA_SUCCESS ? fake_unsafe() : cuCtxSynchronize();
}
