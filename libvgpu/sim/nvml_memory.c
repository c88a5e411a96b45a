/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml_memory.c - NVML: how much memory a card has. The first form counts what the driver reserves as used, the
 * second names it.
 */
#include "nvml_types.h"

NV_API(nvmlDeviceGetMemoryInfo)(nvmlDevice_t device, struct nv_memory *memory) {
  NV_ENTER_DEVICE(nvmlDeviceGetMemoryInfo, device);
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  const struct gs_card *card = &device->gpu->card;
  memory->total = card->memory_bytes;
  memory->used = card->reserved_bytes + gs_memory_used(device->gpu);
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetMemoryInfo_v2)(nvmlDevice_t device, struct nv_memory_v2 *memory) {
  NV_ENTER_DEVICE(nvmlDeviceGetMemoryInfo_v2, device);
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  if (memory->version != (sizeof *memory | 2u << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const struct gs_card *card = &device->gpu->card;
  memory->total = card->memory_bytes;
  memory->reserved = card->reserved_bytes;
  memory->used = gs_memory_used(device->gpu);
  memory->free = memory->total - memory->reserved - memory->used;
  return NVML_SUCCESS;
}

/* The window through which the host reaches device memory. */
NV_API(nvmlDeviceGetBAR1MemoryInfo)(nvmlDevice_t device, struct nv_memory *memory) {
  NV_ENTER_DEVICE(nvmlDeviceGetBAR1MemoryInfo, device);
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  memory->total = 1;
  while (memory->total < device->gpu->card.memory_bytes)
    memory->total <<= 1;
  memory->used = 1 << 20;
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}
