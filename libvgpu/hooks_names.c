/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hooks_names.c - the calls that give out functions under their names (names.h). Nothing is changed about them.
 */
#include "names.h"
#include "state.h"
#include "table.h"

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  __typeof__(&cuModuleGetFunction) real = VGPU_REAL(cuModuleGetFunction);
  CUresult result = real ? real(function, module, name) : CUDA_ERROR_NOT_INITIALIZED;
  if (result == CUDA_SUCCESS && vgpu_is_limiting()) vgpu_name_seen(*function, name);
  return result;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  __typeof__(&cuLibraryGetKernel) real = VGPU_REAL(cuLibraryGetKernel);
  CUresult result = real ? real(kernel, library, name) : CUDA_ERROR_NOT_INITIALIZED;
  if (result != CUDA_SUCCESS || !vgpu_is_limiting()) return result;
  vgpu_kernel_seen(*kernel);
  vgpu_name_seen(*kernel, name);
  return result;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library) {
  __typeof__(&cuLibraryEnumerateKernels) real = VGPU_REAL(cuLibraryEnumerateKernels);
  CUresult result = real ? real(kernels, count, library) : CUDA_ERROR_NOT_INITIALIZED;
  for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++)
    vgpu_kernel_seen(kernels[i]);
  return result;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
  __typeof__(&cuKernelGetFunction) real = VGPU_REAL(cuKernelGetFunction);
  CUresult result = real ? real(function, kernel) : CUDA_ERROR_NOT_INITIALIZED;
  if (result == CUDA_SUCCESS && vgpu_is_limiting()) vgpu_name_copied(*function, kernel);
  return result;
}
