/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * holds.c - contract in holds.h.
 */
#include "holds.h"

#include "clock.h"
#include "core/sys.h"
#include "table.h"

enum {
  NO_MODE = -1,
  HOLD_SPINS = 10000 /* yields; a thread that never leaves (cancelled, left by longjmp) is not waited for longer */
};

#define LONG_HOLD_NS ((uint64_t)200000000)

static uint32_t holds;         /* atomic */
static uint64_t held_since_ns; /* atomic; since when there has been one */
static uint32_t inside;        /* atomic; threads of ours in a driver call that a capture must not meet */

/* Whether the driver lets a thread say that its calls are not to spoil anybody's capture, and it is time for that: most
 * captures are over soon, and see nothing of us at all. */
static bool is_long_hold(void) {
  return VGPU_REAL(cuThreadExchangeStreamCaptureMode) &&
         vgpu_now_ns() - __atomic_load_n(&held_since_ns, __ATOMIC_RELAXED) > LONG_HOLD_NS;
}

bool vgpu_is_held(void) {
  return __atomic_load_n(&holds, __ATOMIC_RELAXED) != 0 && !is_long_hold();
}

static void exchange_mode(int *mode) {
  __typeof__(&cuThreadExchangeStreamCaptureMode) exchange = VGPU_REAL(cuThreadExchangeStreamCaptureMode);
  if (*mode != NO_MODE && exchange) exchange(mode);
}

/* Either this sees the hold, or the holder sees us and waits. */
bool vgpu_hold_enter(int *mode) {
  *mode = NO_MODE;
  __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&holds, __ATOMIC_SEQ_CST) == 0) return true;
  if (is_long_hold()) {
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    exchange_mode(mode);
    return true;
  }
  __atomic_sub_fetch(&inside, 1, __ATOMIC_RELEASE);
  return false;
}

void vgpu_hold_leave(int mode) {
  exchange_mode(&mode);
  __atomic_sub_fetch(&inside, 1, __ATOMIC_RELEASE);
}

void vgpu_hold(void) {
  if (__atomic_load_n(&holds, __ATOMIC_RELAXED) == 0) __atomic_store_n(&held_since_ns, vgpu_now_ns(), __ATOMIC_RELAXED);
  __atomic_add_fetch(&holds, 1, __ATOMIC_SEQ_CST);
  for (int i = 0; i < HOLD_SPINS && __atomic_load_n(&inside, __ATOMIC_SEQ_CST) != 0; i++)
    vgpu_sys_sched_yield();
}

void vgpu_hold_release(void) {
  __atomic_sub_fetch(&holds, 1, __ATOMIC_RELEASE);
}

void vgpu_holds_forget(void) {
  holds = 0;
  inside = 0;
}
