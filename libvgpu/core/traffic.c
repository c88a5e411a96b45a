/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * traffic.c - contract in traffic.h; how a class is replaced, in vgpu_abi.h.
 *
 * Known limit: a thread that has found its class and is stopped before it adds to it may add one sample to the class that
 * has taken its place. Readers compare many samples, and expect odd ones.
 */
#include "traffic.h"

#include "line.h"
#include "slot.h"

#define COUNT_MAX ((uint64_t)1 << 60)
#define CLAIM_NS ((uint64_t)1000000000) /* who has not finished replacing a class by then was killed */
#define HALF_LIFE_NS ((uint64_t)8000000000)
#define SAMPLE_MAX_NS ((uint64_t)86400 * 1000000000) /* above: no clock measured that */
#define MIX ((uint64_t)0x9e3779b97f4a7c15ULL)

enum { SIZE_BITS = 3 /* eighths of an octave */, OLDEST_HALVINGS = 63 };

struct vgpu_usage_traffic *vgpu_traffic_of(const struct vgpu_book *book, uint32_t device) {
  if (!book->has_traffic || device >= book->device_count) {
    return NULL;
  }
  return (struct vgpu_usage_traffic *)((char *)book->usage + vgpu_usage_traffic_offset(book->device_count, device));
}

static uint64_t bounded(const uint64_t *word, uint64_t most) {
  uint64_t value = vgpu_load_relaxed(word);
  return value < most ? value : most;
}

static uint64_t mix(uint64_t value) {
  value = (value ^ value >> 32) * MIX;
  value = (value ^ value >> 29) * MIX;
  return value ^ value >> 32;
}

uint64_t vgpu_traffic_id(uint64_t key, uint64_t salt) {
  uint64_t id = mix(key + salt * MIX);
  return id != 0 ? id : 1;
}

uint64_t vgpu_traffic_copy_id(enum vgpu_direction direction, bool is_async, uint64_t bytes) {
  uint64_t octave = bytes == 0 ? 0 : 63 - (uint64_t)__builtin_clzll(bytes);
  uint64_t eighth = octave < SIZE_BITS ? 0 : bytes >> (octave - SIZE_BITS) & ((1 << SIZE_BITS) - 1);
  return vgpu_traffic_id(octave << 8 | eighth << 4 | (uint64_t)direction << 1 | is_async, 0);
}

/* What a class is kept for, now, within bounds whatever the page says. */
static uint64_t aged_score(const struct vgpu_class *entry, uint64_t now_ns) {
  uint64_t score = bounded(&entry->score_ns, COUNT_MAX), seen = vgpu_load_relaxed(&entry->seen_ns);
  uint64_t halvings = now_ns > seen ? (now_ns - seen) / HALF_LIFE_NS : 0;
  return halvings > OLDEST_HALVINGS ? 0 : score >> halvings;
}

static struct vgpu_class *find(struct vgpu_usage_traffic *traffic, uint64_t id) {
  for (int i = 0; i < VGPU_CLASS_COUNT; i++) {
    if (vgpu_load_relaxed(&traffic->classes[i].id) == id) {
      return &traffic->classes[i];
    }
  }
  return NULL;
}

/* The class that is worth least, a free one before all others. */
static struct vgpu_class *least(struct vgpu_usage_traffic *traffic, uint64_t now_ns) {
  struct vgpu_class *found = NULL;
  uint64_t worth = 0;
  for (int i = 0; i < VGPU_CLASS_COUNT; i++) {
    struct vgpu_class *entry = &traffic->classes[i];
    bool is_free = vgpu_load_relaxed(&entry->id) == 0 && vgpu_load_relaxed(&entry->claimed_ns) == 0;
    uint64_t score = is_free ? 0 : aged_score(entry, now_ns) | 1;
    if (found == NULL || score < worth) {
      found = entry;
      worth = score;
    }
  }
  return found;
}

/* Takes the entry for this thread. False: somebody is at it. */
static bool claim(struct vgpu_class *entry, uint64_t now_ns) {
  uint64_t claimed = vgpu_load(&entry->claimed_ns);
  bool is_taken = claimed != 0 && claimed <= now_ns && now_ns - claimed < CLAIM_NS;
  return !is_taken && __atomic_compare_exchange_n(&entry->claimed_ns, &claimed, now_ns != 0 ? now_ns : 1, false,
                                                  __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static void replace(struct vgpu_class *entry, const struct vgpu_sample *sample, uint64_t score_ns, uint64_t now_ns) {
  uint64_t claimed = now_ns != 0 ? now_ns : 1;
  vgpu_store(&entry->id, (uint64_t)0);
  vgpu_store(&entry->id_again, (uint64_t)0);
  vgpu_store_relaxed(&entry->kind, (uint32_t)sample->kind);
  vgpu_store_relaxed(&entry->score_ns, score_ns);
  vgpu_store_relaxed(&entry->seen_ns, now_ns);
  vgpu_store_relaxed(&entry->samples, (uint64_t)0);
  vgpu_store_relaxed(&entry->operations, (uint64_t)0);
  vgpu_store_relaxed(&entry->bytes, (uint64_t)0);
  vgpu_store_relaxed(&entry->time_ns, (uint64_t)0);
  for (int i = 0; i < VGPU_CLASS_RECENT; i++) {
    vgpu_store_relaxed(&entry->recent[i], 0u);
  }
  vgpu_store(&entry->id_again, sample->id);
  vgpu_store(&entry->id, sample->id);
  __atomic_compare_exchange_n(&entry->claimed_ns, &claimed, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* The entry of a class that is not kept yet, if it is from now on; NULL. */
static struct vgpu_class *admit(struct vgpu_usage_traffic *traffic, const struct vgpu_sample *sample,
                                uint64_t weight_ns, uint64_t now_ns) {
  struct vgpu_class *entry = least(traffic, now_ns);
  bool is_free = vgpu_load_relaxed(&entry->id) == 0;
  uint64_t score = is_free ? weight_ns : aged_score(entry, now_ns) + weight_ns;
  uint64_t lot = mix(now_ns ^ sample->id) % score;
  if (lot >= weight_ns) { /* it goes on being unknown, and what replaces it has to be worth more */
    vgpu_store_relaxed(&entry->seen_ns, now_ns);
    vgpu_store_relaxed(&entry->score_ns, score);
    return NULL;
  }
  if (!claim(entry, now_ns)) {
    return NULL;
  }
  replace(entry, sample, score, now_ns);
  return entry;
}

static uint32_t units_of(uint64_t ns) {
  uint64_t units = ns / VGPU_CLASS_UNIT_NS;
  return units == 0 ? 1 : units < UINT32_MAX ? (uint32_t)units : UINT32_MAX;
}

void vgpu_traffic_sample(struct vgpu_usage_traffic *traffic, const struct vgpu_sample *sample, uint64_t now_ns) {
  uint64_t operations = sample->operations != 0 ? sample->operations : 1, weight;
  if (sample->id == 0 || sample->ns > SAMPLE_MAX_NS) {
    return;
  }
  if (__builtin_mul_overflow(sample->ns + 1, operations, &weight) || weight > COUNT_MAX) {
    weight = COUNT_MAX;
  }
  struct vgpu_class *entry = find(traffic, sample->id);
  if (entry != NULL) {
    uint64_t score = aged_score(entry, now_ns);
    vgpu_store_relaxed(&entry->score_ns, score + weight);
    vgpu_store_relaxed(&entry->seen_ns, now_ns);
  } else {
    entry = admit(traffic, sample, weight, now_ns);
  }
  if (entry == NULL) {
    return;
  }
  __atomic_fetch_add(&entry->operations, operations, __ATOMIC_RELAXED);
  __atomic_fetch_add(&entry->bytes, sample->bytes, __ATOMIC_RELAXED);
  __atomic_fetch_add(&entry->time_ns, sample->ns, __ATOMIC_RELAXED);
  uint64_t number = __atomic_fetch_add(&entry->samples, 1, __ATOMIC_RELAXED);
  vgpu_store_relaxed(&entry->recent[number % VGPU_CLASS_RECENT], units_of(sample->ns));
}

static bool is_twice(const struct vgpu_traffic_view *view, uint64_t id) {
  for (uint32_t i = 0; i < view->class_count; i++) {
    if (view->classes[i].id == id) {
      return true;
    }
  }
  return false;
}

/* False: nothing to be believed. */
static bool read_class(const struct vgpu_class *entry, struct vgpu_class_view *view) {
  view->id = vgpu_load(&entry->id);
  view->kind = vgpu_load_relaxed(&entry->kind);
  view->samples = bounded(&entry->samples, COUNT_MAX);
  view->operations = bounded(&entry->operations, COUNT_MAX);
  view->bytes = bounded(&entry->bytes, COUNT_MAX);
  view->time_ns = bounded(&entry->time_ns, VGPU_TIME_MAX);
  view->recent_count = 0;
  for (uint64_t i = 0; i < VGPU_CLASS_RECENT; i++) {
    uint64_t at = (view->samples + i) % VGPU_CLASS_RECENT;
    uint64_t units = vgpu_load_relaxed(&entry->recent[at]);
    if (units != 0 && (view->samples >= VGPU_CLASS_RECENT || at < view->samples)) {
      view->recent_ns[view->recent_count++] = units * VGPU_CLASS_UNIT_NS;
    }
  }
  bool is_whole = view->id != 0 && vgpu_load(&entry->id_again) == view->id;
  bool is_sane = view->kind >= VGPU_CLASS_KERNEL && view->kind <= VGPU_CLASS_KIND_LAST && view->samples != 0;
  if (view->operations < view->samples) {
    view->operations = view->samples;
  }
  return is_whole && is_sane;
}

void vgpu_traffic_read(const struct vgpu_usage_traffic *traffic, struct vgpu_traffic_view *view) {
  for (int i = 0; i < VGPU_DIRECTION_COUNT; i++) {
    view->calls[i] = bounded(&traffic->copies[i].calls, COUNT_MAX);
    view->bytes[i] = bounded(&traffic->copies[i].amount, COUNT_MAX);
  }
  view->stalls = bounded(&traffic->stalls.calls, COUNT_MAX);
  view->stalled_ns = bounded(&traffic->stalls.amount, VGPU_TIME_MAX);
  view->class_count = 0;
  for (int i = 0; i < VGPU_CLASS_COUNT; i++) {
    struct vgpu_class_view *row = &view->classes[view->class_count];
    if (read_class(&traffic->classes[i], row) && !is_twice(view, row->id)) {
      view->class_count++;
    }
  }
}
