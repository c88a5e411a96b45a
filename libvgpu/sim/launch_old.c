/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * launch_old.c - launches as before CUDA 4: the block's shape and the parameters are set in the function first.
 */
#include "module.h"

enum { PARAMETER_BYTES = 4096 };

CU_API(cuFuncSetBlockShape)(CUfunction kernel, int x, int y, int z) {
  ENTER(cuFuncSetBlockShape);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
  kernel->block[0] = x;
  kernel->block[1] = y;
  kernel->block[2] = z;
  return CUDA_SUCCESS;
}

CU_API(cuFuncSetSharedSize)(CUfunction kernel, unsigned bytes) {
  ENTER(cuFuncSetSharedSize);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  kernel->shared_bytes = bytes;
  return CUDA_SUCCESS;
}

CU_API(cuParamSetSize)(CUfunction kernel, unsigned bytes) {
  ENTER(cuParamSetSize);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  return bytes <= PARAMETER_BYTES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Nothing reads parameters, so that they fit is all there is to them. */
static CUresult set_parameter(CUfunction kernel, int offset, uint64_t bytes) {
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  return offset >= 0 && (uint64_t)offset + bytes <= PARAMETER_BYTES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API(cuParamSeti)(CUfunction kernel, int offset, unsigned value) {
  ENTER(cuParamSeti);
  return set_parameter(kernel, offset, sizeof value);
}

CU_API(cuParamSetf)(CUfunction kernel, int offset, float value) {
  ENTER(cuParamSetf);
  return set_parameter(kernel, offset, sizeof value);
}

CU_API(cuParamSetv)(CUfunction kernel, int offset, const void *value, unsigned bytes) {
  ENTER(cuParamSetv);
  return value ? set_parameter(kernel, offset, bytes) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult launch(CUfunction kernel, int width, int height, CUstream stream) {
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
  const struct cu_kernel_node what = {.function = kernel,
                                      .grid_x = (unsigned)width,
                                      .grid_y = (unsigned)height,
                                      .grid_z = 1,
                                      .block_x = (unsigned)kernel->block[0],
                                      .block_y = (unsigned)kernel->block[1],
                                      .block_z = (unsigned)kernel->block[2],
                                      .shared_bytes = kernel->shared_bytes};
  return gs_launch(&what, stream);
}

CU_API(cuLaunch)(CUfunction kernel) {
  ENTER(cuLaunch);
  return launch(kernel, 1, 1, NULL);
}

CU_API(cuLaunchGrid)(CUfunction kernel, int width, int height) {
  ENTER(cuLaunchGrid);
  return launch(kernel, width, height, NULL);
}

CU_API(cuLaunchGridAsync)(CUfunction kernel, int width, int height, CUstream stream) {
  ENTER(cuLaunchGridAsync);
  return launch(kernel, width, height, stream);
}
