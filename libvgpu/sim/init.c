/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * init.c - cuInit, versions and which cards this process sees (CUDA_VISIBLE_DEVICES, device nodes).
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "node.h"

struct gs_driver gs_driver = {.mutex = PTHREAD_MUTEX_INITIALIZER};
__thread struct gs_thread gs_thread __attribute__((tls_model("initial-exec")));

/* Compared by every exported stub: while they are equal the driver is shutting down. */
int gs_cuda_guard;
enum { SHUTTING_DOWN = 0x321cba00 };

__attribute__((destructor)) static void shut_down(void) {
  gs_cuda_guard = SHUTTING_DOWN;
}

bool gs_driver_attach(void) {
  int result = gs_attach(GS_KIND_CUDA);
  if (result == 0) gs_driver.settings = &gs_self.region->settings;
  return result == 0;
}

/* A context does not survive a fork: the child of an initialised process gets CUDA_ERROR_NOT_INITIALIZED. */
static void forbid_in_child(void) {
  if (gs_driver.initialized) gs_driver.initialized = 2;
  memset(&gs_thread, 0, sizeof gs_thread);
}

/* The card that one element of CUDA_VISIBLE_DEVICES names among the `count` in `present`: an index or a
 * unique beginning of a UUID. -1: none. */
static int find_named(const char *name, const uint32_t *present, int count) {
  int found = -1;
  char *end;
  if (strncmp(name, "GPU-", 4) != 0) {
    long index = strtol(name, &end, 10);
    return end != name && *end == 0 && index >= 0 && index < count ? (int)present[index] : -1;
  }
  for (int i = 0; i < count; i++) {
    if (strncasecmp(gs_self.region->gpus[present[i]].card.uuid, name, strlen(name)) != 0) continue;
    if (found >= 0) return -1;
    found = (int)present[i];
  }
  return found;
}

static void add_device(int gpu) {
  struct gs_device *device = &gs_driver.devices[gs_driver.device_count];
  device->gpu = &gs_self.region->gpus[gpu];
  device->gpu_index = gpu;
  device->ordinal = gs_driver.device_count++;
  gs_pool_init(device);
}

static bool is_added(int gpu) {
  for (int i = 0; i < gs_driver.device_count; i++)
    if (gs_driver.devices[i].gpu_index == gpu) return true;
  return false;
}

/* The list counts up to its first invalid element. */
static void add_visible(const char *list, const uint32_t *present, int count) {
  char copy[4096];
  char *rest = copy;
  char *name;
  snprintf(copy, sizeof copy, "%s", list);
  while ((name = strsep(&rest, ","))) {
    name += strspn(name, " ");
    name[strcspn(name, " ")] = 0;
    int gpu = find_named(name, present, count);
    if (gpu < 0 || is_added(gpu)) return;
    add_device(gpu);
  }
}

static CUresult find_devices(void) {
  uint32_t present[GS_MAX_GPUS];
  uint64_t memory_bytes = 0;
  int count = 0;
  for (uint32_t gpu = 0; gpu < gs_driver.settings->gpu_count; gpu++)
    if (gs_node_open((int)gpu)) present[count++] = gpu;
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  gs_driver.device_count = 0;
  if (list)
    add_visible(list, present, count);
  else
    for (int i = 0; i < count; i++)
      add_device((int)present[i]);
  for (int i = 0; i < gs_driver.device_count; i++)
    memory_bytes += gs_driver.devices[i].gpu->card.memory_bytes;
  if (gs_driver.device_count == 0) return CUDA_ERROR_NO_DEVICE;
  bool accessible = gs_driver.settings->backing == GS_BACKING_REAL;
  return gs_arena_init(memory_bytes, accessible) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API(cuInit)(unsigned flags) {
  ENTER_ANY(cuInit);
  CUresult result = CUDA_SUCCESS;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!gs_driver_attach()) return CUDA_ERROR_NO_DEVICE;
  pthread_mutex_lock(&gs_driver.mutex);
  if (gs_driver.initialized == 2) result = CUDA_ERROR_NOT_INITIALIZED;
  if (gs_driver.initialized == 0) result = find_devices();
  if (gs_driver.initialized == 0 && result == CUDA_SUCCESS) {
    pthread_atfork(NULL, NULL, forbid_in_child);
    __atomic_store_n(&gs_driver.initialized, 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

CU_API(cuDriverGetVersion)(int *version) {
  ENTER_ANY(cuDriverGetVersion);
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = gs_self.region ? (int)gs_self.region->settings.cuda_version : 0;
  return CUDA_SUCCESS;
}

/* A driver's private tables are not modelled, and one of them proves that a driver is NVIDIA's: never answered. */
CU_API(cuGetExportTable)(const void **table, const CUuuid *id) {
  ENTER_ANY(cuGetExportTable);
  (void)id;
  if (table) *table = NULL;
  return CUDA_ERROR_NOT_SUPPORTED;
}

CU_API(cuProfilerStart)(void) {
  ENTER(cuProfilerStart);
  return CUDA_SUCCESS;
}

CU_API(cuProfilerStop)(void) {
  ENTER(cuProfilerStop);
  return CUDA_SUCCESS;
}

int gs_cuda_not_supported(int function);
int gs_cuda_not_supported(int function) {
  CUresult entered = gs_enter((enum gs_function_number)function);
  const char *wanted = getenv("GPUSIM_LOG");
  if (wanted && strcmp(wanted, "1") == 0) fprintf(stderr, "gpusim: %s: not supported\n", gs_functions[function].name);
  return entered != CUDA_SUCCESS ? entered : CUDA_ERROR_NOT_SUPPORTED;
}
