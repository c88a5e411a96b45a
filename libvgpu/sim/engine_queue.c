/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * engine_queue.c - a process' work on one GPU: entries of a ring, linked into one list per channel, one of free
 * entries and one of reached events. Whoever advances the GPU takes entries off the channels; only the owner adds, fetches
 * the times of its events and frees theirs.
 *
 * Killed at any instruction: an entry's state is changed before the lists are, and the lists can be made anew from the
 * states and marks (gs_queue_repair).
 */
#include "engine_parts.h"

#include <string.h>

struct gs_entry *gs_ring(struct gs_gpu *gpu, uint32_t slot) {
  struct gs_entry *rings = (struct gs_entry *)(void *)(gs_self.region + 1);
  size_t index = (size_t)(gpu - gs_self.region->gpus) * GS_CUDA_SLOTS + slot;
  return rings + index * GS_QUEUE_DEPTH;
}

static void set_state(struct gs_entry *entry, enum gs_entry_state state) {
  __atomic_store_n(&entry->state, (uint8_t)state, __ATOMIC_RELEASE);
}

void gs_set_ready(struct gs_gpu *gpu, uint32_t slot, bool ready) {
  uint64_t *word = &gpu->ready[slot / 64];
  uint64_t bit = 1ull << slot % 64;
  *word = ready ? *word | bit : *word & ~bit;
  if (*word)
    gpu->ready_words |= 1u << slot / 64;
  else
    gpu->ready_words &= ~(1u << slot / 64);
}

static void append(struct gs_gpu *gpu, uint32_t slot, struct gs_entry *ring, struct gs_entry *entry) {
  struct gs_queue *queue = &gpu->queues[slot];
  struct gs_channel *channel = &queue->channel[entry->channel];
  uint16_t place = (uint16_t)(entry - ring + 1);
  entry->next = 0;
  if (channel->head)
    ring[channel->tail - 1].next = place;
  else
    channel->head = place;
  channel->tail = place;
  __atomic_store_n(&queue->channels, queue->channels | 1u << entry->channel, __ATOMIC_RELAXED);
  gs_set_ready(gpu, slot, true);
}

struct gs_entry *gs_queue_add(struct gs_gpu *gpu, uint32_t slot, uint32_t channel, const struct gs_work *work) {
  struct gs_queue *queue = &gpu->queues[slot];
  struct gs_entry *ring = gs_ring(gpu, slot);
  struct gs_channel *target = &queue->channel[channel];
  uint32_t index = queue->free ? queue->free - 1u : queue->used++;
  struct gs_entry *entry = &ring[index];
  if (queue->free) queue->free = entry->next;
  queue->count++;
  target->given_work += work->ns;
  entry->mark = ++queue->numbers * GS_QUEUE_DEPTH + index;
  entry->end_work = target->given_work;
  entry->wait_mark = work->kind == GS_WORK_WAIT && work->wait_mark < entry->mark ? work->wait_mark : 0;
  entry->after_channels = work->after_channels;
  entry->sm_permille = (uint16_t)(work->sm_permille == 0 ? 1 : work->sm_permille > 1000 ? 1000 : work->sm_permille);
  entry->cache_permille = work->cache_permille;
  entry->bound_permille = work->bound_permille;
  entry->ns = work->ns;
  entry->dram_bytes = work->dram_bytes;
  entry->link_bytes = work->link_bytes;
  entry->way = (uint8_t)work->way;
  entry->kind = (uint8_t)work->kind;
  entry->channel = channel & (GS_CHANNELS - 1);
  entry->after_copy = target->copied & 1;
  if (work->ns) target->copied = work->kind == GS_WORK_COPY;
  if (work->kind == GS_WORK_COPY) {
    queue->copies++;
    gpu->copies++;
  }
  target->last_mark = entry->mark;
  set_state(entry, GS_ENTRY_QUEUED);
  append(gpu, slot, ring, entry);
  return entry;
}

static void put_free(struct gs_queue *queue, struct gs_entry *ring, struct gs_entry *entry) {
  entry->next = queue->free;
  queue->free = (uint16_t)(entry - ring + 1);
  queue->count--;
}

void gs_queue_finish(struct gs_gpu *gpu, uint32_t slot, uint32_t channel, uint64_t now_ns) {
  struct gs_queue *queue = &gpu->queues[slot];
  struct gs_entry *ring = gs_ring(gpu, slot);
  struct gs_channel *from = &queue->channel[channel];
  struct gs_entry *entry = &ring[from->head - 1];
  bool is_event = entry->kind == GS_WORK_EVENT;
  if (entry->kind == GS_WORK_COPY) {
    queue->copies--;
    gpu->copies--;
  }
  if (entry->ns) from->rest = 0;
  if (is_event) entry->end_work = now_ns;
  set_state(entry, is_event ? GS_ENTRY_REACHED : GS_ENTRY_FREE);
  from->head = entry->next;
  if (from->head == 0) {
    __atomic_store_n(&queue->channels, queue->channels & ~(1u << channel), __ATOMIC_RELAXED);
    if (queue->channels == 0) gs_set_ready(gpu, slot, false);
  }
  if (is_event) {
    entry->next = queue->reached;
    queue->reached = (uint16_t)(entry - ring + 1);
  } else {
    put_free(queue, ring, entry);
  }
}

bool gs_queue_pending(const struct gs_entry *ring, uint64_t mark) {
  const struct gs_entry *entry = &ring[mark % GS_QUEUE_DEPTH];
  return __atomic_load_n(&entry->mark, __ATOMIC_ACQUIRE) == mark &&
         __atomic_load_n(&entry->state, __ATOMIC_ACQUIRE) == GS_ENTRY_QUEUED;
}

void gs_queue_fetch(struct gs_gpu *gpu, uint32_t slot, void (*fetch)(struct gs_gpu *gpu, struct gs_entry *entry)) {
  struct gs_queue *queue = &gpu->queues[slot];
  struct gs_entry *ring = gs_ring(gpu, slot);
  while (queue->reached) {
    struct gs_entry *entry = &ring[queue->reached - 1];
    fetch(gpu, entry);
    queue->reached = entry->next;
    set_state(entry, GS_ENTRY_FREE);
    put_free(queue, ring, entry);
  }
}

/* Links a queued entry into its channel in the order of the marks. */
static void insert(struct gs_gpu *gpu, uint32_t slot, struct gs_entry *ring, struct gs_entry *entry) {
  struct gs_channel *channel = &gpu->queues[slot].channel[entry->channel];
  if (channel->head == 0 || ring[channel->tail - 1].mark < entry->mark) {
    append(gpu, slot, ring, entry);
    return;
  }
  uint16_t *link = &channel->head;
  while (ring[*link - 1].mark < entry->mark)
    link = &ring[*link - 1].next;
  entry->next = *link;
  *link = (uint16_t)(entry - ring + 1);
}

void gs_queue_repair(struct gs_gpu *gpu, uint32_t slot) {
  struct gs_queue *queue = &gpu->queues[slot];
  struct gs_entry *ring = gs_ring(gpu, slot);
  if (queue->numbers == 0) { /* perhaps dropped half */
    memset(queue, 0, sizeof *queue);
    return;
  }
  queue->channels = queue->running = queue->kernels = queue->copies = queue->count = 0;
  queue->free = queue->reached = 0;
  for (uint32_t i = 0; i < GS_CHANNELS; i++)
    queue->channel[i].head = queue->channel[i].tail = 0;
  if (queue->used > GS_QUEUE_DEPTH) queue->used = GS_QUEUE_DEPTH;
  for (uint32_t index = 0; index < queue->used; index++) {
    struct gs_entry *entry = &ring[index];
    queue->count++;
    if (entry->state == GS_ENTRY_QUEUED && entry->channel < GS_CHANNELS) {
      insert(gpu, slot, ring, entry);
      queue->copies += entry->kind == GS_WORK_COPY;
    } else if (entry->state == GS_ENTRY_REACHED) {
      entry->next = queue->reached;
      queue->reached = (uint16_t)(index + 1);
    } else {
      set_state(entry, GS_ENTRY_FREE);
      put_free(queue, ring, entry);
    }
  }
  gpu->copies += queue->copies;
  for (uint32_t i = 0; i < GS_CHANNELS; i++) {
    struct gs_channel *channel = &queue->channel[i];
    channel->given_work = channel->head ? ring[channel->tail - 1].end_work : channel->done_work;
    if (channel->head && channel->done_work > ring[channel->head - 1].end_work)
      channel->done_work = ring[channel->head - 1].end_work;
  }
}
