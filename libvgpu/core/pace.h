/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pace.h - one launch, from asking to measuring: cost.h and rate.h put together, without a clock and without a driver, so
 * that the same steps run in libvgpu in real time and in the benchmark in virtual time.
 *
 *   ask:      vgpu_pace_quick, and if that cannot say, vgpu_pace(now) until it answers 0
 *   launch    the caller's (vgpu_pace_refused if the driver would not)
 *   measured: vgpu_pace_measured with the time between the marks, for tickets with `sample` (or vgpu_pace_unmeasured)
 *
 * The usual launch (known cost, credit at hand) touches private memory only and reads no clock.
 */
#ifndef VGPU_PACE_H
#define VGPU_PACE_H

#include "cost.h"
#include "rate.h"

/* One device of this process. Private memory, zeroed by the caller, who then opens `rate`. */
struct vgpu_pacer {
  int64_t credit_ns; /* atomic; bought and not used yet; never shared with another process */
  uint64_t launches; /* not yet in the usage page; counts are lost when threads race */
  struct vgpu_rate_book rate;
};

/* One launch. Zeroed by the caller before it first asks. */
struct vgpu_ticket {
  struct vgpu_cost *cost; /* NULL: nothing was decided yet */
  uint64_t charged_ns;
  bool blind;  /* set by the caller before it first asks: this launch cannot be measured */
  bool sample; /* bracket this launch with marks, if that can be done */
  bool first;  /* nothing is known of it yet, so nothing was charged */
  bool busy;   /* while kept waiting: for the first launch of the key to be measured, not for GPU time */
};

/* True: launch now, *ticket says what was charged and whether to measure. False: nothing was decided, ask vgpu_pace. */
static inline bool vgpu_pace_quick(struct vgpu_pacer *pacer, struct vgpu_cost *cost, struct vgpu_ticket *ticket) {
  uint64_t ns = __atomic_load_n(&cost->cost_ns, __ATOMIC_RELAXED);
  uint32_t flags = __atomic_load_n(&cost->flags, __ATOMIC_RELAXED);
  bool usual = ns != 0 && (flags & (VGPU_COST_LONG | VGPU_COST_DOUBTED)) == 0 &&
               __atomic_load_n(&pacer->credit_ns, __ATOMIC_RELAXED) >= (int64_t)ns;
  if (__builtin_expect(!usual, 0)) {
    return false;
  }
  if (__builtin_expect(__atomic_fetch_sub(&pacer->credit_ns, (int64_t)ns, __ATOMIC_RELAXED) < (int64_t)ns, 0)) {
    __atomic_fetch_add(&pacer->credit_ns, (int64_t)ns, __ATOMIC_RELAXED);
    return false;
  }
  uint32_t launches = __atomic_load_n(&cost->launches, __ATOMIC_RELAXED);
  uint64_t untold = __atomic_load_n(&pacer->launches, __ATOMIC_RELAXED);
  __atomic_store_n(&cost->launches, launches + 1, __ATOMIC_RELAXED);
  __atomic_store_n(&pacer->launches, untold + 1, __ATOMIC_RELAXED);
  ticket->cost = cost;
  ticket->charged_ns = ns;
  ticket->sample = !ticket->blind && (launches < VGPU_COST_FRESH || vgpu_cost_is_due(launches, flags));
  ticket->first = false;
  ticket->busy = false;
  return true;
}

/* 0: launch. Else: wait at most so long (ns), then ask again with the same `ticket`. `waited_ns`: for how long this launch
 * has waited in all. When `ticket->busy` the caller looks for finished measurements before it asks again; else it waits
 * for GPU time, and says so (vgpu_rate_waiting). `patience_ns`: VGPU_WAIT_MAX_NS, or 0 for a launch that must not wait at
 * all (it is charged all the same). Whatever the debt, it goes when it has waited so long and nobody of the allocation
 * launched meanwhile (who queues waits longer, or many threads would together have more than the share); one that costs
 * more than its patience by itself waits for as long as it costs, up to VGPU_WAIT_OWN_NS. One ticket may be shown to
 * several pacers in turn: what is decided about the cost is decided once. */
uint64_t vgpu_pace(struct vgpu_pacer *pacer, struct vgpu_cost *cost, uint64_t now_ns, uint64_t waited_ns,
                   uint64_t patience_ns, struct vgpu_ticket *ticket);

/* The time between the marks of a launch whose ticket said `sample`. */
void vgpu_pace_measured(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket, uint64_t elapsed_ns);

/* It could not be measured: charged by guess if nothing was charged. */
void vgpu_pace_unmeasured(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket);

/* The driver refused the launch: nothing ran, and what was charged is given back. */
void vgpu_pace_refused(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket);

/* Puts the launches that were counted into the usage page. */
void vgpu_pace_flush(struct vgpu_pacer *pacer, uint64_t now_ns);

#endif
