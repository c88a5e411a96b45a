/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hooks_launch.c - every call that launches kernels: it buys GPU time, waits when there is none (launches.h), and goes to
 * the driver. A launch into a capture runs nothing, and passes.
 */
#include "claim.h"
#include "launches.h"
#include "table.h"
#include "watch.h"

enum { LIST_MAX = 64 /* kernels of one multi-device launch: one a device */ };

static inline uint64_t product(unsigned int x, unsigned int y, unsigned int z) {
  return (uint64_t)x * y * z;
}

#define KERNEL_PARAMETERS                                                                                        \
  CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,      \
      unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters, \
      void **extra
#define KERNEL_ARGUMENTS \
  function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra

/* `meant` is the stream that the program's `stream` means. */
static inline CUresult launch_kernel(__typeof__(&cuLaunchKernel) real, CUstream meant, KERNEL_PARAMETERS) {
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  struct vgpu_device *device = vgpu_launch_device(meant);
  if (!device) {
    uint32_t due = vgpu_watch_due();
    if (due == 0) return real(KERNEL_ARGUMENTS);
    struct vgpu_watched watched;
    vgpu_watch_begin(&watched, function, false, product(grid_x, grid_y, grid_z),
                     (uint32_t)product(block_x, block_y, block_z), meant, due);
    return vgpu_watch_end(&watched, real(KERNEL_ARGUMENTS));
  }
  struct vgpu_launch launch;
  vgpu_launch_begin(&launch, device, function, function, product(grid_x, grid_y, grid_z),
                    (uint32_t)product(block_x, block_y, block_z), meant);
  return vgpu_launch_end(&launch, real(KERNEL_ARGUMENTS));
}

/* Apart from the hooks, so that a launch that is not limited touches no register. */
__attribute__((noinline)) VGPU_ONE_RUN static CUresult paced_kernel(KERNEL_PARAMETERS) {
  return launch_kernel(VGPU_REAL(cuLaunchKernel), stream, KERNEL_ARGUMENTS);
}

__attribute__((noinline)) VGPU_ONE_RUN static CUresult paced_kernel_ptsz(KERNEL_PARAMETERS) {
  return launch_kernel(VGPU_REAL(cuLaunchKernel_ptsz), vgpu_stream_per_thread(stream), KERNEL_ARGUMENTS);
}

CUresult cuLaunchKernel(KERNEL_PARAMETERS) {
  __typeof__(&cuLaunchKernel) real = VGPU_KNOWN(cuLaunchKernel);
  return real && vgpu_launch_is_free() ? real(KERNEL_ARGUMENTS) : paced_kernel(KERNEL_ARGUMENTS);
}

CUresult cuLaunchKernel_ptsz(KERNEL_PARAMETERS) {
  __typeof__(&cuLaunchKernel_ptsz) real = VGPU_KNOWN(cuLaunchKernel_ptsz);
  return real && vgpu_launch_is_free() ? real(KERNEL_ARGUMENTS) : paced_kernel_ptsz(KERNEL_ARGUMENTS);
}

static inline CUresult launch_extended(__typeof__(&cuLaunchKernelEx) real, const CUlaunchConfig *config,
                                       CUfunction function, void **parameters, void **extra, CUstream meant) {
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  struct vgpu_device *device = config ? vgpu_launch_device(meant) : NULL;
  if (!device) {
    uint32_t due = config ? vgpu_watch_due() : 0;
    if (due == 0) return real(config, function, parameters, extra);
    struct vgpu_watched watched;
    vgpu_watch_begin(&watched, function, false, product(config->grid_x, config->grid_y, config->grid_z),
                     (uint32_t)product(config->block_x, config->block_y, config->block_z), meant, due);
    return vgpu_watch_end(&watched, real(config, function, parameters, extra));
  }
  struct vgpu_launch launch;
  vgpu_launch_begin(&launch, device, function, function, product(config->grid_x, config->grid_y, config->grid_z),
                    (uint32_t)product(config->block_x, config->block_y, config->block_z), meant);
  return vgpu_launch_end(&launch, real(config, function, parameters, extra));
}

__attribute__((noinline)) VGPU_ONE_RUN static CUresult paced_extended(const CUlaunchConfig *config, CUfunction function,
                                                                      void **parameters, void **extra) {
  return launch_extended(VGPU_REAL(cuLaunchKernelEx), config, function, parameters, extra,
                         config ? config->stream : NULL);
}

__attribute__((noinline)) VGPU_ONE_RUN static CUresult
paced_extended_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
  return launch_extended(VGPU_REAL(cuLaunchKernelEx_ptsz), config, function, parameters, extra,
                         vgpu_stream_per_thread(config ? config->stream : NULL));
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
  __typeof__(&cuLaunchKernelEx) real = VGPU_KNOWN(cuLaunchKernelEx);
  return real && vgpu_launch_is_free() ? real(config, function, parameters, extra)
                                       : paced_extended(config, function, parameters, extra);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
  __typeof__(&cuLaunchKernelEx_ptsz) real = VGPU_KNOWN(cuLaunchKernelEx_ptsz);
  return real && vgpu_launch_is_free() ? real(config, function, parameters, extra)
                                       : paced_extended_ptsz(config, function, parameters, extra);
}

/* `stream` is what the program's stream means. */
static inline CUresult launch_cooperative(__typeof__(&cuLaunchCooperativeKernel) real, const CUDA_LAUNCH_PARAMS *what,
                                          CUstream stream) {
  struct vgpu_launch launch = {.pacer = NULL};
  struct vgpu_device *device = vgpu_launch_device(stream);
  if (device) {
    vgpu_launch_begin(&launch, device, what->function, what->function,
                      product(what->grid_x, what->grid_y, what->grid_z),
                      (uint32_t)product(what->block_x, what->block_y, what->block_z), stream);
  }
  CUresult result = real(what->function, what->grid_x, what->grid_y, what->grid_z, what->block_x, what->block_y,
                         what->block_z, what->shared_bytes, what->stream, what->parameters);
  return device ? vgpu_launch_end(&launch, result) : result;
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                   unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                   unsigned int shared_bytes, CUstream stream, void **parameters) {
  __typeof__(&cuLaunchCooperativeKernel) real = VGPU_REAL(cuLaunchCooperativeKernel);
  const CUDA_LAUNCH_PARAMS what = {function, grid_x,  grid_y,       grid_z, block_x,
                                   block_y,  block_z, shared_bytes, stream, parameters};
  return real ? launch_cooperative(real, &what, stream) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                        unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                        void **parameters) {
  __typeof__(&cuLaunchCooperativeKernel) real = VGPU_REAL(cuLaunchCooperativeKernel_ptsz);
  const CUDA_LAUNCH_PARAMS what = {function, grid_x,  grid_y,       grid_z, block_x,
                                   block_y,  block_z, shared_bytes, stream, parameters};
  return real ? launch_cooperative(real, &what, vgpu_stream_per_thread(stream)) : CUDA_ERROR_NOT_INITIALIZED;
}

static void admit_one(struct vgpu_launch *launch, const CUDA_LAUNCH_PARAMS *what) {
  struct vgpu_device *device = vgpu_launch_device(what->stream);
  if (!device) return;
  struct vgpu_cost *cost =
      vgpu_cost_find(&vgpu_launch_costs, what->function, product(what->grid_x, what->grid_y, what->grid_z),
                     (uint32_t)product(what->block_x, what->block_y, what->block_z));
  vgpu_launch_admit(launch, device, cost, what->function);
}

/* Each kernel is paid for on its own device, all of them before the first is marked: waiting is not to be measured. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags) {
  __typeof__(&cuLaunchCooperativeKernelMultiDevice) real = VGPU_REAL(cuLaunchCooperativeKernelMultiDevice);
  struct vgpu_launch launches[LIST_MAX];
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!list || count > LIST_MAX || !vgpu_is_limiting()) return real(list, count, flags);
  for (unsigned int i = 0; i < count; i++) {
    launches[i] = (struct vgpu_launch){.pacer = NULL};
    admit_one(&launches[i], &list[i]);
  }
  for (unsigned int i = 0; i < count; i++) {
    if (launches[i].ticket.sample) vgpu_launch_mark(&launches[i], list[i].stream);
  }
  CUresult result = real(list, count, flags);
  for (unsigned int i = 0; i < count; i++)
    vgpu_launch_end(&launches[i], result);
  return result;
}

/* The first launches of all: the blocks' shape was set by calls of its own. */
static struct vgpu_launch begin_old(CUfunction function, int width, int height, CUstream stream) {
  struct vgpu_device *device = vgpu_launch_device(stream);
  struct vgpu_launch launch = {.pacer = NULL};
  uint64_t blocks = product((unsigned int)width, (unsigned int)height, 1);
  if (device) vgpu_launch_begin(&launch, device, function, function, blocks, 0, stream);
  return launch;
}

CUresult cuLaunch(CUfunction function) {
  __typeof__(&cuLaunch) real = VGPU_REAL(cuLaunch);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  struct vgpu_launch launch = begin_old(function, 1, 1, NULL);
  return vgpu_launch_end(&launch, real(function));
}

CUresult cuLaunchGrid(CUfunction function, int grid_width, int grid_height) {
  __typeof__(&cuLaunchGrid) real = VGPU_REAL(cuLaunchGrid);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  struct vgpu_launch launch = begin_old(function, grid_width, grid_height, NULL);
  return vgpu_launch_end(&launch, real(function, grid_width, grid_height));
}

CUresult cuLaunchGridAsync(CUfunction function, int grid_width, int grid_height, CUstream stream) {
  __typeof__(&cuLaunchGridAsync) real = VGPU_REAL(cuLaunchGridAsync);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  struct vgpu_launch launch = begin_old(function, grid_width, grid_height, stream);
  return vgpu_launch_end(&launch, real(function, grid_width, grid_height, stream));
}
