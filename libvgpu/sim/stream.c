/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * stream.c - streams. All streams of a process on one card feed one queue of simulated GPU time, so
 * work of a later call never overtakes an earlier one's; a stream remembers the mark of its own last work.
 */
#define _GNU_SOURCE
#include <string.h>

#include "driver.h"

struct gs_stream {
  struct gs_object object;
  uint64_t mark;
  uint64_t id;
  unsigned flags;
  int priority;
};

enum { LOWEST_PRIORITY = 0, HIGHEST_PRIORITY = -5 };

static struct gs_objects streams = {.object_bytes = sizeof(struct gs_stream), .capacity = 1u << 20};
static uint64_t next_stream_id = 16;

static bool is_named(CUstream stream) {
  return (uintptr_t)stream <= CU_STREAM_PER_THREAD; /* NULL, legacy and per-thread default */
}

bool gs_stream_valid(CUstream stream) {
  return is_named(stream) || gs_object_alive(&streams, stream);
}

void gs_stream_worked(CUstream stream, uint64_t mark) {
  if (!is_named(stream)) __atomic_store_n(&stream->mark, mark, __ATOMIC_RELAXED);
}

void gs_stream_wait_mark(CUstream stream, uint64_t mark) {
  if (!is_named(stream) && mark > stream->mark) stream->mark = mark;
}

/* Waits for all that was given to the stream: a default stream waits for every stream. */
static void wait_for(struct gs_context *context, CUstream stream) {
  struct gs_gpu *gpu = context->device->gpu;
  gs_engine_wait(gpu, is_named(stream) ? gs_engine_mark(gpu) : __atomic_load_n(&stream->mark, __ATOMIC_RELAXED));
}

static CUresult create_stream(CUstream *out, unsigned flags, int priority) {
  NEED_CONTEXT(context);
  if (!out || flags > 1) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_stream *stream = gs_object_new(&streams, context);
  if (stream) {
    stream->flags = flags;
    stream->priority = priority > LOWEST_PRIORITY    ? LOWEST_PRIORITY
                       : priority < HIGHEST_PRIORITY ? HIGHEST_PRIORITY
                                                     : priority;
    stream->id = next_stream_id++;
    *out = stream;
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  return stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API(cuStreamCreate)(CUstream *out, unsigned flags) {
  ENTER(cuStreamCreate);
  return create_stream(out, flags, LOWEST_PRIORITY);
}

CU_API(cuStreamCreateWithPriority)(CUstream *out, unsigned flags, int priority) {
  ENTER(cuStreamCreateWithPriority);
  return create_stream(out, flags, priority);
}

CU_API(cuStreamDestroy_v2)(CUstream stream) {
  ENTER(cuStreamDestroy_v2);
  if (is_named(stream) || !gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&gs_driver.mutex);
  gs_object_free(&streams, stream);
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}
CU_ALIAS(cuStreamDestroy, cuStreamDestroy_v2)

CU_API(cuStreamSynchronize)(CUstream stream) {
  ENTER(cuStreamSynchronize);
  NEED_CONTEXT(context);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  wait_for(context, stream);
  gs_pool_trim_device(context->device);
  return CUDA_SUCCESS;
}

CU_API(cuStreamQuery)(CUstream stream) {
  ENTER(cuStreamQuery);
  NEED_CONTEXT(context);
  struct gs_gpu *gpu = context->device->gpu;
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  return gs_engine_done(gpu, is_named(stream) ? gs_engine_mark(gpu) : stream->mark) ? CUDA_SUCCESS
                                                                                    : CUDA_ERROR_NOT_READY;
}

CU_API(cuStreamGetFlags)(CUstream stream, unsigned *flags) {
  ENTER(cuStreamGetFlags);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = is_named(stream) ? 0 : stream->flags;
  return CUDA_SUCCESS;
}

CU_API(cuStreamGetPriority)(CUstream stream, int *priority) {
  ENTER(cuStreamGetPriority);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (!priority) return CUDA_ERROR_INVALID_VALUE;
  *priority = is_named(stream) ? LOWEST_PRIORITY : stream->priority;
  return CUDA_SUCCESS;
}

CU_API(cuStreamGetCtx)(CUstream stream, CUcontext *out) {
  ENTER(cuStreamGetCtx);
  NEED_CONTEXT(context);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = is_named(stream) ? context : stream->object.context;
  return CUDA_SUCCESS;
}

CU_API(cuStreamGetId)(CUstream stream, unsigned long long *id) {
  ENTER(cuStreamGetId);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = is_named(stream) ? (uintptr_t)stream : stream->id;
  return CUDA_SUCCESS;
}

CU_API(cuStreamIsCapturing)(CUstream stream, int *status) {
  ENTER(cuStreamIsCapturing);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  *status = 0; /* graphs are not modelled */
  return CUDA_SUCCESS;
}

/* Waits for the stream, then calls: the driver does so on a thread of its own, later. */
static CUresult call_host(CUstream stream, void (*callback)(CUstream, CUresult, void *), void (*plain)(void *),
                          void *data) {
  NEED_CONTEXT(context);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (!callback && !plain) return CUDA_ERROR_INVALID_VALUE;
  wait_for(context, stream);
  if (callback)
    callback(stream, CUDA_SUCCESS, data);
  else
    plain(data);
  return CUDA_SUCCESS;
}

CU_API(cuStreamAddCallback)(CUstream stream, void (*callback)(CUstream, CUresult, void *), void *data, unsigned flags) {
  ENTER(cuStreamAddCallback);
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  return call_host(stream, callback, NULL, data);
}

CU_API(cuLaunchHostFunc)(CUstream stream, void (*function)(void *), void *data) {
  ENTER(cuLaunchHostFunc);
  return call_host(stream, NULL, function, data);
}

CU_API(cuCtxGetStreamPriorityRange)(int *least, int *greatest) {
  ENTER(cuCtxGetStreamPriorityRange);
  NEED_CONTEXT(context);
  (void)context;
  if (least) *least = LOWEST_PRIORITY;
  if (greatest) *greatest = HIGHEST_PRIORITY;
  return CUDA_SUCCESS;
}

static void free_stream(void *stream) {
  gs_object_free(&streams, stream);
}

void gs_streams_release_context(struct gs_context *context) {
  gs_objects_of(&streams, context, free_stream);
}
