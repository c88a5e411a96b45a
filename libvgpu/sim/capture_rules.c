/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * capture_rules.c - the hooks of other calls: work given to a capturing stream becomes a node; what a capture forbids, to
 * whom and with which code follows CUDA's documentation of cuStreamBeginCapture and cuThreadExchangeStreamCaptureMode
 * and the programming guide's chapter on prohibited and unhandled operations. What is forbidden and tried invalidates the
 * capture.
 */
#include <stdlib.h>

#include "capture_state.h"

enum { EXTERNAL = 1 }; /* of an event: not part of the capture, but a node of its graph */

static __thread int thread_mode = MODE_GLOBAL;

bool gs_capture_holds_legacy(const struct gs_context *context, bool invalidate) {
  bool waits = false;
  for (struct gs_capture *capture = gs_captures; capture; capture = capture->next) {
    if (capture->context != context) continue;
    for (const struct gs_branch *branch = capture->branches; branch; branch = branch->next) {
      if (!branch->blocking) continue;
      waits = true;
      capture->invalidated = capture->invalidated || invalidate;
    }
  }
  return waits;
}

/* Whether the calling thread must not do what captures do not see; invalidates the captures that forbid it. */
static bool forbidden(void) {
  bool found = false;
  for (struct gs_capture *capture = gs_captures; capture && thread_mode != MODE_RELAXED; capture = capture->next) {
    bool own = capture->thread == &gs_thread;
    bool forbids = own ? capture->mode != MODE_RELAXED : capture->mode == MODE_GLOBAL && thread_mode == MODE_GLOBAL;
    if (!forbids) continue;
    capture->invalidated = true;
    found = true;
  }
  return found;
}

CUresult gs_capture_begin(struct gs_context *context, CUstream stream, struct gs_branch **branch) {
  CUresult result = CUDA_SUCCESS;
  if (!gs_capturing()) return CUDA_SUCCESS;
  pthread_mutex_lock(&gs_driver.mutex);
  *branch = gs_branch_of(stream);
  if (gs_is_legacy(stream) && gs_capture_holds_legacy(context, true)) result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (*branch && (*branch)->capture->invalidated) result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

CUresult gs_capture_add(struct gs_branch *branch, const struct gs_action *action) {
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_node *node = gs_graph_add(branch->capture->graph, branch->nodes, branch->count, action);
  if (node) {
    branch->nodes[0] = node; /* lists have room for one at least */
    branch->count = 1;
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  return node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gs_capture_fail(struct gs_branch *branch, CUresult result) {
  pthread_mutex_lock(&gs_driver.mutex);
  branch->capture->invalidated = true;
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

struct gs_graph *gs_capture_graph(const struct gs_branch *branch) {
  return branch->capture->graph;
}

CUresult gs_capture_legacy(struct gs_context *context, bool waits) {
  pthread_mutex_lock(&gs_driver.mutex);
  CUresult result = gs_capture_holds_legacy(context, true) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                    : waits && forbidden()                 ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                                           : CUDA_SUCCESS;
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

CUresult gs_capture_unsafe(void) {
  pthread_mutex_lock(&gs_driver.mutex);
  bool found = forbidden();
  pthread_mutex_unlock(&gs_driver.mutex);
  return found ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult gs_capture_wait_stream(struct gs_context *context, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_branch *branch = gs_branch_of(stream);
  if (branch) {
    result =
        branch->capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    branch->capture->invalidated = true;
  } else if (gs_is_legacy(stream) && gs_capture_holds_legacy(context, true)) {
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  } else if (forbidden()) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

CUresult gs_capture_wait_context(struct gs_context *context) {
  pthread_mutex_lock(&gs_driver.mutex);
  bool found = forbidden();
  for (struct gs_capture *capture = gs_captures; capture; capture = capture->next) {
    if (capture->context != context) continue;
    capture->invalidated = true;
    found = true;
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  return found ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/* An event that was never recorded stands for no work: asking for it is allowed. */
CUresult gs_capture_wait_event(CUevent event) {
  CUresult result = CUDA_SUCCESS;
  uint64_t id = *gs_event_capture(event);
  if (id == 0 && !gs_capturing()) return CUDA_SUCCESS;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_capture *capture = gs_capture_find(id);
  if (capture) capture->invalidated = true;
  if (id != 0)
    result = CUDA_ERROR_CAPTURED_EVENT;
  else if (gs_event_recorded(event) && forbidden())
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

/* Notes what the event stands for now. The caller holds gs_driver.mutex. */
static CUresult note(struct gs_branch *branch, CUevent event) {
  struct gs_recorded *recorded = gs_capture_recorded(branch->capture, event);
  if (!recorded) {
    recorded = calloc(1, sizeof *recorded);
    if (!recorded) return CUDA_ERROR_OUT_OF_MEMORY;
    recorded->event = event;
    recorded->next = branch->capture->events;
    branch->capture->events = recorded;
  }
  if (!gs_nodes_copy(&recorded->nodes, &recorded->count, branch->nodes, branch->count)) return CUDA_ERROR_OUT_OF_MEMORY;
  *gs_event_capture(event) = branch->capture->id;
  return CUDA_SUCCESS;
}

CUresult gs_capture_record(struct gs_context *context, CUevent event, CUstream stream, unsigned flags, bool *done) {
  struct gs_branch *branch = NULL;
  CUresult result = gs_capture_begin(context, stream, &branch);
  *done = branch || (flags & EXTERNAL) || result != CUDA_SUCCESS;
  if (!*done || result != CUDA_SUCCESS) return result;
  if (!branch) return CUDA_ERROR_INVALID_VALUE; /* the flag means something in a capture alone */
  if (flags & EXTERNAL) {
    const struct gs_action action = {.type = CU_NODE_EVENT_RECORD, .event = event};
    return gs_capture_add(branch, &action);
  }
  pthread_mutex_lock(&gs_driver.mutex);
  result = note(branch, event);
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

/* A stream waits for an event that was recorded in the capture: it takes part from here on. */
static CUresult join(struct gs_capture *capture, CUstream stream, CUevent event) {
  struct gs_branch *branch = gs_branch_of(stream);
  const struct gs_recorded *recorded = gs_capture_recorded(capture, event);
  if (branch && branch->capture != capture) {
    branch->capture->invalidated = true;
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (gs_is_legacy(stream)) {
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (branch) return gs_branch_add(branch, recorded->nodes, recorded->count) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  branch = gs_branch_new(capture, stream, recorded->nodes, recorded->count);
  return branch ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gs_capture_join(struct gs_context *context, CUstream stream, CUevent event, unsigned flags, bool *done) {
  struct gs_branch *branch = NULL;
  uint64_t id = *gs_event_capture(event);
  CUresult result = gs_capture_begin(context, stream, &branch);
  *done = branch || id != 0 || (flags & EXTERNAL) || result != CUDA_SUCCESS;
  if (!*done || result != CUDA_SUCCESS) return result;
  if (flags & EXTERNAL) {
    const struct gs_action action = {.type = CU_NODE_WAIT_EVENT, .event = event};
    return branch ? gs_capture_add(branch, &action) : CUDA_ERROR_INVALID_VALUE;
  }
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_capture *capture = gs_capture_find(id);
  if (capture) {
    result = join(capture, stream, event);
  } else {
    result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (branch) branch->capture->invalidated = true;
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

CU_API(cuThreadExchangeStreamCaptureMode)(int *mode) {
  ENTER(cuThreadExchangeStreamCaptureMode);
  if (!mode || *mode < MODE_GLOBAL || *mode > MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  int before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}
