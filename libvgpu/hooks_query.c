/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hooks_query.c - how much there is, by the CUDA driver's calls. The driver is asked first and its code is
 * returned; only sizes that it filled in are lowered: total to the limit, free to what the container may still
 * take, and never above what the card really has.
 */
#include "pools.h"
#include "table.h"

/* The current device's view; all zero when the driver cannot say which device that is. */
static struct vgpu_view current_view(void) {
  struct vgpu_view view = {0, 0};
  CUresult why = CUDA_SUCCESS;
  vgpu_check_fork();
  vgpu_pools_refresh();
  const struct vgpu_device *device = vgpu_device_current(&why);
  return device ? vgpu_device_view(device) : view;
}

static uint64_t room_of(const struct vgpu_view *view) {
  return view->used_bytes < view->limit_bytes ? view->limit_bytes - view->used_bytes : 0;
}

VGPU_ONE_RUN CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  __typeof__(&cuMemGetInfo_v2) real = VGPU_REAL(cuMemGetInfo_v2);
  CUresult result = real ? real(free_bytes, total_bytes) : CUDA_ERROR_NOT_INITIALIZED;
  if (result != CUDA_SUCCESS || !vgpu_is_limiting()) return result;
  struct vgpu_view view = current_view();
  if (free_bytes && *free_bytes > room_of(&view)) *free_bytes = room_of(&view);
  if (total_bytes && *total_bytes > view.limit_bytes) *total_bytes = view.limit_bytes;
  return result;
}

CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes) {
  __typeof__(&cuMemGetInfo) real = VGPU_REAL(cuMemGetInfo);
  CUresult result = real ? real(free_bytes, total_bytes) : CUDA_ERROR_NOT_INITIALIZED;
  if (result != CUDA_SUCCESS || !vgpu_is_limiting()) return result;
  struct vgpu_view view = current_view();
  if (free_bytes && *free_bytes > room_of(&view)) *free_bytes = (unsigned int)room_of(&view);
  if (total_bytes && *total_bytes > view.limit_bytes) *total_bytes = (unsigned int)view.limit_bytes;
  return result;
}

/* The limit of a device; 0 when the driver does not tell which one it is. */
static uint64_t limit_of(CUdevice ordinal) {
  CUresult why = CUDA_SUCCESS;
  const struct vgpu_device *device = vgpu_device_at(ordinal, &why);
  return device ? vgpu_device_view(device).limit_bytes : 0;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  __typeof__(&cuDeviceTotalMem_v2) real = VGPU_REAL(cuDeviceTotalMem_v2);
  CUresult result = real ? real(bytes, device) : CUDA_ERROR_NOT_INITIALIZED;
  if (result != CUDA_SUCCESS || !bytes || !vgpu_is_limiting()) return result;
  uint64_t limit = limit_of(device);
  if (*bytes > limit) *bytes = limit;
  return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
  __typeof__(&cuDeviceTotalMem) real = VGPU_REAL(cuDeviceTotalMem);
  CUresult result = real ? real(bytes, device) : CUDA_ERROR_NOT_INITIALIZED;
  if (result != CUDA_SUCCESS || !bytes || !vgpu_is_limiting()) return result;
  uint64_t limit = limit_of(device);
  if (*bytes > limit) *bytes = (unsigned int)limit;
  return result;
}
