/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * devices.c - which devices there are and what they are like.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "driver.h"

enum { ATTRIBUTES_END = 133 };

struct gs_device *gs_device_of(CUdevice ordinal) {
  return ordinal >= 0 && ordinal < gs_driver.device_count ? &gs_driver.devices[ordinal] : NULL;
}

CU_API(cuDeviceGetCount)(int *count) {
  ENTER(cuDeviceGetCount);
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = gs_driver.device_count;
  return CUDA_SUCCESS;
}

CU_API(cuDeviceGet)(CUdevice *out, int ordinal) {
  ENTER(cuDeviceGet);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!gs_device_of(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *out = ordinal;
  return CUDA_SUCCESS;
}

CU_API(cuDeviceGetName)(char *name, int bytes, CUdevice ordinal) {
  ENTER(cuDeviceGetName);
  struct gs_device *device = gs_device_of(ordinal);
  if (!name || bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, (size_t)bytes, "%s", device->gpu->card.name);
  return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice ordinal) {
  struct gs_device *device = gs_device_of(ordinal);
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  memcpy(uuid->bytes, device->gpu->card.uuid_bytes, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}

CU_API(cuDeviceGetUuid)(CUuuid *uuid, CUdevice ordinal) {
  ENTER(cuDeviceGetUuid);
  return get_uuid(uuid, ordinal);
}

CU_API(cuDeviceGetUuid_v2)(CUuuid *uuid, CUdevice ordinal) {
  ENTER(cuDeviceGetUuid_v2);
  return get_uuid(uuid, ordinal);
}

CU_API(cuDeviceTotalMem_v2)(size_t *bytes, CUdevice ordinal) {
  ENTER(cuDeviceTotalMem_v2);
  struct gs_device *device = gs_device_of(ordinal);
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = device->gpu->card.memory_bytes - device->gpu->card.reserved_bytes;
  return CUDA_SUCCESS;
}

CU_API(cuDeviceGetAttribute)(int *value, int attribute, CUdevice ordinal) {
  ENTER(cuDeviceGetAttribute);
  struct gs_device *device = gs_device_of(ordinal);
  if (!value || attribute < 1 || attribute >= ATTRIBUTES_END) return CUDA_ERROR_INVALID_VALUE;
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  const struct gs_card *card = &device->gpu->card;
  *value = 0;
  switch (attribute) {
#define ATTRIBUTE(number, expression) \
  case number:                        \
    *value = (expression);            \
    break;
#include "attributes.def"
#undef ATTRIBUTE
  default:
    break;
  }
  return CUDA_SUCCESS;
}

CU_API(cuDeviceComputeCapability)(int *major, int *minor, CUdevice ordinal) {
  ENTER(cuDeviceComputeCapability);
  struct gs_device *device = gs_device_of(ordinal);
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  *major = (int)device->gpu->card.compute_major;
  *minor = (int)device->gpu->card.compute_minor;
  return CUDA_SUCCESS;
}

CU_API(cuDeviceGetProperties)(struct cu_device_properties *properties, CUdevice ordinal) {
  ENTER(cuDeviceGetProperties);
  struct gs_device *device = gs_device_of(ordinal);
  if (!properties) return CUDA_ERROR_INVALID_VALUE;
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  *properties = (struct cu_device_properties){
      .max_threads_per_block = 1024,
      .max_threads_dim = {1024, 1024, 64},
      .max_grid = {2147483647, 65535, 65535},
      .shared_bytes_per_block = 49152,
      .constant_bytes = 65536,
      .simd_width = 32,
      .pitch_bytes = 2147483647,
      .registers_per_block = 65536,
      .clock_khz = (int)device->gpu->card.sm_clock_mhz * 1000,
      .texture_align = 512,
  };
  return CUDA_SUCCESS;
}

CU_API(cuDeviceGetPCIBusId)(char *text, int bytes, CUdevice ordinal) {
  ENTER(cuDeviceGetPCIBusId);
  struct gs_device *device = gs_device_of(ordinal);
  if (!text || bytes < 13) return CUDA_ERROR_INVALID_VALUE;
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  const struct gs_card *card = &device->gpu->card;
  snprintf(text, (size_t)bytes, "%04x:%02x:%02x.0", card->pci_domain, card->pci_bus, card->pci_device);
  return CUDA_SUCCESS;
}

CU_API(cuDeviceGetByPCIBusId)(CUdevice *out, const char *text) {
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned device = 0;
  ENTER(cuDeviceGetByPCIBusId);
  if (!out || !text) return CUDA_ERROR_INVALID_VALUE;
  if (sscanf(text, "%x:%x:%x", &domain, &bus, &device) != 3) {
    domain = 0;
    if (sscanf(text, "%x:%x", &bus, &device) != 2) return CUDA_ERROR_INVALID_VALUE;
  }
  for (int i = 0; i < gs_driver.device_count; i++) {
    const struct gs_card *card = &gs_driver.devices[i].gpu->card;
    if (card->pci_domain != domain || card->pci_bus != bus || card->pci_device != device) continue;
    *out = i;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

/* Cards are joined by PCIe alone and do not reach into each other. */
CU_API(cuDeviceCanAccessPeer)(int *can, CUdevice ordinal, CUdevice peer) {
  ENTER(cuDeviceCanAccessPeer);
  if (!can) return CUDA_ERROR_INVALID_VALUE;
  if (!gs_device_of(ordinal) || !gs_device_of(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = 0;
  return CUDA_SUCCESS;
}

CU_API(cuDeviceGetP2PAttribute)(int *value, int attribute, CUdevice source, CUdevice target) {
  ENTER(cuDeviceGetP2PAttribute);
  if (!value || attribute < 1 || attribute > 4) return CUDA_ERROR_INVALID_VALUE;
  if (!gs_device_of(source) || !gs_device_of(target) || source == target) return CUDA_ERROR_INVALID_DEVICE;
  *value = 0;
  return CUDA_SUCCESS;
}

CU_API(cuDeviceGetExecAffinitySupport)(int *supported, int type, CUdevice ordinal) {
  ENTER(cuDeviceGetExecAffinitySupport);
  if (!supported || type != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!gs_device_of(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *supported = 0;
  return CUDA_SUCCESS;
}
