/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * capture.c - stream capture: work given to a capturing stream becomes nodes of a graph instead of running. A stream
 * takes part in a capture because it was begun there, or because it waited for an event recorded in the capture; each has
 * the list of nodes that its next work depends on.
 *
 * What a capture forbids to others, and with which code, follows CUDA's documentation of cuStreamBeginCapture and
 * cuThreadExchangeStreamCaptureMode and the programming guide's chapter on prohibited and unhandled operations. Whatever
 * is forbidden and tried invalidates the capture, except where said.
 */
#include "capture.h"

#include <stdlib.h>
#include <string.h>

enum capture_status { STATUS_NONE = 0, STATUS_ACTIVE = 1, STATUS_INVALIDATED = 2 };
enum capture_mode { MODE_GLOBAL = 0, MODE_THREAD_LOCAL = 1, MODE_RELAXED = 2 };
enum { EXTERNAL = 1, ADD_DEPENDENCIES = 0, SET_DEPENDENCIES = 1 };

/* An event as it was last recorded in a capture. */
struct recorded {
  struct recorded *next;
  CUevent event;
  struct gs_node **nodes;
  size_t count;
};

struct gs_branch {
  struct gs_branch *next; /* of the same capture; the first is the one it was begun in */
  struct capture *capture;
  CUstream stream;
  const void *thread;     /* that joined it to the capture */
  struct gs_node **nodes; /* what the next work depends on */
  size_t count;
  bool blocking;
};

struct capture {
  struct capture *next;
  uint64_t id;
  int mode;
  bool invalidated;
  const void *thread; /* that began it: the address of its gs_thread */
  struct gs_context *context;
  struct gs_graph *graph;
  struct gs_branch *branches; /* of streams that have not ended */
  struct gs_branch *first;    /* where it was begun */
  struct recorded *events;
};

uint32_t gs_capture_count;
static struct capture *captures; /* gs_driver.mutex guards all of this */
static uint64_t last_id;

static __thread int thread_mode = MODE_GLOBAL;

static bool is_legacy(CUstream stream) {
  return (uintptr_t)stream < CU_STREAM_PER_THREAD;
}

static bool is_per_thread(CUstream stream) {
  return (uintptr_t)stream == CU_STREAM_PER_THREAD;
}

/* The stream's branch, or NULL. A thread's default stream is one per context. */
static struct gs_branch *branch_of(CUstream stream) {
  if (is_legacy(stream)) return NULL;
  if (!is_per_thread(stream)) return *gs_stream_branch(stream);
  for (const struct capture *capture = captures; capture; capture = capture->next)
    for (struct gs_branch *branch = capture->branches; branch; branch = branch->next)
      if (is_per_thread(branch->stream) && branch->thread == &gs_thread && capture->context == gs_thread.current)
        return branch;
  return NULL;
}

static bool copy_list(struct gs_node ***out, size_t *count, struct gs_node *const *nodes, size_t length) {
  struct gs_node **list = malloc((length + 1) * sizeof(struct gs_node *));
  if (!list) return false;
  if (length > 0) memcpy(list, nodes, length * sizeof(struct gs_node *));
  free(*out);
  *out = list;
  *count = length;
  return true;
}

/* Adds to what the branch depends on; what is in it already is not added again. */
static bool add_to_list(struct gs_branch *branch, struct gs_node *const *nodes, size_t length) {
  struct gs_node **list = realloc(branch->nodes, (branch->count + length + 1) * sizeof(struct gs_node *));
  if (!list) return false;
  branch->nodes = list;
  for (size_t i = 0; i < length; i++) {
    size_t j = 0;
    while (j < branch->count && list[j] != nodes[i])
      j++;
    if (j == branch->count) list[branch->count++] = nodes[i];
  }
  return true;
}

static struct gs_branch *new_branch(struct capture *capture, CUstream stream, struct gs_node *const *nodes,
                                    size_t count) {
  struct gs_branch *branch = calloc(1, sizeof *branch);
  if (!branch || !copy_list(&branch->nodes, &branch->count, nodes, count)) {
    free(branch);
    return NULL;
  }
  branch->capture = capture;
  branch->stream = stream;
  branch->thread = &gs_thread;
  branch->blocking = is_per_thread(stream) || gs_stream_blocking(stream);
  branch->next = capture->branches;
  capture->branches = branch;
  if (!is_per_thread(stream)) *gs_stream_branch(stream) = branch;
  return branch;
}

static void free_branch(struct gs_branch *branch) {
  if (!is_per_thread(branch->stream)) *gs_stream_branch(branch->stream) = NULL;
  free(branch->nodes);
  free(branch);
}

static struct capture *find(uint64_t id) {
  struct capture *capture = captures;
  while (capture && capture->id != id)
    capture = capture->next;
  return capture;
}

static struct recorded *find_recorded(const struct capture *capture, CUevent event) {
  struct recorded *recorded = capture->events;
  while (recorded && recorded->event != event)
    recorded = recorded->next;
  return recorded;
}

static void free_capture(struct capture *capture) {
  struct capture **link = &captures;
  while (*link != capture)
    link = &(*link)->next;
  *link = capture->next;
  for (struct gs_branch *next, *branch = capture->branches; branch; branch = next) {
    next = branch->next;
    free_branch(branch);
  }
  for (struct recorded *next, *recorded = capture->events; recorded; recorded = next) {
    next = recorded->next;
    free(recorded->nodes);
    free(recorded);
  }
  if (capture->graph) gs_graph_free(capture->graph);
  free(capture);
  __atomic_fetch_sub(&gs_capture_count, 1, __ATOMIC_RELAXED);
}

void gs_capture_stream_ends(CUstream stream) {
  struct gs_branch *branch = branch_of(stream);
  struct capture *capture = branch->capture;
  if (branch == capture->first) {
    free_capture(capture);
    return;
  }
  struct gs_branch **link = &capture->branches;
  while (*link != branch)
    link = &(*link)->next;
  *link = branch->next;
  free_branch(branch);
  capture->invalidated = true;
}

void gs_capture_context_ends(const struct gs_context *context) {
  for (struct capture *next, *capture = captures; capture; capture = next) {
    next = capture->next;
    if (capture->context == context) free_capture(capture);
  }
}

/* Whether the legacy stream would wait for a stream that captures; invalidates those captures if asked to. */
static bool legacy_waits(const struct gs_context *context, bool invalidate) {
  bool waits = false;
  for (struct capture *capture = captures; capture; capture = capture->next) {
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
  for (struct capture *capture = captures; capture && thread_mode != MODE_RELAXED; capture = capture->next) {
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
  *branch = branch_of(stream);
  if (is_legacy(stream) && legacy_waits(context, true)) result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
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
  CUresult result = legacy_waits(context, true) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                    : waits && forbidden()      ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
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
  struct gs_branch *branch = branch_of(stream);
  if (branch) {
    result =
        branch->capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    branch->capture->invalidated = true;
  } else if (is_legacy(stream) && legacy_waits(context, true)) {
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
  for (struct capture *capture = captures; capture; capture = capture->next) {
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
  struct capture *capture = find(id);
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
  struct recorded *recorded = find_recorded(branch->capture, event);
  if (!recorded) {
    recorded = calloc(1, sizeof *recorded);
    if (!recorded) return CUDA_ERROR_OUT_OF_MEMORY;
    recorded->event = event;
    recorded->next = branch->capture->events;
    branch->capture->events = recorded;
  }
  if (!copy_list(&recorded->nodes, &recorded->count, branch->nodes, branch->count)) return CUDA_ERROR_OUT_OF_MEMORY;
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
static CUresult join(struct capture *capture, CUstream stream, CUevent event) {
  struct gs_branch *branch = branch_of(stream);
  const struct recorded *recorded = find_recorded(capture, event);
  if (branch && branch->capture != capture) {
    branch->capture->invalidated = true;
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (is_legacy(stream)) {
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (branch) return add_to_list(branch, recorded->nodes, recorded->count) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  branch = new_branch(capture, stream, recorded->nodes, recorded->count);
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
  struct capture *capture = find(id);
  if (capture) {
    result = join(capture, stream, event);
  } else {
    result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (branch) branch->capture->invalidated = true;
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

static CUresult begin(CUstream stream, int mode) {
  NEED_CONTEXT(context);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (mode < MODE_GLOBAL || mode > MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (is_legacy(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (branch_of(stream)) return CUDA_ERROR_ILLEGAL_STATE;
  struct capture *capture = calloc(1, sizeof *capture);
  if (!capture) return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&gs_driver.mutex);
  capture->id = ++last_id;
  capture->mode = mode;
  capture->thread = &gs_thread;
  capture->context = context;
  capture->next = captures;
  captures = capture;
  __atomic_fetch_add(&gs_capture_count, 1, __ATOMIC_RELAXED);
  capture->graph = gs_graph_new();
  if (capture->graph) {
    capture->graph->owned = true;
    capture->first = new_branch(capture, stream, NULL, 0);
  }
  bool begun = capture->first != NULL;
  if (!begun) free_capture(capture);
  pthread_mutex_unlock(&gs_driver.mutex);
  return begun ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The first interface knew no modes and forbade nothing to others. */
CU_API(cuStreamBeginCapture)(CUstream stream) {
  ENTER(cuStreamBeginCapture);
  return begin(stream, MODE_RELAXED);
}

CU_API(cuStreamBeginCapture_v2)(CUstream stream, int mode) {
  ENTER(cuStreamBeginCapture_v2);
  return begin(stream, mode);
}

/* Marks all that marked nodes depend on. One pass does it for captured nodes, which depend on earlier ones. */
static void mark_before(bool *marks, const struct gs_graph *graph) {
  for (bool more = true; more;) {
    more = false;
    for (size_t i = graph->count; i-- > 0;) {
      const struct gs_node *node = graph->nodes[i];
      for (size_t j = 0; marks[i] && j < node->dependency_count; j++) {
        size_t before = node->dependencies[j]->number;
        more = more || (!marks[before] && before > i);
        marks[before] = true;
      }
    }
  }
}

/* Whether all that other streams gave to the capture comes before the end of its first stream. */
static bool joined(const struct capture *capture) {
  bool *marks = calloc(capture->graph->count + 1, sizeof *marks);
  bool all = marks != NULL;
  for (size_t i = 0; marks && i < capture->first->count; i++)
    marks[capture->first->nodes[i]->number] = true;
  if (marks) mark_before(marks, capture->graph);
  for (const struct gs_branch *branch = capture->branches; all && branch; branch = branch->next)
    for (size_t i = 0; i < branch->count; i++)
      all = all && marks[branch->nodes[i]->number];
  free(marks);
  return all;
}

CU_API(cuStreamEndCapture)(CUstream stream, CUgraph *out) {
  ENTER(cuStreamEndCapture);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_branch *branch = branch_of(stream);
  struct capture *capture = branch ? branch->capture : NULL;
  if (!branch) {
    result = CUDA_ERROR_ILLEGAL_STATE;
  } else if (!out) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else if (branch != capture->first) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  } else if (capture->mode != MODE_RELAXED && capture->thread != &gs_thread) {
    capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  } else {
    if (capture->invalidated)
      result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!joined(capture))
      result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    *out = result == CUDA_SUCCESS ? capture->graph : NULL;
    if (*out) {
      capture->graph->owned = false;
      capture->graph = NULL;
    }
    free_capture(capture);
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

/* What a stream captures, for the calls that ask; these are always allowed. */
struct info {
  int status;
  uint64_t id;
  struct gs_graph *graph;
  struct gs_node **nodes;
  size_t count;
};

static CUresult ask(CUstream stream, struct info *info) {
  NEED_CONTEXT(context);
  *info = (struct info){.status = STATUS_NONE};
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (!gs_capturing()) return CUDA_SUCCESS;
  pthread_mutex_lock(&gs_driver.mutex);
  const struct gs_branch *branch = branch_of(stream);
  bool implicit = is_legacy(stream) && legacy_waits(context, false);
  if (branch)
    *info = (struct info){.status = branch->capture->invalidated ? STATUS_INVALIDATED : STATUS_ACTIVE,
                          .id = branch->capture->id,
                          .graph = branch->capture->graph,
                          .nodes = branch->nodes,
                          .count = branch->count};
  pthread_mutex_unlock(&gs_driver.mutex);
  return implicit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CU_API(cuStreamIsCapturing)(CUstream stream, int *status) {
  struct info info;
  ENTER(cuStreamIsCapturing);
  CUresult result = ask(stream, &info);
  if (result != CUDA_SUCCESS) return result;
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  *status = info.status;
  return CUDA_SUCCESS;
}

CU_API(cuStreamGetCaptureInfo)(CUstream stream, int *status, uint64_t *id) {
  struct info info;
  ENTER(cuStreamGetCaptureInfo);
  CUresult result = ask(stream, &info);
  if (result != CUDA_SUCCESS) return result;
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  *status = info.status;
  if (id && info.status == STATUS_ACTIVE) *id = info.id;
  return CUDA_SUCCESS;
}

/* The list of nodes stays valid until the next call that concerns the stream. */
CU_API(cuStreamGetCaptureInfo_v2)
(CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count) {
  struct info info;
  ENTER(cuStreamGetCaptureInfo_v2);
  CUresult result = ask(stream, &info);
  if (result != CUDA_SUCCESS) return result;
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  *status = info.status;
  if (info.status != STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id) *id = info.id;
  if (graph) *graph = info.graph;
  if (nodes) *nodes = info.nodes;
  if (count) *count = info.count;
  return CUDA_SUCCESS;
}

CU_API(cuStreamUpdateCaptureDependencies)(CUstream stream, CUgraphNode *nodes, size_t count, unsigned flags) {
  ENTER(cuStreamUpdateCaptureDependencies);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (flags > SET_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_branch *branch = branch_of(stream);
  if (!branch)
    result = CUDA_ERROR_ILLEGAL_STATE;
  else if (branch->capture->invalidated)
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  else if (!gs_graph_has_nodes(branch->capture->graph, nodes, count))
    result = CUDA_ERROR_INVALID_VALUE;
  else if (flags == SET_DEPENDENCIES ? !copy_list(&branch->nodes, &branch->count, nodes, count)
                                     : !add_to_list(branch, nodes, count))
    result = CUDA_ERROR_OUT_OF_MEMORY;
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
