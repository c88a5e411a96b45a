/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pending.c - what the processes of a container tell each other of launches that are under way. Contract in pending.h and
 * rate.h. Words of others are bounded.
 */
#include "pending.h"

#include "slot.h"
#include "trust.h"

enum {
  UNKNOWN_MOST = 1024, /* of one process */
  FALL_PART = 4,       /* by this part of the difference the guess for first launches falls, */
  RISE_PART = 2        /* and by this it rises */
};

struct vgpu_usage_slot_device *vgpu_rate_slot(const struct vgpu_rate_book *rate) {
  struct vgpu_book *book = rate->book;
  struct vgpu_usage_slot *slot = vgpu_slot_at(book, vgpu_load_relaxed(&book->slot_index));
  uint64_t token = vgpu_load(&book->token);
  bool is_ours = vgpu_slot_is_registered(book) && vgpu_load(&slot->owner) == token &&
                 vgpu_load(&slot->ready) == token &&
                 vgpu_load_relaxed(&slot->epoch) == vgpu_load_relaxed(&book->limits->epoch);
  return is_ours ? vgpu_slot_device(slot, rate->device) : NULL;
}

void vgpu_rate_under_way(struct vgpu_rate_book *rate, int64_t more_ns) {
  struct vgpu_usage_slot_device *books = vgpu_rate_slot(rate);
  uint64_t sum = __atomic_add_fetch(&rate->under_way_ns, (uint64_t)more_ns, __ATOMIC_RELAXED);
  if (books != NULL) {
    vgpu_store_relaxed(&books->under_way_ns, sum);
  }
}

uint64_t vgpu_rate_all_under_way(const struct vgpu_rate_book *rate) {
  struct vgpu_book *book = rate->book;
  const struct vgpu_usage_slot_device *own = vgpu_rate_slot(rate);
  uint64_t sum = vgpu_load_relaxed(&rate->under_way_ns);
  uint32_t epoch = vgpu_load_relaxed(&book->limits->epoch), count = vgpu_load_relaxed(&book->usage->slot_high_water);
  for (uint32_t i = 0; i < count && i < book->slot_count; i++) {
    struct vgpu_usage_slot *slot = vgpu_slot_at(book, i);
    const struct vgpu_usage_slot_device *books = vgpu_slot_device(slot, rate->device);
    uint64_t other = vgpu_load_relaxed(&books->under_way_ns);
    if (books != own && other != 0 && vgpu_slot_counts(slot, epoch)) {
      sum += other < VGPU_COST_MAX_NS ? other : VGPU_COST_MAX_NS;
    }
  }
  return sum;
}

uint64_t vgpu_rate_first_ns(const struct vgpu_rate_book *rate) {
  return vgpu_first_ns(vgpu_rate_usage(rate));
}

void vgpu_rate_first(struct vgpu_rate_book *rate, uint64_t elapsed_ns) {
  struct vgpu_usage_device *usage = vgpu_rate_usage(rate);
  uint64_t first = vgpu_first_ns(usage), sample = elapsed_ns < VGPU_FIRST_MAX_NS ? elapsed_ns : VGPU_FIRST_MAX_NS;
  first = sample > first ? first + (sample - first) / RISE_PART : first - (first - sample) / FALL_PART;
  if (first != vgpu_first_ns(usage)) {
    vgpu_store_relaxed(&usage->first_ns, first);
  }
}

void vgpu_rate_unknown(struct vgpu_rate_book *rate, uint32_t count, uint64_t since_ns) {
  struct vgpu_usage_slot_device *books = vgpu_rate_slot(rate);
  if (books != NULL) {
    vgpu_store_relaxed(&books->unknown_since_ns, count != 0 ? since_ns : 0);
    vgpu_store_relaxed(&books->unknown, (uint64_t)count);
  }
}

struct vgpu_unknown vgpu_rate_unknown_of_others(const struct vgpu_rate_book *rate, uint64_t now_ns) {
  struct vgpu_unknown unknown = {.since_ns = now_ns};
  struct vgpu_book *book = rate->book;
  const struct vgpu_usage_slot_device *own = vgpu_rate_slot(rate);
  uint32_t epoch = vgpu_load_relaxed(&book->limits->epoch), slots = vgpu_load_relaxed(&book->usage->slot_high_water);
  for (uint32_t i = 0; i < slots && i < book->slot_count; i++) {
    struct vgpu_usage_slot *slot = vgpu_slot_at(book, i);
    const struct vgpu_usage_slot_device *books = vgpu_slot_device(slot, rate->device);
    uint64_t count = vgpu_load_relaxed(&books->unknown), since = vgpu_load_relaxed(&books->unknown_since_ns);
    if (books == own || count == 0 || !vgpu_slot_counts(slot, epoch)) {
      continue;
    }
    unknown.count += count < UNKNOWN_MOST ? (uint32_t)count : UNKNOWN_MOST;
    bool is_recent = since < now_ns && now_ns - since < VGPU_UNKNOWN_NS;
    unknown.since_ns = is_recent && since < unknown.since_ns ? since : unknown.since_ns;
  }
  return unknown;
}
