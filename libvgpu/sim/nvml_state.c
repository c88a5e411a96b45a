/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml_state.c - NVML: how a card is and what it does: utilisation, clocks, power, links, modes. Power,
 * temperature and clocks are plausible functions of utilisation; modes are those of a data-centre card at rest.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "nvml_types.h"

enum { CLOCK_GRAPHICS = 0, CLOCK_SM = 1, CLOCK_MEMORY = 2, CLOCK_VIDEO = 3, IDLE_MHZ = 210 };

/* What NVML calls utilisation: the part of the last whole sample period in which anything ran. */
static unsigned percent_busy(nvmlDevice_t device) {
  return gs_engine_sample(device->gpu, -1).percent;
}

static unsigned power_mw(nvmlDevice_t device) {
  unsigned limit = device->gpu->card.power_limit_mw;
  return limit / 8 + limit / 8 * 6 / 100 * percent_busy(device);
}

static unsigned compute_level(nvmlDevice_t device) {
  return device->gpu->card.compute_major * 10 + device->gpu->card.compute_minor;
}

/* NVML's architecture numbers: Volta 5, Turing 6, Ampere 7, Ada 8, Hopper 9. */
static unsigned architecture(nvmlDevice_t device) {
  unsigned level = compute_level(device);
  return level >= 90 ? 9 : level == 89 ? 8 : level >= 80 ? 7 : level == 75 ? 6 : 5;
}

static unsigned cores(nvmlDevice_t device) {
  unsigned level = compute_level(device);
  return device->gpu->card.sms * (level == 80 || level < 80 ? 64 : 128);
}

static unsigned link_generation(nvmlDevice_t device) {
  return architecture(device) >= 9 ? 5 : architecture(device) >= 7 ? 4 : 3;
}

/* A call that answers one number about a card. */
#define NV_UNSIGNED(name, expression)                  \
  NV_API(name)(nvmlDevice_t device, unsigned *value) { \
    NV_ENTER_DEVICE(name, device);                     \
    if (!value) return NVML_ERROR_INVALID_ARGUMENT;    \
    *value = (expression);                             \
    return NVML_SUCCESS;                               \
  }

NV_UNSIGNED(nvmlDeviceGetPersistenceMode, 1)
NV_UNSIGNED(nvmlDeviceGetDisplayActive, 0)
NV_UNSIGNED(nvmlDeviceGetDisplayMode, 0)
NV_UNSIGNED(nvmlDeviceGetPerformanceState, 0)
NV_UNSIGNED(nvmlDeviceGetPowerState, 0)
NV_UNSIGNED(nvmlDeviceGetPowerUsage, power_mw(device))
NV_UNSIGNED(nvmlDeviceGetPowerManagementMode, 1)
NV_UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, device->gpu->card.power_limit_mw)
NV_UNSIGNED(nvmlDeviceGetPowerManagementLimit, device->gpu->card.power_limit_mw)
NV_UNSIGNED(nvmlDeviceGetPowerManagementDefaultLimit, device->gpu->card.power_limit_mw)
NV_UNSIGNED(nvmlDeviceGetComputeMode, 0)
NV_UNSIGNED(nvmlDeviceGetVirtualizationMode, 0)
NV_UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, 0)
NV_UNSIGNED(nvmlDeviceIsMigDeviceHandle, 0)
NV_UNSIGNED(nvmlDeviceGetBrand, architecture(device) >= 7 ? 14 : 2)
NV_UNSIGNED(nvmlDeviceGetArchitecture, architecture(device))
NV_UNSIGNED(nvmlDeviceGetNumGpuCores, cores(device))
NV_UNSIGNED(nvmlDeviceGetMemoryBusWidth, device->gpu->card.memory_bus_bits)
NV_UNSIGNED(nvmlDeviceGetBusType, 2)
NV_UNSIGNED(nvmlDeviceGetNumFans, 0)
NV_UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, link_generation(device))
NV_UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, link_generation(device))
NV_UNSIGNED(nvmlDeviceGetGpuMaxPcieLinkGeneration, link_generation(device))
NV_UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, 16)
NV_UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, 16)
NV_UNSIGNED(nvmlDeviceGetPcieReplayCounter, 0)
NV_UNSIGNED(nvmlDeviceGetBoardId, device->gpu->card.pci_bus << 8)
NV_UNSIGNED(nvmlDeviceGetMultiGpuBoard, 0)
NV_UNSIGNED(nvmlDeviceGetAccountingMode, 0)
NV_UNSIGNED(nvmlDeviceGetRetiredPagesPendingStatus, 0)

NV_API(nvmlDeviceGetUtilizationRates)(nvmlDevice_t device, struct nv_utilization *rates) {
  NV_ENTER_DEVICE(nvmlDeviceGetUtilizationRates, device);
  if (!rates) return NVML_ERROR_INVALID_ARGUMENT;
  rates->gpu = percent_busy(device);
  rates->memory = rates->gpu / 2; /* no kernel states its memory traffic yet */
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetMigMode)(nvmlDevice_t device, unsigned *current, unsigned *pending) {
  NV_ENTER_DEVICE(nvmlDeviceGetMigMode, device);
  if (!current || !pending) return NVML_ERROR_INVALID_ARGUMENT;
  if (compute_level(device) != 80 && compute_level(device) != 90) return NVML_ERROR_NOT_SUPPORTED;
  *current = 0;
  *pending = 0;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetMigDeviceHandleByIndex)(nvmlDevice_t device, unsigned index, nvmlDevice_t *out) {
  NV_ENTER_DEVICE(nvmlDeviceGetMigDeviceHandleByIndex, device);
  (void)index;
  return out ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
}

NV_API(nvmlDeviceGetEccMode)(nvmlDevice_t device, unsigned *current, unsigned *pending) {
  NV_ENTER_DEVICE(nvmlDeviceGetEccMode, device);
  if (!current || !pending) return NVML_ERROR_INVALID_ARGUMENT;
  *current = 1;
  *pending = 1;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetTotalEccErrors)(nvmlDevice_t device, int type, int counter, unsigned long long *count) {
  NV_ENTER_DEVICE(nvmlDeviceGetTotalEccErrors, device);
  if (!count || type < 0 || type > 1 || counter < 0 || counter > 1) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetRemappedRows)
(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  NV_ENTER_DEVICE(nvmlDeviceGetRemappedRows, device);
  if (!corrected || !uncorrected || !pending || !failed) return NVML_ERROR_INVALID_ARGUMENT;
  *corrected = *uncorrected = *pending = *failed = 0;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetTemperature)(nvmlDevice_t device, int sensor, unsigned *degrees) {
  NV_ENTER_DEVICE(nvmlDeviceGetTemperature, device);
  if (!degrees || sensor != 0) return NVML_ERROR_INVALID_ARGUMENT;
  *degrees = 32 + percent_busy(device) * 35 / 100;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetTemperatureThreshold)(nvmlDevice_t device, int type, unsigned *degrees) {
  static const unsigned thresholds[] = {92, 89, 95, 85}; /* shutdown, slow-down, memory, GPU */
  NV_ENTER_DEVICE(nvmlDeviceGetTemperatureThreshold, device);
  if (!degrees || type < 0) return NVML_ERROR_INVALID_ARGUMENT;
  if ((size_t)type >= sizeof thresholds / sizeof *thresholds) return NVML_ERROR_NOT_SUPPORTED;
  *degrees = thresholds[type];
  return NVML_SUCCESS;
}

static nvmlReturn_t get_clock(nvmlDevice_t device, int type, unsigned *mhz, bool busy) {
  if (!mhz || type < CLOCK_GRAPHICS || type > CLOCK_VIDEO) return NVML_ERROR_INVALID_ARGUMENT;
  const struct gs_card *card = &device->gpu->card;
  *mhz = type == CLOCK_MEMORY ? card->memory_clock_mhz : busy ? card->sm_clock_mhz : IDLE_MHZ;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetClockInfo)(nvmlDevice_t device, int type, unsigned *mhz) {
  NV_ENTER_DEVICE(nvmlDeviceGetClockInfo, device);
  return get_clock(device, type, mhz, percent_busy(device) > 0);
}

NV_API(nvmlDeviceGetMaxClockInfo)(nvmlDevice_t device, int type, unsigned *mhz) {
  NV_ENTER_DEVICE(nvmlDeviceGetMaxClockInfo, device);
  return get_clock(device, type, mhz, true);
}

NV_API(nvmlDeviceGetCurrentClocksThrottleReasons)(nvmlDevice_t device, unsigned long long *reasons) {
  NV_ENTER_DEVICE(nvmlDeviceGetCurrentClocksThrottleReasons, device);
  if (!reasons) return NVML_ERROR_INVALID_ARGUMENT;
  *reasons = percent_busy(device) > 0 ? 0 : 1; /* 1: idle */
  return NVML_SUCCESS;
}
NV_ALIAS(nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetCurrentClocksThrottleReasons)

static nvmlReturn_t engine_at_rest(unsigned *percent, unsigned *period_us) {
  if (!percent || !period_us) return NVML_ERROR_INVALID_ARGUMENT;
  *percent = 0;
  *period_us = (unsigned)(gs_self.region->settings.sample_ns / 1000);
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetEncoderUtilization)(nvmlDevice_t device, unsigned *percent, unsigned *period_us) {
  NV_ENTER_DEVICE(nvmlDeviceGetEncoderUtilization, device);
  return engine_at_rest(percent, period_us);
}

NV_API(nvmlDeviceGetDecoderUtilization)(nvmlDevice_t device, unsigned *percent, unsigned *period_us) {
  NV_ENTER_DEVICE(nvmlDeviceGetDecoderUtilization, device);
  return engine_at_rest(percent, period_us);
}

/* KiB/s through the bus since this caller's last question about the same direction, at most one second ago. */
NV_API(nvmlDeviceGetPcieThroughput)(nvmlDevice_t device, int counter, unsigned *kib_per_second) {
  static struct { uint64_t bytes, at_ns; } last[GS_MAX_GPUS][2];
  NV_ENTER_DEVICE(nvmlDeviceGetPcieThroughput, device);
  if (!kib_per_second || counter < 0 || counter > 1) return NVML_ERROR_INVALID_ARGUMENT;
  /* counter 0: sent by the card, 1: received by it */
  uint64_t bytes = __atomic_load_n(counter ? &device->gpu->rx_bytes : &device->gpu->tx_bytes, __ATOMIC_RELAXED);
  uint64_t now = gs_now_ns();
  uint64_t passed = now - last[device->gpu_index][counter].at_ns;
  uint64_t moved = bytes - last[device->gpu_index][counter].bytes;
  bool first = last[device->gpu_index][counter].at_ns == 0;
  *kib_per_second = first || passed == 0 ? 0 : (unsigned)((double)moved * 1e9 / (double)passed / 1024);
  last[device->gpu_index][counter].bytes = bytes;
  last[device->gpu_index][counter].at_ns = now;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetTotalEnergyConsumption)(nvmlDevice_t device, unsigned long long *millijoules) {
  NV_ENTER_DEVICE(nvmlDeviceGetTotalEnergyConsumption, device);
  if (!millijoules) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned limit = device->gpu->card.power_limit_mw;
  double idle = (double)(gs_now_ns() - gs_self.region->created_ns) / 1e9 * (limit / 8);
  *millijoules = (unsigned long long)(idle + (double)device->gpu->busy_ns / 1e9 * (limit / 8 * 6));
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceGetPowerManagementLimitConstraints)(nvmlDevice_t device, unsigned *least, unsigned *most) {
  NV_ENTER_DEVICE(nvmlDeviceGetPowerManagementLimitConstraints, device);
  if (!least || !most) return NVML_ERROR_INVALID_ARGUMENT;
  *least = device->gpu->card.power_limit_mw / 4;
  *most = device->gpu->card.power_limit_mw;
  return NVML_SUCCESS;
}

NV_API(nvmlDeviceValidateInforom)(nvmlDevice_t device) {
  NV_ENTER_DEVICE(nvmlDeviceValidateInforom, device);
  return NVML_SUCCESS;
}
