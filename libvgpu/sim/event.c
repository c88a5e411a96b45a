/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * event.c - events: places in a channel of simulated GPU time that get the time at which they are reached, other
 * processes' slices included.
 */
#include "capture.h"

struct gs_event {
  struct gs_object object;
  struct gs_stamp stamp;
  unsigned flags;
  bool recorded;
  uint64_t capture; /* capture.c's */
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

bool gs_event_valid(CUevent event) {
  return gs_object_alive(&events, event);
}

uint64_t *gs_event_capture(CUevent event) {
  return &event->capture;
}

bool gs_event_recorded(CUevent event) {
  return event->recorded;
}

void gs_event_record_now(CUevent event, struct gs_context *context, CUstream stream) {
  const struct gs_work work = {.kind = GS_WORK_EVENT, .stamp = &event->stamp};
  gs_stream_enqueue(context, stream, &work);
  event->recorded = true;
  event->capture = 0;
}

CUresult gs_event_record(CUevent event, CUstream stream, unsigned flags) {
  bool done = false;
  NEED_CONTEXT(context);
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  if (!gs_event_valid(event) || !gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (event->object.context->device != context->device) return CUDA_ERROR_INVALID_HANDLE;
  CUresult result = gs_capture_record(context, event, stream, flags, &done);
  if (!done) gs_event_record_now(event, context, stream);
  return result;
}

CU_API(cuEventRecord)(CUevent event, CUstream stream) {
  ENTER(cuEventRecord);
  return gs_event_record(event, stream, 0);
}

CU_API(cuEventRecordWithFlags)(CUevent event, CUstream stream, unsigned flags) {
  ENTER(cuEventRecordWithFlags);
  return gs_event_record(event, stream, flags);
}

/* When the event was reached; 0: not yet. One that was never recorded counts as reached. */
static uint64_t reached_ns(struct gs_event *event) {
  if (!event->recorded) return 1;
  return gs_engine_stamp(event->object.context->device->gpu, &event->stamp);
}

#define WAIT_ALLOWED(event)                             \
  do {                                                  \
    CUresult captured = gs_capture_wait_event((event)); \
    if (captured != CUDA_SUCCESS) return captured;      \
  } while (0)

CU_API(cuEventQuery)(CUevent event) {
  ENTER(cuEventQuery);
  if (!gs_object_alive(&events, event)) return CUDA_ERROR_INVALID_HANDLE;
  WAIT_ALLOWED(event);
  return reached_ns(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CU_API(cuEventSynchronize)(CUevent event) {
  ENTER(cuEventSynchronize);
  if (!gs_object_alive(&events, event)) return CUDA_ERROR_INVALID_HANDLE;
  WAIT_ALLOWED(event);
  struct gs_device *device = event->object.context->device;
  gs_engine_wait(device->gpu, __atomic_load_n(&event->stamp.mark, __ATOMIC_RELAXED));
  gs_pool_trim_device(device);
  return CUDA_SUCCESS;
}

CU_API(cuEventElapsedTime)(float *milliseconds, CUevent start, CUevent end) {
  ENTER(cuEventElapsedTime);
  if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
  if (!gs_object_alive(&events, start) || !gs_object_alive(&events, end)) return CUDA_ERROR_INVALID_HANDLE;
  if (start->capture || end->capture) return gs_capture_wait_event(start->capture ? start : end);
  if (!start->recorded || !end->recorded) return CUDA_ERROR_INVALID_HANDLE;
  if ((start->flags | end->flags) & EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t from = reached_ns(start);
  uint64_t to = reached_ns(end);
  if (!from || !to) return CUDA_ERROR_NOT_READY;
  double told = (double)gs_driver.settings->event_scale_permille / 1000;
  *milliseconds = (float)(told * (double)(int64_t)(to - from) / 1e6);
  return CUDA_SUCCESS;
}

/* Work of another GPU is waited for here and now, since each GPU's queues know only of that GPU. */
void gs_event_wait_now(CUevent event, struct gs_context *context, CUstream stream) {
  if (reached_ns(event)) return;
  struct gs_device *device = event->object.context->device;
  const struct gs_work work = {.kind = GS_WORK_WAIT,
                               .wait_mark = __atomic_load_n(&event->stamp.mark, __ATOMIC_RELAXED)};
  if (device == gs_stream_device(context, stream))
    gs_stream_enqueue(context, stream, &work);
  else
    gs_engine_wait(device->gpu, work.wait_mark);
}

CU_API(cuStreamWaitEvent)(CUstream stream, CUevent event, unsigned flags) {
  ENTER(cuStreamWaitEvent);
  bool done = false;
  NEED_CONTEXT(context);
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  if (!gs_stream_valid(stream) || !gs_event_valid(event)) return CUDA_ERROR_INVALID_HANDLE;
  CUresult result = gs_capture_join(context, stream, event, flags, &done);
  if (!done) gs_event_wait_now(event, context, stream);
  return result;
}

static void free_event(void *event) {
  gs_object_free(&events, event);
}

void gs_events_release_context(struct gs_context *context) {
  gs_objects_of(&events, context, free_event);
}
