/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * fake_gpu_launch.c - contract in fake_gpu.h: functions, and every way to launch one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_gpu.h"

enum { FUNCTIONS = 64 };

struct CUfunc_st {
  char name[64];
  uint64_t ns;
  bool is_loaded;
};

static struct CUfunc_st functions[FUNCTIONS];
static int function_count;

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

static CUresult run(CUfunction function, CUstream stream) {
  if (fake_fail_launches) return (CUresult)fake_fail_launches;
  if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT;
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  CUgraph graph = fake_capture_of(stream);
  if (graph) {
    graph->ns += function->ns;
    graph->kernels++;
    return CUDA_SUCCESS;
  }
  __atomic_fetch_add(&fake_kernels, 1, __ATOMIC_RELAXED);
  fake_enqueue(stream, function->ns);
  if (fake_loading_us && !function->is_loaded) usleep((useconds_t)fake_loading_us);
  function->is_loaded = true;
  return CUDA_SUCCESS;
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
