/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * per_thread.c - the _ptsz variants, for programs whose default stream is the thread's own: no stream means that one
 * there. They count as their plain namesakes. The variants that are not here are the same as those.
 */
#include "copy.h"

#define OWN(stream) ((stream) ? (stream) : (CUstream)(uintptr_t)CU_STREAM_PER_THREAD)

/* The name comes first in the line, for generate.sh. */
CU_PTSZ(cuLaunchKernel,
        (CUfunction kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
         unsigned shared, CUstream stream, void **parameters, void **extra),
        (kernel, gx, gy, gz, bx, by, bz, shared, OWN(stream), parameters, extra))
CU_PTSZ(cuLaunchCooperativeKernel,
        (CUfunction kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
         unsigned shared, CUstream stream, void **parameters),
        (kernel, gx, gy, gz, bx, by, bz, shared, OWN(stream), parameters))
CU_PTSZ(cuLaunchHostFunc, (CUstream stream, void (*function)(void *), void *data), (OWN(stream), function, data))
CU_PTSZ(cuGraphLaunch, (CUgraphExec exec, CUstream stream), (exec, OWN(stream)))
CU_PTSZ(cuGraphUpload, (CUgraphExec exec, CUstream stream), (exec, OWN(stream)))
CU_PTSZ(cuStreamBeginCapture, (CUstream stream), (OWN(stream)))
CU_PTSZ(cuStreamBeginCapture_v2, (CUstream stream, int mode), (OWN(stream), mode))
CU_PTSZ(cuStreamEndCapture, (CUstream stream, CUgraph *out), (OWN(stream), out))
CU_PTSZ(cuStreamIsCapturing, (CUstream stream, int *status), (OWN(stream), status))
CU_PTSZ(cuStreamGetCaptureInfo, (CUstream stream, int *status, uint64_t *id), (OWN(stream), status, id))
CU_PTSZ(cuStreamGetCaptureInfo_v2,
        (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count),
        (OWN(stream), status, id, graph, nodes, count))
CU_PTSZ(cuStreamUpdateCaptureDependencies, (CUstream stream, CUgraphNode *nodes, size_t count, unsigned flags),
        (OWN(stream), nodes, count, flags))
CU_PTSZ(cuStreamSynchronize, (CUstream stream), (OWN(stream)))
CU_PTSZ(cuStreamQuery, (CUstream stream), (OWN(stream)))
CU_PTSZ(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), (OWN(stream), event, flags))
CU_PTSZ(cuStreamAddCallback,
        (CUstream stream, void (*callback)(CUstream, CUresult, void *), void *data, unsigned flags),
        (OWN(stream), callback, data, flags))
CU_PTSZ(cuEventRecord, (CUevent event, CUstream stream), (event, OWN(stream)))
CU_PTSZ(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags), (event, OWN(stream), flags))
CU_PTSZ(cuMemAllocAsync, (CUdeviceptr * out, size_t bytes, CUstream stream), (out, bytes, OWN(stream)))
CU_PTSZ(cuMemAllocFromPoolAsync, (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream stream),
        (out, bytes, pool, OWN(stream)))
CU_PTSZ(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream), (pointer, OWN(stream)))
CU_PTSZ(cuMemcpyAsync, (CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream),
        (target, source, bytes, OWN(stream)))
CU_PTSZ(cuMemcpyHtoDAsync_v2, (CUdeviceptr target, const void *source, size_t bytes, CUstream stream),
        (target, source, bytes, OWN(stream)))
CU_PTSZ(cuMemcpyDtoHAsync_v2, (void *target, CUdeviceptr source, size_t bytes, CUstream stream),
        (target, source, bytes, OWN(stream)))
CU_PTSZ(cuMemcpyDtoDAsync_v2, (CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream),
        (target, source, bytes, OWN(stream)))
CU_PTSZ(cuMemcpy2DAsync_v2, (const struct cu_memcpy2d *copy, CUstream stream), (copy, OWN(stream)))
CU_PTSZ(cuMemcpy3DAsync_v2, (const struct cu_memcpy3d *copy, CUstream stream), (copy, OWN(stream)))
CU_PTSZ(cuMemsetD8Async, (CUdeviceptr target, unsigned char value, size_t count, CUstream stream),
        (target, value, count, OWN(stream)))
CU_PTSZ(cuMemsetD16Async, (CUdeviceptr target, unsigned short value, size_t count, CUstream stream),
        (target, value, count, OWN(stream)))
CU_PTSZ(cuMemsetD32Async, (CUdeviceptr target, unsigned value, size_t count, CUstream stream),
        (target, value, count, OWN(stream)))

CU_API(cuLaunchKernelEx)(const struct cu_launch_config *config, CUfunction kernel, void **parameters, void **extra);
CU_API(cuLaunchKernelEx_ptsz)
(const struct cu_launch_config *config, CUfunction kernel, void **parameters, void **extra) {
  struct cu_launch_config own;
  if (!config) return impl_cuLaunchKernelEx(config, kernel, parameters, extra);
  own = *config;
  own.stream = OWN(own.stream);
  return impl_cuLaunchKernelEx(&own, kernel, parameters, extra);
}
