/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * failures.c - contract in failures.h. A count beside each entry of the table of costs; counts are lost when threads race.
 */
#include "failures.h"

#include "launches.h"

enum { MOST_DOUBLINGS = 10 };

/* In a row, by the entry's place in the table; the last one is that of last resort. Atomic. */
static uint8_t counts[VGPU_COST_ENTRIES + 1];
static uint64_t next_turn_ns; /* atomic; of the whole process: such launches are rare */

static uint8_t *count_of(const struct vgpu_cost *cost) {
  bool is_last = cost == &vgpu_launch_costs.last_resort;
  return &counts[is_last ? VGPU_COST_ENTRIES : cost - vgpu_launch_costs.entries];
}

uint64_t vgpu_failure_ns(const struct vgpu_pacer *pacer, const struct vgpu_cost *cost) {
  if (__atomic_load_n(&cost->cost_ns, __ATOMIC_RELAXED) != 0 || vgpu_rate_is_open(&pacer->rate)) return 0;
  uint8_t *count = count_of(cost), before = __atomic_load_n(count, __ATOMIC_RELAXED);
  if (before < MOST_DOUBLINGS) __atomic_store_n(count, (uint8_t)(before + 1), __ATOMIC_RELAXED);
  return (VGPU_COST_GUESS_NS << before) - VGPU_COST_GUESS_NS;
}

bool vgpu_failure_turn(const struct vgpu_pacer *pacer, const struct vgpu_cost *cost, uint64_t now_ns) {
  if (__atomic_load_n(&cost->cost_ns, __ATOMIC_RELAXED) != 0 || vgpu_rate_is_open(&pacer->rate)) return true;
  uint64_t next = __atomic_load_n(&next_turn_ns, __ATOMIC_RELAXED);
  uint64_t charge = VGPU_COST_GUESS_NS << __atomic_load_n(count_of(cost), __ATOMIC_RELAXED);
  uint64_t gap = vgpu_smaller(charge * VGPU_PPM / vgpu_rate_ppm(&pacer->rate), VGPU_WAIT_MAX_NS);
  return now_ns >= next &&
         __atomic_compare_exchange_n(&next_turn_ns, &next, now_ns + gap, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void vgpu_failures_end(const struct vgpu_cost *cost) {
  uint8_t *count = count_of(cost);
  if (__atomic_load_n(count, __ATOMIC_RELAXED) != 0) __atomic_store_n(count, (uint8_t)0, __ATOMIC_RELAXED);
}

void vgpu_failures_forget(void) {
  for (int i = 0; i <= VGPU_COST_ENTRIES; i++)
    counts[i] = 0;
  next_turn_ns = 0;
}
