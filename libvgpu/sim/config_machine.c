/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * config_machine.c - keys of the machine: what it is, how time passes on its cards, and what the counters show of that.
 */
#define _GNU_SOURCE
#include "config_parts.h"
#include "engine.h"

#include <stdio.h>
#include <string.h>

/* Where copies take time: what NVML's PCIe throughput is a mean over, and what it shows of a link that nobody uses. */
enum { PCIE_WINDOW_NS = 20000000, PCIE_FLOOR_BYTES = 20000000 };

/* One key of how copies and memory take time, and of the counters of them. 1: set, 0: unknown, -1: bad value. */
static int set_traffic(struct gs_settings *settings, const char *key, const char *value) {
  if (strcmp(key, "copies") == 0) {
    settings->copies_timed = strcmp(value, "timed") == 0;
    return settings->copies_timed || strcmp(value, "instant") == 0 ? 1 : -1;
  }
  if (strcmp(key, "copy_engines") == 0) {
    int set = gs_set_small(&settings->copy_engines, value, GS_WAYS);
    return settings->copy_engines > 0 ? set : -1;
  }
  if (strcmp(key, "copy_latency_ns") == 0) return gs_set_time(&settings->copy_latency_ns, value, 1, 0, 1000000000);
  if (strcmp(key, "pageable_permille") == 0) return gs_set_part(&settings->pageable_permille, value);
  if (strcmp(key, "dram_reach_permille") == 0) return gs_set_part(&settings->dram_reach_permille, value);
  if (strcmp(key, "kernel_dram_percent") == 0) return gs_set_small(&settings->kernel_dram_percent, value, 100);
  if (strcmp(key, "l2_dram_permille") == 0) return gs_set_small(&settings->cache_dram_permille, value, 1000);
  if (strcmp(key, "counter_noise_permille") == 0) return gs_set_small(&settings->noise_permille, value, 1000);
  if (strcmp(key, "dram_floor_permille") == 0) return gs_set_small(&settings->dram_floor_permille, value, 1000);
  if (strcmp(key, "pcie_window_ms") == 0) return gs_set_ticks(&settings->pcie_window_ns, value, 0);
  if (strcmp(key, "counter_lag_ms") == 0) return gs_set_ticks(&settings->counter_lag_ns, value, 0);
  if (strcmp(key, "gpm_refresh_ms") == 0) return gs_set_ticks(&settings->gpm_refresh_ns, value, 1);
  if (strcmp(key, "pcie_floor") == 0) return gs_parse_bytes(value, &settings->pcie_floor_bytes) ? 1 : -1;
  return 0;
}

int gs_set_time_model(struct gs_settings *settings, const char *key, const char *value) {
  if (strcmp(key, "sharing") == 0) {
    settings->sharing = strcmp(value, "mps") == 0 ? GS_SHARING_MPS : GS_SHARING_TIME_SLICE;
    return strcmp(value, "mps") == 0 || strcmp(value, "time-slice") == 0 ? 1 : -1;
  }
  if (strcmp(key, "timeslice_us") == 0) return gs_set_time(&settings->timeslice_ns, value, 1000, 10, 1000000);
  if (strcmp(key, "kernel_ns") == 0) return gs_set_time(&settings->kernel_ns, value, 1, 0, UINT64_MAX);
  if (strcmp(key, "kernel_jitter_permille") == 0) return gs_set_small(&settings->jitter_permille, value, 900);
  if (strcmp(key, "event_scale_permille") == 0) return gs_set_small(&settings->event_scale_permille, value, 10000);
  if (strcmp(key, "nvml_sample_ms") == 0) return gs_set_time(&settings->sample_ns, value, 1000000, 10, 10000);
  if (strcmp(key, "nvml_lag_ms") == 0) return gs_set_time(&settings->sample_lag_ns, value, 1000000, 0, 100000);
  if (strcmp(key, "nvml_missing_percent") == 0) return gs_set_small(&settings->missing_percent, value, 100);
  return set_traffic(settings, key, value);
}

int gs_set_machine(struct gs_settings *settings, const char *key, const char *value) {
  uint64_t number = 0;
  if (strcmp(key, "driver_version") == 0)
    return snprintf(settings->driver_version, sizeof settings->driver_version, "%s", value) > 0 ? 1 : -1;
  if (strcmp(key, "context_overhead") == 0) return gs_parse_bytes(value, &settings->context_overhead_bytes) ? 1 : -1;
  if (strcmp(key, "pitch_alignment") == 0) {
    bool good = gs_parse_bytes(value, &number) && number > 0 && (number & (number - 1)) == 0;
    settings->pitch_alignment_bytes = number;
    return good ? 1 : -1;
  }
  if (strcmp(key, "memory_backing") == 0) {
    settings->backing = strcmp(value, "none") == 0 ? GS_BACKING_NONE : GS_BACKING_REAL;
    return strcmp(value, "none") == 0 || strcmp(value, "real") == 0 ? 1 : -1;
  }
  if (strcmp(key, "gpus") == 0) {
    settings->gpu_count = gs_parse_number(value, &number) ? (uint32_t)number : UINT32_MAX;
    return settings->gpu_count <= GS_MAX_GPUS ? 1 : -1;
  }
  if (strcmp(key, "cuda_version") == 0) {
    settings->cuda_version = gs_parse_number(value, &number) ? (uint32_t)number : 0;
    return number >= 11000 && number < 20000 ? 1 : -1;
  }
  if (strcmp(key, "device_nodes") == 0) {
    settings->device_nodes = gs_parse_number(value, &number) ? (uint32_t)number : 2;
    return settings->device_nodes <= 1 ? 1 : -1;
  }
  return gs_set_time_model(settings, key, value);
}

void gs_default_machine(struct gs_settings *settings) {
  settings->gpu_count = 1;
  settings->cuda_version = 12020;
  settings->pitch_alignment_bytes = 512;
  settings->timeslice_ns = 2000000;
  settings->event_scale_permille = 1000;
  settings->sample_ns = 200000000;
  settings->copy_engines = 2;
  settings->pageable_permille = 1000;
  settings->dram_reach_permille = 1000;
  settings->pcie_window_ns = settings->pcie_floor_bytes = UINT64_MAX; /* not said */
  settings->gpm_refresh_ns = 10 * GS_TICK_NS;
  snprintf(settings->driver_version, sizeof settings->driver_version, "535.261.03");
}

void gs_complete_machine(struct gs_settings *settings) {
  bool timed = settings->copies_timed;
  if (settings->pcie_window_ns == UINT64_MAX) settings->pcie_window_ns = timed ? PCIE_WINDOW_NS : 0;
  if (settings->pcie_floor_bytes == UINT64_MAX) settings->pcie_floor_bytes = timed ? PCIE_FLOOR_BYTES : 0;
}
