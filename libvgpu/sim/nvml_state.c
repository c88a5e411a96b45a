/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml_state.c - NVML: how a card is and what it does: utilisation, power, modes. Power and temperature are plausible
 * functions of utilisation; modes are those of a data-centre card at rest.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "nvml_types.h"

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
NV_UNSIGNED(nvmlDeviceGetComputeMode, device->gpu->live.compute_mode)
NV_UNSIGNED(nvmlDeviceGetVirtualizationMode, 0)
NV_UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, 0)
NV_UNSIGNED(nvmlDeviceIsMigDeviceHandle, 0)
NV_UNSIGNED(nvmlDeviceGetBrand, architecture(device) >= 7 ? 14 : 2)
NV_UNSIGNED(nvmlDeviceGetArchitecture, architecture(device))
NV_UNSIGNED(nvmlDeviceGetNumGpuCores, cores(device))
NV_UNSIGNED(nvmlDeviceGetMemoryBusWidth, device->gpu->card.memory_bus_bits)
NV_UNSIGNED(nvmlDeviceGetBusType, 2)
NV_UNSIGNED(nvmlDeviceGetNumFans, 0)
NV_UNSIGNED(nvmlDeviceGetBoardId, device->gpu->card.pci_bus << 8)
NV_UNSIGNED(nvmlDeviceGetMultiGpuBoard, 0)
NV_UNSIGNED(nvmlDeviceGetAccountingMode, 0)
NV_UNSIGNED(nvmlDeviceGetRetiredPagesPendingStatus, 0)

NV_API(nvmlDeviceGetUtilizationRates)(nvmlDevice_t device, struct nv_utilization *rates) {
  NV_ENTER_DEVICE(nvmlDeviceGetUtilizationRates, device);
  if (!rates) return NVML_ERROR_INVALID_ARGUMENT;
  struct gs_sample sample = gs_engine_sample(device->gpu, -1);
  rates->gpu = sample.percent;
  rates->memory = sample.memory_percent;
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
