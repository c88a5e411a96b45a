/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * api_graph.h - the calls around launches, graphs and capture that the tests make, and the kernels they launch.
 */
#ifndef GPUSIM_TEST_API_GRAPH_H
#define GPUSIM_TEST_API_GRAPH_H

#include "check.h"

enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };         /* modes of capture */
enum { NOT_CAPTURING = 0, CAPTURING = 1, INVALIDATED = 2 }; /* what cuStreamIsCapturing says */
enum { NON_BLOCKING = 1 };

CUresult cuLaunchKernel_ptsz(CUfunction kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                             unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra);
CUresult cuLaunchKernelEx(const struct cu_launch_config *config, CUfunction kernel, void **parameters, void **extra);
CUresult cuLaunchCooperativeKernel(CUfunction kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, CUstream stream, void **parameters);
CUresult cuLaunchCooperativeKernelMultiDevice(struct cu_device_launch *launches, unsigned count, unsigned flags);
CUresult cuFuncSetBlockShape(CUfunction kernel, int x, int y, int z);
CUresult cuFuncSetSharedSize(CUfunction kernel, unsigned bytes);
CUresult cuFuncGetModule(CUmodule *out, CUfunction kernel);
CUresult cuParamSetSize(CUfunction kernel, unsigned bytes);
CUresult cuParamSeti(CUfunction kernel, int offset, unsigned value);
CUresult cuParamSetf(CUfunction kernel, int offset, float value);
CUresult cuParamSetv(CUfunction kernel, int offset, void *value, unsigned bytes);
CUresult cuLaunch(CUfunction kernel);
CUresult cuLaunchGrid(CUfunction kernel, int width, int height);
CUresult cuLaunchGridAsync(CUfunction kernel, int width, int height, CUstream stream);
CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *data), void *data);

CUresult cuLibraryLoadData(CUlibrary *out, const void *image, int *jit_options, void **jit_values, unsigned jit_count,
                           int *options, void **values, unsigned count);
CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name);
CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library);
CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name);
CUresult cuLibraryUnload(CUlibrary library);
CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel);
CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device);

CUresult cuGraphCreate(CUgraph *out, unsigned flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphClone(CUgraph *out, CUgraph graph);
CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode node, CUgraph clone);
CUresult cuGraphDestroyNode(CUgraphNode node);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *out, size_t *count);
CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *out, size_t *count);
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count);
CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *out, size_t *count);
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *out, size_t *count);
CUresult cuGraphNodeGetType(CUgraphNode node, int *type);
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count);
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count);

CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 const struct cu_kernel_node *kernel);
CUresult cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const struct cu_memcpy3d *copy, CUcontext context);
CUresult cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const struct cu_memset_node *fill, CUcontext context);
CUresult cuGraphAddHostNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                            const struct cu_host_node *host);
CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                  CUgraph child);
CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count);
CUresult cuGraphAddEventRecordNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                   CUevent event);
CUresult cuGraphAddEventWaitNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 CUevent event);
CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                struct cu_mem_alloc_node *alloc);
CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                               CUdeviceptr address);
CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                        struct cu_node *node);
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, struct cu_kernel_node *out);
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, struct cu_kernel_node *out);
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const struct cu_kernel_node *kernel);
CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, int id, const void *value);
CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, int id, void *value);
CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from);
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, struct cu_memset_node *out);
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *out);

CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error_node, char *log, size_t bytes);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags);
CUresult cuGraphExecDestroy(CUgraphExec exec);
CUresult cuGraphUpload(CUgraphExec exec, CUstream stream);
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const struct cu_kernel_node *kernel);
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const struct cu_kernel_node *kernel);
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child);
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, struct cu_update_result *out);
CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned enabled);
CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned *enabled);
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value);
CUresult cuDeviceGraphMemTrim(CUdevice device);
CUresult cuUserObjectCreate(CUuserObject *out, void *data, void (*destroy)(void *data), unsigned count, unsigned flags);
CUresult cuUserObjectRelease(CUuserObject object, unsigned count);
CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags);
CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned count);

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *out);
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *out);
CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status);
CUresult cuStreamGetCaptureInfo(CUstream stream, int *status, uint64_t *id);
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                   const CUgraphNode **nodes, size_t *count);
CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, size_t count, unsigned flags);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamAddCallback(CUstream stream, void (*callback)(CUstream, CUresult, void *), void *data, unsigned flags);
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t bytes, CUstream stream);
CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count, CUstream stream);

extern const char graph_ptx[]; /* with the kernels plain, busy_1ms, busy_10ms, busy_30ms and the variable table */

CUmodule load_graph_module(void);
CUfunction graph_kernel(const char *name); /* of a module loaded once */
CUresult launch_in(CUstream stream, const char *name);
CUstream new_stream(unsigned flags);
CUevent new_event(void);

/* GPU time that all kernels took so far, in ms: waits until all is done. */
unsigned long long busy_ms(void);

CUgraph new_graph(void);
struct cu_kernel_node kernel_of(const char *name);
CUgraphNode add_kernel(CUgraph graph, CUgraphNode after, const char *name); /* after: NULL or what it depends on */
CUgraphExec instantiate(CUgraph graph);
unsigned long long launch_ms(CUgraphExec exec); /* GPU time that a launch takes; waits for it */

/* test_capture.c: the module is loaded before anything captures, since that is forbidden then. */
CUcontext begin_capture_case(void);
CUstream begin_capture(unsigned flags, int mode); /* in a new stream */
int capture_status(CUstream stream);
CUgraph end_capture(CUstream stream);
void end_invalid_capture(CUstream stream); /* it must have been invalidated */
size_t node_count(CUgraph graph);

#endif
