/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * turn.c - contract in turn.h. What others have been served is only compared among those that ask: one that was idle, or is
 * new, starts level with the least of them, and one that gets what it asks for without waiting keeps no claim to what
 * it did not ask for. Words of others are bounded; whatever they are, a process waits for others no longer than
 * the caller's patience.
 */
#include "turn.h"

#include "slot.h"

enum {
  TURN_EARLY_NS = 1000000, /* a waiter is waited for from so long before the end of its wait */
  TURN_LAG_NS = 200000000  /* what a process that need not wait may be behind, in GPU time */
};

/* The other processes that asked of late. */
struct others {
  uint64_t least_ns; /* served */
  uint64_t most_ns;
  uint64_t waiting_ns; /* the least served of those whose turn it may be; UINT64_MAX: none */
  bool any;
};

static struct others look_at_others(const struct vgpu_rate_book *rate, const struct vgpu_usage_slot_device *own,
                                    uint64_t now_ns) {
  struct others others = {.least_ns = UINT64_MAX, .waiting_ns = UINT64_MAX};
  struct vgpu_book *book = rate->book;
  uint32_t epoch = vgpu_load_relaxed(&book->limits->epoch);
  uint32_t count = vgpu_load_relaxed(&book->usage->slot_high_water);
  count = count < book->slot_count ? count : book->slot_count;
  for (uint32_t i = 0; i < count; i++) {
    struct vgpu_usage_slot *slot = vgpu_slot_at(book, i);
    const struct vgpu_usage_slot_device *books = vgpu_slot_device(slot, rate->device);
    uint64_t served = vgpu_load_relaxed(&books->served_ns), waiting = vgpu_load_relaxed(&books->waiting_ns);
    bool asked = waiting <= VGPU_TIME_MAX && waiting + VGPU_ACTIVE_NS >= now_ns;
    if (books == own || !asked || served > VGPU_TIME_MAX || !vgpu_slot_counts(slot, epoch)) {
      continue;
    }
    others.any = true;
    others.least_ns = served < others.least_ns ? served : others.least_ns;
    others.most_ns = served > others.most_ns ? served : others.most_ns;
    bool due = waiting + VGPU_TURN_NS >= now_ns && waiting <= now_ns + TURN_EARLY_NS;
    others.waiting_ns = due && served < others.waiting_ns ? served : others.waiting_ns;
  }
  return others;
}

/* Raises what this process was served to what it may be behind the others. */
static void catch_up(struct vgpu_rate_book *rate, const struct others *others, bool is_new) {
  uint64_t least = others->most_ns > TURN_LAG_NS ? others->most_ns - TURN_LAG_NS : 0;
  uint64_t served = vgpu_load_relaxed(&rate->served_ns);
  if (is_new && others->least_ns > least) {
    least = others->least_ns;
  }
  while (served < least &&
         !__atomic_compare_exchange_n(&rate->served_ns, &served, least, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

bool vgpu_turn_ask(struct vgpu_rate_book *rate, struct vgpu_usage_slot_device *books, uint64_t now_ns,
                   uint64_t amount_ns, bool has_credit) {
  struct others others = look_at_others(rate, books, now_ns);
  uint64_t asked = vgpu_load_relaxed(&rate->asked_ns);
  bool is_new = asked == 0 || asked + VGPU_ACTIVE_NS < now_ns, waits = vgpu_load_relaxed(&rate->waiters) != 0;
  if (waits && vgpu_load_relaxed(&rate->renewed_ns) + VGPU_ACTIVE_NS < now_ns) { /* they have left */
    vgpu_store_relaxed(&rate->waiters, 0u);
    waits = false;
  }
  if (others.any && !waits && (is_new || has_credit)) {
    catch_up(rate, &others, is_new);
  }
  vgpu_store_relaxed(&rate->asked_ns, now_ns);
  if (!waits) {
    vgpu_store_relaxed(&books->waiting_ns, vgpu_turn_over(now_ns));
  }
  vgpu_store_relaxed(&books->served_ns, vgpu_load_relaxed(&rate->served_ns));
  uint64_t lead = amount_ns > VGPU_LEAD_NS ? amount_ns : VGPU_LEAD_NS;
  return others.waiting_ns != UINT64_MAX && vgpu_load_relaxed(&rate->served_ns) > others.waiting_ns + lead;
}
