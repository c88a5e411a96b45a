/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * stream.c - streams. Each is dealt one of a GPU's channels of simulated time (engine.h), the one with the fewest streams;
 * streams that share one wait for each other. The default streams are channel 0 and keep the legacy order: their work
 * comes after what all blocking streams were given before, and before what those are given later.
 */
#define _GNU_SOURCE
#include <string.h>

#include "capture.h"

struct gs_stream {
  struct gs_object object;
  uint64_t mark; /* of its last work; atomic */
  uint64_t id;
  uint32_t channel;
  unsigned flags;
  int priority;
  struct gs_branch *branch; /* capture.c's */
};

enum { LOWEST_PRIORITY = 0, HIGHEST_PRIORITY = -5, NON_BLOCKING = 1, DEFAULT_CHANNEL = 1u << 0 };

static struct gs_objects streams = {.object_bytes = sizeof(struct gs_stream), .capacity = 1u << 20};
static uint64_t next_stream_id = 16;

/* Living streams by device and channel; gs_driver.mutex. */
static struct {
  uint32_t streams[GS_CHANNELS];
  uint32_t blocking[GS_CHANNELS];
  uint32_t next;              /* where the search for the emptiest begins */
  uint32_t blocking_channels; /* bits; atomic */
} dealt[GS_MAX_GPUS];

static bool is_named(CUstream stream) {
  return (uintptr_t)stream <= CU_STREAM_PER_THREAD; /* NULL, legacy and per-thread default */
}

bool gs_stream_valid(CUstream stream) {
  return is_named(stream) || gs_object_alive(&streams, stream);
}

struct gs_branch **gs_stream_branch(CUstream stream) {
  return &stream->branch;
}

bool gs_stream_blocking(CUstream stream) {
  return !(stream->flags & NON_BLOCKING);
}

struct gs_device *gs_stream_device(struct gs_context *context, CUstream stream) {
  return is_named(stream) ? context->device : stream->object.context->device;
}

static uint32_t blocking_channels(const struct gs_context *context) {
  return __atomic_load_n(&dealt[context->device->gpu_index].blocking_channels, __ATOMIC_RELAXED);
}

uint64_t gs_stream_enqueue(struct gs_context *context, CUstream stream, const struct gs_work *work) {
  struct gs_work placed = *work;
  if (is_named(stream)) {
    placed.after_channels = blocking_channels(context);
    return gs_engine_enqueue(context->device->gpu, 0, &placed);
  }
  placed.after_channels = stream->flags & NON_BLOCKING ? 0 : DEFAULT_CHANNEL;
  uint64_t mark = gs_engine_enqueue(gs_stream_device(context, stream)->gpu, stream->channel, &placed);
  if (mark) __atomic_store_n(&stream->mark, mark, __ATOMIC_RELAXED);
  return mark;
}

void gs_stream_finish(struct gs_context *context, CUstream stream) {
  if (is_named(stream))
    gs_engine_wait_channels(context->device->gpu, DEFAULT_CHANNEL | blocking_channels(context));
  else
    gs_engine_wait(gs_stream_device(context, stream)->gpu, __atomic_load_n(&stream->mark, __ATOMIC_RELAXED));
}

/* The channel of a new stream. The caller holds gs_driver.mutex. */
static uint32_t deal_channel(int gpu, unsigned flags) {
  uint32_t best = 1 + dealt[gpu].next % (GS_CHANNELS - 1);
  for (uint32_t i = 1; i < GS_CHANNELS - 1; i++) {
    uint32_t channel = 1 + (dealt[gpu].next + i) % (GS_CHANNELS - 1);
    if (dealt[gpu].streams[channel] < dealt[gpu].streams[best]) best = channel;
  }
  dealt[gpu].next = best; /* counted from 1, so the search goes on behind it */
  dealt[gpu].streams[best]++;
  if (!(flags & NON_BLOCKING) && dealt[gpu].blocking[best]++ == 0)
    __atomic_or_fetch(&dealt[gpu].blocking_channels, 1u << best, __ATOMIC_RELAXED);
  return best;
}

/* What the stream was given goes on in its channel. The caller holds gs_driver.mutex. */
static void free_stream(void *freed) {
  struct gs_stream *stream = freed;
  int gpu = stream->object.context->device->gpu_index;
  uint32_t channel = stream->channel;
  dealt[gpu].streams[channel]--;
  if (!(stream->flags & NON_BLOCKING) && --dealt[gpu].blocking[channel] == 0)
    __atomic_and_fetch(&dealt[gpu].blocking_channels, ~(1u << channel), __ATOMIC_RELAXED);
  gs_object_free(&streams, stream);
}

static CUresult create_stream(CUstream *out, unsigned flags, int priority) {
  NEED_CONTEXT(context);
  if (!out || flags > 1) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_stream *stream = gs_object_new(&streams, context);
  if (stream) {
    stream->flags = flags;
    stream->channel = deal_channel(context->device->gpu_index, flags);
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
  if (stream->branch) gs_capture_stream_ends(stream);
  free_stream(stream);
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}
CU_ALIAS(cuStreamDestroy, cuStreamDestroy_v2)

CU_API(cuStreamSynchronize)(CUstream stream) {
  ENTER(cuStreamSynchronize);
  NEED_CONTEXT(context);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  NOT_CAPTURED(gs_capture_wait_stream(context, stream));
  gs_stream_finish(context, stream);
  gs_pool_trim_device(context->device);
  return CUDA_SUCCESS;
}

CU_API(cuStreamQuery)(CUstream stream) {
  ENTER(cuStreamQuery);
  NEED_CONTEXT(context);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  NOT_CAPTURED(gs_capture_wait_stream(context, stream));
  bool done =
      is_named(stream)
          ? gs_engine_channels_done(context->device->gpu, DEFAULT_CHANNEL | blocking_channels(context))
          : gs_engine_done(gs_stream_device(context, stream)->gpu, __atomic_load_n(&stream->mark, __ATOMIC_RELAXED));
  return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
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

/* Waits for the stream, then calls: the driver does so on a thread of its own, later. */
CU_API(cuStreamAddCallback)(CUstream stream, void (*callback)(CUstream, CUresult, void *), void *data, unsigned flags) {
  ENTER(cuStreamAddCallback);
  NEED_CONTEXT(context);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
  CAPTURE(context, stream, branch);
  if (branch) return gs_capture_fail(branch, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  gs_stream_finish(context, stream);
  callback(stream, CUDA_SUCCESS, data);
  return CUDA_SUCCESS;
}

CU_API(cuLaunchHostFunc)(CUstream stream, void (*function)(void *), void *data) {
  ENTER(cuLaunchHostFunc);
  NEED_CONTEXT(context);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  const struct gs_action action = {.type = CU_NODE_HOST, .host = {function, data}};
  CUresult result = gs_action_check(&action);
  if (result != CUDA_SUCCESS) return result;
  CAPTURE(context, stream, branch);
  return branch ? gs_capture_add(branch, &action) : gs_action_run(context, stream, &action);
}

CU_API(cuCtxGetStreamPriorityRange)(int *least, int *greatest) {
  ENTER(cuCtxGetStreamPriorityRange);
  NEED_CONTEXT(context);
  (void)context;
  if (least) *least = LOWEST_PRIORITY;
  if (greatest) *greatest = HIGHEST_PRIORITY;
  return CUDA_SUCCESS;
}

void gs_streams_release_context(struct gs_context *context) {
  gs_capture_context_ends(context);
  gs_objects_of(&streams, context, free_stream);
}
