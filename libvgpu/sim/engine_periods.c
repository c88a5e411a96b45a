/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * engine_periods.c - busy time by sample period. Periods are those of the monotonic clock: period i lasts from i times the
 * sample period on. What NVML shows is the last whole one, when its lag has passed.
 */
#include "engine_parts.h"

void gs_periods_add(struct gs_periods *periods, uint64_t from, uint64_t to) {
  uint64_t period = gs_self.region->settings.sample_ns;
  uint64_t index = from / period;
  if (to - from > GS_PERIODS * period) {
    index = to / period - GS_PERIODS;
    from = index * period;
  }
  while (from < to) {
    uint64_t end = (index + 1) * period;
    uint64_t until = to < end ? to : end;
    uint32_t place = index % GS_PERIODS;
    if (periods->index[place] != index) {
      periods->index[place] = index;
      periods->busy_ns[place] = 0;
    }
    periods->busy_ns[place] += until - from;
    from = until;
    index++;
  }
}

/* Whether the sample never appears: by chance, but the same for all who ask. */
static bool is_missing(uint64_t index, uint32_t slot) {
  uint64_t word = (index << 10 ^ slot) * 0x9e3779b97f4a7c15ull;
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ull;
  word = (word ^ word >> 27) * 0x94d049bb133111ebull;
  return (word ^ word >> 31) % 100 < gs_self.region->settings.missing_percent;
}

struct gs_sample gs_engine_sample(struct gs_gpu *gpu, int slot) {
  const struct gs_settings *settings = &gs_self.region->settings;
  struct gs_periods *periods = slot < 0 ? &gpu->periods : &gpu->queues[slot].periods;
  struct gs_periods *memory = slot < 0 ? &gpu->memory : &gpu->queues[slot].memory;
  uint64_t memory_ns = 0;
  struct gs_sample sample = {0};
  uint64_t now = gs_now_ns();
  if (now < settings->sample_lag_ns + settings->sample_ns) return sample;
  uint64_t shown = now - settings->sample_lag_ns;
  uint64_t index = shown / settings->sample_ns - 1;
  gs_engine_update(gpu);
  sample.end_ns = (index + 1) * settings->sample_ns;
  gs_lock(gpu);
  if (periods->index[index % GS_PERIODS] == index) sample.busy_ns = periods->busy_ns[index % GS_PERIODS];
  if (memory->index[index % GS_PERIODS] == index) memory_ns = memory->busy_ns[index % GS_PERIODS];
  gs_unlock(gpu);
  if (slot >= 0 && is_missing(index, (uint32_t)slot)) sample.busy_ns = 0;
  sample.percent = (uint32_t)((sample.busy_ns * 100 + settings->sample_ns / 2) / settings->sample_ns);
  sample.memory_percent = (uint32_t)((memory_ns * 100 + settings->sample_ns / 2) / settings->sample_ns);
  return sample;
}
