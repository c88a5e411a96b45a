/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hooks_nvml.c - how much there is, by NVML: the same numbers as CUDA's. NVML is asked first, with the caller's
 * own struct and version; its codes are returned, and only the sizes in a struct that it has filled are changed.
 */
#include "pools.h"
#include "table.h"

enum { UUID_TEXT_BYTES = 96 }; /* NVML_DEVICE_UUID_V2_BUFFER_SIZE */

/* What the container may see of this device. Devices whose UUID NVML does not tell have limit 0. */
static struct vgpu_view view_of(nvmlDevice_t handle) {
  char uuid[UUID_TEXT_BYTES] = {0};
  unsigned int index = 0;
  struct vgpu_device device = {.place_count = 0};
  struct vgpu_view view = {0, 0};
  __typeof__(&nvmlDeviceGetUUID) get_uuid = VGPU_REAL(nvmlDeviceGetUUID);
  __typeof__(&nvmlDeviceGetIndex) get_index = VGPU_REAL(nvmlDeviceGetIndex);
  vgpu_check_fork();
  vgpu_pools_refresh();
  if (!get_uuid || get_uuid(handle, uuid, sizeof(uuid)) != NVML_SUCCESS) return view;
  bool has_index = get_index && get_index(handle, &index) == NVML_SUCCESS;
  vgpu_device_find(&device, uuid, has_index ? (int)index : -1);
  return vgpu_device_view(&device);
}

/* total = min(limit, card), free = what the container may still take, never above what the card has. Returns
 * what the container uses, at most total. */
static unsigned long long apply(const struct vgpu_view *view, unsigned long long *total, unsigned long long *free) {
  if (*total > view->limit_bytes) *total = view->limit_bytes;
  unsigned long long used = view->used_bytes < *total ? view->used_bytes : *total;
  if (*free > *total - used) *free = *total - used;
  return used;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  __typeof__(&nvmlDeviceGetMemoryInfo) real = VGPU_REAL(nvmlDeviceGetMemoryInfo);
  nvmlReturn_t result = real ? real(device, memory) : NVML_ERROR_UNINITIALIZED;
  if (result != NVML_SUCCESS || !memory || !vgpu_is_limiting()) return result;
  struct vgpu_view view = view_of(device);
  apply(&view, &memory->total, &memory->free);
  memory->used = memory->total - memory->free; /* this struct has no other place for what neighbours hold */
  return result;
}

/* What is neither free nor the container's (neighbours on a full card) counts as reserved: the sum is total. */
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
  __typeof__(&nvmlDeviceGetMemoryInfo_v2) real = VGPU_REAL(nvmlDeviceGetMemoryInfo_v2);
  nvmlReturn_t result = real ? real(device, memory) : NVML_ERROR_UNINITIALIZED;
  if (result != NVML_SUCCESS || !memory || !vgpu_is_limiting()) return result;
  struct vgpu_view view = view_of(device);
  memory->used = apply(&view, &memory->total, &memory->free);
  memory->reserved = memory->total - memory->free - memory->used;
  return result;
}
