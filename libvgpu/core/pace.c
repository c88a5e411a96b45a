/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pace.c - contract in pace.h.
 */
#include "pace.h"

#include "slot.h"

/* Decides what the launch is charged and whether to measure it. False: its key is being measured for the first time. */
static bool decide(struct vgpu_pacer *pacer, struct vgpu_cost *cost, bool must_go, struct vgpu_ticket *ticket) {
  enum vgpu_cost_step step = ticket->blind ? VGPU_COST_BUSY : vgpu_cost_next(cost);
  if (step == VGPU_COST_BUSY && !ticket->blind && !must_go && !vgpu_rate_is_open(&pacer->rate)) {
    return false;
  }
  ticket->first = step == VGPU_COST_FIRST;
  ticket->sample = step == VGPU_COST_FIRST || step == VGPU_COST_SAMPLE;
  if (step == VGPU_COST_BUSY) {
    ticket->charged_ns = vgpu_cost_guess(cost);
  } else {
    ticket->charged_ns = ticket->first ? 0 : vgpu_load_relaxed(&cost->cost_ns);
  }
  ticket->cost = cost;
  return true;
}

void vgpu_pace_flush(struct vgpu_pacer *pacer, uint64_t now_ns) {
  uint64_t launches = __atomic_exchange_n(&pacer->launches, 0, __ATOMIC_RELAXED);
  if (launches != 0) {
    vgpu_rate_count(&pacer->rate, launches, now_ns);
  }
}

static void count_launch(struct vgpu_pacer *pacer, uint64_t now_ns) {
  vgpu_store_relaxed(&pacer->launches, vgpu_load_relaxed(&pacer->launches) + 1);
  vgpu_pace_flush(pacer, now_ns);
}

static uint64_t smaller(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* How much longer the launch waits at most; 0: it goes. */
static uint64_t patience_left(const struct vgpu_pacer *pacer, const struct vgpu_cost *cost, uint64_t now_ns,
                              uint64_t waited_ns, uint64_t patience_ns) {
  uint64_t own = smaller(vgpu_load_relaxed(&cost->cost_ns), VGPU_COST_MAX_NS) * VGPU_PPM / vgpu_rate_ppm(&pacer->rate);
  own = smaller(own, VGPU_WAIT_OWN_NS);
  uint64_t most = patience_ns != 0 && own > patience_ns ? own : patience_ns;
  uint64_t in_vain = smaller(waited_ns, vgpu_rate_idle_ns(&pacer->rate, now_ns));
  return most > in_vain ? most - in_vain : 0;
}

uint64_t vgpu_pace(struct vgpu_pacer *pacer, struct vgpu_cost *cost, uint64_t now_ns, uint64_t waited_ns,
                   uint64_t patience_ns, struct vgpu_ticket *ticket) {
  uint64_t left = patience_left(pacer, cost, now_ns, waited_ns, patience_ns);
  bool must_go = left == 0;
  ticket->busy = ticket->cost == NULL && !decide(pacer, cost, must_go, ticket);
  if (ticket->busy) {
    return VGPU_WAIT_MIN_NS;
  }
  /* All credit at hand is taken, and what is left of it put back. */
  int64_t credit = __atomic_exchange_n(&pacer->credit_ns, 0, __ATOMIC_RELAXED);
  uint64_t have = credit > 0 ? (uint64_t)credit : 0, charged = ticket->charged_ns, bought = 0;
  uint64_t need = charged > have ? charged - have : 0;
  if (need != 0 || ticket->first) { /* of which nothing is known is launched only where there is no debt */
    uint64_t wait = vgpu_rate_buy(&pacer->rate, need, now_ns, must_go, &bought);
    if (wait != 0) {
      __atomic_fetch_add(&pacer->credit_ns, credit, __ATOMIC_RELAXED);
      return smaller(wait, left);
    }
  }
  __atomic_fetch_add(&pacer->credit_ns, credit + (int64_t)bought - (int64_t)charged, __ATOMIC_RELAXED);
  count_launch(pacer, now_ns);
  return 0;
}

void vgpu_pace_measured(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket, uint64_t elapsed_ns) {
  uint64_t spun = vgpu_cost_spun(ticket->cost, elapsed_ns, ticket->charged_ns);
  int64_t more = vgpu_cost_learn(ticket->cost, elapsed_ns, ticket->charged_ns, vgpu_rate_is_alone(&pacer->rate));
  if (more != 0) {
    vgpu_rate_correct(&pacer->rate, more);
  }
  if (spun != 0) {
    vgpu_rate_spun(&pacer->rate, spun);
  }
}

void vgpu_pace_unmeasured(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket) {
  if (ticket->first) {
    vgpu_cost_give_up(ticket->cost);
    vgpu_rate_correct(&pacer->rate, (int64_t)vgpu_cost_guess(ticket->cost));
  }
}

void vgpu_pace_refused(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket) {
  if (ticket->first) {
    vgpu_cost_give_up(ticket->cost);
  } else {
    vgpu_rate_correct(&pacer->rate, -(int64_t)ticket->charged_ns);
  }
}
