/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml_processes.c - NVML: who uses a card, be it only by a context. Pids are as the caller's pid namespace sees them;
 * a process outside it is not listed.
 */
#include "nvml_types.h"

unsigned nv_find_users(struct gs_gpu *gpu, struct nv_user *users, unsigned room) {
  unsigned count = 0;
  uint32_t slots = __atomic_load_n(&gs_self.region->slot_high[GS_KIND_CUDA], __ATOMIC_SEQ_CST);
  for (uint32_t slot = 0; slot < slots && count < room; slot++) {
    uint64_t held = __atomic_load_n(&gpu->held_bytes[slot], __ATOMIC_RELAXED);
    bool is_listed = held != 0 || __atomic_load_n(&gpu->contexts[slot], __ATOMIC_RELAXED) != 0;
    if (!is_listed && __atomic_load_n(&gpu->queues[slot].numbers, __ATOMIC_RELAXED) == 0) continue;
    int pid = gs_slot_pid(slot);
    if (pid > 0) users[count++] = (struct nv_user){(unsigned)pid, slot, held, is_listed};
  }
  return count;
}

/* The common part of the list calls. element_bytes tells which form the caller's array has. */
static nvmlReturn_t list(nvmlDevice_t device, unsigned *count, void *out, size_t element_bytes) {
  struct nv_user users[GS_CUDA_SLOTS];
  unsigned found = 0;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned present = nv_find_users(device->gpu, users, GS_CUDA_SLOTS);
  for (unsigned i = 0; i < present; i++) {
    if (users[i].is_listed) users[found++] = users[i];
  }
  unsigned room = *count;
  *count = found;
  if (found == 0) return NVML_SUCCESS;
  if (room < found) return NVML_ERROR_INSUFFICIENT_SIZE;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; i < found; i++) {
    if (element_bytes == sizeof(struct nv_process_v1)) {
      ((struct nv_process_v1 *)out)[i] = (struct nv_process_v1){users[i].pid, users[i].held_bytes};
    } else {
      ((struct nv_process *)out)[i] = (struct nv_process){users[i].pid, users[i].held_bytes, UINT32_MAX, UINT32_MAX};
    }
  }
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetComputeRunningProcesses)(nvmlDevice_t device, unsigned *count, struct nv_process_v1 *out) {
  NV_ENTER_DEVICE(nvmlDeviceGetComputeRunningProcesses, device);
  return list(device, count, out, sizeof *out);
}

NV_API(nvmlDeviceGetComputeRunningProcesses_v2)(nvmlDevice_t device, unsigned *count, struct nv_process *out) {
  NV_ENTER_DEVICE(nvmlDeviceGetComputeRunningProcesses_v2, device);
  return list(device, count, out, sizeof *out);
}

NV_API(nvmlDeviceGetComputeRunningProcesses_v3)(nvmlDevice_t device, unsigned *count, struct nv_process *out) {
  NV_ENTER_DEVICE(nvmlDeviceGetComputeRunningProcesses_v3, device);
  return list(device, count, out, sizeof *out);
}

/* Nobody draws on these cards. */
NV_API(nvmlDeviceGetGraphicsRunningProcesses)(nvmlDevice_t device, unsigned *count, void *out) {
  NV_ENTER_DEVICE(nvmlDeviceGetGraphicsRunningProcesses, device);
  (void)out;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}
NV_ALIAS(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses)
NV_ALIAS(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses)

/* With MPS, all who use the card are its clients, and still listed as compute processes. The server is not a process here. */
static nvmlReturn_t list_clients(nvmlDevice_t device, unsigned *count, void *out, size_t element_bytes) {
  if (gs_self.region->settings.sharing == GS_SHARING_MPS) return list(device, count, out, element_bytes);
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetMPSComputeRunningProcesses)(nvmlDevice_t device, unsigned *count, struct nv_process_v1 *out) {
  NV_ENTER_DEVICE(nvmlDeviceGetMPSComputeRunningProcesses, device);
  return list_clients(device, count, out, sizeof *out);
}

NV_API(nvmlDeviceGetMPSComputeRunningProcesses_v2)(nvmlDevice_t device, unsigned *count, struct nv_process *out) {
  NV_ENTER_DEVICE(nvmlDeviceGetMPSComputeRunningProcesses_v2, device);
  return list_clients(device, count, out, sizeof *out);
}

NV_API(nvmlDeviceGetMPSComputeRunningProcesses_v3)(nvmlDevice_t device, unsigned *count, struct nv_process *out) {
  NV_ENTER_DEVICE(nvmlDeviceGetMPSComputeRunningProcesses_v3, device);
  return list_clients(device, count, out, sizeof *out);
}
