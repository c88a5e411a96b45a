/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml_devices.c - NVML: which cards there are and their identity.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "nvml_types.h"

static nvmlReturn_t get_count(unsigned *count) {
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  *count = nv_state.device_count;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetCount)(unsigned *count) {
  NV_ENTER(nvmlDeviceGetCount);
  return get_count(count);
}

NV_API(nvmlDeviceGetCount_v2)(unsigned *count) {
  NV_ENTER(nvmlDeviceGetCount_v2);
  return get_count(count);
}

/* Faults of one card also hit the calls that look it up. */
static nvmlReturn_t by_index(enum gs_function_number function, unsigned index, nvmlDevice_t *out) {
  bool good = index < nv_state.device_count;
  nvmlReturn_t entered = nv_enter(function, good ? nv_state.devices[index].gpu_index : -1);
  if (entered != NVML_SUCCESS) return entered;
  if (nv_state.users == 0) return NVML_ERROR_UNINITIALIZED;
  if (!out || !good) return NVML_ERROR_INVALID_ARGUMENT;
  *out = &nv_state.devices[index];
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetHandleByIndex)(unsigned index, nvmlDevice_t *out) {
  return by_index(FN_nvmlDeviceGetHandleByIndex, index, out);
}

NV_API(nvmlDeviceGetHandleByIndex_v2)(unsigned index, nvmlDevice_t *out) {
  return by_index(FN_nvmlDeviceGetHandleByIndex_v2, index, out);
}

NV_API(nvmlDeviceGetHandleByUUID)(const char *uuid, nvmlDevice_t *out) {
  unsigned found = nv_state.device_count;
  for (unsigned i = 0; uuid && i < nv_state.device_count; i++)
    if (strcasecmp(uuid, nv_state.devices[i].gpu->card.uuid) == 0) found = i;
  bool good = found < nv_state.device_count;
  nvmlReturn_t entered = nv_enter(FN_nvmlDeviceGetHandleByUUID, good ? nv_state.devices[found].gpu_index : -1);
  if (entered != NVML_SUCCESS) return entered;
  if (nv_state.users == 0) return NVML_ERROR_UNINITIALIZED;
  if (!uuid || !out) return NVML_ERROR_INVALID_ARGUMENT;
  if (!good) return NVML_ERROR_NOT_FOUND;
  *out = &nv_state.devices[found];
  return NVML_SUCCESS;
}

static nvmlReturn_t by_pci(const char *text, nvmlDevice_t *out) {
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned slot = 0;
  if (!text || !out) return NVML_ERROR_INVALID_ARGUMENT;
  if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
    domain = 0;
    if (sscanf(text, "%x:%x", &bus, &slot) != 2) return NVML_ERROR_INVALID_ARGUMENT;
  }
  for (unsigned i = 0; i < nv_state.device_count; i++) {
    const struct gs_card *card = &nv_state.devices[i].gpu->card;
    if (card->pci_domain != domain || card->pci_bus != bus || card->pci_device != slot) continue;
    *out = &nv_state.devices[i];
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

NV_API(nvmlDeviceGetHandleByPciBusId)(const char *text, nvmlDevice_t *out) {
  NV_ENTER(nvmlDeviceGetHandleByPciBusId);
  return by_pci(text, out);
}

NV_API(nvmlDeviceGetHandleByPciBusId_v2)(const char *text, nvmlDevice_t *out) {
  NV_ENTER(nvmlDeviceGetHandleByPciBusId_v2);
  return by_pci(text, out);
}

NV_API(nvmlDeviceGetIndex)(nvmlDevice_t device, unsigned *index) {
  NV_ENTER_DEVICE(nvmlDeviceGetIndex, device);
  if (!index) return NVML_ERROR_INVALID_ARGUMENT;
  *index = (unsigned)(device - nv_state.devices);
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetName)(nvmlDevice_t device, char *out, unsigned bytes) {
  NV_ENTER_DEVICE(nvmlDeviceGetName, device);
  return nv_copy_text(out, bytes, device->gpu->card.name);
}

NV_API(nvmlDeviceGetUUID)(nvmlDevice_t device, char *out, unsigned bytes) {
  NV_ENTER_DEVICE(nvmlDeviceGetUUID, device);
  return nv_copy_text(out, bytes, device->gpu->card.uuid);
}

NV_API(nvmlDeviceGetMinorNumber)(nvmlDevice_t device, unsigned *minor) {
  NV_ENTER_DEVICE(nvmlDeviceGetMinorNumber, device);
  if (!minor) return NVML_ERROR_INVALID_ARGUMENT;
  *minor = (unsigned)device->gpu_index;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetPciInfo_v3)(nvmlDevice_t device, struct nv_pci *pci) {
  NV_ENTER_DEVICE(nvmlDeviceGetPciInfo_v3, device);
  if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
  const struct gs_card *card = &device->gpu->card;
  memset(pci, 0, sizeof *pci);
  snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:%02X.0", card->pci_domain & 0xffff,
           card->pci_bus & 0xff, card->pci_device & 0xff);
  snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", card->pci_domain, card->pci_bus, card->pci_device);
  pci->domain = card->pci_domain;
  pci->bus = card->pci_bus;
  pci->device = card->pci_device;
  pci->device_id = card->pci_device_id;
  pci->subsystem_id = 0x146310de;
  return NVML_SUCCESS;
}

static nvmlReturn_t get_pci_v2(nvmlDevice_t device, struct nv_pci_v2 *pci) {
  if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
  const struct gs_card *card = &device->gpu->card;
  memset(pci, 0, sizeof *pci);
  snprintf(pci->bus_id, sizeof pci->bus_id, "%04X:%02X:%02X.0", card->pci_domain & 0xffff, card->pci_bus & 0xff,
           card->pci_device & 0xff);
  pci->domain = card->pci_domain;
  pci->bus = card->pci_bus;
  pci->device = card->pci_device;
  pci->device_id = card->pci_device_id;
  pci->subsystem_id = 0x146310de;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetPciInfo)(nvmlDevice_t device, struct nv_pci_v2 *pci) {
  NV_ENTER_DEVICE(nvmlDeviceGetPciInfo, device);
  return get_pci_v2(device, pci);
}

NV_API(nvmlDeviceGetPciInfo_v2)(nvmlDevice_t device, struct nv_pci_v2 *pci) {
  NV_ENTER_DEVICE(nvmlDeviceGetPciInfo_v2, device);
  return get_pci_v2(device, pci);
}

NV_API(nvmlDeviceGetCudaComputeCapability)(nvmlDevice_t device, int *major, int *minor) {
  NV_ENTER_DEVICE(nvmlDeviceGetCudaComputeCapability, device);
  if (!major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
  *major = (int)device->gpu->card.compute_major;
  *minor = (int)device->gpu->card.compute_minor;
  return NVML_SUCCESS;
}
