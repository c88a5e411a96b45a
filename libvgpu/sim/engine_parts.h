/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * engine_parts.h - what the parts of the engine have of each other. The caller holds the GPU's lock.
 */
#ifndef GPUSIM_ENGINE_PARTS_H
#define GPUSIM_ENGINE_PARTS_H

#include "engine.h"

/* engine.c: how the GPU goes on. */

/* Brings the GPU up to the present; now and then drops what the dead left. */
void gs_look(struct gs_gpu *gpu);

bool gs_is_mps(void);

/* Work before an entry of the channel is done, what comes before it in the channel included. */
uint64_t gs_left_of(const struct gs_queue *queue, uint32_t channel, const struct gs_entry *entry);

/* Whether something enqueued up to `mark` in one of the channels (bits) is not done. */
bool gs_any_before(struct gs_queue *queue, struct gs_entry *ring, uint32_t channels, uint64_t mark);

/* engine_copies.c: whether the first piece of a channel, a copy, has its process' copy engine: the oldest that could run
 * takes it, and keeps it until it is done. */
bool gs_has_copy_engine(struct gs_queue *queue, struct gs_entry *ring, const struct gs_entry *entry);

/* Whether the first piece of a channel need not wait for its process' slice: copies, and events and waits right behind or
 * before them. */
bool gs_is_out_of_turn(const struct gs_entry *ring, const struct gs_entry *entry);

/* The slot with work that follows after `slot` in the round, maybe itself; -1: none. */
int gs_next_ready(const struct gs_gpu *gpu, uint32_t slot);
bool gs_is_ready(const struct gs_gpu *gpu, uint32_t slot);
bool gs_others_are_ready(const struct gs_gpu *gpu);

/* engine_queue.c: entries and their lists. */

/* The GS_QUEUE_DEPTH entries of a slot. */
struct gs_entry *gs_ring(struct gs_gpu *gpu, uint32_t slot);

/* First entry of a channel that is not empty. */
static inline struct gs_entry *gs_queue_head(struct gs_queue *queue, struct gs_entry *ring, uint32_t channel) {
  return &ring[queue->channel[channel].head - 1];
}

/* Whether the slot is one of those with work. */
void gs_set_ready(struct gs_gpu *gpu, uint32_t slot, bool ready);

/* Adds work behind what is in the channel. There is room. Answers the entry. */
struct gs_entry *gs_queue_add(struct gs_gpu *gpu, uint32_t slot, uint32_t channel, const struct gs_work *work);

/* Takes the first entry of the channel away; an event gets the time and stays until its owner fetches it. */
void gs_queue_finish(struct gs_gpu *gpu, uint32_t slot, uint32_t channel, uint64_t now_ns);

/* Whether the mark's entry is still queued. Needs no lock. */
bool gs_queue_pending(const struct gs_entry *ring, uint64_t mark);

/* Whether something that the entry waits for is not done. */
static inline bool gs_is_held_up(struct gs_queue *queue, struct gs_entry *ring, const struct gs_entry *entry) {
  if (entry->wait_mark && gs_queue_pending(ring, entry->wait_mark)) return true;
  return (entry->after_channels & queue->channels) &&
         gs_any_before(queue, ring, entry->after_channels, entry->mark - 1);
}

/* Calls `fetch` for each reached event and frees its entry. */
void gs_queue_fetch(struct gs_gpu *gpu, uint32_t slot, void (*fetch)(struct gs_gpu *gpu, struct gs_entry *entry));

/* Puts the links right after somebody died while changing them. The slot does not count as ready before. */
void gs_queue_repair(struct gs_gpu *gpu, uint32_t slot);

/* engine_rates.c: of what runs (`running` of the slots that are ready), how much further each piece gets. */

/* What a piece of work gets done of it in a ns, in parts of this. */
#define GS_WHOLE_RATE (1u << 31)

/* Sets the rates of what runs; kernels want `permille` thousandths of the multiprocessors. */
void gs_set_rates(struct gs_gpu *gpu, uint32_t permille);

/* The time until the first of the slot's pieces that run is done, if it is less than `passed`; else that. */
uint64_t gs_time_to_first(const struct gs_queue *queue, const struct gs_entry *ring, uint64_t passed);

/* Moves the slot's pieces on by their rates and counts what they move. Answers the ways that copies were under way (bits),
 * and GS_USED_DRAM. */
enum { GS_USED_DRAM = 1 << GS_WAYS };
uint32_t gs_move_on(struct gs_gpu *gpu, uint32_t slot, uint64_t passed);

/* engine_totals.c: notes the counters at the tick that has been reached, or if nothing ran until now, at the first since. */
void gs_tick(struct gs_gpu *gpu);
void gs_tick_idle(struct gs_gpu *gpu, uint64_t now);

/* engine_periods.c: adds the time from `from` to `to` to the sample periods that it falls in. */
void gs_periods_add(struct gs_periods *periods, uint64_t from, uint64_t to);

#endif
