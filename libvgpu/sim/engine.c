/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * engine.c - simulated GPU time: from event to event (a piece of work is done, a slice ends) the state of the GPU is
 * moved to the present. The model is in engine.h.
 *
 * Time slices go round between the processes that have work, in the order of their slots; who runs out of work gives the
 * rest of the slice up. Who was given the GPU runs the first piece of each channel at once; all pieces that run share the
 * multiprocessors: together they want P thousandths of the GPU, and if P > 1000, each gets on at 1000 / P of its speed.
 */
#include "engine_queue.h"

#include <string.h>

static const uint64_t LONGEST_SLEEP_NS = 50000000; /* then looks whether somebody died */
static const uint64_t SHORTEST_SLEEP_NS = 30000;
static const uint64_t REAP_NS = 20000000;
static const uint32_t WHOLE_GPU = 1000;

/* Where reached events' times go; by the index of the entry. Private to the owner. */
static struct gs_stamp *stamps[GS_MAX_GPUS][GS_QUEUE_DEPTH];

/* What runs now. */
struct load {
  uint32_t permille;   /* of the GPU that it wants together */
  uint64_t least_left; /* work of the piece that has least left */
};

static bool is_mps(void) {
  return gs_self.region->settings.sharing == GS_SHARING_MPS;
}

static uint64_t left_of(const struct gs_queue *queue, uint32_t channel, const struct gs_entry *entry) {
  uint64_t done = queue->channel[channel].done_work;
  return entry->end_work > done ? entry->end_work - done : 0;
}

/* Whether what was enqueued up to `mark` in one of the channels is not done. */
static bool any_before(struct gs_queue *queue, struct gs_entry *ring, uint32_t channels, uint64_t mark) {
  for (uint32_t bits = queue->channels & channels; bits; bits &= bits - 1)
    if (gs_queue_head(queue, ring, (uint32_t)__builtin_ctz(bits))->mark <= mark) return true;
  return false;
}

static bool is_held_up(struct gs_queue *queue, struct gs_entry *ring, const struct gs_entry *entry) {
  if (entry->wait_mark && gs_queue_pending(ring, entry->wait_mark)) return true;
  return (entry->after_channels & queue->channels) && any_before(queue, ring, entry->after_channels, entry->mark - 1);
}

/* Takes away what is done in the channel. True if something was. Adds what runs now to the load. */
static bool settle_channel(struct gs_gpu *gpu, uint32_t slot, struct gs_entry *ring, uint32_t index,
                           struct load *load) {
  struct gs_queue *queue = &gpu->queues[slot];
  struct gs_channel *channel = &queue->channel[index];
  bool finished = false;
  while (channel->head) {
    struct gs_entry *entry = &ring[channel->head - 1];
    if (is_held_up(queue, ring, entry)) return finished;
    uint64_t left = left_of(queue, index, entry);
    if (left > 0) {
      queue->running |= 1u << index;
      load->permille += entry->sm_permille;
      if (left < load->least_left) load->least_left = left;
      return finished;
    }
    gs_queue_finish(gpu, slot, index, gpu->updated_ns);
    finished = true;
  }
  return finished;
}

/* Finds out what of a queue runs now, and adds it to the load. False: nothing. */
static bool settle(struct gs_gpu *gpu, uint32_t slot, struct load *load) {
  struct gs_queue *queue = &gpu->queues[slot];
  struct gs_entry *ring = gs_ring(gpu, slot);
  const struct load before = *load;
  bool again;
  do {
    bool finished = false;
    *load = before;
    queue->running = 0;
    for (uint32_t bits = queue->channels; bits; bits &= bits - 1)
      finished |= settle_channel(gpu, slot, ring, (uint32_t)__builtin_ctz(bits), load);
    again = finished && queue->running != queue->channels; /* what was held up may not be any more */
  } while (again);
  if (queue->running == 0) gpu->ready[slot / 64] &= ~(1ull << slot % 64);
  return queue->running != 0;
}

/* The slot with work that follows after `slot` in the round, maybe itself; -1: none. */
static int next_ready(const struct gs_gpu *gpu, uint32_t slot) {
  enum { WORDS = GS_CUDA_SLOTS / 64 };
  uint32_t first = (slot + 1) % GS_CUDA_SLOTS;
  uint64_t word = gpu->ready[first / 64] & (~0ull << first % 64);
  for (uint32_t i = 0; i <= WORDS; i++) {
    uint32_t at = (first / 64 + i) % WORDS;
    if (i > 0) word = gpu->ready[at];
    if (word) return (int)(at * 64 + (uint32_t)__builtin_ctzll(word));
  }
  return -1;
}

static bool is_ready(const struct gs_gpu *gpu, uint32_t slot) {
  return gpu->ready[slot / 64] >> slot % 64 & 1;
}

/* Decides whose slice it is and what of it runs. False: nothing to do. */
static bool choose(struct gs_gpu *gpu, struct load *load) {
  if (is_ready(gpu, gpu->current) && gpu->updated_ns < gpu->slice_end_ns && settle(gpu, gpu->current, load))
    return true;
  for (int slot; (slot = next_ready(gpu, gpu->current)) >= 0;) {
    gpu->current = (uint32_t)slot;
    gpu->slice_end_ns = gpu->updated_ns + gs_self.region->settings.timeslice_ns;
    if (settle(gpu, gpu->current, load)) return true;
  }
  return false;
}

static bool settle_all(struct gs_gpu *gpu, struct load *load) {
  bool any = false;
  for (uint32_t word = 0; word < GS_CUDA_SLOTS / 64; word++)
    for (uint64_t bits = gpu->ready[word]; bits; bits &= bits - 1)
      any |= settle(gpu, word * 64 + (uint32_t)__builtin_ctzll(bits), load);
  return any;
}

/* What runs of the slot gets `work` ns further in the time from `from` to `to`. */
static void progress(struct gs_gpu *gpu, uint32_t slot, uint64_t work, uint64_t from, uint64_t to) {
  struct gs_queue *queue = &gpu->queues[slot];
  for (uint32_t bits = queue->running; bits; bits &= bits - 1)
    queue->channel[__builtin_ctz(bits)].done_work += work;
  queue->busy_ns += to - from;
  gs_periods_add(&queue->periods, from, to);
}

/* How much further each piece that runs gets in `passed` ns; at most until the first one is done, and then `passed` is
 * what that took. What does not make a whole ns of work is kept for the next time. */
static uint64_t share_out(struct gs_gpu *gpu, const struct load *load, uint64_t *passed) {
  uint64_t scale = load->permille;
  if (scale <= WHOLE_GPU) {
    if (*passed > load->least_left) *passed = load->least_left;
    return *passed;
  }
  uint64_t rest = gpu->work_rest % scale;
  uint64_t need = (load->least_left * scale - rest + WHOLE_GPU - 1) / WHOLE_GPU;
  if (*passed >= need) {
    *passed = need;
    gpu->work_rest = 0;
    return load->least_left;
  }
  gpu->work_rest = (*passed * WHOLE_GPU + rest) % scale;
  return (*passed * WHOLE_GPU + rest) / scale;
}

/* Moves the GPU by one step, not beyond `now`. */
static void step(struct gs_gpu *gpu, const struct load *load, uint64_t now) {
  uint64_t from = gpu->updated_ns;
  uint64_t passed = (is_mps() || now < gpu->slice_end_ns ? now : gpu->slice_end_ns) - from;
  uint64_t work = share_out(gpu, load, &passed);
  uint64_t to = from + passed;
  if (is_mps()) {
    for (uint32_t word = 0; word < GS_CUDA_SLOTS / 64; word++)
      for (uint64_t bits = gpu->ready[word]; bits; bits &= bits - 1)
        progress(gpu, word * 64 + (uint32_t)__builtin_ctzll(bits), work, from, to);
  } else {
    progress(gpu, gpu->current, work, from, to);
  }
  gpu->busy_ns += passed;
  gs_periods_add(&gpu->periods, from, to);
  gpu->updated_ns = to;
}

/* Brings the GPU's state up to `now`. */
static void advance(struct gs_gpu *gpu, uint64_t now) {
  for (;;) {
    struct load load = {.least_left = UINT64_MAX};
    bool any = is_mps() ? settle_all(gpu, &load) : choose(gpu, &load);
    if (!any && gpu->updated_ns < now) gpu->updated_ns = now;
    if (!any || gpu->updated_ns >= now) return;
    step(gpu, &load, now);
  }
}

static bool others_are_ready(const struct gs_gpu *gpu) {
  int slot = next_ready(gpu, gs_self.slot);
  return slot >= 0 && (uint32_t)slot != gs_self.slot;
}

/* Brings the state up to the present; now and then drops what the dead left. */
static void look(struct gs_gpu *gpu) {
  uint64_t now = gs_now_ns();
  if (now - gpu->reaped_ns > REAP_NS && others_are_ready(gpu)) {
    gpu->reaped_ns = now;
    gs_reap_gpu_locked(gpu);
  }
  advance(gpu, now);
}

void gs_engine_update(struct gs_gpu *gpu) {
  gs_lock(gpu);
  look(gpu);
  gs_unlock(gpu);
}

static void fetch_stamp(struct gs_gpu *gpu, struct gs_entry *entry) {
  struct gs_stamp *stamp = stamps[gpu - gs_self.region->gpus][entry->mark % GS_QUEUE_DEPTH];
  if (stamp && __atomic_load_n(&stamp->mark, __ATOMIC_RELAXED) == entry->mark)
    __atomic_store_n(&stamp->reached_ns, entry->end_work, __ATOMIC_RELEASE);
}

/* The same by a client, which gets the times of its events. */
static void look_as_owner(struct gs_gpu *gpu) {
  look(gpu);
  if (gpu->queues[gs_self.slot].reached) gs_queue_fetch(gpu, gs_self.slot, fetch_stamp);
}

/* Waiting. Times are the least that it can take, given what is known now; whoever sleeps so long looks again. */

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
  uint64_t work = left_of(queue, entry->channel, entry);
  uint64_t held_up = 0;
  if (head->wait_mark && gs_queue_pending(ring, head->wait_mark)) {
    const struct gs_entry *first = &ring[head->wait_mark % GS_QUEUE_DEPTH];
    held_up = left_of(queue, first->channel, first);
  }
  for (uint32_t bits = head->after_channels & queue->channels; bits; bits &= bits - 1) {
    uint32_t channel = (uint32_t)__builtin_ctz(bits);
    const struct gs_entry *first = gs_queue_head(queue, ring, channel);
    if (first->mark < head->mark && left_of(queue, channel, first) > held_up) held_up = left_of(queue, channel, first);
  }
  return work + held_up;
}

/* Time until this process has got `work` ns of the GPU. */
static uint64_t time_for(struct gs_gpu *gpu, uint64_t work) {
  uint64_t slice = gs_self.region->settings.timeslice_ns;
  uint64_t time = work;
  uint64_t rest = gpu->slice_end_ns > gpu->updated_ns ? gpu->slice_end_ns - gpu->updated_ns : 0;
  bool own = gpu->current == gs_self.slot;
  if (is_mps() || (own && work <= rest)) return time;
  uint64_t turns = own ? (work - rest + slice - 1) / slice : (work + slice - 1) / slice;
  if (turns == 0) turns = 1;
  bool passed_self = own;
  uint32_t at = own ? gs_self.slot : gpu->current;
  for (uint32_t i = 0; i < GS_CUDA_SLOTS; i++) {
    if (i > 0 || own) at = (uint32_t)next_ready(gpu, at);
    if (at >= GS_CUDA_SLOTS || (i > 0 && at == gpu->current)) break;
    if (at == gs_self.slot) passed_self = true;
    if (at == gs_self.slot || !is_ready(gpu, at)) continue;
    uint64_t allowed = own ? turns * slice : (turns - 1) * slice + (i == 0 ? rest : passed_self ? 0 : slice);
    uint64_t left = most_left(&gpu->queues[at]);
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
    bool pending = any_before(queue, ring, channels, last);
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
  uint64_t several = most_left(queue) / 16;
  if (several > 1000000) several = 1000000;
  uint64_t from = gpu->updated_ns;
  uint64_t time = time_for(gpu, first > several ? first : several);
  gs_unlock(gpu);
  sleep_for(from, time);
  gs_lock(gpu);
}

/* What the kernel takes this time. */
static uint64_t with_jitter(uint64_t ns, uint64_t number) {
  uint64_t jitter = gs_self.region->settings.jitter_permille;
  if (jitter == 0) return ns;
  uint64_t word = (number << 11 ^ gs_self.slot) * 0x9e3779b97f4a7c15ull;
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ull;
  word ^= word >> 27;
  double part = (double)(word >> 11) / (double)(1ull << 53) * 2 - 1;
  return (uint64_t)((double)ns * (1 + part * (double)jitter / 1000));
}

/* An event or a wait that nothing comes before, on a GPU that nobody else has work for, needs no entry. */
static bool is_immediate(struct gs_gpu *gpu, uint32_t channel, const struct gs_work *work) {
  struct gs_queue *queue = &gpu->queues[gs_self.slot];
  if (work->kind == GS_WORK_KERNEL || queue->channels & (1u << channel | work->after_channels)) return false;
  if (work->kind == GS_WORK_WAIT) return !gs_queue_pending(gs_ring(gpu, gs_self.slot), work->wait_mark);
  return is_mps() || !others_are_ready(gpu);
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
    uint64_t ns = work->kind == GS_WORK_KERNEL ? with_jitter(work->ns, queue->numbers) : 0;
    mark = gs_queue_add(gpu, gs_self.slot, channel, work, ns)->mark;
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

bool gs_engine_busy(struct gs_gpu *gpu, uint32_t slot) {
  return slot < GS_CUDA_SLOTS && gpu->queues[slot].numbers > 0;
}

void gs_engine_drop(struct gs_gpu *gpu, uint32_t slot) {
  advance(gpu, gs_now_ns());
  gpu->ready[slot / 64] &= ~(1ull << slot % 64);
  memset(&gpu->queues[slot], 0, sizeof gpu->queues[slot]);
}

void gs_engine_repair(struct gs_gpu *gpu) {
  uint32_t slots = __atomic_load_n(&gs_self.region->slot_high[GS_KIND_CUDA], __ATOMIC_SEQ_CST);
  for (uint32_t slot = 0; slot < slots; slot++)
    gs_queue_repair(gpu, slot);
  gpu->current %= GS_CUDA_SLOTS;
}
