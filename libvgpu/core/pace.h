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
 *
 * What is launched before its cost is known cannot be refused for lack of credit, so it is bounded otherwise. Launches of
 * unsettled keys are charged the most that they took of late, those of unknown ones what first launches took of late in
 * this container (VGPU_COST_GUESS_NS at least, more the more of them are under way in it, and no less than the time that
 * one of them has been), up front: each is measured, and its charge settled by that. At most VGPU_SETTLING_MOST of them
 * are under way at a time. What a key's samples miss when short launches are suddenly long ones is booked by their weight.
 */
#ifndef VGPU_PACE_H
#define VGPU_PACE_H

#include "cost.h"
#include "rate.h"

enum { VGPU_SETTLING_MOST = 32 };
#define VGPU_SETTLING_NS ((uint64_t)3000000000) /* after so long, those that are under way are not waited for */
#define VGPU_SETTLING_LOOK_NS \
  ((uint64_t)1000000) /* while some are, whoever waits looks so often whether they are done */
#define VGPU_MISSED_MAX_NS ((uint64_t)1000000000) /* the most that is booked at once for what samples missed */

/* One device of this process. Private memory, zeroed by the caller, who then opens `rate`. */
struct vgpu_pacer {
  int64_t credit_ns;          /* atomic; bought and not used yet; never shared with another process */
  uint64_t launches;          /* not yet in the usage page; counts are lost when threads race */
  uint64_t settling_since_ns; /* when one of unsettled cost was last let go */
  uint64_t unknown_since_ns;  /* when the first one of unknown cost that is under way was let go, or later, */
  uint64_t unknown_last_ns;   /* and the last one */
  uint32_t settling;          /* those that are under way */
  uint32_t unknown;           /* and of these, of unknown cost */
  struct vgpu_rate_book rate;
};

/* One launch. Zeroed by the caller before it first asks. */
struct vgpu_ticket {
  struct vgpu_cost *cost; /* NULL: nothing was decided yet */
  uint64_t charged_ns;
  uint64_t went_ns; /* when it was let go, if `first` */
  uint32_t era;     /* of the key, when it was decided */
  uint8_t weight;   /* if it is measured: one of so many launches of the key that are */
  bool blind;       /* set by the caller before it first asks: this launch cannot be measured */
  bool sample;      /* bracket this launch with marks, if that can be done */
  bool first;       /* nothing is known of it yet: a guess was charged */
  bool settle;      /* what was charged is put right by the measurement of this launch */
  bool counted;     /* among those that are under way */
  bool busy;        /* while kept waiting: for others to be measured, not for GPU time */
};

/* This launch is to be measured if it can be; `flags` of its key. */
static inline void vgpu_ticket_sample(struct vgpu_ticket *ticket, uint32_t flags) {
  bool is_each = (flags & (VGPU_COST_LONG | VGPU_COST_UNSETTLED)) != 0;
  ticket->sample = !ticket->blind;
  ticket->era = __atomic_load_n(&ticket->cost->era, __ATOMIC_RELAXED);
  ticket->weight = is_each ? 1 : flags & VGPU_COST_STEADY ? VGPU_COST_EVERY_STEADY : VGPU_COST_EVERY;
}

/* True: launch now, *ticket says what was charged and whether to measure. False: nothing was decided, ask vgpu_pace. */
static inline bool vgpu_pace_quick(struct vgpu_pacer *pacer, struct vgpu_cost *cost, struct vgpu_ticket *ticket) {
  uint64_t ns = __atomic_load_n(&cost->cost_ns, __ATOMIC_RELAXED);
  uint32_t flags = __atomic_load_n(&cost->flags, __ATOMIC_RELAXED);
  bool usual = ns != 0 && (flags & (VGPU_COST_LONG | VGPU_COST_UNSETTLED | VGPU_COST_COLLECTIVE)) == 0 &&
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
  ticket->sample = false;
  ticket->first = false;
  ticket->settle = false;
  ticket->counted = false;
  ticket->busy = false;
  if (__builtin_expect(vgpu_cost_is_due(launches, flags), 0)) {
    vgpu_ticket_sample(ticket, flags);
  }
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

/* The time between the marks of a launch whose ticket said `sample`, which is done by now. */
void vgpu_pace_measured(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket, uint64_t elapsed_ns,
                        uint64_t now_ns);

/* It could not be measured: what was charged stays. */
void vgpu_pace_unmeasured(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket);

/* It used the GPU for `used_ns`, but what the next launches of the key use will be something else: pays, teaches nothing. */
void vgpu_pace_unlearnt(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket, uint64_t used_ns);

/* The driver refused the launch: nothing ran, and what was charged is given back. */
void vgpu_pace_refused(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket);

/* Puts the launches that were counted into the usage page. */
void vgpu_pace_flush(struct vgpu_pacer *pacer, uint64_t now_ns);

#endif
