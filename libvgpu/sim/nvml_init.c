/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml_init.c - start and end of NVML, versions and error texts.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node.h"
#include "nvml_types.h"

struct nv_state nv_state;
static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;

nvmlReturn_t nv_enter(enum gs_function_number function, int gpu) {
  if (!gs_self.client) (void)gs_attach(GS_KIND_WATCH);
  __atomic_fetch_add(&gs_self.calls[function], 1, __ATOMIC_RELAXED);
  if (gs_self.region && __atomic_load_n(&gs_self.region->fault_count, __ATOMIC_RELAXED))
    return gs_fault_apply(function, gpu);
  return NVML_SUCCESS;
}

nvmlReturn_t nv_enter_device(enum gs_function_number function, nvmlDevice_t device) {
  uintptr_t offset = (uintptr_t)device - (uintptr_t)nv_state.devices;
  bool good = offset < nv_state.device_count * sizeof *device && offset % sizeof *device == 0;
  nvmlReturn_t entered = nv_enter(function, good ? device->gpu_index : -1);
  if (entered != NVML_SUCCESS) return entered;
  if (nv_state.users == 0) return NVML_ERROR_UNINITIALIZED;
  return good ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nv_copy_text(char *out, unsigned bytes, const char *text) {
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (strlen(text) + 1 > bytes) return NVML_ERROR_INSUFFICIENT_SIZE;
  strcpy(out, text);
  return NVML_SUCCESS;
}

static void find_devices(void) {
  nv_state.device_count = 0;
  for (uint32_t gpu = 0; gpu < gs_self.region->settings.gpu_count; gpu++) {
    if (!gs_node_open((int)gpu)) continue;
    struct nv_device *device = &nv_state.devices[nv_state.device_count++];
    device->gpu = &gs_self.region->gpus[gpu];
    device->gpu_index = (int)gpu;
  }
}

static nvmlReturn_t init(enum gs_function_number function) {
  nvmlReturn_t entered = nv_enter(function, -1);
  if (entered != NVML_SUCCESS) return entered;
  if (gs_attach(GS_KIND_WATCH) != 0) return NVML_ERROR_DRIVER_NOT_LOADED;
  pthread_mutex_lock(&init_mutex);
  if (nv_state.users == 0) find_devices();
  __atomic_fetch_add(&nv_state.users, 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&init_mutex);
  return NVML_SUCCESS;
}

NV_API(nvmlInit)(void) {
  return init(FN_nvmlInit);
}

NV_API(nvmlInit_v2)(void) {
  return init(FN_nvmlInit_v2);
}

NV_API(nvmlInitWithFlags)(unsigned flags) {
  (void)flags;
  return init(FN_nvmlInitWithFlags);
}

NV_API(nvmlShutdown)(void) {
  NV_ENTER(nvmlShutdown);
  pthread_mutex_lock(&init_mutex);
  bool was = nv_state.users > 0;
  if (was) nv_state.users--;
  pthread_mutex_unlock(&init_mutex);
  return was ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

NV_API(nvmlSystemGetDriverVersion)(char *out, unsigned bytes) {
  NV_ENTER(nvmlSystemGetDriverVersion);
  return nv_copy_text(out, bytes, gs_self.region->settings.driver_version);
}

NV_API(nvmlSystemGetNVMLVersion)(char *out, unsigned bytes) {
  char text[64];
  NV_ENTER(nvmlSystemGetNVMLVersion);
  snprintf(text, sizeof text, "%u.%s", gs_self.region->settings.cuda_version / 1000,
           gs_self.region->settings.driver_version);
  return nv_copy_text(out, bytes, text);
}

NV_API(nvmlSystemGetCudaDriverVersion)(int *version) {
  NV_ENTER(nvmlSystemGetCudaDriverVersion);
  if (!version) return NVML_ERROR_INVALID_ARGUMENT;
  *version = (int)gs_self.region->settings.cuda_version;
  return NVML_SUCCESS;
}

NV_API(nvmlSystemGetCudaDriverVersion_v2)(int *version) {
  NV_ENTER(nvmlSystemGetCudaDriverVersion_v2);
  if (!version) return NVML_ERROR_INVALID_ARGUMENT;
  *version = (int)gs_self.region->settings.cuda_version;
  return NVML_SUCCESS;
}

int gs_nvml_not_supported(int function);
int gs_nvml_not_supported(int function) {
  nvmlReturn_t entered = nv_enter((enum gs_function_number)function, -1);
  const char *wanted = getenv("GPUSIM_LOG");
  if (wanted && strcmp(wanted, "1") == 0) fprintf(stderr, "gpusim: %s: not supported\n", gs_functions[function].name);
  return entered != NVML_SUCCESS ? entered : NVML_ERROR_NOT_SUPPORTED;
}
