/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml_link.c - NVML: the PCIe link: what it could be, what it is (`gpusim set` takes lanes and generations away), and what
 * passes it.
 */
#include "nvml_types.h"

enum counter { COUNTER_TX = 0, COUNTER_RX = 1 }; /* sent by the card, received by it */

static unsigned generation(nvmlDevice_t device) {
  unsigned best = gs_link_generation(&device->gpu->card);
  unsigned set = device->gpu->live.link_generation;
  return set && set < best ? set : best;
}

static unsigned width(nvmlDevice_t device) {
  unsigned set = device->gpu->live.link_width;
  return set && set < GS_LINK_WIDTH ? set : GS_LINK_WIDTH;
}

NV_UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, generation(device))
NV_UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, gs_link_generation(&device->gpu->card))
NV_UNSIGNED(nvmlDeviceGetGpuMaxPcieLinkGeneration, gs_link_generation(&device->gpu->card))
NV_UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, width(device))
NV_UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, GS_LINK_WIDTH)
NV_UNSIGNED(nvmlDeviceGetPcieReplayCounter, 0)

/* Of one lane, in millions of transfers per second. */
static unsigned speed(nvmlDevice_t device) {
  static const unsigned speeds[] = {2500, 5000, 8000, 16000, 32000};
  return speeds[generation(device) - 1];
}
NV_UNSIGNED(nvmlDeviceGetPcieSpeed, speed(device))

/* Numbered like the generations. */
NV_UNSIGNED(nvmlDeviceGetPcieLinkMaxSpeed, gs_link_generation(&device->gpu->card))

double nv_with_noise(const struct nv_device *device, uint64_t time_ns, unsigned kind, double value) {
  double most = gs_self.region->settings.noise_permille / 1000.0;
  uint64_t word = time_ns / GS_TICK_NS << 16 ^ (uint64_t)device->gpu_index << 8 ^ kind;
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ull;
  word = (word ^ word >> 27) * 0x94d049bb133111ebull;
  word ^= word >> 31;
  return value * (1 + most * ((double)(word >> 11) / (double)(1ull << 52) - 1));
}

/* Bytes of the direction ever, and when they were that many: now, or with a window at a tick. */
struct reading {
  uint64_t bytes, at_ns;
};

static uint64_t bytes_of(const struct gs_totals *totals, int counter) {
  return counter == COUNTER_RX ? totals->rx_bytes : totals->tx_bytes;
}

/* As the real call, blocks for as long as the window is, and then tells of that. */
static void read_window(nvmlDevice_t device, int counter, struct reading reading[2]) {
  const struct gs_settings *settings = &gs_self.region->settings;
  uint64_t end = gs_now_ns() + settings->pcie_window_ns;
  while (gs_now_ns() < end)
    gs_sleep_until(end);
  reading[1].at_ns = (gs_now_ns() - settings->counter_lag_ns) / GS_TICK_NS * GS_TICK_NS;
  reading[0].at_ns = reading[1].at_ns - settings->pcie_window_ns;
  for (int i = 0; i < 2; i++) {
    struct gs_totals totals = gs_engine_totals(device->gpu, reading[i].at_ns);
    reading[i].bytes = bytes_of(&totals, counter);
  }
}

/* Without a window: since this process asked last about the same direction; the first time nothing. */
static void read_since(nvmlDevice_t device, int counter, struct reading reading[2]) {
  static struct reading last[GS_MAX_GPUS][2];
  struct reading *before = &last[device->gpu_index][counter];
  gs_engine_update(device->gpu);
  reading[1].bytes =
      __atomic_load_n(counter == COUNTER_RX ? &device->gpu->rx_bytes : &device->gpu->tx_bytes, __ATOMIC_RELAXED);
  reading[1].at_ns = gs_now_ns();
  reading[0] = before->at_ns ? *before : reading[1];
  *before = reading[1];
}

/* In kB/s, of 1000 bytes. */
NV_API(nvmlDeviceGetPcieThroughput)(nvmlDevice_t device, int counter, unsigned *kilobytes_per_second) {
  struct reading reading[2];
  NV_ENTER_DEVICE(nvmlDeviceGetPcieThroughput, device);
  if (!kilobytes_per_second || counter < COUNTER_TX || counter > COUNTER_RX) return NVML_ERROR_INVALID_ARGUMENT;
  const struct gs_settings *settings = &gs_self.region->settings;
  if (settings->pcie_window_ns)
    read_window(device, counter, reading);
  else
    read_since(device, counter, reading);
  double seconds = (double)(reading[1].at_ns - reading[0].at_ns) / 1e9;
  double rate = seconds > 0 ? (double)(reading[1].bytes - reading[0].bytes) / seconds : 0;
  rate = nv_with_noise(device, reading[1].at_ns, (unsigned)counter, rate + (double)settings->pcie_floor_bytes);
  *kilobytes_per_second = (unsigned)(rate / 1000);
  return NVML_SUCCESS;
}
