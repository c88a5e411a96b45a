/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * fake_gpu.c - a driver of two devices on which kernels only take time, for what has to be counted: it logs every call
 * that it gets, with the stream, and has every way to launch, also those that only newer drivers have. All work of a
 * device is done in the order of the launches. A kernel "name_N" takes N microseconds; a graph has one kernel for each
 * launch into its capture. Works after a fork. Contexts are handles without contents, one or more a device.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../include/cuda_api.h"

enum { DEVICES = 2, FUNCTIONS = 64, LOG = 1 << 16, ERROR_ISOLATION = 905, ERROR_UNSUPPORTED = 900 };

#define EXPORT __attribute__((visibility("default")))

/* Read by the test program: calls so far, the last of them, and what ran. */
struct fake_call {
  const char *name;
  CUstream stream;
};
EXPORT uint64_t fake_calls;
EXPORT struct fake_call fake_log[LOG];
EXPORT uint64_t fake_busy_ns[DEVICES]; /* GPU time of all that was launched */
EXPORT uint64_t fake_kernels;
EXPORT int fake_fail_launches; /* launches answer this */
EXPORT int fake_loading_us;    /* the call of a function's first launch takes so long, while the kernel runs */

struct CUctx_st {
  int device;
};
struct CUfunc_st {
  char name[64];
  uint64_t ns;
  bool is_loaded;
};
struct CUstream_st {
  CUcontext context;
  CUgraph capture; /* NULL: it captures nothing */
};
struct CUevent_st {
  CUcontext context;
  uint64_t at_ns;  /* 0: not recorded */
  CUgraph capture; /* recorded in this capture */
};
struct CUgraph_st {
  uint64_t ns, kernels;
  CUstream origin;
  bool is_spoilt;
};

static struct CUctx_st contexts[DEVICES] = {{0}, {1}}; /* the primary ones */
static struct CUfunc_st functions[FUNCTIONS];
static int function_count;
static __thread CUcontext current;
static uint64_t busy_until_ns[DEVICES];
static int captures; /* under way */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void note(const char *name, CUstream stream) {
  uint64_t at = __atomic_fetch_add(&fake_calls, 1, __ATOMIC_RELAXED);
  fake_log[at % LOG] = (struct fake_call){name, stream};
}

#define NOTE(stream) note(__func__, stream)

static bool is_named(CUstream stream) {
  return (uintptr_t)stream <= 2;
}

static CUgraph capture_of(CUstream stream) {
  return is_named(stream) ? NULL : stream->capture;
}

static CUcontext context_of(CUstream stream) {
  return is_named(stream) ? current : stream->context;
}

static uint64_t enqueue(int device, uint64_t ns) {
  pthread_mutex_lock(&mutex);
  uint64_t now = now_ns();
  if (busy_until_ns[device] < now) busy_until_ns[device] = now;
  busy_until_ns[device] += ns;
  fake_busy_ns[device] += ns;
  uint64_t until = busy_until_ns[device];
  pthread_mutex_unlock(&mutex);
  return until;
}

static CUresult run(CUfunction function, CUstream stream) {
  if (fake_fail_launches) return (CUresult)fake_fail_launches;
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  CUgraph graph = capture_of(stream);
  if (graph) {
    graph->ns += function->ns;
    graph->kernels++;
    return CUDA_SUCCESS;
  }
  __atomic_fetch_add(&fake_kernels, 1, __ATOMIC_RELAXED);
  enqueue(context_of(stream)->device, function->ns);
  if (fake_loading_us && !function->is_loaded) usleep((useconds_t)fake_loading_us);
  function->is_loaded = true;
  return CUDA_SUCCESS;
}

static __thread int capture_mode;

CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  NOTE(NULL);
  int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

/* What must not be called while anything captures, by a thread that does not say that it spoils nothing. */
static CUresult unsafe(void) {
  return __atomic_load_n(&captures, __ATOMIC_RELAXED) && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED
             ? (CUresult)ERROR_UNSUPPORTED
             : CUDA_SUCCESS;
}

EXPORT CUresult cuInit(unsigned int flags) {
  (void)flags;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
  *version = 12040;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
  NOTE(NULL);
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  *count = visible && !strchr(visible, ',') ? 1 : DEVICES;
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  NOTE(NULL);
  *bytes = (size_t)(16 + device) << 30;
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  NOTE(NULL);
  *free_bytes = *total_bytes = (size_t)16 << 30;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  NOTE(NULL);
  *uuid = (CUuuid){{(uint8_t)(0xa0 + device)}};
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  NOTE(NULL);
  (void)attribute, (void)device;
  *value = 512;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
  NOTE(NULL);
  (void)flags;
  *context = current = calloc(1, sizeof(struct CUctx_st));
  current->device = device;
  return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext context) {
  NOTE(NULL);
  if (current == context) current = NULL;
  return CUDA_SUCCESS; /* kept: a handle is never given out again */
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  NOTE(NULL);
  *context = &contexts[device];
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  NOTE(NULL);
  current = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  NOTE(NULL);
  *context = current;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
  NOTE(NULL);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current->device;
  return CUDA_SUCCESS;
}

static __thread CUcontext pushed[8];
static __thread int pushed_count;

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  NOTE(NULL);
  pushed[pushed_count++] = current;
  current = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  NOTE(NULL);
  if (context) *context = current;
  current = pushed[--pushed_count];
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
  NOTE(NULL);
  if (unsafe() != CUDA_SUCCESS) return unsafe();
  uint64_t now = now_ns(), until = busy_until_ns[current->device];
  if (until > now)
    nanosleep(&(struct timespec){(time_t)((until - now) / 1000000000), (long)((until - now) % 1000000000)}, NULL);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
  NOTE(NULL);
  (void)flags;
  *stream = calloc(1, sizeof(struct CUstream_st));
  (*stream)->context = current;
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  NOTE(stream);
  if (stream->capture) __atomic_fetch_sub(&captures, 1, __ATOMIC_RELAXED);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
  NOTE(stream);
  *context = context_of(stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  NOTE(stream);
  if (capture_of(stream)) capture_of(stream)->is_spoilt = true;
  return unsafe() != CUDA_SUCCESS ? unsafe() : cuCtxSynchronize();
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  NOTE(NULL);
  *module = (CUmodule)image;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  NOTE(NULL);
  (void)module;
  *function = &functions[function_count++ % FUNCTIONS];
  snprintf((*function)->name, sizeof((*function)->name), "%s", name);
  const char *number = strrchr(name, '_');
  (*function)->is_loaded = false;
  (*function)->ns = number ? strtoull(number + 1, NULL, 10) * 1000 : 0;
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  CUfunction function;
  CUresult result = cuModuleGetFunction(&function, (CUmodule)library, name);
  *kernel = (CUkernel)function;
  return result;
}

/* Absent where the environment says that the driver is old: then names come from the calls above alone. */
CUresult cuFuncGetName(const char **name, CUfunction function) {
  NOTE(NULL);
  *name = function->name;
  return getenv("FAKE_OLD_DRIVER") ? (CUresult)801 : CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
  NOTE(NULL);
  (void)flags;
  *event = calloc(1, sizeof(struct CUevent_st));
  (*event)->context = current;
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  NOTE(NULL);
  free(event);
  return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream) {
  CUgraph graph = capture_of(stream);
  if (event->context != context_of(stream)) return CUDA_ERROR_INVALID_HANDLE;
  event->capture = graph;
  event->at_ns = graph ? 0 : enqueue(event->context->device, 0);
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  NOTE(stream);
  return record(event, stream);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  NOTE(stream);
  (void)flags;
  return record(event, stream);
}

CUresult cuEventQuery(CUevent event) {
  NOTE(NULL);
  if (unsafe() != CUDA_SUCCESS) return unsafe();
  return event->at_ns && now_ns() >= event->at_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
  NOTE(NULL);
  if (unsafe() != CUDA_SUCCESS) return unsafe();
  *milliseconds = (float)((double)(end->at_ns - start->at_ns) / 1e6);
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  NOTE(stream);
  (void)flags;
  if (event->capture && !is_named(stream)) stream->capture = event->capture;
  return CUDA_SUCCESS;
}

static CUresult begin(CUstream stream) {
  if (is_named(stream) || stream->capture) return CUDA_ERROR_INVALID_VALUE;
  stream->capture = calloc(1, sizeof(struct CUgraph_st));
  stream->capture->origin = stream;
  __atomic_fetch_add(&captures, 1, __ATOMIC_RELAXED);
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
  __atomic_fetch_sub(&captures, 1, __ATOMIC_RELAXED);
  return (*graph)->is_spoilt ? (CUresult)ERROR_ISOLATION : CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status) {
  NOTE(stream);
  *status = capture_of(stream) != NULL;
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
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  if (capture_of(stream)) {
    capture_of(stream)->ns += graph->ns;
    return CUDA_SUCCESS;
  }
  __atomic_fetch_add(&fake_kernels, graph->kernels, __ATOMIC_RELAXED);
  enqueue(context_of(stream)->device, graph->ns);
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

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
  NOTE(NULL);
  static CUdeviceptr next = 1 << 20;
  *pointer = __atomic_fetch_add(&next, bytes, __ATOMIC_RELAXED);
  return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
  NOTE(NULL);
  (void)pointer;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
  NOTE(stream);
  *pointer = (CUdeviceptr)1 << 40 | bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  NOTE(stream);
  (void)pointer;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
  NOTE(NULL);
  *pool = (CUmemoryPool)&contexts[device];
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
  NOTE(NULL);
  (void)pool, (void)attribute;
  *(uint64_t *)value = 0;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t min_bytes_to_keep) {
  NOTE(NULL);
  (void)pool, (void)min_bytes_to_keep;
  return unsafe();
}

#define KERNEL                                                                                              \
  CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, \
      unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream
#define UNUSED (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z, (void)shared_bytes

CUresult cuLaunchKernel(KERNEL, void **parameters, void **extra) {
  NOTE(stream);
  UNUSED, (void)parameters, (void)extra;
  return run(function, stream);
}

CUresult cuLaunchKernel_ptsz(KERNEL, void **parameters, void **extra) {
  NOTE(stream);
  UNUSED, (void)parameters, (void)extra;
  return run(function, stream);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
  NOTE(config->stream);
  (void)parameters, (void)extra;
  return run(function, config->stream);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
  NOTE(config->stream);
  (void)parameters, (void)extra;
  return run(function, config->stream);
}

CUresult cuLaunchCooperativeKernel(KERNEL, void **parameters) {
  NOTE(stream);
  UNUSED, (void)parameters;
  return run(function, stream);
}

CUresult cuLaunchCooperativeKernel_ptsz(KERNEL, void **parameters) {
  NOTE(stream);
  UNUSED, (void)parameters;
  return run(function, stream);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags) {
  NOTE(NULL);
  (void)flags;
  CUresult result = CUDA_SUCCESS;
  for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++)
    result = run(list[i].function, list[i].stream);
  return result;
}

EXPORT CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
  NOTE(NULL);
  (void)function, (void)x, (void)y, (void)z;
  return CUDA_SUCCESS;
}

CUresult cuLaunch(CUfunction function) {
  NOTE(NULL);
  return run(function, NULL);
}

CUresult cuLaunchGrid(CUfunction function, int grid_width, int grid_height) {
  NOTE(NULL);
  (void)grid_width, (void)grid_height;
  return run(function, NULL);
}

CUresult cuLaunchGridAsync(CUfunction function, int grid_width, int grid_height, CUstream stream) {
  NOTE(stream);
  (void)grid_width, (void)grid_height;
  return run(function, stream);
}
