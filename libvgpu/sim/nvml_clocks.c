/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml_clocks.c - NVML: clocks, and why they are lower than they could be. A card that is idle has low ones; `gpusim set`
 * lowers those of a busy one, and says why only if it is told.
 */
#include "nvml_types.h"

enum clock { CLOCK_GRAPHICS = 0, CLOCK_SM = 1, CLOCK_MEMORY = 2, CLOCK_VIDEO = 3 };
enum clock_id { CLOCK_CURRENT = 0, CLOCK_IDS = 4 };
enum { IDLE_MHZ = 210, REASON_IDLE = 1, ALL_REASONS = 0x1ff };

/* Copies keep a card awake too. */
static bool is_busy(nvmlDevice_t device) {
  struct gs_sample sample = gs_engine_sample(device->gpu, -1);
  return sample.percent > 0 || sample.memory_percent > 0;
}

static nvmlReturn_t highest(nvmlDevice_t device, int type, unsigned *mhz) {
  if (!mhz || type < CLOCK_GRAPHICS || type > CLOCK_VIDEO) return NVML_ERROR_INVALID_ARGUMENT;
  *mhz = type == CLOCK_MEMORY ? device->gpu->card.memory_clock_mhz : device->gpu->card.sm_clock_mhz;
  return NVML_SUCCESS;
}

static nvmlReturn_t current(nvmlDevice_t device, int type, unsigned *mhz) {
  nvmlReturn_t result = highest(device, type, mhz);
  if (result != NVML_SUCCESS) return result;
  const struct gs_live *live = &device->gpu->live;
  *mhz = *mhz * (type == CLOCK_MEMORY ? live->memory_clock_permille : live->clock_permille) / 1000;
  if (type != CLOCK_MEMORY && *mhz > IDLE_MHZ && !is_busy(device)) *mhz = IDLE_MHZ;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetClockInfo)(nvmlDevice_t device, int type, unsigned *mhz) {
  NV_ENTER_DEVICE(nvmlDeviceGetClockInfo, device);
  return current(device, type, mhz);
}

NV_API(nvmlDeviceGetMaxClockInfo)(nvmlDevice_t device, int type, unsigned *mhz) {
  NV_ENTER_DEVICE(nvmlDeviceGetMaxClockInfo, device);
  return highest(device, type, mhz);
}

/* The others than the current one are clocks of applications and the customer's boost: all as high as can be. */
NV_API(nvmlDeviceGetClock)(nvmlDevice_t device, int type, int id, unsigned *mhz) {
  NV_ENTER_DEVICE(nvmlDeviceGetClock, device);
  if (id < CLOCK_CURRENT || id >= CLOCK_IDS) return NVML_ERROR_INVALID_ARGUMENT;
  return id == CLOCK_CURRENT ? current(device, type, mhz) : highest(device, type, mhz);
}

NV_API(nvmlDeviceGetApplicationsClock)(nvmlDevice_t device, int type, unsigned *mhz) {
  NV_ENTER_DEVICE(nvmlDeviceGetApplicationsClock, device);
  return highest(device, type, mhz);
}
NV_ALIAS(nvmlDeviceGetDefaultApplicationsClock, nvmlDeviceGetApplicationsClock)

NV_API(nvmlDeviceGetCurrentClocksThrottleReasons)(nvmlDevice_t device, unsigned long long *reasons) {
  NV_ENTER_DEVICE(nvmlDeviceGetCurrentClocksThrottleReasons, device);
  if (!reasons) return NVML_ERROR_INVALID_ARGUMENT;
  *reasons = device->gpu->live.throttle | (is_busy(device) ? 0 : REASON_IDLE);
  return NVML_SUCCESS;
}
NV_ALIAS(nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetCurrentClocksThrottleReasons)

NV_API(nvmlDeviceGetSupportedClocksThrottleReasons)(nvmlDevice_t device, unsigned long long *reasons) {
  NV_ENTER_DEVICE(nvmlDeviceGetSupportedClocksThrottleReasons, device);
  if (!reasons) return NVML_ERROR_INVALID_ARGUMENT;
  *reasons = ALL_REASONS;
  return NVML_SUCCESS;
}
NV_ALIAS(nvmlDeviceGetSupportedClocksEventReasons, nvmlDeviceGetSupportedClocksThrottleReasons)
