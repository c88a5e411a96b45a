/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * engine_client.c - a process and its own work on a GPU: enqueuing it, asking after it, and waiting, which is sleeping for
 * as long as it must take by what is known now, and looking again.
 */
#include "engine_parts.h"

static const uint64_t LONGEST_SLEEP_NS = 50000000; /* then looks whether somebody died */
static const uint64_t SHORTEST_SLEEP_NS = 30000;
static const uint64_t LONGEST_LOT_NS = 2500000; /* of short work, for which a full queue is waited for at once */
enum { LOTS = 8 };                              /* that a full queue is done in */

/* Where reached events' times go; by the index of the entry. Private to the owner. */
static struct gs_stamp *stamps[GS_MAX_GPUS][GS_QUEUE_DEPTH];

static void fetch_stamp(struct gs_gpu *gpu, struct gs_entry *entry) {
  struct gs_stamp *stamp = stamps[gpu - gs_self.region->gpus][entry->mark % GS_QUEUE_DEPTH];
  if (stamp && __atomic_load_n(&stamp->mark, __ATOMIC_RELAXED) == entry->mark)
    __atomic_store_n(&stamp->reached_ns, entry->end_work, __ATOMIC_RELEASE);
}

/* Brings the GPU up to the present, and gets the times of this process' events. */
static void look_as_owner(struct gs_gpu *gpu) {
  gs_look(gpu);
  if (gpu->queues[gs_self.slot].reached) gs_queue_fetch(gpu, gs_self.slot, fetch_stamp);
}

static uint64_t most_left(struct gs_queue *queue) {
  uint64_t most = 0;
  for (uint32_t bits = queue->channels; bits; bits &= bits - 1) {
    const struct gs_channel *channel = &queue->channel[__builtin_ctz(bits)];
    if (channel->given_work - channel->done_work > most) most = channel->given_work - channel->done_work;
  }
  return most;
}

/* Work before the entry is done. What holds its channel up counts too, where that is one piece of work. */
static uint64_t work_before(struct gs_queue *queue, struct gs_entry *ring, const struct gs_entry *entry) {
  const struct gs_entry *head = gs_queue_head(queue, ring, entry->channel);
  uint64_t work = gs_left_of(queue, entry->channel, entry);
  uint64_t held_up = 0;
  if (head->wait_mark && gs_queue_pending(ring, head->wait_mark)) {
    const struct gs_entry *first = &ring[head->wait_mark % GS_QUEUE_DEPTH];
    held_up = gs_left_of(queue, first->channel, first);
  }
  for (uint32_t bits = head->after_channels & queue->channels; bits; bits &= bits - 1) {
    uint32_t channel = (uint32_t)__builtin_ctz(bits);
    const struct gs_entry *first = gs_queue_head(queue, ring, channel);
    if (first->mark < head->mark && gs_left_of(queue, channel, first) > held_up)
      held_up = gs_left_of(queue, channel, first);
  }
  return work + held_up;
}

/* The least that the process will run when it is its turn, by what it has now. */
static uint64_t least_turn(struct gs_gpu *gpu, uint32_t slot) {
  struct gs_queue *queue = &gpu->queues[slot];
  struct gs_entry *ring = gs_ring(gpu, slot);
  uint64_t most = 0;
  if (queue->copies == 0) return most_left(queue);
  for (uint32_t bits = queue->channels; bits; bits &= bits - 1) {
    uint32_t channel = (uint32_t)__builtin_ctz(bits);
    const struct gs_entry *head = gs_queue_head(queue, ring, channel);
    if (head->kind != GS_WORK_KERNEL || gs_is_held_up(queue, ring, head)) continue;
    if (gs_left_of(queue, channel, head) > most) most = gs_left_of(queue, channel, head);
  }
  return most;
}

/* Time until this process has got `work` ns of the GPU: that work, and what the others run in between by what they have
 * now. Each of them runs a slice for every turn that this process needs, or all that it has, if that is less; those
 * that come before it in the round, the present one with the rest of its slice, run once more than those behind it. With
 * copies of its own it is that work alone: too short rather than too long. */
static uint64_t time_for(struct gs_gpu *gpu, uint64_t work) {
  uint64_t slice = gs_self.region->settings.timeslice_ns;
  uint64_t time = work;
  uint64_t rest = gpu->slice_end_ns > gpu->updated_ns ? gpu->slice_end_ns - gpu->updated_ns : 0;
  bool own = gpu->current == gs_self.slot;
  if (gs_is_mps() || gpu->queues[gs_self.slot].copies > 0 || (own && work <= rest)) return time;
  uint64_t turns = own ? (work - rest + slice - 1) / slice : (work + slice - 1) / slice;
  if (turns == 0) turns = 1;
  bool passed_self = own;
  uint32_t at = own ? gs_self.slot : gpu->current;
  for (uint32_t i = 0; i < GS_CUDA_SLOTS; i++) {
    if (i > 0 || own) at = (uint32_t)gs_next_ready(gpu, at);
    if (at >= GS_CUDA_SLOTS || (i > 0 && at == gpu->current)) break;
    if (at == gs_self.slot) passed_self = true;
    if (at == gs_self.slot || !gs_is_ready(gpu, at)) continue;
    uint64_t allowed = own ? turns * slice : (turns - 1) * slice + (i == 0 ? rest : passed_self ? 0 : slice);
    uint64_t left = least_turn(gpu, at);
    time += left < allowed ? left : allowed;
  }
  return time;
}

static void sleep_for(uint64_t from, uint64_t time) {
  if (time > LONGEST_SLEEP_NS) time = LONGEST_SLEEP_NS;
  if (time < SHORTEST_SLEEP_NS) time = SHORTEST_SLEEP_NS;
  gs_sleep_until(from + time);
}

void gs_engine_wait(struct gs_gpu *gpu, uint64_t mark) {
  struct gs_queue *queue = &gpu->queues[gs_self.slot];
  struct gs_entry *ring = gs_ring(gpu, gs_self.slot);
  while (mark) {
    gs_lock(gpu);
    look_as_owner(gpu);
    bool pending = gs_queue_pending(ring, mark);
    uint64_t from = gpu->updated_ns;
    uint64_t time = pending ? time_for(gpu, work_before(queue, ring, &ring[mark % GS_QUEUE_DEPTH])) : 0;
    gs_unlock(gpu);
    if (!pending) return;
    sleep_for(from, time);
  }
}

void gs_engine_wait_channels(struct gs_gpu *gpu, uint32_t channels) {
  struct gs_queue *queue = &gpu->queues[gs_self.slot];
  struct gs_entry *ring = gs_ring(gpu, gs_self.slot);
  uint64_t last = UINT64_MAX;
  for (;;) {
    uint64_t work = 0;
    if (!(__atomic_load_n(&queue->channels, __ATOMIC_ACQUIRE) & channels)) return;
    gs_lock(gpu);
    look_as_owner(gpu);
    if (last == UINT64_MAX) last = queue->numbers * GS_QUEUE_DEPTH + GS_QUEUE_DEPTH - 1;
    bool pending = gs_any_before(queue, ring, channels, last);
    for (uint32_t bits = queue->channels & channels; bits; bits &= bits - 1) {
      struct gs_channel *channel = &queue->channel[__builtin_ctz(bits)];
      const struct gs_entry *entry = &ring[(channel->last_mark <= last ? channel->tail : channel->head) - 1];
      if (entry->mark <= last && work_before(queue, ring, entry) > work) work = work_before(queue, ring, entry);
    }
    uint64_t from = gpu->updated_ns;
    uint64_t time = pending ? time_for(gpu, work) : 0;
    gs_unlock(gpu);
    if (!pending) return;
    sleep_for(from, time);
  }
}

/* Sleeps until there may be room again: for the first piece that is done, or for several if they are short. The
 * caller holds the lock, and gets it back. */
static void wait_for_room(struct gs_gpu *gpu) {
  struct gs_queue *queue = &gpu->queues[gs_self.slot];
  struct gs_entry *ring = gs_ring(gpu, gs_self.slot);
  uint64_t first = UINT64_MAX;
  for (uint32_t bits = queue->channels; bits; bits &= bits - 1) {
    uint64_t work = work_before(queue, ring, gs_queue_head(queue, ring, (uint32_t)__builtin_ctz(bits)));
    if (work < first) first = work;
  }
  uint64_t several = most_left(queue) / LOTS;
  if (several > LONGEST_LOT_NS) several = LONGEST_LOT_NS;
  uint64_t from = gpu->updated_ns;
  uint64_t time = time_for(gpu, first > several ? first : several);
  gs_unlock(gpu);
  sleep_for(from, time);
  gs_lock(gpu);
}

/* What the kernel takes this time. */
static uint64_t with_jitter(uint64_t ns, uint64_t number) {
  uint64_t jitter = gs_self.region->settings.jitter_permille;
  uint64_t word = (number << 11 ^ gs_self.slot) * 0x9e3779b97f4a7c15ull;
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ull;
  word ^= word >> 27;
  double part = (double)(word >> 11) / (double)(1ull << 53) * 2 - 1;
  return (uint64_t)((double)ns * (1 + part * (double)jitter / 1000));
}

/* The work with the kernel's time this time; it moves as many bytes per ns as without jitter. */
static struct gs_work jittered(const struct gs_work *work, uint64_t number) {
  struct gs_work changed = *work;
  changed.ns = with_jitter(work->ns, number);
  changed.dram_bytes = (uint64_t)((unsigned __int128)work->dram_bytes * changed.ns / work->ns);
  changed.link_bytes = (uint64_t)((unsigned __int128)work->link_bytes * changed.ns / work->ns);
  return changed;
}

/* An event or a wait that nothing comes before, on a GPU that nobody else has work for, needs no entry. */
static bool is_immediate(struct gs_gpu *gpu, uint32_t channel, const struct gs_work *work) {
  struct gs_queue *queue = &gpu->queues[gs_self.slot];
  if (work->ns || queue->channels & (1u << channel | work->after_channels)) return false;
  if (work->kind == GS_WORK_WAIT) return !gs_queue_pending(gs_ring(gpu, gs_self.slot), work->wait_mark);
  return gs_is_mps() || queue->channel[channel].copied || !gs_others_are_ready(gpu);
}

uint64_t gs_engine_enqueue(struct gs_gpu *gpu, uint32_t channel, const struct gs_work *work) {
  struct gs_queue *queue = &gpu->queues[gs_self.slot];
  uint64_t mark = 0;
  gs_lock(gpu);
  look_as_owner(gpu);
  bool immediate = is_immediate(gpu, channel, work);
  while (!immediate && queue->count >= GS_QUEUE_DEPTH) {
    wait_for_room(gpu);
    look_as_owner(gpu);
  }
  if (!immediate) {
    struct gs_work placed;
    if (work->kind == GS_WORK_KERNEL && work->ns && gs_self.region->settings.jitter_permille) {
      placed = jittered(work, queue->numbers);
      work = &placed;
    }
    mark = gs_queue_add(gpu, gs_self.slot, channel, work)->mark;
  }
  if (work->kind == GS_WORK_EVENT) {
    if (!immediate) stamps[gpu - gs_self.region->gpus][mark % GS_QUEUE_DEPTH] = work->stamp;
    __atomic_store_n(&work->stamp->reached_ns, immediate ? gpu->updated_ns : 0, __ATOMIC_RELAXED);
    __atomic_store_n(&work->stamp->mark, mark, __ATOMIC_RELEASE);
  }
  gs_unlock(gpu);
  return mark;
}

bool gs_engine_done(struct gs_gpu *gpu, uint64_t mark) {
  struct gs_entry *ring = gs_ring(gpu, gs_self.slot);
  if (mark == 0 || !gs_queue_pending(ring, mark)) return true;
  gs_lock(gpu);
  look_as_owner(gpu);
  bool done = !gs_queue_pending(ring, mark);
  gs_unlock(gpu);
  return done;
}

uint64_t gs_engine_channel_mark(struct gs_gpu *gpu, uint32_t channel) {
  return __atomic_load_n(&gpu->queues[gs_self.slot].channel[channel].last_mark, __ATOMIC_RELAXED);
}

bool gs_engine_channels_done(struct gs_gpu *gpu, uint32_t channels) {
  struct gs_queue *queue = &gpu->queues[gs_self.slot];
  if (!(__atomic_load_n(&queue->channels, __ATOMIC_ACQUIRE) & channels)) return true;
  gs_lock(gpu);
  look_as_owner(gpu);
  bool done = !(queue->channels & channels);
  gs_unlock(gpu);
  return done;
}

uint64_t gs_engine_stamp(struct gs_gpu *gpu, const struct gs_stamp *stamp) {
  uint64_t reached = __atomic_load_n(&stamp->reached_ns, __ATOMIC_ACQUIRE);
  if (reached || !__atomic_load_n(&stamp->mark, __ATOMIC_RELAXED)) return reached;
  gs_lock(gpu);
  look_as_owner(gpu);
  gs_unlock(gpu);
  return __atomic_load_n(&stamp->reached_ns, __ATOMIC_ACQUIRE);
}
