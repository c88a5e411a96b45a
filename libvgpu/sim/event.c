/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * event.c - events: marks in the queue of simulated GPU time, with the time at which they are reached as foretold
 * when they were recorded (exact unless another process comes in between).
 */
#include "driver.h"

struct gs_event {
  struct gs_object object;
  uint64_t mark;
  uint64_t finish_ns;
  unsigned flags;
  bool recorded;
};

enum { EVENT_DISABLE_TIMING = 2 };

static struct gs_objects events = {.object_bytes = sizeof(struct gs_event), .capacity = 1u << 22};

CU_API(cuEventCreate)(CUevent *out, unsigned flags) {
  ENTER(cuEventCreate);
  NEED_CONTEXT(context);
  if (!out || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  if (flags & 4) return CUDA_ERROR_NOT_SUPPORTED; /* sharing between processes */
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_event *event = gs_object_new(&events, context);
  if (event) {
    event->flags = flags;
    *out = event;
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  return event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API(cuEventDestroy_v2)(CUevent event) {
  ENTER(cuEventDestroy_v2);
  if (!gs_object_alive(&events, event)) return CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&gs_driver.mutex);
  gs_object_free(&events, event);
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}
CU_ALIAS(cuEventDestroy, cuEventDestroy_v2)

static CUresult record(CUevent event, CUstream stream) {
  NEED_CONTEXT(context);
  if (!gs_object_alive(&events, event) || !gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (event->object.context->device != context->device) return CUDA_ERROR_INVALID_HANDLE;
  event->mark = gs_engine_enqueue(context->device->gpu, 0, &event->finish_ns);
  event->recorded = true;
  return CUDA_SUCCESS;
}

CU_API(cuEventRecord)(CUevent event, CUstream stream) {
  ENTER(cuEventRecord);
  return record(event, stream);
}

CU_API(cuEventRecordWithFlags)(CUevent event, CUstream stream, unsigned flags) {
  ENTER(cuEventRecordWithFlags);
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  return record(event, stream);
}

/* Whether the event's work is done. One found undone after its foretold time ends when it is found done. */
static bool event_done(struct gs_event *event) {
  struct gs_gpu *gpu = event->object.context->device->gpu;
  if (gs_engine_done(gpu, event->mark)) return true;
  uint64_t now = gs_now_ns();
  if (event->finish_ns < now) event->finish_ns = now;
  return false;
}

CU_API(cuEventQuery)(CUevent event) {
  ENTER(cuEventQuery);
  if (!gs_object_alive(&events, event)) return CUDA_ERROR_INVALID_HANDLE;
  return event_done(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CU_API(cuEventSynchronize)(CUevent event) {
  ENTER(cuEventSynchronize);
  if (!gs_object_alive(&events, event)) return CUDA_ERROR_INVALID_HANDLE;
  struct gs_device *device = event->object.context->device;
  bool waited = !event_done(event);
  gs_engine_wait(device->gpu, event->mark);
  uint64_t now = gs_now_ns();
  if (waited && now > event->finish_ns + 1000000) event->finish_ns = now; /* others came in between */
  gs_pool_trim_device(device);
  return CUDA_SUCCESS;
}

CU_API(cuEventElapsedTime)(float *milliseconds, CUevent start, CUevent end) {
  ENTER(cuEventElapsedTime);
  if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
  if (!gs_object_alive(&events, start) || !gs_object_alive(&events, end)) return CUDA_ERROR_INVALID_HANDLE;
  if (!start->recorded || !end->recorded) return CUDA_ERROR_INVALID_HANDLE;
  if ((start->flags | end->flags) & EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  if (!event_done(start) || !event_done(end)) return CUDA_ERROR_NOT_READY;
  *milliseconds = (float)((double)(int64_t)(end->finish_ns - start->finish_ns) / 1e6);
  return CUDA_SUCCESS;
}

CU_API(cuStreamWaitEvent)(CUstream stream, CUevent event, unsigned flags) {
  ENTER(cuStreamWaitEvent);
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  if (!gs_stream_valid(stream) || !gs_object_alive(&events, event)) return CUDA_ERROR_INVALID_HANDLE;
  gs_stream_wait_mark(stream, event->mark);
  return CUDA_SUCCESS;
}

static void free_event(void *event) {
  gs_object_free(&events, event);
}

void gs_events_release_context(struct gs_context *context) {
  gs_objects_of(&events, context, free_event);
}
