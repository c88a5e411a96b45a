/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * slot.h - the slots of the usage page: claiming one for this process, and taking back those of dead ones.
 * Internal to the core; quota.h is the door.
 */
#ifndef VGPU_SLOT_H
#define VGPU_SLOT_H

#include <stdbool.h>

#include "quota.h"

enum { VGPU_PID_BITS = 22, VGPU_EVERY_DEVICE = VGPU_MAX_DEVICES };

#define VGPU_PID_MASK (((uint64_t)1 << VGPU_PID_BITS) - 1)

/* Shared words. Loads and stores that the proof in quota.c orders are sequentially consistent. */
#define vgpu_load(word) __atomic_load_n((word), __ATOMIC_SEQ_CST)
#define vgpu_load_relaxed(word) __atomic_load_n((word), __ATOMIC_RELAXED)
#define vgpu_store(word, value) __atomic_store_n((word), (value), __ATOMIC_SEQ_CST)
#define vgpu_store_relaxed(word, value) __atomic_store_n((word), (value), __ATOMIC_RELAXED)
#define vgpu_add(word, value) __atomic_add_fetch((word), (value), __ATOMIC_SEQ_CST)
#define vgpu_subtract(word, value) __atomic_sub_fetch((word), (value), __ATOMIC_SEQ_CST)

static inline struct vgpu_usage_slot *vgpu_slot_at(const struct vgpu_book *book, uint32_t index) {
  return (struct vgpu_usage_slot *)((char *)book->usage + vgpu_usage_slot_offset(book->device_count, index));
}

static inline struct vgpu_usage_slot_device *vgpu_slot_device(struct vgpu_usage_slot *slot, uint32_t device) {
  return (struct vgpu_usage_slot_device *)(slot + 1) + device;
}

/* True if the slot belongs to a registered process of `epoch` (or of one that was raised meanwhile). */
static inline bool vgpu_slot_counts(struct vgpu_usage_slot *slot, uint32_t epoch) {
  uint64_t owner = vgpu_load(&slot->owner);
  return owner != 0 && vgpu_load(&slot->ready) == owner && (int32_t)(vgpu_load_relaxed(&slot->epoch) - epoch) >= 0;
}

/* True if this process has registered under `token`; false before, and in a forked child that has not yet. */
static inline bool vgpu_slot_is_registered(const struct vgpu_book *book, uint64_t token) {
  if (token == 0) {
    return false;
  }
  if (book->fork_canary != NULL) {
    return vgpu_load_relaxed(book->fork_canary) != 0;
  }
  return (uint64_t)vgpu_process_pid() == (token & VGPU_PID_MASK);
}

/* True if `slot` is ours under `token`, in the epoch that the limits page names now. */
static inline bool vgpu_slot_is_ours(const struct vgpu_book *book, struct vgpu_usage_slot *slot, uint64_t token) {
  return vgpu_load_relaxed(&slot->owner) == token && vgpu_load_relaxed(&slot->ready) == token &&
         vgpu_load_relaxed(&slot->epoch) == vgpu_load_relaxed(&book->limits->epoch);
}

/* Registers this process, or registers it again after a fork, an epoch raise, or the loss of its slot. Threads
 * of the process wait for each other. 0 or -EAGAIN. */
int vgpu_slot_attach(struct vgpu_book *book);

/* Waits until no thread of this process is registering it. */
void vgpu_slot_settle(struct vgpu_book *book);

/* Makes book->self valid for this process, before the first vgpu_slot_reap. False: another thread is about it
 * for too long. */
bool vgpu_slot_identify(struct vgpu_book *book);

/* Gives up our own slot. */
void vgpu_slot_detach(struct vgpu_book *book);

/* Takes back the slots of dead processes that hold or try for bytes of `device`, or of all dead processes for
 * VGPU_EVERY_DEVICE. Returns how many. */
uint32_t vgpu_slot_reap(struct vgpu_book *book, uint32_t device);

#endif
