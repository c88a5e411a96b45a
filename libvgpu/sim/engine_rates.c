/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * engine_rates.c - how fast each piece of work gets on that runs, where more is shared than multiprocessors.
 *
 * Of its time alone a piece waits a part for DRAM, a part for the L2 cache, a part for its direction of the link, and does
 * something else for the rest, as if these never overlapped. A kernel's parts all take P times as long where the kernels
 * that run want P times the multiprocessors there are, and its rest 1/clock times. The part that waits for something that
 * is not enough for all takes `stretch` times as long: for all who want it alike, the least with which what they get
 * together fits, so that the sum over them of what each takes alone, divided by how much longer it runs, is what there is.
 *
 * Rates are whole parts of GS_WHOLE_RATE, and stay as they are until other pieces run or the card changes. So how far a
 * piece has come after some time does not depend on who looked in between.
 */
#include "engine_parts.h"

#include <stdlib.h>

enum pool { POOL_RX, POOL_TX, POOL_DRAM, POOL_CACHE, POOLS };
enum { MOST_ROUNDS = 60 };
static const double MOST_STRETCH = 1e6;
static const double NEAR = 1e-12;

struct piece {
  struct gs_channel *channel;
  double rest; /* time for what is not waiting, of its time alone */
  double part[POOLS],
      use[POOLS]; /* waiting, of its time alone; what it takes alone: bytes per ns, or of the cache a part */
};

/* Private to this process, one for each card: used with its lock held. */
static struct {
  struct piece *pieces;
  size_t room;
} found[GS_MAX_GPUS];

uint32_t gs_link_generation(const struct gs_card *card) {
  return card->compute_major >= 9 ? 5 : card->compute_major == 8 ? 4 : 3;
}

double gs_link_part(const struct gs_gpu *gpu, enum gs_way way) {
  const struct gs_live *live = &gpu->live;
  double part = (way == GS_WAY_RX ? live->rx_permille : live->tx_permille) / 1000.0;
  uint32_t best = gs_link_generation(&gpu->card);
  if (live->link_generation && live->link_generation < best) part /= 1u << (best - live->link_generation);
  if (live->link_width && live->link_width < GS_LINK_WIDTH) part *= live->link_width / (double)GS_LINK_WIDTH;
  return part;
}

/* What there is of each, in the unit of a piece's use. */
static void find_capacity(const struct gs_gpu *gpu, double capacity[POOLS]) {
  const struct gs_live *live = &gpu->live;
  double link = (double)gpu->card.pcie_bytes_per_second / 1e9;
  double dram = (double)gpu->card.dram_bytes_per_second / 1e9;
  capacity[POOL_RX] = link * gs_link_part(gpu, GS_WAY_RX);
  capacity[POOL_TX] = link * gs_link_part(gpu, GS_WAY_TX);
  capacity[POOL_DRAM] = dram * gs_self.region->settings.dram_reach_permille / 1000.0 * live->dram_permille / 1000.0 *
                        live->memory_clock_permille / 1000.0;
  capacity[POOL_CACHE] = live->clock_permille / 1000.0;
}

/* A part of bytes per ns in what there would be at best. */
static double part_of(double use, uint64_t bytes_per_second) {
  return bytes_per_second ? use * 1e9 / (double)bytes_per_second : 0;
}

static void describe(const struct gs_gpu *gpu, const struct gs_entry *entry, uint32_t permille, struct piece *piece) {
  double ns = (double)entry->ns;
  enum pool side = entry->way == GS_WAY_TX ? POOL_TX : POOL_RX;
  double dram = (double)entry->dram_bytes / ns;
  double dram_part = part_of(dram, gpu->card.dram_bytes_per_second);
  double cache = entry->cache_permille / 1000.0 + dram_part * gs_self.region->settings.cache_dram_permille / 1000.0;
  double memory = dram_part + cache;
  double bound = entry->bound_permille / 1000.0;
  *piece = (struct piece){.channel = NULL};
  piece->use[POOL_DRAM] = dram;
  piece->use[POOL_CACHE] = cache;
  piece->use[side] = (double)entry->link_bytes / ns;
  piece->part[POOL_DRAM] =
      entry->bound_permille == GS_BOUND_AS_USED || memory <= 0 ? dram_part : bound * dram_part / memory;
  piece->part[POOL_CACHE] = entry->bound_permille == GS_BOUND_AS_USED || memory <= 0 ? cache : bound * cache / memory;
  piece->part[side] = part_of(piece->use[side], gpu->card.pcie_bytes_per_second);
  double waits = 0;
  for (int i = 0; i < POOLS; i++)
    waits += piece->part[i];
  for (int i = 0; i < POOLS && waits > 1; i++)
    piece->part[i] /= waits;
  piece->rest = waits > 1 ? 0 : 1 - waits;
  if (entry->kind != GS_WORK_KERNEL) return;
  double crowd = permille > 1000 ? permille / 1000.0 : 1;
  piece->rest *= crowd * 1000.0 / gpu->live.clock_permille;
  for (int i = 0; i < POOLS; i++)
    piece->part[i] *= crowd;
}

/* How much longer than alone the piece takes. */
static double slowdown(const struct piece *piece, const double stretch[POOLS]) {
  double time = piece->rest;
  for (int i = 0; i < POOLS; i++)
    time += piece->part[i] * stretch[i];
  return time > 1 ? time : 1;
}

/* The least stretch of one pool with which all fits, while the others' are as given. What is too much as a function of the
 * stretch falls ever more slowly, so that Newton's steps from 1 on never go too far. */
static double least_stretch(const struct piece *pieces, size_t count, const double stretch[POOLS], int pool,
                            double capacity) {
  double at = 1;
  for (int round = 0; round < MOST_ROUNDS; round++) {
    double sum = 0;
    double slope = 0;
    for (size_t i = 0; i < count; i++) {
      double time = slowdown(&pieces[i], stretch) + pieces[i].part[pool] * (at - stretch[pool]);
      sum += pieces[i].use[pool] / time;
      slope += pieces[i].use[pool] * pieces[i].part[pool] / (time * time);
    }
    if (sum <= capacity * (1 + NEAR)) break;
    if (slope <= 0) return MOST_STRETCH;
    at += (sum - capacity) / slope;
    if (at > MOST_STRETCH) return MOST_STRETCH;
  }
  return at;
}

static void find_stretches(const struct gs_gpu *gpu, const struct piece *pieces, size_t count, double stretch[POOLS]) {
  double capacity[POOLS];
  find_capacity(gpu, capacity);
  for (int i = 0; i < POOLS; i++)
    stretch[i] = 1;
  for (int round = 0; round < MOST_ROUNDS; round++) {
    bool settled = true;
    for (int i = 0; i < POOLS; i++) {
      double least = least_stretch(pieces, count, stretch, i, capacity[i]);
      if (least > stretch[i] * (1 + NEAR) || least < stretch[i] * (1 - NEAR)) settled = false;
      stretch[i] = least;
    }
    if (settled) break;
  }
}

static uint64_t mix(uint64_t sum, uint64_t word) {
  sum = (sum ^ word) * 0x9e3779b97f4a7c15ull;
  return sum ^ sum >> 29;
}

/* Calls `visit` for each piece that runs. Answers how many there are. */
static size_t each_piece(struct gs_gpu *gpu,
                         void (*visit)(struct gs_gpu *gpu, uint32_t slot, struct gs_channel *channel,
                                       const struct gs_entry *entry, void *data),
                         void *data) {
  size_t count = 0;
  for (uint32_t words = gpu->ready_words; words; words &= words - 1) {
    uint32_t word = (uint32_t)__builtin_ctz(words);
    for (uint64_t slots = gpu->ready[word]; slots; slots &= slots - 1) {
      uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(slots);
      struct gs_queue *queue = &gpu->queues[slot];
      for (uint32_t bits = queue->running; bits; bits &= bits - 1, count++) {
        uint32_t channel = (uint32_t)__builtin_ctz(bits);
        visit(gpu, slot, &queue->channel[channel], gs_queue_head(queue, gs_ring(gpu, slot), channel), data);
      }
    }
  }
  return count;
}

static void add_to_sum(struct gs_gpu *gpu, uint32_t slot, struct gs_channel *channel, const struct gs_entry *entry,
                       void *data) {
  uint64_t *sum = data;
  (void)gpu;
  (void)channel;
  *sum = mix(*sum, entry->mark ^ (uint64_t)slot << 52);
}

struct collection {
  struct piece *next;
  size_t room;
  uint32_t permille;
};

static void collect(struct gs_gpu *gpu, uint32_t slot, struct gs_channel *channel, const struct gs_entry *entry,
                    void *data) {
  struct collection *collection = data;
  (void)slot;
  channel->rate = 1;
  if (collection->room == 0) return;
  describe(gpu, entry, collection->permille, collection->next);
  collection->next->channel = channel;
  collection->next++;
  collection->room--;
}

/* Room for so many pieces; less where there is no memory. */
static size_t make_room(int card, size_t count) {
  if (found[card].room >= count) return count;
  struct piece *grown = realloc(found[card].pieces, 2 * count * sizeof *grown);
  if (!grown) return found[card].room;
  found[card].pieces = grown;
  found[card].room = 2 * count;
  return count;
}

void gs_set_rates(struct gs_gpu *gpu, uint32_t permille) {
  int card = (int)(gpu - gs_self.region->gpus);
  uint64_t sum = mix(permille, gpu->live.changes + 1);
  double stretch[POOLS];
  size_t count = each_piece(gpu, add_to_sum, &sum);
  if (sum == gpu->rates_of) return;
  struct collection collection = {.room = make_room(card, count), .permille = permille};
  count = collection.room;
  collection.next = found[card].pieces;
  each_piece(gpu, collect, &collection);
  find_stretches(gpu, found[card].pieces, count, stretch);
  for (size_t i = 0; i < count; i++) {
    double rate = GS_WHOLE_RATE / slowdown(&found[card].pieces[i], stretch) + 0.5;
    found[card].pieces[i].channel->rate = rate < 1 ? 1 : (uint32_t)rate;
  }
  gpu->rates_of = sum;
}

uint64_t gs_time_to_first(const struct gs_queue *queue, const struct gs_entry *ring, uint64_t passed) {
  for (uint32_t bits = queue->running; bits; bits &= bits - 1) {
    uint32_t index = (uint32_t)__builtin_ctz(bits);
    const struct gs_channel *channel = &queue->channel[index];
    uint64_t left = gs_left_of(queue, index, &ring[channel->head - 1]);
    if (left > passed) continue;
    uint64_t need = (left * GS_WHOLE_RATE - channel->rest + channel->rate - 1) / channel->rate;
    if (need < passed) passed = need;
  }
  return passed;
}

/* How many of the bytes have moved when `done` of `ns` is done. */
static uint64_t moved(uint64_t bytes, uint64_t done, uint64_t ns) {
  if (done >= ns) return bytes;
  return (uint64_t)((unsigned __int128)bytes * done / ns);
}

uint32_t gs_move_on(struct gs_gpu *gpu, uint32_t slot, uint64_t passed) {
  struct gs_queue *queue = &gpu->queues[slot];
  const struct gs_entry *ring = gs_ring(gpu, slot);
  uint32_t seen = 0;
  for (uint32_t bits = queue->running; bits; bits &= bits - 1) {
    uint32_t index = (uint32_t)__builtin_ctz(bits);
    struct gs_channel *channel = &queue->channel[index];
    const struct gs_entry *entry = &ring[channel->head - 1];
    uint64_t left = gs_left_of(queue, index, entry);
    uint64_t gained = passed * channel->rate + channel->rest;
    uint64_t work = gained / GS_WHOLE_RATE;
    uint64_t before = entry->ns > left ? entry->ns - left : 0;
    channel->rest = (uint32_t)(gained % GS_WHOLE_RATE);
    if (work > left) work = left;
    channel->done_work += work;
    if (entry->dram_bytes) {
      queue->dram_bytes +=
          moved(entry->dram_bytes, before + work, entry->ns) - moved(entry->dram_bytes, before, entry->ns);
      seen |= GS_USED_DRAM;
    }
    if (entry->link_bytes) {
      uint64_t bytes = moved(entry->link_bytes, before + work, entry->ns) - moved(entry->link_bytes, before, entry->ns);
      __atomic_fetch_add(entry->way == GS_WAY_TX ? &queue->tx_bytes : &queue->rx_bytes, bytes, __ATOMIC_RELAXED);
      __atomic_fetch_add(entry->way == GS_WAY_TX ? &gpu->tx_bytes : &gpu->rx_bytes, bytes, __ATOMIC_RELAXED);
    }
    if (entry->kind == GS_WORK_COPY && entry->way < GS_WAYS) {
      queue->copy_ns[entry->way] += passed;
      seen |= 1u << entry->way;
    }
  }
  return seen;
}
