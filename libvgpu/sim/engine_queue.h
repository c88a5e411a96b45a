/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * engine_queue.h - the parts of the engine: queues as linked entries, and busy time by sample period. For engine.c alone;
 * the caller holds the GPU's lock.
 */
#ifndef GPUSIM_ENGINE_QUEUE_H
#define GPUSIM_ENGINE_QUEUE_H

#include "engine.h"

/* The GS_QUEUE_DEPTH entries of a slot. */
struct gs_entry *gs_ring(struct gs_gpu *gpu, uint32_t slot);

/* First entry of a channel that is not empty. */
static inline struct gs_entry *gs_queue_head(struct gs_queue *queue, struct gs_entry *ring, uint32_t channel) {
  return &ring[queue->channel[channel].head - 1];
}

/* Adds work of `ns` behind what is in the channel. There is room. Answers the entry. */
struct gs_entry *gs_queue_add(struct gs_gpu *gpu, uint32_t slot, uint32_t channel, const struct gs_work *work,
                              uint64_t ns);

/* Takes the first entry of the channel away; an event gets the time and stays until its owner fetches it. */
void gs_queue_finish(struct gs_gpu *gpu, uint32_t slot, uint32_t channel, uint64_t now_ns);

/* Whether the mark's entry is still queued. Needs no lock. */
bool gs_queue_pending(const struct gs_entry *ring, uint64_t mark);

/* Calls `fetch` for each reached event and frees its entry. */
void gs_queue_fetch(struct gs_gpu *gpu, uint32_t slot, void (*fetch)(struct gs_gpu *gpu, struct gs_entry *entry));

/* Puts the links right after somebody died while changing them. */
void gs_queue_repair(struct gs_gpu *gpu, uint32_t slot);

/* Adds the time from `from` to `to` to the sample periods that it falls in. */
void gs_periods_add(struct gs_periods *periods, uint64_t from, uint64_t to);

#endif
