/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * fault.c - finds the injected faults that a call meets. Only reached while at least one is armed.
 */
#define _GNU_SOURCE
#include "fault.h"

#include <time.h>
#include <unistd.h>

#include "region.h"

/* Takes one off a counter; false if it is at zero. UINT64_MAX never runs out. */
static bool take_one(uint64_t *counter) {
  uint64_t left = __atomic_load_n(counter, __ATOMIC_RELAXED);
  while (left != 0) {
    if (left == UINT64_MAX) return true;
    if (__atomic_compare_exchange_n(counter, &left, left - 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return true;
  }
  return false;
}

int gs_fault_apply(uint32_t function, int gpu) {
  for (int i = 0; i < GS_MAX_FAULTS; i++) {
    struct gs_fault *fault = &gs_self.region->faults[i];
    if (!__atomic_load_n(&fault->armed, __ATOMIC_ACQUIRE)) continue;
    if (!(fault->functions[function / 8] >> (function % 8) & 1)) continue;
    if (fault->gpu >= 0 && fault->gpu != gpu) continue;
    if (fault->pid > 0 && fault->pid != getpid()) continue;
    if (take_one(&fault->after) || !take_one(&fault->count)) continue;
    const struct timespec delay = {.tv_sec = fault->delay_ms / 1000, .tv_nsec = fault->delay_ms % 1000 * 1000000L};
    if (fault->delay_ms) nanosleep(&delay, NULL);
    if (fault->result) return fault->result;
  }
  return 0;
}
