/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml_topology.c - NVML: where a card sits and what is near it. Cards hang on one host bridge; numa_node of the
 * configuration says on which node.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvml_types.h"

enum { LONG_BITS = 8 * sizeof(unsigned long), TOPOLOGY_INTERNAL = 0, TOPOLOGY_HOST_BRIDGE = 30, NOT_SUPPORTED_P2P = 2 };

/* Reads a list like "0-3,8" of /sys into a bit set. */
static bool read_list(const char *path, unsigned words, unsigned long *set) {
  char text[4096];
  FILE *file = fopen(path, "re");
  if (!file) return false;
  bool got = fgets(text, sizeof text, file) != NULL;
  fclose(file);
  for (const char *at = text; got && *at; at += strcspn(at, ",")) {
    unsigned first;
    unsigned last;
    at += *at == ',';
    int fields = sscanf(at, "%u-%u", &first, &last);
    if (fields < 1) break;
    if (fields == 1) last = first;
    for (unsigned cpu = first; cpu <= last && cpu / LONG_BITS < words; cpu++)
      set[cpu / LONG_BITS] |= 1ul << cpu % LONG_BITS;
  }
  return got;
}

static nvmlReturn_t cpu_affinity(nvmlDevice_t device, unsigned words, unsigned long *set) {
  char path[64];
  if (words == 0 || !set) return NVML_ERROR_INVALID_ARGUMENT;
  memset(set, 0, words * sizeof *set);
  snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", device->gpu->card.numa_node);
  if (device->gpu->card.numa_node >= 0 && read_list(path, words, set)) return NVML_SUCCESS;
  return read_list("/sys/devices/system/cpu/online", words, set) ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

NV_API(nvmlDeviceGetCpuAffinity)(nvmlDevice_t device, unsigned words, unsigned long *set) {
  NV_ENTER_DEVICE(nvmlDeviceGetCpuAffinity, device);
  return cpu_affinity(device, words, set);
}

NV_API(nvmlDeviceGetCpuAffinityWithinScope)(nvmlDevice_t device, unsigned words, unsigned long *set, unsigned scope) {
  NV_ENTER_DEVICE(nvmlDeviceGetCpuAffinityWithinScope, device);
  if (scope > 1) return NVML_ERROR_INVALID_ARGUMENT;
  return cpu_affinity(device, words, set);
}

NV_API(nvmlDeviceGetMemoryAffinity)(nvmlDevice_t device, unsigned words, unsigned long *set, unsigned scope) {
  NV_ENTER_DEVICE(nvmlDeviceGetMemoryAffinity, device);
  if (words == 0 || !set || scope > 1) return NVML_ERROR_INVALID_ARGUMENT;
  int node = device->gpu->card.numa_node;
  if (node < 0) return NVML_ERROR_NOT_SUPPORTED;
  memset(set, 0, words * sizeof *set);
  if ((unsigned)node / LONG_BITS < words) set[(unsigned)node / LONG_BITS] |= 1ul << (unsigned)node % LONG_BITS;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetTopologyCommonAncestor)(nvmlDevice_t device, nvmlDevice_t other, unsigned *level) {
  NV_ENTER_DEVICE(nvmlDeviceGetTopologyCommonAncestor, device);
  if (!level || other < nv_state.devices || other >= nv_state.devices + nv_state.device_count)
    return NVML_ERROR_INVALID_ARGUMENT;
  *level = device == other ? TOPOLOGY_INTERNAL : TOPOLOGY_HOST_BRIDGE;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetP2PStatus)(nvmlDevice_t device, nvmlDevice_t other, int capability, int *status) {
  NV_ENTER_DEVICE(nvmlDeviceGetP2PStatus, device);
  if (!status || capability < 0 || other < nv_state.devices || other >= nv_state.devices + nv_state.device_count)
    return NVML_ERROR_INVALID_ARGUMENT;
  *status = NOT_SUPPORTED_P2P;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceOnSameBoard)(nvmlDevice_t device, nvmlDevice_t other, int *same) {
  NV_ENTER_DEVICE(nvmlDeviceOnSameBoard, device);
  if (!same) return NVML_ERROR_INVALID_ARGUMENT;
  *same = device == other;
  return NVML_SUCCESS;
}

NV_API(nvmlUnitGetCount)(unsigned *count) {
  NV_ENTER(nvmlUnitGetCount);
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

NV_API(nvmlGetExcludedDeviceCount)(unsigned *count) {
  NV_ENTER(nvmlGetExcludedDeviceCount);
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}
