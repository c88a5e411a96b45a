/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * engine_copies.c - where copies are not like kernels: they need a copy engine, and no slice.
 */
#include "engine_parts.h"

/* Which of its process' copy engines a copy takes. */
static uint32_t engine_of(const struct gs_entry *copy) {
  return copy->way < gs_self.region->settings.copy_engines ? copy->way : 0;
}

bool gs_has_copy_engine(struct gs_queue *queue, struct gs_entry *ring, const struct gs_entry *entry) {
  uint32_t engine = engine_of(entry);
  uint64_t *holder = &queue->copying[engine];
  if (*holder != entry->mark && *holder && gs_queue_pending(ring, *holder)) return false;
  for (uint32_t bits = *holder == entry->mark ? 0 : queue->channels; bits; bits &= bits - 1) {
    const struct gs_entry *other = gs_queue_head(queue, ring, (uint32_t)__builtin_ctz(bits));
    if (other->kind == GS_WORK_COPY && other->mark < entry->mark && engine_of(other) == engine &&
        !gs_is_held_up(queue, ring, other))
      return false;
  }
  *holder = entry->mark;
  return true;
}

bool gs_is_out_of_turn(const struct gs_entry *ring, const struct gs_entry *entry) {
  while (entry->kind == GS_WORK_EVENT || entry->kind == GS_WORK_WAIT) {
    if (entry->after_copy) return true;
    if (entry->next == 0) return false;
    entry = &ring[entry->next - 1];
  }
  return entry->kind == GS_WORK_COPY;
}
