/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * fake_gpu_graph.c - contract in fake_gpu.h: events, captures and graphs.
 */
#include <stdlib.h>

#include "fake_gpu.h"

struct CUevent_st {
  CUcontext context;
  uint64_t at_ns;  /* 0: not recorded */
  CUgraph capture; /* recorded in this capture */
};

static void count_stale(CUevent event) {
  fake_stale_events += event->context->is_gone;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
  NOTE(NULL);
  (void)flags;
  if (fake_is_failing(__func__)) return (CUresult)ERROR_UNKNOWN;
  *event = calloc(1, sizeof(struct CUevent_st));
  (*event)->context = fake_current;
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  NOTE(NULL);
  count_stale(event);
  free(event);
  return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream) {
  CUgraph graph = fake_capture_of(stream);
  count_stale(event);
  if (event->context != fake_context_of(stream)) return CUDA_ERROR_INVALID_HANDLE;
  event->capture = graph;
  event->at_ns = graph ? 0 : fake_enqueue(stream, 0);
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  NOTE(stream);
  return fake_is_failing(__func__) ? (CUresult)ERROR_UNKNOWN : record(event, stream);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  NOTE(stream);
  (void)flags;
  return record(event, stream);
}

CUresult cuEventQuery(CUevent event) {
  NOTE(NULL);
  count_stale(event);
  if (fake_is_failing(__func__)) return (CUresult)ERROR_UNKNOWN;
  if (fake_unsafe() != CUDA_SUCCESS) return fake_unsafe();
  return event->at_ns && fake_now_ns() >= event->at_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
  NOTE(NULL);
  if (fake_is_failing(__func__)) return (CUresult)ERROR_UNKNOWN;
  if (fake_unsafe() != CUDA_SUCCESS) return fake_unsafe();
  *milliseconds = (float)((double)(end->at_ns - start->at_ns) / 1e6);
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  NOTE(stream);
  (void)flags;
  if (event->capture && !fake_is_named(stream)) stream->capture = event->capture;
  return CUDA_SUCCESS;
}

static CUresult begin(CUstream stream) {
  if (fake_is_named(stream) || stream->capture) return CUDA_ERROR_INVALID_VALUE;
  stream->capture = calloc(1, sizeof(struct CUgraph_st));
  stream->capture->origin = stream;
  __atomic_fetch_add(&fake_captures, 1, __ATOMIC_RELAXED);
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
  NOTE(stream);
  (void)mode;
  return begin(stream);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const void *data,
                                     size_t count, int mode) {
  NOTE(stream);
  (void)graph, (void)dependencies, (void)data, (void)count, (void)mode;
  return begin(stream);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  NOTE(stream);
  if (!stream->capture) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  *graph = stream->capture;
  stream->capture = NULL;
  __atomic_fetch_sub(&fake_captures, 1, __ATOMIC_RELAXED);
  return (*graph)->is_spoilt ? (CUresult)ERROR_ISOLATION : CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status) {
  NOTE(stream);
  *status = fake_capture_of(stream) != NULL;
  return CUDA_SUCCESS;
}

/* A graph that runs is the graph itself. */
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {
  NOTE(NULL);
  (void)flags;
  *executable = (CUgraphExec)graph;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphUpload(CUgraphExec graph, CUstream stream) {
  NOTE(stream);
  (void)graph;
  return CUDA_SUCCESS;
}

static CUresult launch_graph(CUgraphExec executable, CUstream stream) {
  CUgraph graph = (CUgraph)executable;
  if (fake_fail_launches) return (CUresult)fake_fail_launches;
  if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT;
  if (fake_capture_of(stream)) {
    fake_capture_of(stream)->ns += graph->ns;
    return CUDA_SUCCESS;
  }
  __atomic_fetch_add(&fake_kernels, graph->kernels, __ATOMIC_RELAXED);
  fake_enqueue(stream, graph->ns);
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  NOTE(stream);
  return launch_graph(graph, stream);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
  NOTE(stream);
  return launch_graph(graph, stream);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph from, void *result_info) {
  NOTE(NULL);
  (void)result_info;
  ((CUgraph)executable)->ns = from->ns;
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  NOTE(NULL);
  free(executable);
  return CUDA_SUCCESS;
}
