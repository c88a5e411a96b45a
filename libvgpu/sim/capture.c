/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * capture.c - stream capture: beginning and ending one, and asking for it. Work given to a capturing stream becomes nodes of a
 * graph instead of running.
 */
#include "capture_state.h"

#include <stdlib.h>

enum capture_status { STATUS_NONE = 0, STATUS_ACTIVE = 1, STATUS_INVALIDATED = 2 };
enum { ADD_DEPENDENCIES = 0, SET_DEPENDENCIES = 1 };

static uint64_t last_id; /* gs_driver.mutex */

static CUresult begin(CUstream stream, int mode) {
  NEED_CONTEXT(context);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (mode < MODE_GLOBAL || mode > MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (gs_is_legacy(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (gs_branch_of(stream)) return CUDA_ERROR_ILLEGAL_STATE;
  struct gs_capture *capture = calloc(1, sizeof *capture);
  if (!capture) return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&gs_driver.mutex);
  capture->id = ++last_id;
  capture->mode = mode;
  capture->thread = &gs_thread;
  capture->context = context;
  capture->next = gs_captures;
  gs_captures = capture;
  __atomic_fetch_add(&gs_capture_count, 1, __ATOMIC_RELAXED);
  capture->graph = gs_graph_new();
  if (capture->graph) {
    capture->graph->owned = true;
    capture->first = gs_branch_new(capture, stream, NULL, 0);
  }
  bool begun = capture->first != NULL;
  if (!begun) gs_capture_free(capture);
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
static bool joined(const struct gs_capture *capture) {
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
  struct gs_branch *branch = gs_branch_of(stream);
  struct gs_capture *capture = branch ? branch->capture : NULL;
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
    gs_capture_free(capture);
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
  const struct gs_branch *branch = gs_branch_of(stream);
  bool implicit = gs_is_legacy(stream) && gs_capture_holds_legacy(context, false);
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
  struct gs_branch *branch = gs_branch_of(stream);
  if (!branch)
    result = CUDA_ERROR_ILLEGAL_STATE;
  else if (branch->capture->invalidated)
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  else if (!gs_graph_has_nodes(branch->capture->graph, nodes, count))
    result = CUDA_ERROR_INVALID_VALUE;
  else if (flags == SET_DEPENDENCIES ? !gs_nodes_copy(&branch->nodes, &branch->count, nodes, count)
                                     : !gs_branch_add(branch, nodes, count))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}
