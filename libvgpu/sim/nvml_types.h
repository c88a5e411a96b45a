/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml_types.h - the types of NVML that the simulator speaks, as its binary interface lays them out on 64-bit
 * Linux, and how an entry point begins. Source of fact: NVML's public API reference.
 */
#ifndef GPUSIM_NVML_TYPES_H
#define GPUSIM_NVML_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "engine.h"
#include "fault.h"
#include "functions.h"
#include "region.h"

typedef int nvmlReturn_t;
typedef struct nv_device *nvmlDevice_t;
typedef struct nv_event_set *nvmlEventSet_t;

enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NO_PERMISSION = 4,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_TIMEOUT = 10,
  NVML_ERROR_MEMORY = 20,
  NVML_ERROR_NO_DATA = 21,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
  NVML_ERROR_UNKNOWN = 999
};

struct nv_device {
  struct gs_gpu *gpu;
  int gpu_index; /* in the region, also the minor number */
};

struct nv_memory {
  unsigned long long total, free, used;
};

struct nv_memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

struct nv_pci {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct nv_pci_v2 { /* of nvmlDeviceGetPciInfo and _v2 */
  char bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id, reserved[4];
};

struct nv_process_v1 {
  unsigned pid;
  unsigned long long used_bytes;
};

struct nv_process { /* of _v2 and _v3 */
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

struct nv_utilization {
  unsigned gpu, memory; /* percent */
};

struct nv_process_sample {
  unsigned pid;
  unsigned long long time_us;
  unsigned sm, memory, encoder, decoder; /* percent */
};

struct nv_gpm_metric {
  unsigned id;
  nvmlReturn_t result;
  double value;
  const char *short_name, *long_name, *unit;
};

struct nv_gpm_sample;

struct nv_gpm_metrics { /* followed by as many metrics as are asked for */
  unsigned version, count;
  struct nv_gpm_sample *first, *second;
  struct nv_gpm_metric metrics[];
};

struct nv_gpm_support {
  unsigned version, supported;
};

struct nv_event_data {
  nvmlDevice_t device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

/* Devices that nvmlInit found; valid while initialised. */
struct nv_state {
  unsigned users; /* nvmlInit less nvmlShutdown; atomic */
  unsigned device_count;
  struct nv_device devices[GS_MAX_GPUS];
};
extern struct nv_state nv_state;

#define NV_API(name) nvmlReturn_t impl_##name
#define NV_ALIAS(name, other) /* read by generate.sh: `name` has the same interface as `other` */

/* Counts the call and applies faults. `gpu`: the card that it is about, -1 if none. */
nvmlReturn_t nv_enter(enum gs_function_number function, int gpu);

/* The same, and whether NVML is initialised and the handle good. */
nvmlReturn_t nv_enter_device(enum gs_function_number function, nvmlDevice_t device);

#define NV_ENTER(name)                                        \
  do {                                                        \
    nvmlReturn_t entered = nv_enter(FN_##name, -1);           \
    if (entered != NVML_SUCCESS) return entered;              \
    if (nv_state.users == 0) return NVML_ERROR_UNINITIALIZED; \
  } while (0)

#define NV_ENTER_DEVICE(name, device)                          \
  do {                                                         \
    nvmlReturn_t entered = nv_enter_device(FN_##name, device); \
    if (entered != NVML_SUCCESS) return entered;               \
  } while (0)

/* A call that answers one number about a card. */
#define NV_UNSIGNED(name, expression)                  \
  NV_API(name)(nvmlDevice_t device, unsigned *value) { \
    NV_ENTER_DEVICE(name, device);                     \
    if (!value) return NVML_ERROR_INVALID_ARGUMENT;    \
    *value = (expression);                             \
    return NVML_SUCCESS;                               \
  }

/* Living processes that have a context or memory on the card or ever gave it work, and are visible from here. Answers
 * how many. */
struct nv_user {
  unsigned pid;
  uint32_t slot;
  uint64_t held_bytes;
  bool is_listed; /* as one that uses the card now */
};
unsigned nv_find_users(struct gs_gpu *gpu, struct nv_user *users, unsigned room);

/* nvml_link.c: a figure of a counter with the noise that counters have: by chance, but the same for the same tick, card and
 * kind of counter. */
double nv_with_noise(const struct nv_device *device, uint64_t time_ns, unsigned kind, double value);

/* Copies text to a caller's buffer as NVML does. */
nvmlReturn_t nv_copy_text(char *out, unsigned bytes, const char *text);

#endif
