/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * engine.c - simulated GPU time: from event to event (a piece of work is done, a slice ends) the state of the GPU is
 * moved to the present. The model is in engine.h.
 *
 * Time slices go round between the processes that have work, in the order of their slots; who runs out of work gives the
 * rest of the slice up. Who was given the GPU runs the first piece of each channel at once; all pieces that run share the
 * multiprocessors: together they want P thousandths of the GPU, and if P > 1000, each gets on at 1000 / P of its speed.
 * Copies run beside them, of each process one per copy engine. Where something runs that is a copy or says what it takes of
 * memory or link, all get on as engine_rates.c says. A step also ends at each tick of the counters (engine_totals.c).
 */
#include "engine_parts.h"

#include <string.h>

static const uint64_t REAP_NS = 20000000;
static const uint32_t WHOLE_GPU = 1000;

/* What runs now. */
struct load {
  uint32_t permille;   /* of the GPU that its kernels want together */
  bool shaped;         /* some of it shares more than multiprocessors */
  uint64_t least_left; /* work of the piece that has least left */
};
static const struct load no_load = {.least_left = UINT64_MAX};

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

/* The piece runs. */
static void add_to_load(const struct gs_gpu *gpu, struct gs_queue *queue, const struct gs_entry *entry, uint64_t left,
                        struct load *load) {
  uint32_t bit = 1u << entry->channel;
  queue->running |= bit;
  if (left < load->least_left) load->least_left = left;
  if (entry->kind == GS_WORK_KERNEL) {
    queue->kernels |= bit;
    load->permille += entry->sm_permille;
    if (entry->dram_bytes | entry->link_bytes | entry->cache_permille | (gpu->live.clock_permille ^ WHOLE_GPU))
      load->shaped = true;
  } else {
    load->shaped = true;
  }
}

/* Takes away what is done in the channel. True if something was. Adds what runs now to the load; if it is not the slot's
 * turn, only what needs none. */
static bool settle_channel(struct gs_gpu *gpu, uint32_t slot, struct gs_entry *ring, uint32_t index, bool turn,
                           struct load *load) {
  struct gs_queue *queue = &gpu->queues[slot];
  struct gs_channel *channel = &queue->channel[index];
  bool finished = false;
  while (channel->head) {
    struct gs_entry *entry = &ring[channel->head - 1];
    if (!turn && !gs_is_out_of_turn(ring, entry)) return finished;
    if (gs_is_held_up(queue, ring, entry)) return finished;
    uint64_t left = gs_left_of(queue, index, entry);
    if (left > 0) {
      if (entry->kind != GS_WORK_COPY || gs_has_copy_engine(queue, ring, entry))
        add_to_load(gpu, queue, entry, left, load);
      return finished;
    }
    gs_queue_finish(gpu, slot, index, gpu->updated_ns);
    finished = true;
  }
  return finished;
}

/* Finds out what of a queue runs now, and adds it to the load. False: no kernel, or without a turn nothing. */
static bool settle(struct gs_gpu *gpu, uint32_t slot, bool turn, struct load *load) {
  struct gs_queue *queue = &gpu->queues[slot];
  struct gs_entry *ring = gs_ring(gpu, slot);
  const struct load before = *load;
  bool again;
  do {
    bool finished = false;
    *load = before;
    queue->running = queue->kernels = 0;
    for (uint32_t bits = queue->channels; bits; bits &= bits - 1)
      finished |= settle_channel(gpu, slot, ring, (uint32_t)__builtin_ctz(bits), turn, load);
    again = finished && queue->running != queue->channels; /* what was held up may not be any more */
  } while (again);
  if (queue->running == 0 && turn) gs_set_ready(gpu, slot, false);
  return turn ? queue->kernels != 0 : queue->running != 0;
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

static uint32_t count_ready(const struct gs_gpu *gpu) {
  uint32_t count = 0;
  for (uint32_t words = gpu->ready_words; words; words &= words - 1)
    count += (uint32_t)__builtin_popcountll(gpu->ready[__builtin_ctz(words)]);
  return count;
}

/* Decides whose slice it is and what of it runs. False: no kernel; then it stays whose it was if copies run. */
static bool choose(struct gs_gpu *gpu, struct load *load) {
  uint32_t was = gpu->current;
  uint64_t ends_ns = gpu->slice_end_ns;
  if (gpu->ready_words == 0) return false;
  if (gs_is_ready(gpu, was) && gpu->updated_ns < ends_ns && settle(gpu, was, true, load)) return true;
  *load = no_load;
  for (uint32_t i = gpu->ready_words ? count_ready(gpu) : 0; i > 0 && gpu->ready_words; i--) {
    gpu->queues[gpu->current].running = gpu->queues[gpu->current].kernels = 0;
    gpu->current = (uint32_t)gs_next_ready(gpu, gpu->current);
    gpu->slice_end_ns = gpu->updated_ns + gs_self.region->settings.timeslice_ns;
    if (settle(gpu, gpu->current, true, load)) return true;
    *load = no_load;
  }
  if (gpu->ready_words) {
    gpu->current = was;
    gpu->slice_end_ns = ends_ns;
  }
  return false;
}

/* Settles all slots. `turns`: all have their turn; else only the slot `current`, if it is not negative. */
static bool settle_all(struct gs_gpu *gpu, bool turns, int current, struct load *load) {
  bool any = false;
  *load = no_load;
  for (uint32_t words = gpu->ready_words; words; words &= words - 1) {
    uint32_t word = (uint32_t)__builtin_ctz(words);
    for (uint64_t bits = gpu->ready[word]; bits; bits &= bits - 1) {
      uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(bits);
      settle(gpu, slot, turns || (int)slot == current, load);
      any |= gpu->queues[slot].running != 0;
    }
  }
  return any;
}

/* Finds out what runs now. False: nothing. */
static bool find_load(struct gs_gpu *gpu, struct load *load) {
  *load = no_load;
  if (gs_is_mps()) return settle_all(gpu, true, -1, load);
  bool any = choose(gpu, load);
  if (gpu->copies == 0) return any;
  return settle_all(gpu, false, any ? (int)gpu->current : -1, load);
}

/* What runs of the slot gets `work` ns further in the time from `from` to `to`, or as far as its rates say. */
static uint32_t progress(struct gs_gpu *gpu, uint32_t slot, const struct load *load, uint64_t work, uint64_t from,
                         uint64_t to) {
  struct gs_queue *queue = &gpu->queues[slot];
  uint32_t seen = 0;
  if (load->shaped) {
    uint64_t bytes = queue->dram_bytes;
    seen = gs_move_on(gpu, slot, to - from);
    gpu->dram_bytes += queue->dram_bytes - bytes;
  } else {
    for (uint32_t bits = queue->running; bits; bits &= bits - 1)
      queue->channel[__builtin_ctz(bits)].done_work += work;
  }
  if (seen & GS_USED_DRAM) gs_periods_add(&queue->memory, from, to);
  if (queue->kernels == 0) return seen;
  queue->busy_ns += to - from;
  gs_periods_add(&queue->periods, from, to);
  return seen;
}

static uint32_t progress_all(struct gs_gpu *gpu, const struct load *load, uint64_t work, uint64_t from, uint64_t to) {
  uint32_t seen = 0;
  for (uint32_t words = gpu->ready_words; words; words &= words - 1) {
    uint32_t word = (uint32_t)__builtin_ctz(words);
    for (uint64_t bits = gpu->ready[word]; bits; bits &= bits - 1)
      seen |= progress(gpu, word * 64 + (uint32_t)__builtin_ctzll(bits), load, work, from, to);
  }
  return seen;
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

/* The time until the first piece that runs is done, by the rates; at most `passed`. */
static uint64_t time_to_first(struct gs_gpu *gpu, uint64_t passed) {
  for (uint32_t words = gpu->ready_words; words; words &= words - 1) {
    uint32_t word = (uint32_t)__builtin_ctz(words);
    for (uint64_t bits = gpu->ready[word]; bits; bits &= bits - 1) {
      uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(bits);
      passed = gs_time_to_first(&gpu->queues[slot], gs_ring(gpu, slot), passed);
    }
  }
  return passed;
}

/* Moves the GPU by one step, not beyond `now`. */
static void step(struct gs_gpu *gpu, const struct load *load, uint64_t now) {
  uint64_t from = gpu->updated_ns;
  uint64_t until = now < gpu->next_tick_ns ? now : gpu->next_tick_ns;
  uint64_t work = 0;
  uint32_t seen = 0;
  if (!gs_is_mps() && load->permille > 0 && gpu->slice_end_ns < until) until = gpu->slice_end_ns;
  uint64_t passed = until - from;
  if (load->shaped) {
    gs_set_rates(gpu, load->permille);
    passed = time_to_first(gpu, passed);
  } else {
    work = share_out(gpu, load, &passed);
  }
  uint64_t to = from + passed;
  gpu->updated_ns = to; /* first: who dies in here may lose some work, but nobody gets it done twice */
  if (gs_is_mps() || gpu->copies > 0)
    seen = progress_all(gpu, load, work, from, to);
  else
    seen = progress(gpu, gpu->current, load, work, from, to);
  if (load->permille > 0) {
    gpu->busy_ns += passed;
    gpu->sm_work += passed * (load->permille < WHOLE_GPU ? load->permille : WHOLE_GPU);
    gs_periods_add(&gpu->periods, from, to);
  }
  if (seen & GS_USED_DRAM) {
    gpu->memory_ns += passed;
    gs_periods_add(&gpu->memory, from, to);
  }
  for (int way = 0; seen && way < GS_WAYS; way++)
    if (seen >> way & 1) gpu->copy_ns[way] += passed;
  if (to == gpu->next_tick_ns) gs_tick(gpu);
}

/* Brings the GPU's state up to `now`. */
static void advance(struct gs_gpu *gpu, uint64_t now) {
  for (;;) {
    struct load load;
    bool any = find_load(gpu, &load);
    if (!any && gpu->updated_ns < now) {
      gpu->updated_ns = now;
      gs_tick_idle(gpu, now);
    }
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
  gpu->copies -= gpu->queues[slot].copies < gpu->copies ? gpu->queues[slot].copies : gpu->copies;
  gpu->rates_of = 0; /* the next one's marks may be the same */
  memset(&gpu->queues[slot], 0, sizeof gpu->queues[slot]);
}

void gs_engine_repair(struct gs_gpu *gpu) {
  uint32_t slots = __atomic_load_n(&gs_self.region->slot_high[GS_KIND_CUDA], __ATOMIC_SEQ_CST);
  gpu->ready_words = 0;
  gpu->copies = 0;
  gpu->rates_of = 0;
  memset(gpu->ready, 0, sizeof gpu->ready);
  for (uint32_t slot = 0; slot < slots; slot++)
    gs_queue_repair(gpu, slot);
  gpu->current %= GS_CUDA_SLOTS;
  if (gpu->next_tick_ns <= gpu->updated_ns) gpu->next_tick_ns = (gpu->updated_ns / GS_TICK_NS + 1) * GS_TICK_NS;
}
