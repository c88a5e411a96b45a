/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * driver.h - what the compute programs beside it (flood.c, capture.c) share: the driver API as they look it up in
 * libcuda.so.1, by name, knowing nothing of vgpud; a kernel to launch; lines of key=value pairs on standard output.
 * CLIENT_DOOR=getproc fetches functions by cuGetProcAddress instead of dlsym. Included once by a program.
 */
#ifndef CLIENT_DRIVER_H
#define CLIENT_DRIVER_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long device_pointer;

/* The layouts of the driver API's parameter structures. */
struct kernel_node {
  void *function;
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void **parameters;
  void **extra;
  void *kernel;
  void *context;
};

struct memset_node {
  device_pointer target;
  size_t pitch;
  unsigned value, element_bytes;
  size_t width, height;
};

struct launch_config {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void *stream;
  void *attributes;
  unsigned attribute_count;
};

struct launch_of_many {
  void *function;
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void *stream;
  void **parameters;
};

enum { CUDA_SUCCESS = 0, PROC_ADDRESS_VERSION = 12020, STREAM_NON_BLOCKING = 1 };

/* X(name for cuGetProcAddress, exported name, parameters) */
#define DRIVER_FUNCTIONS(X)                                                                                          \
  X(cuInit, cuInit, (unsigned))                                                                                      \
  X(cuDeviceGet, cuDeviceGet, (int *, int))                                                                          \
  X(cuDeviceGetCount, cuDeviceGetCount, (int *))                                                                     \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (void **, int))                                              \
  X(cuCtxSetCurrent, cuCtxSetCurrent, (void *))                                                                      \
  X(cuCtxSynchronize, cuCtxSynchronize, (void))                                                                      \
  X(cuModuleLoadData, cuModuleLoadData, (void **, const void *))                                                     \
  X(cuModuleGetFunction, cuModuleGetFunction, (void **, void *, const char *))                                       \
  X(cuMemAlloc, cuMemAlloc_v2, (device_pointer *, size_t))                                                           \
  X(cuMemFree, cuMemFree_v2, (device_pointer))                                                                       \
  X(cuMemHostAlloc, cuMemHostAlloc, (void **, size_t, unsigned))                                                     \
  X(cuMemcpyHtoD, cuMemcpyHtoD_v2, (device_pointer, const void *, size_t))                                           \
  X(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, device_pointer, size_t))                                                 \
  X(cuMemcpyDtoD, cuMemcpyDtoD_v2, (device_pointer, device_pointer, size_t))                                         \
  X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (device_pointer, const void *, size_t, void *))                         \
  X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *, device_pointer, size_t, void *))                               \
  X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (device_pointer, device_pointer, size_t, void *))                       \
  X(cuMemAllocAsync, cuMemAllocAsync, (device_pointer *, size_t, void *))                                            \
  X(cuMemFreeAsync, cuMemFreeAsync, (device_pointer, void *))                                                        \
  X(cuStreamCreate, cuStreamCreate, (void **, unsigned))                                                             \
  X(cuStreamSynchronize, cuStreamSynchronize, (void *))                                                              \
  X(cuStreamWaitEvent, cuStreamWaitEvent, (void *, void *, unsigned))                                                \
  X(cuStreamBeginCapture, cuStreamBeginCapture_v2, (void *, int))                                                    \
  X(cuStreamEndCapture, cuStreamEndCapture, (void *, void **))                                                       \
  X(cuEventCreate, cuEventCreate, (void **, unsigned))                                                               \
  X(cuEventRecord, cuEventRecord, (void *, void *))                                                                  \
  X(cuEventQuery, cuEventQuery, (void *))                                                                            \
  X(cuEventElapsedTime, cuEventElapsedTime, (float *, void *, void *))                                               \
  X(cuFuncSetBlockShape, cuFuncSetBlockShape, (void *, int, int, int))                                               \
  X(cuLaunch, cuLaunch, (void *))                                                                                    \
  X(cuLaunchGrid, cuLaunchGrid, (void *, int, int))                                                                  \
  X(cuLaunchGridAsync, cuLaunchGridAsync, (void *, int, int, void *))                                                \
  X(cuLaunchKernel, cuLaunchKernel,                                                                                  \
    (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))        \
  X(cuLaunchKernelEx, cuLaunchKernelEx, (const struct launch_config *, void *, void **, void **))                    \
  X(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel,                                                            \
    (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **))                 \
  X(cuLaunchCooperativeKernelMultiDevice, cuLaunchCooperativeKernelMultiDevice,                                      \
    (struct launch_of_many *, unsigned, unsigned))                                                                   \
  X(cuGraphCreate, cuGraphCreate, (void **, unsigned))                                                               \
  X(cuGraphAddKernelNode, cuGraphAddKernelNode_v2,                                                                   \
    (void **, void *, void *const *, size_t, const struct kernel_node *))                                            \
  X(cuGraphAddMemsetNode, cuGraphAddMemsetNode,                                                                      \
    (void **, void *, void *const *, size_t, const struct memset_node *, void *))                                    \
  X(cuGraphAddChildGraphNode, cuGraphAddChildGraphNode, (void **, void *, void *const *, size_t, void *))            \
  X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                 \
  X(cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams_v2, (void *, void *, const struct kernel_node *)) \
  X(cuGraphExecDestroy, cuGraphExecDestroy, (void *))                                                                \
  X(cuGraphDestroy, cuGraphDestroy, (void *))                                                                        \
  X(cuGraphUpload, cuGraphUpload, (void *, void *))                                                                  \
  X(cuGraphLaunch, cuGraphLaunch, (void *, void *))

/* Per-thread default streams have variants of their own, which cuGetProcAddress gives when asked with a flag. */
#define PER_THREAD_FUNCTIONS(X)                                                                               \
  X(cuLaunchKernel, cuLaunchKernel_ptsz,                                                                      \
    (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
  X(cuGraphLaunch, cuGraphLaunch_ptsz, (void *, void *))

#define MEMBER(name, exported, parameters) int(*name) parameters;
static struct { DRIVER_FUNCTIONS(MEMBER) } cuda;
static struct { PER_THREAD_FUNCTIONS(MEMBER) } per_thread;
#undef MEMBER

static void *context;

static inline void fail(const char *what, int code) {
  printf("error=%s code=%d\n", what, code);
  fflush(stdout);
  exit(1);
}

static inline void check(const char *what, int code) {
  if (code != CUDA_SUCCESS) fail(what, code);
}

#define CALL(name, ...) check(#name, cuda.name(__VA_ARGS__))

static inline uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void look_up(void *library, void *slot, const char *name, const char *exported, uint64_t flags) {
  const char *door = getenv("CLIENT_DOOR");
  void *function = NULL;
  if (door != NULL && strcmp(door, "getproc") == 0) {
    int (*get_proc_address)(const char *, void **, int, uint64_t) = NULL;
    *(void **)&get_proc_address = dlsym(library, "cuGetProcAddress");
    if (get_proc_address == NULL || get_proc_address(name, &function, PROC_ADDRESS_VERSION, flags) != CUDA_SUCCESS) {
      function = NULL;
    }
  } else {
    function = dlsym(library, exported);
  }
  if (function == NULL) fail(exported, -1);
  memcpy(slot, &function, sizeof function);
}

static inline void open_driver(void) {
  enum { FOR_PER_THREAD_STREAMS = 2 };
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) fail("dlopen", -1);
#define LOOK_UP(name, exported, parameters) look_up(library, &cuda.name, #name, #exported, 0);
  DRIVER_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
#define LOOK_UP(name, exported, parameters) \
  look_up(library, &per_thread.name, #name, #exported, FOR_PER_THREAD_STREAMS);
  PER_THREAD_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
}

/* Makes the device of this ordinal the current one, in `context`. */
static inline void use_device(int ordinal) {
  int device;
  CALL(cuInit, 0);
  CALL(cuDeviceGet, &device, ordinal);
  CALL(cuDevicePrimaryCtxRetain, &context, device);
  CALL(cuCtxSetCurrent, context);
}

/* A kernel of this name that does nothing. The simulated GPU reads from the name how long it takes: busy_10ms. */
static inline void *load_kernel(const char *name) {
  char text[512];
  void *module, *function;
  int length = snprintf(text, sizeof text,
                        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry %s()\n{\n ret;\n}\n", name);
  if (length < 0 || (size_t)length >= sizeof text) fail("kernel_name", -1);
  CALL(cuModuleLoadData, &module, text);
  CALL(cuModuleGetFunction, &function, module, name);
  return function;
}

/* A new stream that does not wait for the default one. */
static inline void *new_stream(void) {
  void *stream;
  CALL(cuStreamCreate, &stream, STREAM_NON_BLOCKING);
  return stream;
}

#endif
