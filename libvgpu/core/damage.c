/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * damage.c - what damage to a usage page looks like: slots that are half claimed, what they may hold, and which of
 * them no process can have left so. Contract in slot.h; why, in slot.c under "Half claimed".
 */
#include "slot.h"

/* Every token has the bit above the pid set (random_token), and no process has the pid 0. */
static bool is_token(uint64_t word) {
  return word == 0 || ((word >> VGPU_PID_BITS & 1) != 0 && (word & VGPU_PID_MASK) != 0);
}

bool vgpu_slot_is_damaged(struct vgpu_usage_slot *slot, uint32_t device_count) {
  uint64_t owner = vgpu_load(&slot->owner), ready = vgpu_load(&slot->ready);
  if (owner == 0 || owner == ready) {
    return false;
  }
  bool possible = is_token(owner) && is_token(ready) && is_token(vgpu_load_relaxed(&slot->folded)) &&
                  vgpu_load_relaxed(&slot->pid_namespace) <= UINT32_MAX;
  for (uint32_t i = 0; i < device_count && possible; i++) {
    struct vgpu_usage_slot_device *books = vgpu_slot_device(slot, i);
    possible = vgpu_load_relaxed(&books->trying_bytes) <= VGPU_BYTES_MAX;
    for (int kind = 0; kind < VGPU_KIND_COUNT; kind++) {
      possible = possible && vgpu_load_relaxed(&books->charged_bytes[kind]) <= VGPU_BYTES_MAX;
    }
  }
  return !possible;
}

bool vgpu_slot_any_damaged(const struct vgpu_book *book) {
  for (uint32_t i = 0; i < book->slot_count; i++) {
    if (vgpu_slot_is_damaged(vgpu_slot_at(book, i), book->device_count)) {
      return true;
    }
  }
  return false;
}

uint64_t vgpu_slot_doubtful_bytes(struct vgpu_usage_slot *slot, uint32_t device, uint32_t device_count,
                                  uint32_t epoch) {
  uint64_t charged = 0;
  if (vgpu_slot_is_damaged(slot, device_count)) {
    return VGPU_BYTES_MAX;
  }
  if ((int32_t)(vgpu_load_relaxed(&slot->epoch) - epoch) < 0) {
    return 0;
  }
  for (int kind = 0; kind < VGPU_KIND_COUNT; kind++) {
    uint64_t word = vgpu_load_relaxed(&vgpu_slot_device(slot, device)->charged_bytes[kind]);
    charged += word < VGPU_BYTES_MAX ? word : VGPU_BYTES_MAX;
  }
  return charged < VGPU_BYTES_MAX ? charged : VGPU_BYTES_MAX;
}

bool vgpu_is_tampered(const struct vgpu_book *book) {
  return vgpu_load(&book->usage->magic) != VGPU_USAGE_MAGIC || vgpu_load(&book->limits->frozen) != 0 ||
         vgpu_slot_any_damaged(book);
}
