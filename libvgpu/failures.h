/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * failures.h - launches of which nothing is known, and which cannot be measured: each one in a row of the same function or
 * graph is charged twice as much as the one before, up to a second. So where the driver cannot measure, or a program keeps
 * it from measuring, less goes through than the share, never more.
 */
#ifndef VGPU_FAILURES_H
#define VGPU_FAILURES_H

#include "core/pace.h"

/* One more: what is to be charged for it beyond the guess; 0 for what is known, and where all may be used. */
uint64_t vgpu_failure_ns(const struct vgpu_pacer *pacer, const struct vgpu_cost *cost);

/* One was measured. */
void vgpu_failures_end(const struct vgpu_cost *cost);

/* In a forked child. */
void vgpu_failures_forget(void);

/* True if a launch of unknown cost that cannot be measured may go now: they go one at a time, as far apart as what is
 * charged for each lasts at the rate, VGPU_WAIT_MAX_NS at most. Who gets true has to launch. */
bool vgpu_failure_turn(const struct vgpu_pacer *pacer, const struct vgpu_cost *cost, uint64_t now_ns);

#endif
