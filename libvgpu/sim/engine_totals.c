/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * engine_totals.c - what a card's counters were at each tick of the last seconds, for what NVML shows of them. While work
 * runs every tick is kept, and the first one after it ran out; the counters stand still until the next that is kept.
 */
#include "engine_parts.h"

static void keep(struct gs_gpu *gpu, uint64_t index) {
  gpu->ticks[index % GS_TICKS] = (struct gs_tick){
      .index = index,
      .totals = {.busy_ns = gpu->busy_ns,
                 .memory_ns = gpu->memory_ns,
                 .sm_work = gpu->sm_work,
                 .dram_bytes = gpu->dram_bytes,
                 .rx_bytes = __atomic_load_n(&gpu->rx_bytes, __ATOMIC_RELAXED),
                 .tx_bytes = __atomic_load_n(&gpu->tx_bytes, __ATOMIC_RELAXED)},
  };
}

void gs_tick(struct gs_gpu *gpu) {
  keep(gpu, gpu->next_tick_ns / GS_TICK_NS);
  gpu->next_tick_ns += GS_TICK_NS;
}

void gs_tick_idle(struct gs_gpu *gpu, uint64_t now) {
  if (now < gpu->next_tick_ns) return;
  keep(gpu, gpu->next_tick_ns / GS_TICK_NS);
  gpu->next_tick_ns = (now / GS_TICK_NS + 1) * GS_TICK_NS;
}

struct gs_totals gs_engine_totals(struct gs_gpu *gpu, uint64_t time_ns) {
  uint64_t wanted = time_ns / GS_TICK_NS;
  gs_engine_update(gpu);
  gs_lock(gpu);
  const struct gs_tick *best = NULL;
  const struct gs_tick *oldest = &gpu->ticks[0];
  for (int i = 0; i < GS_TICKS; i++) {
    const struct gs_tick *tick = &gpu->ticks[i];
    if (tick->index < oldest->index) oldest = tick;
    if (tick->index <= wanted && (!best || tick->index > best->index)) best = tick;
  }
  struct gs_totals totals = (best ? best : oldest)->totals;
  gs_unlock(gpu);
  return totals;
}
