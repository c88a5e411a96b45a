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
#include "engine_parts.h"

#include <string.h>

static const uint64_t REAP_NS = 20000000;
static const uint32_t WHOLE_GPU = 1000;

/* What runs now. */
struct load {
  uint32_t permille;   /* of the GPU that it wants together */
  uint64_t least_left; /* work of the piece that has least left */
};

bool gs_is_mps(void) {
  return gs_self.region->settings.sharing == GS_SHARING_MPS;
}

uint64_t gs_left_of(const struct gs_queue *queue, uint32_t channel, const struct gs_entry *entry) {
  uint64_t done = queue->channel[channel].done_work;
  return entry->end_work > done ? entry->end_work - done : 0;
}

bool gs_any_before(struct gs_queue *queue, struct gs_entry *ring, uint32_t channels, uint64_t mark) {
  for (uint32_t bits = queue->channels & channels; bits; bits &= bits - 1)
    if (gs_queue_head(queue, ring, (uint32_t)__builtin_ctz(bits))->mark <= mark) return true;
  return false;
}

static bool is_held_up(struct gs_queue *queue, struct gs_entry *ring, const struct gs_entry *entry) {
  if (entry->wait_mark && gs_queue_pending(ring, entry->wait_mark)) return true;
  return (entry->after_channels & queue->channels) &&
         gs_any_before(queue, ring, entry->after_channels, entry->mark - 1);
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
    uint64_t left = gs_left_of(queue, index, entry);
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
  if (queue->running == 0) gs_set_ready(gpu, slot, false);
  return queue->running != 0;
}

int gs_next_ready(const struct gs_gpu *gpu, uint32_t slot) {
  uint32_t first = (slot + 1) % GS_CUDA_SLOTS;
  uint32_t at = first / 64;
  uint64_t word = gpu->ready[at] & (~0ull << first % 64);
  if (gpu->ready_words == 0) return -1;
  if (!word) { /* the next word that is not empty, round to this one again */
    uint32_t behind = gpu->ready_words & (uint32_t)(~0ull << (at + 1));
    at = (uint32_t)__builtin_ctz(behind ? behind : gpu->ready_words);
    word = gpu->ready[at];
  }
  return (int)(at * 64 + (uint32_t)__builtin_ctzll(word));
}

bool gs_is_ready(const struct gs_gpu *gpu, uint32_t slot) {
  return gpu->ready[slot / 64] >> slot % 64 & 1;
}

/* Decides whose slice it is and what of it runs. False: nothing to do. */
static bool choose(struct gs_gpu *gpu, struct load *load) {
  if (gs_is_ready(gpu, gpu->current) && gpu->updated_ns < gpu->slice_end_ns && settle(gpu, gpu->current, load))
    return true;
  for (int slot; (slot = gs_next_ready(gpu, gpu->current)) >= 0;) {
    gpu->current = (uint32_t)slot;
    gpu->slice_end_ns = gpu->updated_ns + gs_self.region->settings.timeslice_ns;
    if (settle(gpu, gpu->current, load)) return true;
  }
  return false;
}

static bool settle_all(struct gs_gpu *gpu, struct load *load) {
  bool any = false;
  for (uint32_t words = gpu->ready_words; words; words &= words - 1) {
    uint32_t word = (uint32_t)__builtin_ctz(words);
    for (uint64_t bits = gpu->ready[word]; bits; bits &= bits - 1)
      any |= settle(gpu, word * 64 + (uint32_t)__builtin_ctzll(bits), load);
  }
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

static void progress_all(struct gs_gpu *gpu, uint64_t work, uint64_t from, uint64_t to) {
  for (uint32_t words = gpu->ready_words; words; words &= words - 1) {
    uint32_t word = (uint32_t)__builtin_ctz(words);
    for (uint64_t bits = gpu->ready[word]; bits; bits &= bits - 1)
      progress(gpu, word * 64 + (uint32_t)__builtin_ctzll(bits), work, from, to);
  }
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
  uint64_t passed = (gs_is_mps() || now < gpu->slice_end_ns ? now : gpu->slice_end_ns) - from;
  uint64_t work = share_out(gpu, load, &passed);
  uint64_t to = from + passed;
  if (gs_is_mps())
    progress_all(gpu, work, from, to);
  else
    progress(gpu, gpu->current, work, from, to);
  gpu->busy_ns += passed;
  gs_periods_add(&gpu->periods, from, to);
  gpu->updated_ns = to;
}

/* Brings the GPU's state up to `now`. */
static void advance(struct gs_gpu *gpu, uint64_t now) {
  for (;;) {
    struct load load = {.least_left = UINT64_MAX};
    bool any = gs_is_mps() ? settle_all(gpu, &load) : choose(gpu, &load);
    if (!any && gpu->updated_ns < now) gpu->updated_ns = now;
    if (!any || gpu->updated_ns >= now) return;
    step(gpu, &load, now);
  }
}

bool gs_others_are_ready(const struct gs_gpu *gpu) {
  int slot = gs_next_ready(gpu, gs_self.slot);
  return slot >= 0 && (uint32_t)slot != gs_self.slot;
}

void gs_look(struct gs_gpu *gpu) {
  uint64_t now = gs_now_ns();
  if (now - gpu->reaped_ns > REAP_NS && gs_others_are_ready(gpu)) {
    gpu->reaped_ns = now;
    gs_reap_gpu_locked(gpu);
  }
  advance(gpu, now);
}

void gs_engine_update(struct gs_gpu *gpu) {
  gs_lock(gpu);
  gs_look(gpu);
  gs_unlock(gpu);
}

bool gs_engine_busy(struct gs_gpu *gpu, uint32_t slot) {
  return slot < GS_CUDA_SLOTS && gpu->queues[slot].numbers > 0;
}

void gs_engine_drop(struct gs_gpu *gpu, uint32_t slot) {
  advance(gpu, gs_now_ns());
  gs_set_ready(gpu, slot, false);
  memset(&gpu->queues[slot], 0, sizeof gpu->queues[slot]);
}

void gs_engine_repair(struct gs_gpu *gpu) {
  uint32_t slots = __atomic_load_n(&gs_self.region->slot_high[GS_KIND_CUDA], __ATOMIC_SEQ_CST);
  gpu->ready_words = 0;
  memset(gpu->ready, 0, sizeof gpu->ready);
  for (uint32_t slot = 0; slot < slots; slot++)
    gs_queue_repair(gpu, slot);
  gpu->current %= GS_CUDA_SLOTS;
}
