/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml_gpm.c - NVML: GPM, counters between two samples. A sample holds the counters as they were at the last refresh, less
 * the lag. As the library of driver 535 has it by its documentation, version 1 of the structures and 97 metrics at most at
 * once; what it answers for two samples of the same refresh ("no data") and to an unknown metric ("not supported") are
 * guesses.
 */
#include <stdlib.h>

#include "nvml_types.h"

enum { GPM_VERSION = 1, MOST_METRICS = 98, METRIC_IDS = 512 };
static const uint32_t live_magic = 0x6d706731;

struct nv_gpm_sample {
  uint32_t magic;
  const struct nv_device *device; /* NULL: nothing in it yet */
  uint64_t at_ns;
  struct gs_totals totals;
};

enum metric {
  METRIC_GRAPHICS = 1,
  METRIC_SM = 2,
  METRIC_OCCUPANCY = 3,
  METRIC_DRAM = 10,
  METRIC_PCIE_TX = 20,
  METRIC_PCIE_RX = 21
};

static bool has_gpm(const struct nv_device *device) {
  uint32_t gpm = device->gpu->live.gpm;
  return gpm == 2 ? device->gpu->card.compute_major >= 9 : gpm == 1;
}

static bool is_sample(const struct nv_gpm_sample *sample) {
  return sample && sample->magic == live_magic;
}

NV_API(nvmlGpmQueryDeviceSupport)(nvmlDevice_t device, struct nv_gpm_support *support) {
  NV_ENTER_DEVICE(nvmlGpmQueryDeviceSupport, device);
  if (!support) return NVML_ERROR_INVALID_ARGUMENT;
  if (support->version != GPM_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  support->supported = has_gpm(device);
  return NVML_SUCCESS;
}

NV_API(nvmlGpmSampleAlloc)(struct nv_gpm_sample **out) {
  NV_ENTER(nvmlGpmSampleAlloc);
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  struct nv_gpm_sample *sample = calloc(1, sizeof *sample);
  if (!sample) return NVML_ERROR_MEMORY;
  sample->magic = live_magic;
  *out = sample;
  return NVML_SUCCESS;
}

NV_API(nvmlGpmSampleFree)(struct nv_gpm_sample *sample) {
  NV_ENTER(nvmlGpmSampleFree);
  if (!is_sample(sample)) return NVML_ERROR_INVALID_ARGUMENT;
  sample->magic = 0;
  free(sample);
  return NVML_SUCCESS;
}

NV_API(nvmlGpmSampleGet)(nvmlDevice_t device, struct nv_gpm_sample *sample) {
  NV_ENTER_DEVICE(nvmlGpmSampleGet, device);
  const struct gs_settings *settings = &gs_self.region->settings;
  if (!is_sample(sample)) return NVML_ERROR_INVALID_ARGUMENT;
  if (!has_gpm(device)) return NVML_ERROR_NOT_SUPPORTED;
  sample->device = device;
  sample->at_ns = (gs_now_ns() - settings->counter_lag_ns) / settings->gpm_refresh_ns * settings->gpm_refresh_ns;
  sample->totals = gs_engine_totals(device->gpu, sample->at_ns);
  return NVML_SUCCESS;
}

/* What the counters did between two samples. */
struct change {
  const struct nv_device *device;
  double seconds;
  uint64_t at_ns;
  struct gs_totals by;
};

static double percent(double part) {
  return part < 0 ? 0 : part > 1 ? 100 : 100 * part;
}

static double mebibytes(const struct change *change, unsigned id, uint64_t bytes) {
  double rate = (double)bytes / change->seconds + (double)gs_self.region->settings.pcie_floor_bytes;
  return nv_with_noise(change->device, change->at_ns, id, rate) / (1 << 20);
}

/* The metric's value; false: there is no such figure of this card. */
static bool compute(const struct change *change, unsigned id, double *value) {
  const struct gs_gpu *gpu = change->device->gpu;
  double ns = change->seconds * 1e9;
  double dram = (double)change->by.dram_bytes / change->seconds / (double)gpu->card.dram_bytes_per_second +
                gs_self.region->settings.dram_floor_permille / 1000.0;
  switch (id) {
  case METRIC_GRAPHICS:
    *value = percent((double)change->by.busy_ns / ns);
    return true;
  case METRIC_SM: /* how blocks are placed is not modelled: as if they were packed */
  case METRIC_OCCUPANCY:
    *value = percent((double)change->by.sm_work / 1000 / ns);
    return true;
  case METRIC_DRAM:
    *value = percent(nv_with_noise(change->device, change->at_ns, id, dram));
    return true;
  case METRIC_PCIE_TX:
    *value = mebibytes(change, id, change->by.tx_bytes);
    return true;
  case METRIC_PCIE_RX:
    *value = mebibytes(change, id, change->by.rx_bytes);
    return true;
  default: /* without NVLink, video engines and kinds of arithmetic */
    return false;
  }
}

static void answer(const struct change *change, struct nv_gpm_metric *metric) {
  static const struct {
    const char *name, *unit;
  } names[] = {[METRIC_GRAPHICS] = {"Graphics Util", "%"},    [METRIC_SM] = {"SM Util", "%"},
               [METRIC_OCCUPANCY] = {"SM Occupancy", "%"},    [METRIC_DRAM] = {"DRAM BW Util", "%"},
               [METRIC_PCIE_TX] = {"PCIe TX Per Sec", "MiB"}, [METRIC_PCIE_RX] = {"PCIe RX Per Sec", "MiB"}};
  const uint64_t *missing = change->device->gpu->live.gpm_missing;
  bool named = metric->id < sizeof names / sizeof *names && names[metric->id].name;
  metric->short_name = metric->long_name = named ? names[metric->id].name : NULL;
  metric->unit = named ? names[metric->id].unit : NULL;
  metric->value = 0;
  if (metric->id < METRIC_IDS && missing[metric->id / 64] >> metric->id % 64 & 1)
    metric->result = NVML_ERROR_NOT_SUPPORTED;
  else if (change->seconds <= 0)
    metric->result = NVML_ERROR_NO_DATA;
  else
    metric->result = compute(change, metric->id, &metric->value) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

NV_API(nvmlGpmMetricsGet)(struct nv_gpm_metrics *wanted) {
  NV_ENTER(nvmlGpmMetricsGet);
  if (!wanted) return NVML_ERROR_INVALID_ARGUMENT;
  if (wanted->version != GPM_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (wanted->count == 0 || wanted->count > MOST_METRICS) return NVML_ERROR_INVALID_ARGUMENT;
  const struct nv_gpm_sample *first = wanted->first;
  const struct nv_gpm_sample *second = wanted->second;
  if (!is_sample(first) || !is_sample(second) || !first->device || first->device != second->device)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (second->at_ns < first->at_ns) return NVML_ERROR_INVALID_ARGUMENT;
  const struct change change = {.device = first->device,
                                .seconds = (double)(second->at_ns - first->at_ns) / 1e9,
                                .at_ns = second->at_ns,
                                .by = {.busy_ns = second->totals.busy_ns - first->totals.busy_ns,
                                       .sm_work = second->totals.sm_work - first->totals.sm_work,
                                       .dram_bytes = second->totals.dram_bytes - first->totals.dram_bytes,
                                       .rx_bytes = second->totals.rx_bytes - first->totals.rx_bytes,
                                       .tx_bytes = second->totals.tx_bytes - first->totals.tx_bytes}};
  for (unsigned i = 0; i < wanted->count; i++)
    answer(&change, &wanted->metrics[i]);
  return NVML_SUCCESS;
}
