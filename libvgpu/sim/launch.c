/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * launch.c - kernels: their attributes, and launches, which put the kernel's simulated GPU time into the queue.
 * Parameters are not looked at and nothing is computed.
 */
#include "module.h"
#include "copy.h"

enum { THREADS_PER_BLOCK = 1024, SHARED_BYTES = 49152, REGISTERS = 32, WARP = 32 };

enum kernel_attribute {
  KERNEL_THREADS = 0,
  KERNEL_REGISTERS = 4,
  KERNEL_PTX = 5,
  KERNEL_BINARY = 6,
  KERNEL_DYNAMIC_SHARED = 8,
  KERNEL_CARVEOUT = 9,
  KERNEL_ATTRIBUTES = 16
};

static CUresult launch(CUfunction kernel, const unsigned grid[3], const unsigned block[3], unsigned shared,
                       CUstream stream) {
  NEED_CONTEXT(context);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  NEED_STREAM(stream);
  for (int i = 0; i < 3; i++)
    if (grid[i] == 0 || block[i] == 0) return CUDA_ERROR_INVALID_VALUE;
  if (grid[1] > 65535 || grid[2] > 65535 || block[2] > 64) return CUDA_ERROR_INVALID_VALUE;
  if ((uint64_t)block[0] * block[1] * block[2] > THREADS_PER_BLOCK) return CUDA_ERROR_INVALID_VALUE;
  if (shared > SHARED_BYTES && shared > (unsigned)kernel->dynamic_shared_bytes) return CUDA_ERROR_INVALID_VALUE;
  uint64_t ns = kernel->duration_ns == UINT64_MAX ? gs_driver.settings->kernel_ns : kernel->duration_ns;
  if (ns > 0)
    gs_stream_enqueue(context, stream, &(struct gs_work){.kind = GS_WORK_KERNEL, .ns = ns, .sm_permille = 1000});
  return CUDA_SUCCESS;
}

CU_API(cuLaunchKernel)
(CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
 unsigned block_z, unsigned shared, CUstream stream, void **parameters, void **extra) {
  ENTER(cuLaunchKernel);
  const unsigned grid[3] = {grid_x, grid_y, grid_z};
  const unsigned block[3] = {block_x, block_y, block_z};
  if (parameters && extra) return CUDA_ERROR_INVALID_VALUE;
  return launch(kernel, grid, block, shared, stream);
}

CU_API(cuLaunchKernelEx)(const struct cu_launch_config *config, CUfunction kernel, void **parameters, void **extra) {
  ENTER(cuLaunchKernelEx);
  if (!config || (parameters && extra)) return CUDA_ERROR_INVALID_VALUE;
  const unsigned grid[3] = {config->grid_x, config->grid_y, config->grid_z};
  const unsigned block[3] = {config->block_x, config->block_y, config->block_z};
  return launch(kernel, grid, block, config->shared_bytes, config->stream);
}

CU_API(cuLaunchCooperativeKernel)
(CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
 unsigned block_z, unsigned shared, CUstream stream, void **parameters) {
  ENTER(cuLaunchCooperativeKernel);
  const unsigned grid[3] = {grid_x, grid_y, grid_z};
  const unsigned block[3] = {block_x, block_y, block_z};
  (void)parameters;
  return launch(kernel, grid, block, shared, stream);
}

CU_API(cuFuncGetAttribute)(int *value, int attribute, CUfunction kernel) {
  ENTER(cuFuncGetAttribute);
  if (!value || attribute < 0 || attribute >= KERNEL_ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  const struct gs_card *card = &kernel->object.context->device->gpu->card;
  switch (attribute) {
  case KERNEL_THREADS:
    *value = THREADS_PER_BLOCK;
    break;
  case KERNEL_REGISTERS:
    *value = REGISTERS;
    break;
  case KERNEL_PTX:
  case KERNEL_BINARY:
    *value = (int)(card->compute_major * 10 + card->compute_minor);
    break;
  case KERNEL_DYNAMIC_SHARED:
    *value = kernel->dynamic_shared_bytes ? kernel->dynamic_shared_bytes : SHARED_BYTES;
    break;
  case KERNEL_CARVEOUT:
    *value = kernel->carveout;
    break;
  default:
    *value = 0;
    break;
  }
  return CUDA_SUCCESS;
}

CU_API(cuFuncSetAttribute)(CUfunction kernel, int attribute, int value) {
  ENTER(cuFuncSetAttribute);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute == KERNEL_DYNAMIC_SHARED && value >= 0)
    kernel->dynamic_shared_bytes = value;
  else if (attribute == KERNEL_CARVEOUT && value >= -1 && value <= 100)
    kernel->carveout = value;
  else
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CU_API(cuFuncSetCacheConfig)(CUfunction kernel, int config) {
  ENTER(cuFuncSetCacheConfig);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  return config >= 0 && config <= 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API(cuFuncSetSharedMemConfig)(CUfunction kernel, int config) {
  ENTER(cuFuncSetSharedMemConfig);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  return config >= 0 && config <= 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Blocks of a size that fit on one multiprocessor at once, by threads, blocks and shared memory. */
static int blocks_that_fit(int threads, size_t shared) {
  int blocks = threads > 0 && threads <= THREADS_PER_BLOCK ? 2048 / ((threads + WARP - 1) / WARP * WARP) : 0;
  if (blocks > 32) blocks = 32;
  if (shared > 0 && (size_t)blocks > 167936 / shared) blocks = (int)(167936 / shared);
  return blocks;
}

CU_API(cuOccupancyMaxActiveBlocksPerMultiprocessor)(int *blocks, CUfunction kernel, int threads, size_t shared) {
  ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (!blocks || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = blocks_that_fit(threads, shared);
  return CUDA_SUCCESS;
}

CU_API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
(int *blocks, CUfunction kernel, int threads, size_t shared, unsigned flags) {
  ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (!blocks || threads <= 0 || flags > 1) return CUDA_ERROR_INVALID_VALUE;
  *blocks = blocks_that_fit(threads, shared);
  return CUDA_SUCCESS;
}

CU_API(cuOccupancyMaxPotentialBlockSize)
(int *grid, int *threads, CUfunction kernel, size_t (*shared_of)(int), size_t shared, int limit) {
  ENTER(cuOccupancyMaxPotentialBlockSize);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (!grid || !threads || limit < 0) return CUDA_ERROR_INVALID_VALUE;
  *threads = limit > 0 && limit < THREADS_PER_BLOCK ? limit : THREADS_PER_BLOCK;
  if (shared_of) shared = shared_of(*threads);
  *grid = blocks_that_fit(*threads, shared) * (int)kernel->object.context->device->gpu->card.sms;
  return CUDA_SUCCESS;
}
