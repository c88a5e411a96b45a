/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hooks_capture.c - the calls by which streams begin, join and end captures (capture.h). Nothing is changed about them.
 */
#include "capture.h"
#include "state.h"
#include "table.h"

/* Whether anybody may be in a capture; the calls below are called often, and captures are rare. */
static inline bool is_capturing(void) {
  return __builtin_expect(__atomic_load_n(&vgpu_capture_count, __ATOMIC_RELAXED) != 0, 0);
}

/* Before a capture begins; false: nothing is limited, and so nothing is kept. */
static bool begin(void) {
  if (!vgpu_is_limiting()) return false;
  vgpu_check_fork();
  vgpu_capture_beginning();
  return true;
}

static CUresult begun(bool is_kept, CUstream stream, CUresult result) {
  if (is_kept) vgpu_capture_begun(stream, result);
  return result;
}

CUresult cuStreamBeginCapture(CUstream stream) {
  __typeof__(&cuStreamBeginCapture) real = VGPU_REAL(cuStreamBeginCapture);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  bool is_kept = begin();
  return begun(is_kept, stream, real(stream));
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  __typeof__(&cuStreamBeginCapture) real = VGPU_REAL(cuStreamBeginCapture_ptsz);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  bool is_kept = begin();
  return begun(is_kept, vgpu_stream_per_thread(stream), real(stream));
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
  __typeof__(&cuStreamBeginCapture_v2) real = VGPU_REAL(cuStreamBeginCapture_v2);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  bool is_kept = begin();
  return begun(is_kept, stream, real(stream, mode));
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) {
  __typeof__(&cuStreamBeginCapture_v2) real = VGPU_REAL(cuStreamBeginCapture_v2_ptsz);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  bool is_kept = begin();
  return begun(is_kept, vgpu_stream_per_thread(stream), real(stream, mode));
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const void *data,
                                     size_t count, int mode) {
  __typeof__(&cuStreamBeginCaptureToGraph) real = VGPU_REAL(cuStreamBeginCaptureToGraph);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  bool is_kept = begin();
  return begun(is_kept, stream, real(stream, graph, dependencies, data, count, mode));
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                          const void *data, size_t count, int mode) {
  __typeof__(&cuStreamBeginCaptureToGraph) real = VGPU_REAL(cuStreamBeginCaptureToGraph_ptsz);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  bool is_kept = begin();
  return begun(is_kept, vgpu_stream_per_thread(stream), real(stream, graph, dependencies, data, count, mode));
}

CUresult cuStreamBeginRecaptureToGraph(CUstream stream, int mode, CUgraph graph, void *callback, void *data) {
  __typeof__(&cuStreamBeginRecaptureToGraph) real = VGPU_REAL(cuStreamBeginRecaptureToGraph);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  bool is_kept = begin();
  return begun(is_kept, stream, real(stream, mode, graph, callback, data));
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, int mode, CUgraph graph, void *callback, void *data) {
  __typeof__(&cuStreamBeginRecaptureToGraph) real = VGPU_REAL(cuStreamBeginRecaptureToGraph_ptsz);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  bool is_kept = begin();
  return begun(is_kept, vgpu_stream_per_thread(stream), real(stream, mode, graph, callback, data));
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  __typeof__(&cuStreamEndCapture) real = VGPU_REAL(cuStreamEndCapture);
  CUresult result = real ? real(stream, graph) : CUDA_ERROR_NOT_INITIALIZED;
  if (is_capturing()) vgpu_capture_ended(stream, result);
  return result;
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
  __typeof__(&cuStreamEndCapture) real = VGPU_REAL(cuStreamEndCapture_ptsz);
  CUresult result = real ? real(stream, graph) : CUDA_ERROR_NOT_INITIALIZED;
  if (is_capturing()) vgpu_capture_ended(vgpu_stream_per_thread(stream), result);
  return result;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  __typeof__(&cuEventRecord) real = VGPU_REAL(cuEventRecord);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!is_capturing()) return real(event, stream);
  CUresult result = real(event, stream);
  if (result == CUDA_SUCCESS) vgpu_capture_recorded(event, stream);
  return result;
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
  __typeof__(&cuEventRecord) real = VGPU_REAL(cuEventRecord_ptsz);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!is_capturing()) return real(event, stream);
  CUresult result = real(event, stream);
  if (result == CUDA_SUCCESS) vgpu_capture_recorded(event, vgpu_stream_per_thread(stream));
  return result;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  __typeof__(&cuEventRecordWithFlags) real = VGPU_REAL(cuEventRecordWithFlags);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  CUresult result = real(event, stream, flags);
  if (is_capturing() && result == CUDA_SUCCESS) vgpu_capture_recorded(event, stream);
  return result;
}

CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags) {
  __typeof__(&cuEventRecordWithFlags) real = VGPU_REAL(cuEventRecordWithFlags_ptsz);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  CUresult result = real(event, stream, flags);
  if (is_capturing() && result == CUDA_SUCCESS) vgpu_capture_recorded(event, vgpu_stream_per_thread(stream));
  return result;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  __typeof__(&cuStreamWaitEvent) real = VGPU_REAL(cuStreamWaitEvent);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  CUresult result = real(stream, event, flags);
  if (is_capturing() && result == CUDA_SUCCESS) vgpu_capture_joined(stream, event);
  return result;
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
  __typeof__(&cuStreamWaitEvent) real = VGPU_REAL(cuStreamWaitEvent_ptsz);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  CUresult result = real(stream, event, flags);
  if (is_capturing() && result == CUDA_SUCCESS) vgpu_capture_joined(vgpu_stream_per_thread(stream), event);
  return result;
}

static CUresult destroy(CUresult (*real)(CUstream), CUstream stream) {
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  CUresult result = real(stream);
  if (is_capturing() && result == CUDA_SUCCESS) vgpu_capture_stream_gone(stream);
  return result;
}

CUresult cuStreamDestroy(CUstream stream) {
  return destroy(VGPU_REAL(cuStreamDestroy), stream);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  return destroy(VGPU_REAL(cuStreamDestroy_v2), stream);
}
