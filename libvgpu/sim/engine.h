/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * engine.h - simulated GPU time. Each process has a queue of at most GS_QUEUE_DEPTH pieces of work per GPU, sorted into
 * GS_CHANNELS channels: what is in one channel runs in order, channels run side by side and share the GPU's
 * multiprocessors. Between processes the GPU is sliced in time, or with `sharing = mps` all run at once. Copies run whoever's
 * slice it is. What runs shares the memory's and the link's bandwidth too, see engine_rates.c.
 *
 * Nothing runs: whoever looks brings the GPU's state forward to the present, under the GPU's lock, exactly as the GPU
 * would have gone through it. Times are CLOCK_MONOTONIC in ns.
 */
#ifndef GPUSIM_ENGINE_H
#define GPUSIM_ENGINE_H

#include "region.h"

#define GS_ALL_CHANNELS UINT32_MAX

enum gs_work_kind {
  GS_WORK_KERNEL, /* keeps the channel busy for `ns`, and `sm_permille` of the GPU while it runs */
  GS_WORK_EVENT,  /* when it is reached, its stamp gets the time */
  GS_WORK_WAIT,   /* holds the channel up until `wait_mark` is reached */
  GS_WORK_COPY    /* keeps the channel busy for `ns`, and the process' copy engine of that way */
};

/* A piece of work's part of its time alone that it waits for memory is as much as it takes of the memory's bandwidth. */
#define GS_BOUND_AS_USED 0xffffu

/* When an event was reached. Lies in the process' private memory, at an address that stays writable for good; the engine
 * writes it. What was recorded before and has not been reached yet is forgotten by a new record. */
struct gs_stamp {
  uint64_t mark;       /* of the EVENT; 0: reached when it was recorded, or never recorded */
  uint64_t reached_ns; /* 0: not reached */
};

struct gs_work {
  uint64_t ns;             /* KERNEL, COPY: alone on the GPU */
  uint64_t dram_bytes;     /* likewise: moved in and out of DRAM in all */
  uint64_t link_bytes;     /* likewise: through the link */
  uint32_t sm_permille;    /* KERNEL: 1 to 1000 */
  uint16_t cache_permille; /* KERNEL: of the L2 cache's bandwidth that it takes alone */
  uint16_t bound_permille; /* KERNEL: of its time alone that it waits for memory, or GS_BOUND_AS_USED */
  uint32_t way;            /* enum gs_way: COPY; of a kernel with link_bytes RX or TX */
  uint32_t kind;           /* enum gs_work_kind */
  uint64_t wait_mark;      /* WAIT: a mark of this process and GPU */
  struct gs_stamp *stamp;  /* EVENT */
  uint32_t after_channels; /* also held up until all that was enqueued before in these channels (bits) is done */
};

/* Adds work to a channel of this process' queue. Sleeps while the queue is full, so no lock may be held but the caller's
 * own. Answers a mark, later ones greater: that work is done when gs_engine_done says so; 0: done already. */
uint64_t gs_engine_enqueue(struct gs_gpu *gpu, uint32_t channel, const struct gs_work *work);

/* Whether the work with this mark is done. 0 is always done. */
bool gs_engine_done(struct gs_gpu *gpu, uint64_t mark);

/* Sleeps until the mark is reached. */
void gs_engine_wait(struct gs_gpu *gpu, uint64_t mark);

/* Mark of the last work in a channel; 0: none. */
uint64_t gs_engine_channel_mark(struct gs_gpu *gpu, uint32_t channel);

/* Whether the channels (bits) are empty now. */
bool gs_engine_channels_done(struct gs_gpu *gpu, uint32_t channels);

/* Sleeps until all that is in the channels (bits) at the time of the call is done. */
void gs_engine_wait_channels(struct gs_gpu *gpu, uint32_t channels);

/* When the stamp was reached; 0: not yet. */
uint64_t gs_engine_stamp(struct gs_gpu *gpu, const struct gs_stamp *stamp);

/* Brings the GPU's books up to the present. */
void gs_engine_update(struct gs_gpu *gpu);

/* Counters are kept at each tick of this length of the monotonic clock. */
#define GS_TICK_NS 10000000ull

/* What the counters were at a time, which is rounded down to a tick; of what is longer ago than GS_TICKS ticks the oldest
 * that is known. */
struct gs_totals gs_engine_totals(struct gs_gpu *gpu, uint64_t time_ns);

/* Of the link's bandwidth of the direction, the part that there is at present: of the lanes, the generation and what else
 * narrows it, in 0 to 1. The caller need not hold the lock. */
double gs_link_part(const struct gs_gpu *gpu, enum gs_way way);

/* Generation and lanes of the card's link at its best. */
uint32_t gs_link_generation(const struct gs_card *card);
enum { GS_LINK_WIDTH = 16 };

/* The last whole sample period that NVML shows. */
struct gs_sample {
  uint64_t end_ns;
  uint64_t busy_ns;        /* time in which a kernel ran; 0: none did, or the sample got lost */
  uint32_t percent;        /* rounded */
  uint32_t memory_percent; /* part of it in which DRAM was used, rounded */
};

/* The period's sample of one client, or of the whole GPU if `slot` is negative. */
struct gs_sample gs_engine_sample(struct gs_gpu *gpu, int slot);

/* For books.c; the caller holds the GPU's lock. */
bool gs_engine_busy(struct gs_gpu *gpu, uint32_t slot);
void gs_engine_drop(struct gs_gpu *gpu, uint32_t slot);
void gs_engine_repair(struct gs_gpu *gpu);

#endif
