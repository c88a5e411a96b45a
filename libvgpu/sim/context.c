/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * context.c - primary and created contexts, and each thread's stack of them. A context that ends frees what was
 * made in it. Its handle stays readable: using it answers CUDA_ERROR_CONTEXT_IS_DESTROYED.
 */
#include "capture.h"
#include "host.h"
#include "node.h"

static struct gs_objects contexts = {.object_bytes = sizeof(struct gs_context), .capacity = 16384};
static uint64_t next_id = 1;

bool gs_context_valid(const struct gs_context *context) {
  return gs_object_alive(&contexts, context);
}

/* Makes `context` alive: from here its overhead is held on the card. */
static CUresult begin(struct gs_context *context, struct gs_device *device, unsigned flags) {
  uint64_t overhead = gs_driver.settings->context_overhead_bytes;
  if (overhead && gs_memory_take(device->gpu, overhead) < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  __atomic_add_fetch(&device->gpu->contexts[gs_self.slot], 1, __ATOMIC_RELAXED);
  gs_node_touch(device->gpu_index);
  context->device = device;
  context->overhead_bytes = overhead;
  context->id = next_id++;
  context->flags = flags;
  context->limit_set = 0;
  context->alive = true;
  return CUDA_SUCCESS;
}

/* Frees all that was made in the context, and with the primary one what the device's pools keep. The caller has
 * waited for the context's work and holds gs_driver.mutex. */
static void end(struct gs_context *context) {
  context->alive = false;
  gs_streams_release_context(context);
  gs_events_release_context(context);
  gs_modules_release_context(context);
  gs_links_release_context(context);
  gs_host_release_context(context);
  gs_memory_release_context(context);
  if (context->primary) gs_pool_reset_device(context->device);
  if (context->overhead_bytes) gs_memory_give(context->device->gpu, context->overhead_bytes);
  context->overhead_bytes = 0;
  __atomic_sub_fetch(&context->device->gpu->contexts[gs_self.slot], 1, __ATOMIC_RELAXED);
}

static void wait_for_work(struct gs_device *device) {
  gs_engine_wait_channels(device->gpu, GS_ALL_CHANNELS);
}

static CUresult push(struct gs_context *context) {
  if (gs_thread.depth >= GS_STACK_DEPTH) return CUDA_ERROR_INVALID_CONTEXT;
  gs_thread.below[gs_thread.depth++] = gs_thread.current;
  gs_thread.current = context;
  return CUDA_SUCCESS;
}

static void pop(void) {
  gs_thread.current = gs_thread.depth > 0 ? gs_thread.below[--gs_thread.depth] : NULL;
}

static CUresult create(CUcontext *out, unsigned flags, CUdevice ordinal) {
  struct gs_device *device = gs_device_of(ordinal);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_context *context = gs_object_new(&contexts, (struct gs_context *)&contexts);
  CUresult result = context ? begin(context, device, flags) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    context->attached = 1;
    context->api_version = 3020;
    result = push(context);
  }
  if (result != CUDA_SUCCESS && context) gs_object_free(&contexts, context);
  pthread_mutex_unlock(&gs_driver.mutex);
  if (result == CUDA_SUCCESS) *out = context;
  return result;
}

CU_API(cuCtxCreate_v2)(CUcontext *out, unsigned flags, CUdevice ordinal) {
  ENTER(cuCtxCreate_v2);
  return create(out, flags, ordinal);
}
CU_ALIAS(cuCtxCreate, cuCtxCreate_v2)

CU_API(cuCtxCreate_v3)(CUcontext *out, const void *affinities, int count, unsigned flags, CUdevice ordinal) {
  ENTER(cuCtxCreate_v3);
  if (count < 0 || (count > 0 && !affinities)) return CUDA_ERROR_INVALID_VALUE;
  if (count > 0) return CUDA_ERROR_NOT_SUPPORTED; /* SM affinity needs MPS */
  return create(out, flags, ordinal);
}

static CUresult destroy(struct gs_context *context) {
  if (!gs_context_valid(context) || !context->alive) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  wait_for_work(context->device);
  pthread_mutex_lock(&gs_driver.mutex);
  end(context);
  gs_object_free(&contexts, context);
  pthread_mutex_unlock(&gs_driver.mutex);
  if (gs_thread.current == context) pop();
  return CUDA_SUCCESS;
}

CU_API(cuCtxDestroy_v2)(CUcontext context) {
  ENTER(cuCtxDestroy_v2);
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  return destroy(context);
}
CU_ALIAS(cuCtxDestroy, cuCtxDestroy_v2)

CU_API(cuCtxAttach)(CUcontext *out, unsigned flags) {
  ENTER(cuCtxAttach);
  NEED_CONTEXT(context);
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  context->attached++;
  *out = context;
  return CUDA_SUCCESS;
}

CU_API(cuCtxDetach)(CUcontext context) {
  ENTER(cuCtxDetach);
  if (!gs_context_valid(context) || !context->alive) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->attached > 1) {
    context->attached--;
    return CUDA_SUCCESS;
  }
  return destroy(context);
}

CU_API(cuCtxPushCurrent_v2)(CUcontext context) {
  ENTER(cuCtxPushCurrent_v2);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!gs_context_valid(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return push(context);
}
CU_ALIAS(cuCtxPushCurrent, cuCtxPushCurrent_v2)

CU_API(cuCtxPopCurrent_v2)(CUcontext *out) {
  ENTER(cuCtxPopCurrent_v2);
  if (!gs_thread.current) return CUDA_ERROR_INVALID_CONTEXT;
  if (out) *out = gs_thread.current;
  pop();
  return CUDA_SUCCESS;
}
CU_ALIAS(cuCtxPopCurrent, cuCtxPopCurrent_v2)

CU_API(cuCtxSetCurrent)(CUcontext context) {
  ENTER(cuCtxSetCurrent);
  if (!context) {
    pop();
    return CUDA_SUCCESS;
  }
  if (!gs_context_valid(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  gs_thread.current = context;
  return CUDA_SUCCESS;
}

CU_API(cuCtxGetCurrent)(CUcontext *out) {
  ENTER(cuCtxGetCurrent);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = gs_thread.current;
  return CUDA_SUCCESS;
}

CU_API(cuCtxGetDevice)(CUdevice *out) {
  ENTER(cuCtxGetDevice);
  NEED_CONTEXT(context);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = context->device->ordinal;
  return CUDA_SUCCESS;
}

CU_API(cuCtxSynchronize)(void) {
  ENTER(cuCtxSynchronize);
  NEED_CONTEXT(context);
  NOT_CAPTURED(gs_capture_wait_context(context));
  wait_for_work(context->device);
  gs_pool_trim_device(context->device);
  return CUDA_SUCCESS;
}

/* The primary context of the device; made at its first use. The caller holds gs_driver.mutex. */
static struct gs_context *primary_of(struct gs_device *device) {
  if (!device->primary) device->primary = gs_object_new(&contexts, (struct gs_context *)&contexts);
  if (device->primary) device->primary->primary = true;
  return device->primary;
}

CU_API(cuDevicePrimaryCtxRetain)(CUcontext *out, CUdevice ordinal) {
  ENTER(cuDevicePrimaryCtxRetain);
  struct gs_device *device = gs_device_of(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_context *context = primary_of(device);
  CUresult result = context ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  if (context && !context->alive) result = begin(context, device, device->primary_flags);
  if (result == CUDA_SUCCESS) {
    context->api_version = 3020;
    device->primary_retained++;
    *out = context;
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

CU_API(cuDevicePrimaryCtxRelease_v2)(CUdevice ordinal) {
  ENTER(cuDevicePrimaryCtxRelease_v2);
  struct gs_device *device = gs_device_of(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (device->primary_retained == 1) wait_for_work(device);
  pthread_mutex_lock(&gs_driver.mutex);
  CUresult result = device->primary_retained > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  if (result == CUDA_SUCCESS && --device->primary_retained == 0) end(device->primary);
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}
CU_ALIAS(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)

CU_API(cuDevicePrimaryCtxReset_v2)(CUdevice ordinal) {
  ENTER(cuDevicePrimaryCtxReset_v2);
  struct gs_device *device = gs_device_of(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  wait_for_work(device);
  pthread_mutex_lock(&gs_driver.mutex);
  if (device->primary && device->primary->alive) end(device->primary);
  device->primary_retained = 0;
  device->primary_flags = 0;
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}
CU_ALIAS(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2)

CU_API(cuDevicePrimaryCtxGetState)(CUdevice ordinal, unsigned *flags, int *active) {
  ENTER(cuDevicePrimaryCtxGetState);
  struct gs_device *device = gs_device_of(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  *flags = device->primary_flags;
  *active = device->primary && device->primary->alive;
  return CUDA_SUCCESS;
}

CU_API(cuDevicePrimaryCtxSetFlags_v2)(CUdevice ordinal, unsigned flags) {
  ENTER(cuDevicePrimaryCtxSetFlags_v2);
  struct gs_device *device = gs_device_of(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&gs_driver.mutex);
  device->primary_flags = flags;
  if (device->primary && device->primary->alive) device->primary->flags = flags;
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}
CU_ALIAS(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2)
