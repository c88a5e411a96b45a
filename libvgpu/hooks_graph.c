/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hooks_graph.c - executable graphs: each replay is one launch, whose cost is measured like a kernel's, with all that
 * runs in it: child graphs, conditional nodes, copies. A graph that the program changes is measured again at its next
 * replay. Uploading a graph runs nothing, and is not charged.
 */
#include "launches.h"
#include "table.h"
#include "watch.h"

/* `meant` is the stream that the program's `stream` means. */
static inline CUresult launch_graph(__typeof__(&cuGraphLaunch) real, CUgraphExec graph, CUstream stream,
                                    CUstream meant) {
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  struct vgpu_device *device = vgpu_launch_device(meant);
  if (!device) {
    uint32_t due = vgpu_watch_due();
    if (due == 0) return real(graph, stream);
    struct vgpu_watched watched;
    vgpu_watch_begin(&watched, graph, true, 0, 0, meant, due);
    return vgpu_watch_end(&watched, real(graph, stream));
  }
  struct vgpu_launch launch;
  vgpu_launch_begin(&launch, device, NULL, graph, 0, 0, meant);
  return vgpu_launch_end(&launch, real(graph, stream));
}

__attribute__((noinline)) VGPU_ONE_RUN static CUresult paced_graph(CUgraphExec graph, CUstream stream) {
  return launch_graph(VGPU_REAL(cuGraphLaunch), graph, stream, stream);
}

__attribute__((noinline)) VGPU_ONE_RUN static CUresult paced_graph_ptsz(CUgraphExec graph, CUstream stream) {
  return launch_graph(VGPU_REAL(cuGraphLaunch_ptsz), graph, stream, vgpu_stream_per_thread(stream));
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  __typeof__(&cuGraphLaunch) real = VGPU_KNOWN(cuGraphLaunch);
  return real && vgpu_launch_is_free() ? real(graph, stream) : paced_graph(graph, stream);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
  __typeof__(&cuGraphLaunch_ptsz) real = VGPU_KNOWN(cuGraphLaunch_ptsz);
  return real && vgpu_launch_is_free() ? real(graph, stream) : paced_graph_ptsz(graph, stream);
}

CUresult cuGraphExecDestroy(CUgraphExec graph) {
  __typeof__(&cuGraphExecDestroy) real = VGPU_REAL(cuGraphExecDestroy);
  CUresult result = real ? real(graph) : CUDA_ERROR_NOT_INITIALIZED;
  if (result == CUDA_SUCCESS) vgpu_launch_forget(graph);
  return result;
}

/* The graph may have changed. */
static CUresult changed(CUgraphExec graph, CUresult result) {
  if (result == CUDA_SUCCESS) vgpu_launch_doubt(graph);
  return result;
}

CUresult cuGraphExecUpdate(CUgraphExec graph, CUgraph from, CUgraphNode *error_node, int *update_result) {
  __typeof__(&cuGraphExecUpdate) real = VGPU_REAL(cuGraphExecUpdate);
  return real ? changed(graph, real(graph, from, error_node, update_result)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec graph, CUgraph from, void *result_info) {
  __typeof__(&cuGraphExecUpdate_v2) real = VGPU_REAL(cuGraphExecUpdate_v2);
  return real ? changed(graph, real(graph, from, result_info)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec graph, CUgraphNode node, const void *parameters) {
  __typeof__(&cuGraphExecKernelNodeSetParams) real = VGPU_REAL(cuGraphExecKernelNodeSetParams);
  return real ? changed(graph, real(graph, node, parameters)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec graph, CUgraphNode node, const void *parameters) {
  __typeof__(&cuGraphExecKernelNodeSetParams) real = VGPU_REAL(cuGraphExecKernelNodeSetParams_v2);
  return real ? changed(graph, real(graph, node, parameters)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec graph, CUgraphNode node, CUgraph child) {
  __typeof__(&cuGraphExecChildGraphNodeSetParams) real = VGPU_REAL(cuGraphExecChildGraphNodeSetParams);
  return real ? changed(graph, real(graph, node, child)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuGraphExecNodeSetParams(CUgraphExec graph, CUgraphNode node, void *parameters) {
  __typeof__(&cuGraphExecNodeSetParams) real = VGPU_REAL(cuGraphExecNodeSetParams);
  return real ? changed(graph, real(graph, node, parameters)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec graph, CUgraphNode node, unsigned int is_enabled) {
  __typeof__(&cuGraphNodeSetEnabled) real = VGPU_REAL(cuGraphNodeSetEnabled);
  return real ? changed(graph, real(graph, node, is_enabled)) : CUDA_ERROR_NOT_INITIALIZED;
}
