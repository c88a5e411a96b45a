/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pace.h - one launch, from asking to measuring: cost.h and rate.h put together, without a clock and without a driver, so
 * that the same steps run in libvgpu in real time and in the benchmark in virtual time.
 *
 *   ask:      vgpu_pace_quick, and if that cannot say, vgpu_pace(now) until it answers 0
 *   launch    the caller's
 *   measured: vgpu_pace_measured with the time between the marks, for tickets with `sample` (or vgpu_pace_unmeasured)
 *
 * The usual launch (known cost, credit at hand) touches private memory only and reads no clock.
 */
#ifndef VGPU_PACE_H
#define VGPU_PACE_H

#include "cost.h"
#include "rate.h"

/* One device of this process. Private memory, zeroed by the caller. */
struct vgpu_pacer {
  int64_t credit_ns; /* atomic; bought and not used yet; never shared with another process */
  struct vgpu_rate_book rate;
  uint64_t launches; /* atomic; not yet in the usage page */
};

struct vgpu_ticket {
  struct vgpu_cost *cost;
  uint64_t charged_ns;
  bool sample; /* bracket this launch with marks, if that can be done */
  bool first;  /* nothing is known of it yet, so nothing was charged */
};

/* True: launch now, *ticket says what was charged and whether to measure. False: nothing was decided, ask vgpu_pace. */
static inline bool vgpu_pace_quick(struct vgpu_pacer *pacer, struct vgpu_cost *cost, struct vgpu_ticket *ticket);

/* 0: launch. Else: wait at most so long (ns), then ask again with the same `ticket`, which is zeroed before the first
 * call. `waited_ns`: for how long this launch has waited in all. When BUSY the caller looks for finished measurements
 * before it asks again. `patience_ns`: launch after this time whatever the debt; VGPU_WAIT_MAX_NS, 0 for a launch that must not
 * wait at all (it is charged all the same). */
uint64_t vgpu_pace(struct vgpu_pacer *pacer, struct vgpu_cost *cost, uint64_t now_ns, uint64_t waited_ns,
                   uint64_t patience_ns, struct vgpu_ticket *ticket);

/* The time between the marks of a launch whose ticket said `sample`. */
void vgpu_pace_measured(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket, uint64_t elapsed_ns, uint64_t now_ns);

/* It could not be measured: charged by guess if nothing was charged. */
void vgpu_pace_unmeasured(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket, uint64_t now_ns);

#endif
