/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * turn.h - turns among the processes of a container that wait for GPU time: by GPU time bought, so that kernels of 20 ms
 * and of 20 us get the same. Internal to the core.
 *
 * Whoever could buy and is ahead of a process that waits lets it go first. A waiter says until when it will wait
 * (waiting_ns of its slot) and is waited for from a little before that time until VGPU_TURN_NS after it: one that
 * died holds up the others no longer. A waiting_ns further back says when the process last asked.
 */
#ifndef VGPU_TURN_H
#define VGPU_TURN_H

#include "rate.h"

#define VGPU_TURN_LOOK_NS ((uint64_t)200000) /* how long to wait for a process whose turn it is, before looking again */

/* This process, whose slot is `books`, asks for `amount_ns` of GPU time, and has credit for it or not. True if it has to
 * let another one buy first. Brings served_ns and waiting_ns of this process up to date. */
bool vgpu_turn_ask(struct vgpu_rate_book *rate, struct vgpu_usage_slot_device *books, uint64_t now_ns,
                   uint64_t amount_ns, bool has_credit);

/* The waiting_ns of a process that does not wait, and asked at `now_ns`. */
static inline uint64_t vgpu_turn_over(uint64_t now_ns) {
  return now_ns > VGPU_TURN_NS + 1 ? now_ns - VGPU_TURN_NS - 1 : 1;
}

#endif
