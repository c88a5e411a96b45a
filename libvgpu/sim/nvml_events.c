/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml_events.c - NVML: event sets. The only events of a simulated card are XIDs, raised by `gpusim xid`.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "nvml_types.h"

enum { EVENT_XID = 8 };

struct nv_event_set {
  uint32_t magic;
  unsigned long long types[GS_MAX_GPUS]; /* registered, per card */
  uint64_t seen[GS_MAX_GPUS];            /* XIDs of the card that were told or came before */
};
static const uint32_t EVENT_SET_MAGIC = 0x45564e54;

static bool is_set(nvmlEventSet_t set) {
  return set && set->magic == EVENT_SET_MAGIC;
}

NV_API(nvmlEventSetCreate)(nvmlEventSet_t *out) {
  NV_ENTER(nvmlEventSetCreate);
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  struct nv_event_set *set = calloc(1, sizeof *set);
  if (!set) return NVML_ERROR_UNKNOWN;
  set->magic = EVENT_SET_MAGIC;
  *out = set;
  return NVML_SUCCESS;
}

NV_API(nvmlEventSetFree)(nvmlEventSet_t set) {
  NV_ENTER(nvmlEventSetFree);
  if (!is_set(set)) return NVML_ERROR_INVALID_ARGUMENT;
  set->magic = 0;
  free(set);
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetSupportedEventTypes)(nvmlDevice_t device, unsigned long long *types) {
  NV_ENTER_DEVICE(nvmlDeviceGetSupportedEventTypes, device);
  if (!types) return NVML_ERROR_INVALID_ARGUMENT;
  *types = EVENT_XID;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceRegisterEvents)(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
  NV_ENTER_DEVICE(nvmlDeviceRegisterEvents, device);
  if (!is_set(set)) return NVML_ERROR_INVALID_ARGUMENT;
  if (types & ~(unsigned long long)EVENT_XID) return NVML_ERROR_NOT_SUPPORTED;
  set->types[device->gpu_index] |= types;
  set->seen[device->gpu_index] = __atomic_load_n(&device->gpu->xid_count, __ATOMIC_ACQUIRE);
  return NVML_SUCCESS;
}

/* Takes the next XID that the set has not told. */
static bool next_xid(nvmlEventSet_t set, struct nv_event_data *data) {
  for (unsigned i = 0; i < nv_state.device_count; i++) {
    struct nv_device *device = &nv_state.devices[i];
    uint64_t *seen = &set->seen[device->gpu_index];
    uint64_t count = __atomic_load_n(&device->gpu->xid_count, __ATOMIC_ACQUIRE);
    if (!(set->types[device->gpu_index] & EVENT_XID) || *seen >= count) continue;
    if (count - *seen > GS_XIDS) *seen = count - GS_XIDS;
    *data = (struct nv_event_data){.device = device,
                                   .type = EVENT_XID,
                                   .data = device->gpu->xids[(*seen)++ % GS_XIDS],
                                   .gpu_instance = UINT32_MAX,
                                   .compute_instance = UINT32_MAX};
    return true;
  }
  return false;
}

static nvmlReturn_t wait(nvmlEventSet_t set, struct nv_event_data *data, unsigned timeout_ms) {
  static const uint64_t look_ns = 5000000;
  if (!is_set(set) || !data) return NVML_ERROR_INVALID_ARGUMENT;
  uint64_t deadline = gs_now_ns() + (uint64_t)timeout_ms * 1000000u;
  while (!next_xid(set, data)) {
    uint64_t now = gs_now_ns();
    if (now >= deadline) return NVML_ERROR_TIMEOUT;
    uint64_t pause_ns = deadline - now < look_ns ? deadline - now : look_ns;
    const struct timespec pause = {.tv_nsec = (long)pause_ns};
    nanosleep(&pause, NULL);
  }
  return NVML_SUCCESS;
}

NV_API(nvmlEventSetWait)(nvmlEventSet_t set, struct nv_event_data *data, unsigned timeout_ms) {
  NV_ENTER(nvmlEventSetWait);
  struct nv_event_data found;
  nvmlReturn_t result = wait(set, data ? &found : NULL, timeout_ms);
  if (result != NVML_SUCCESS) return result;
  data->device = found.device; /* the first form has no instance numbers */
  data->type = found.type;
  data->data = found.data;
  return NVML_SUCCESS;
}

NV_API(nvmlEventSetWait_v2)(nvmlEventSet_t set, struct nv_event_data *data, unsigned timeout_ms) {
  NV_ENTER(nvmlEventSetWait_v2);
  return wait(set, data, timeout_ms);
}
