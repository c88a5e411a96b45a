/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * slot.h - the slots of the usage page: claiming one for this process, and taking back those of dead ones; and
 * the lock that lets one thread of this process at a time work on its slot. Internal to the core; quota.h is the
 * door.
 *
 * The lock is in private memory. It is never held across a driver call, and no other process ever waits for it.
 */
#ifndef VGPU_SLOT_H
#define VGPU_SLOT_H

#include <errno.h>
#include <stdbool.h>

#include "quota.h"

enum { VGPU_PID_BITS = 22, VGPU_EVERY_DEVICE = VGPU_MAX_DEVICES };

#define VGPU_PID_MASK (((uint64_t)1 << VGPU_PID_BITS) - 1)

/* Shared words. The order of the loads and stores named plain is what the proof in quota.c needs. */
#define vgpu_load(word) __atomic_load_n((word), __ATOMIC_SEQ_CST)
#define vgpu_load_relaxed(word) __atomic_load_n((word), __ATOMIC_RELAXED)
#define vgpu_store(word, value) __atomic_store_n((word), (value), __ATOMIC_SEQ_CST)
#define vgpu_store_release(word, value) __atomic_store_n((word), (value), __ATOMIC_RELEASE)
#define vgpu_store_relaxed(word, value) __atomic_store_n((word), (value), __ATOMIC_RELAXED)
#define vgpu_add(word, value) __atomic_add_fetch((word), (value), __ATOMIC_SEQ_CST)

/* Counts one down in private memory, if there are any. Returns how many there were. */
static inline uint32_t vgpu_lower(uint32_t *count) {
  uint32_t value = vgpu_load_relaxed(count);
  while (value != 0 &&
         !__atomic_compare_exchange_n(count, &value, value - 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return value;
}

/* Adds to a word that only the thread inside the lock writes. */
#define vgpu_count(word) vgpu_store_relaxed((word), vgpu_load_relaxed(word) + 1)

static inline struct vgpu_usage_slot *vgpu_slot_at(const struct vgpu_book *book, uint32_t index) {
  return (struct vgpu_usage_slot *)((char *)book->usage + vgpu_usage_slot_offset(book->device_count, index));
}

static inline struct vgpu_usage_slot_device *vgpu_slot_device(struct vgpu_usage_slot *slot, uint32_t device) {
  return (struct vgpu_usage_slot_device *)(slot + 1) + device;
}

/* What a launch is charged of which nothing is known, in bounds whatever the page says. */
#define VGPU_FIRST_MIN_NS ((uint64_t)1000000)
#define VGPU_FIRST_MAX_NS ((uint64_t)1000000000)

static inline uint64_t vgpu_first_ns(const struct vgpu_usage_device *usage) {
  uint64_t first = vgpu_load_relaxed(&usage->first_ns);
  return first < VGPU_FIRST_MIN_NS ? VGPU_FIRST_MIN_NS : first < VGPU_FIRST_MAX_NS ? first : VGPU_FIRST_MAX_NS;
}

/* True if the slot belongs to a registered process of `epoch` (or of one that was raised meanwhile). */
static inline bool vgpu_slot_counts(struct vgpu_usage_slot *slot, uint32_t epoch) {
  uint64_t owner = vgpu_load(&slot->owner);
  return owner != 0 && vgpu_load(&slot->ready) == owner && (int32_t)(vgpu_load_relaxed(&slot->epoch) - epoch) >= 0;
}

/* True if the slot is claimed and not ready, and its charges may be held all the same: see slot.c, "Half claimed". */
static inline bool vgpu_slot_is_in_doubt(struct vgpu_usage_slot *slot) {
  uint64_t owner = vgpu_load(&slot->owner), ready = vgpu_load(&slot->ready);
  return owner != 0 && ready != owner && (ready == 0 || ready != vgpu_load_relaxed(&slot->folded));
}

/* True if the slot is half claimed and has a word that no process writes, wherever it is killed. */
bool vgpu_slot_is_damaged(struct vgpu_usage_slot *slot, uint32_t device_count);

/* What a slot in doubt may hold of `device`, if it is of `epoch`; VGPU_BYTES_MAX if it is damaged. */
uint64_t vgpu_slot_doubtful_bytes(struct vgpu_usage_slot *slot, uint32_t device, uint32_t device_count, uint32_t epoch);

/* True if any slot is damaged. */
bool vgpu_slot_any_damaged(const struct vgpu_book *book);

/* True if this process has registered; false before, and in a forked child that has not yet. */
static inline bool vgpu_slot_is_registered(const struct vgpu_book *book) {
  if (__atomic_load_n(&book->token, __ATOMIC_ACQUIRE) == 0) {
    return false;
  }
  if (book->fork_canary != NULL) {
    return __atomic_load_n(book->fork_canary, __ATOMIC_ACQUIRE) != 0;
  }
  return vgpu_process_pid() == book->self.pid;
}

/* True if our slot is still ours, in the epoch that the limits page names now. Inside the lock. */
static inline bool vgpu_slot_is_ours(const struct vgpu_book *book) {
  const struct vgpu_usage_slot *slot = vgpu_slot_at(book, book->slot_index);
  return vgpu_load_relaxed(&slot->owner) == book->token && vgpu_load_relaxed(&slot->ready) == book->token &&
         vgpu_load_relaxed(&slot->epoch) == vgpu_load_relaxed(&book->limits->epoch);
}

/* Takes the lock; afterwards book->self is this process, and what a fork copied is forgotten. 0, or -EAGAIN
 * after some seconds (a caller inside was stopped, or is us: a signal handler). */
int vgpu_slot_enter_slowly(struct vgpu_book *book);

static inline int vgpu_slot_enter(struct vgpu_book *book) {
  uint32_t nobody = 0;
  if (__builtin_expect(vgpu_slot_is_registered(book), 1) &&
      __builtin_expect(
          __atomic_compare_exchange_n(&book->lock, &nobody, book->self.pid, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED),
          1)) {
    return 0;
  }
  return vgpu_slot_enter_slowly(book);
}

static inline void vgpu_slot_leave(struct vgpu_book *book) {
  vgpu_store_release(&book->lock, 0u);
}

/* Registers this process, or registers it again after a fork, an epoch raise, or the loss of its slot, with all
 * that it holds. Inside the lock. 0 or -EAGAIN. */
int vgpu_slot_attach(struct vgpu_book *book);

/* Makes sure that this process has a slot, whatever it may reserve. Inside the lock. 0, -EAGAIN, or -EPROTO where the
 * usage page is none (any more). */
static inline int vgpu_slot_ensure(struct vgpu_book *book) {
  if (vgpu_load_relaxed(&book->usage->magic) != VGPU_USAGE_MAGIC) {
    return -EPROTO;
  }
  return book->token != 0 && vgpu_slot_is_ours(book) ? 0 : vgpu_slot_attach(book);
}

/* Gives up our own slot. Inside the lock. */
void vgpu_slot_detach(struct vgpu_book *book);

/* Takes back the slots of dead processes that hold or claim bytes of `device`, or of all dead processes for
 * VGPU_EVERY_DEVICE. Inside the lock. Returns how many. */
uint32_t vgpu_slot_reap(struct vgpu_book *book, uint32_t device);

/* Takes the lock and does so, at most about every 10 ms. True if any slot was taken back. */
bool vgpu_slot_look_now_and_then(struct vgpu_book *book, uint32_t device);

/* Frees slots in doubt (all half-claimed ones for `every`) whose claimers are dead. Sleeps 20 ms if there is any.
 * Inside the lock. Returns how many. */
uint32_t vgpu_slot_reap_unready(struct vgpu_book *book, bool every);

#endif
