/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * virtual_engine.h - the engine on a clock of its own, for tests to the nanosecond: virtual_engine.c is the region, the
 * clock and the lock; a process is a number of a slot, up to 8.
 */
#ifndef GPUSIM_TEST_VIRTUAL_ENGINE_H
#define GPUSIM_TEST_VIRTUAL_ENGINE_H

#include "../engine_parts.h"
#include "check.h"

enum { US = 1000, MS = 1000000 };

extern uint64_t clock_ns; /* 1000 ms at the beginning */
extern int sleeps;        /* how often somebody slept */

/* A card without work: slices of 2 ms, sample periods of 10 ms, a link of 20 GB/s, DRAM of 1000 GB/s. */
struct gs_gpu *begin_engine(enum gs_sharing sharing);

static inline uint64_t give(struct gs_gpu *gpu, uint32_t slot, uint32_t channel, const struct gs_work *work) {
  gs_self.slot = slot;
  return gs_engine_enqueue(gpu, channel, work);
}

static inline uint64_t kernel(struct gs_gpu *gpu, uint32_t slot, uint32_t channel, uint64_t ns, uint32_t permille) {
  return give(gpu, slot, channel, &(struct gs_work){.kind = GS_WORK_KERNEL, .ns = ns, .sm_permille = permille});
}

static inline uint64_t event(struct gs_gpu *gpu, uint32_t slot, uint32_t channel, struct gs_stamp *stamp) {
  return give(gpu, slot, channel, &(struct gs_work){.kind = GS_WORK_EVENT, .stamp = stamp});
}

static inline void wait_for_event(struct gs_gpu *gpu, uint32_t channel, const struct gs_stamp *stamp) {
  const struct gs_work work = {.kind = GS_WORK_WAIT, .wait_mark = stamp->mark};
  gs_engine_enqueue(gpu, channel, &work);
}

/* When the slot's stamp was reached, in ns or us since the beginning; what is owed to it is fetched. */
static inline long long reached_ns(struct gs_gpu *gpu, uint32_t slot, const struct gs_stamp *stamp) {
  gs_self.slot = slot;
  uint64_t reached = gs_engine_stamp(gpu, stamp);
  return reached ? (long long)reached - 1000 * MS : -1;
}

static inline long long reached_us(struct gs_gpu *gpu, uint32_t slot, const struct gs_stamp *stamp) {
  long long reached = reached_ns(gpu, slot, stamp);
  return reached < 0 ? -1 : reached / US;
}

/* A copy through the link that takes `ns` alone. Its use of DRAM, a fiftieth, is left out where it would only disturb. */
static inline void copy(struct gs_gpu *gpu, uint32_t slot, uint32_t channel, enum gs_way way, uint64_t ns) {
  const struct gs_work work = {
      .kind = GS_WORK_COPY, .ns = ns, .link_bytes = 20 * ns, .way = way, .bound_permille = GS_BOUND_AS_USED};
  give(gpu, slot, channel, &work);
}

/* A kernel that fills a tenth of the card, takes a part of DRAM's bandwidth and waits for it. */
static inline void dram_kernel(struct gs_gpu *gpu, uint32_t slot, uint32_t channel, uint64_t ns, uint32_t permille,
                               uint32_t bound) {
  const struct gs_work work = {.kind = GS_WORK_KERNEL,
                               .ns = ns,
                               .dram_bytes = permille * ns,
                               .sm_permille = 100,
                               .bound_permille = (uint16_t)bound};
  give(gpu, slot, channel, &work);
}

static inline void check_near(long long got, long long wanted, long long off) {
  if (got < wanted - off || got > wanted + off) fprintf(stderr, "%lld, not %lld\n", got, wanted);
  CHECK(got >= wanted - off && got <= wanted + off);
}

#endif
