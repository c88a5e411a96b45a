/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pace.c - contract in pace.h.
 */
#include "pace.h"

#include "slot.h"

enum { UNKNOWN_PART = 8 }; /* so many of unknown cost under way double the guess for the next one */

static bool is_collective(const struct vgpu_cost *cost) {
  return (vgpu_load_relaxed(&cost->flags) & VGPU_COST_COLLECTIVE) != 0;
}

/* What is charged for a launch of which nothing is known. One that is under way for long is long, and the next one may be
 * like it: so the number of those that go before the first one is measured grows with the logarithm of the time that
 * takes, however many processes begin at once. */
static uint64_t first_price(const struct vgpu_pacer *pacer, const struct vgpu_cost *cost, uint64_t now_ns) {
  uint64_t guess = vgpu_rate_first_ns(&pacer->rate);
  if (is_collective(cost) && guess < VGPU_COST_SPIN_NS / 2) {
    guess = VGPU_COST_SPIN_NS / 2;
  }
  if (vgpu_rate_is_open(&pacer->rate)) {
    return vgpu_smaller(guess, VGPU_COST_GUESS_NS);
  }
  struct vgpu_unknown unknown = vgpu_rate_unknown_of_others(&pacer->rate, now_ns);
  uint32_t own = vgpu_load_relaxed(&pacer->unknown);
  uint64_t own_since = own != 0 ? vgpu_load_relaxed(&pacer->unknown_since_ns) : now_ns;
  uint64_t own_age = now_ns > own_since ? now_ns - own_since : 0, age = now_ns - unknown.since_ns;
  age = own_age > age && own_age < VGPU_UNKNOWN_NS ? own_age : age;
  uint64_t price = guess + guess * (own + unknown.count) / UNKNOWN_PART;
  return vgpu_smaller(price > age ? price : age, VGPU_FIRST_MAX_NS);
}

/* What is charged for a launch whose measurement settles it. A collective that should wait for others to be measured and may
 * not is made dear, so that soon one has to wait that may. */
static uint64_t deposit(const struct vgpu_pacer *pacer, const struct vgpu_cost *cost, uint64_t now_ns) {
  uint64_t price = vgpu_load_relaxed(&cost->cost_ns) != 0 ? vgpu_cost_price(cost) : first_price(pacer, cost, now_ns);
  bool is_many = vgpu_load_relaxed(&pacer->settling) >= VGPU_SETTLING_MOST;
  return is_collective(cost) && is_many && price < VGPU_COST_SPIN_NS ? VGPU_COST_SPIN_NS : price;
}

/* True if as many are under way as may be, and there is hope for them. */
static bool is_full(struct vgpu_pacer *pacer, uint64_t now_ns) {
  if (vgpu_load_relaxed(&pacer->settling) < VGPU_SETTLING_MOST || vgpu_rate_is_open(&pacer->rate)) {
    return false;
  }
  if (now_ns - vgpu_load_relaxed(&pacer->settling_since_ns) < VGPU_SETTLING_NS) {
    return true;
  }
  vgpu_store_relaxed(&pacer->settling, 0u); /* their threads have left, or what they wait for is one that waits here */
  return false;
}

/* Decides what the launch is charged and whether to measure it. False: others are to be measured first. */
static bool decide(struct vgpu_pacer *pacer, struct vgpu_cost *cost, uint64_t now_ns, bool must_go,
                   struct vgpu_ticket *ticket) {
  uint32_t flags = vgpu_load_relaxed(&cost->flags);
  bool uncertain = vgpu_load_relaxed(&cost->cost_ns) == 0 || (flags & VGPU_COST_UNSETTLED) != 0;
  if (uncertain && !ticket->blind && !must_go && is_full(pacer, now_ns)) {
    return false;
  }
  enum vgpu_cost_step step = ticket->blind ? VGPU_COST_BUSY : vgpu_cost_next(cost);
  if (step == VGPU_COST_BUSY && !ticket->blind && !must_go && !vgpu_rate_is_open(&pacer->rate)) {
    return false;
  }
  ticket->cost = cost;
  ticket->first = step == VGPU_COST_FIRST;
  ticket->settle = ticket->first || step == VGPU_COST_SETTLE || (step == VGPU_COST_BUSY && must_go && !ticket->blind) ||
                   (is_collective(cost) && !ticket->blind && !vgpu_rate_is_mixed(&pacer->rate));
  ticket->sample = false;
  if (ticket->settle) {
    ticket->charged_ns = deposit(pacer, cost, now_ns);
  } else {
    ticket->charged_ns = step == VGPU_COST_BUSY ? vgpu_cost_guess(cost) : vgpu_load_relaxed(&cost->cost_ns);
  }
  if (ticket->settle || step == VGPU_COST_SAMPLE) {
    vgpu_ticket_sample(ticket, ticket->settle ? flags | VGPU_COST_UNSETTLED : flags);
  }
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

/* Counts launches under way whose charges are to be settled. */
static void begin_settling(struct vgpu_pacer *pacer, struct vgpu_ticket *ticket, uint64_t now_ns) {
  vgpu_store_relaxed(&pacer->settling_since_ns, now_ns);
  __atomic_fetch_add(&pacer->settling, 1, __ATOMIC_RELAXED);
  if (ticket->first) {
    ticket->went_ns = now_ns;
    vgpu_store_relaxed(&pacer->unknown_last_ns, now_ns);
    uint32_t count = __atomic_add_fetch(&pacer->unknown, 1, __ATOMIC_RELAXED);
    if (count == 1) {
      vgpu_store_relaxed(&pacer->unknown_since_ns, now_ns);
    }
    vgpu_rate_unknown(&pacer->rate, count, vgpu_load_relaxed(&pacer->unknown_since_ns));
  }
}

/* The launch is done, or nobody will know. */
static void end(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket) {
  if (ticket->counted) {
    vgpu_rate_under_way(&pacer->rate, -(int64_t)ticket->charged_ns);
  }
}

/* The launch is settled; `paid_ns`: with what. */
static void end_settling(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket, uint64_t paid_ns) {
  uint64_t since = vgpu_load_relaxed(&pacer->unknown_since_ns);
  if (ticket->settle) {
    vgpu_lower(&pacer->settling);
    vgpu_rate_mix(&pacer->rate, paid_ns, is_collective(ticket->cost));
  }
  if (ticket->first) {
    if (ticket->went_ns <= since) { /* the others went later: as long ago as the latest of them, at the least */
      since = vgpu_load_relaxed(&pacer->unknown_last_ns);
      vgpu_store_relaxed(&pacer->unknown_since_ns, since);
    }
    uint32_t before = vgpu_lower(&pacer->unknown);
    vgpu_rate_unknown(&pacer->rate, before != 0 ? before - 1 : 0, since);
  }
}

/* Books what charges turned out to be too low by: for this launch, which took `elapsed_ns`, no more than the GPU can have
 * worked; for others, which may still run, all of it. */
static void book(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket, int64_t more_ns, uint64_t elapsed_ns,
                 uint64_t now_ns) {
  uint64_t elapsed = vgpu_smaller(elapsed_ns, VGPU_COST_MAX_NS);
  uint64_t own = elapsed > ticket->charged_ns ? elapsed - ticket->charged_ns : 0;
  own = more_ns > 0 ? vgpu_smaller(own, (uint64_t)more_ns) : 0;
  if (own != 0) {
    vgpu_rate_measured(&pacer->rate, own, elapsed, now_ns);
  }
  if (more_ns != (int64_t)own) {
    vgpu_rate_correct(&pacer->rate, more_ns - (int64_t)own);
  }
}

/* The launch is paid with `used_ns`, and known. */
static void settle(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket, uint64_t used_ns) {
  uint64_t used = vgpu_smaller(used_ns, VGPU_COST_MAX_NS);
  if (used != ticket->charged_ns) {
    vgpu_rate_correct(&pacer->rate, (int64_t)used - (int64_t)ticket->charged_ns);
  }
  end_settling(pacer, ticket, used);
}

/* How much longer the launch waits at most; 0: it goes. */
static uint64_t patience_left(const struct vgpu_pacer *pacer, const struct vgpu_cost *cost, uint64_t now_ns,
                              uint64_t waited_ns, uint64_t patience_ns) {
  uint64_t own =
      vgpu_smaller(vgpu_load_relaxed(&cost->cost_ns), VGPU_COST_MAX_NS) * VGPU_PPM / vgpu_rate_ppm(&pacer->rate);
  own = vgpu_smaller(own, VGPU_WAIT_OWN_NS);
  uint64_t most = patience_ns != 0 && own > patience_ns ? own : patience_ns;
  uint64_t in_vain = vgpu_smaller(waited_ns, vgpu_rate_idle_ns(&pacer->rate, now_ns));
  return most > in_vain ? most - in_vain : 0;
}

static void give_back(struct vgpu_pacer *pacer, int64_t ns) {
  __atomic_fetch_add(&pacer->credit_ns, ns, __ATOMIC_RELAXED);
}

uint64_t vgpu_pace(struct vgpu_pacer *pacer, struct vgpu_cost *cost, uint64_t now_ns, uint64_t waited_ns,
                   uint64_t patience_ns, struct vgpu_ticket *ticket) {
  uint64_t left = patience_left(pacer, cost, now_ns, waited_ns, patience_ns);
  bool must_go = left == 0;
  ticket->busy = ticket->cost == NULL && !decide(pacer, cost, now_ns, must_go, ticket);
  if (ticket->busy) {
    return VGPU_WAIT_MIN_NS;
  }
  if (ticket->first) { /* others may have gone meanwhile, or been measured */
    ticket->charged_ns = deposit(pacer, cost, now_ns);
  }
  /* All credit at hand is taken, and what is left of it put back. */
  int64_t credit = __atomic_exchange_n(&pacer->credit_ns, 0, __ATOMIC_RELAXED);
  uint64_t have = credit > 0 ? (uint64_t)credit : 0, charged = ticket->charged_ns, bought = 0;
  uint64_t need = charged > have ? charged - have : 0;
  if (need != 0) {
    uint64_t wait = vgpu_rate_buy(&pacer->rate, need, now_ns, must_go, &bought);
    if (wait != 0) {
      give_back(pacer, credit);
      wait = vgpu_load_relaxed(&pacer->settling) != 0 ? vgpu_smaller(wait, VGPU_SETTLING_LOOK_NS) : wait;
      return vgpu_smaller(wait, left);
    }
  }
  if (ticket->first && !vgpu_cost_claim(cost)) { /* another thread was faster */
    give_back(pacer, credit + (int64_t)bought);
    ticket->cost = NULL;
    ticket->busy = true;
    return VGPU_WAIT_MIN_NS;
  }
  give_back(pacer, credit + (int64_t)bought - (int64_t)charged);
  if (ticket->settle) {
    begin_settling(pacer, ticket, now_ns);
  } else {
    vgpu_rate_mix(&pacer->rate, is_collective(cost) ? charged : bought, is_collective(cost));
  }
  ticket->counted = ticket->sample && charged < VGPU_COST_MAX_NS;
  if (ticket->counted) {
    vgpu_rate_under_way(&pacer->rate, (int64_t)charged);
  }
  count_launch(pacer, now_ns);
  return 0;
}

/* What launches of a key that was short took together, of which this long one is a sample, beside what it took itself: those
 * that were launched before the first long one of them was measured. */
static int64_t missed(const struct vgpu_ticket *ticket, uint32_t flags, uint64_t elapsed_ns) {
  bool was_short = ticket->weight > 1 && ticket->charged_ns < VGPU_COST_LONG_NS;
  bool is_long = elapsed_ns >= VGPU_COST_LONG_NS && elapsed_ns / 2 > ticket->charged_ns;
  if (!was_short || !is_long || (flags & VGPU_COST_LONG) == 0 || (flags & VGPU_COST_COLLECTIVE) != 0) {
    return 0; /* a single one says little about the others */
  }
  uint64_t more = vgpu_smaller(elapsed_ns, VGPU_MISSED_MAX_NS) - ticket->charged_ns;
  return (int64_t)vgpu_smaller(more * (uint64_t)(ticket->weight - 1), VGPU_MISSED_MAX_NS);
}

void vgpu_pace_measured(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket, uint64_t elapsed_ns,
                        uint64_t now_ns) {
  struct vgpu_cost *cost = ticket->cost;
  uint32_t flags = vgpu_load_relaxed(&cost->flags);
  end(pacer, ticket);
  if (vgpu_rate_is_left(&pacer->rate, now_ns) && !ticket->settle && vgpu_load_relaxed(&cost->cost_ns) != 0) {
    vgpu_cost_hold(cost); /* scale and costs belong together: both stay as they were left */
    end_settling(pacer, ticket, ticket->charged_ns);
    return;
  }
  bool alone = vgpu_rate_is_alone(&pacer->rate), is_past = ticket->era != vgpu_load_relaxed(&cost->era);
  if (is_past && vgpu_load_relaxed(&cost->cost_ns) == 0) { /* of a graph that is gone */
    settle(pacer, ticket, ticket->settle ? elapsed_ns : ticket->charged_ns);
    return;
  }
  uint64_t open = ticket->settle ? 0 : ticket->charged_ns; /* what of the charge is not settled here */
  int64_t more = vgpu_cost_learn(cost, elapsed_ns, open, alone) - (int64_t)(ticket->charged_ns - open);
  if (is_past) {
    vgpu_cost_unsettle(cost);
  } else if (alone) {
    more += missed(ticket, flags, elapsed_ns);
  }
  book(pacer, ticket, more, elapsed_ns, now_ns);
  uint64_t own = ticket->settle ? vgpu_load_relaxed(&cost->cost_ns) : ticket->charged_ns;
  uint64_t spun = vgpu_cost_spun(cost, elapsed_ns, own);
  end_settling(pacer, ticket, is_collective(cost) ? own : vgpu_smaller(elapsed_ns, VGPU_COST_MAX_NS));
  if (spun != 0) {
    vgpu_rate_spun(&pacer->rate, spun);
  }
  if (ticket->first) {
    vgpu_rate_first(&pacer->rate, elapsed_ns);
  }
}

void vgpu_pace_unlearnt(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket, uint64_t used_ns) {
  end(pacer, ticket);
  if (ticket->first) {
    vgpu_cost_give_up(ticket->cost);
  }
  settle(pacer, ticket, used_ns);
}

void vgpu_pace_unmeasured(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket) {
  end(pacer, ticket);
  if (ticket->first) {
    vgpu_cost_give_up(ticket->cost);
  }
  end_settling(pacer, ticket, ticket->charged_ns);
}

void vgpu_pace_refused(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket) {
  end(pacer, ticket);
  if (ticket->first) {
    vgpu_cost_give_up(ticket->cost);
  }
  vgpu_rate_correct(&pacer->rate, -(int64_t)ticket->charged_ns);
  end_settling(pacer, ticket, 0);
}
