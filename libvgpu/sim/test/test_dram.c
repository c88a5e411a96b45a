/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_dram.c - how kernels that run at once share DRAM and the L2 cache, in virtual time. DRAM gives 1000 bytes per ns.
 * Rates are rounded to 31 bits, so that a time of 10 ms may be one ns too long.
 */
#include "virtual_engine.h"

/* Where DRAM is not enough for all, all who take of it and wait for nothing else get the same part of what they want. */
void test_dram_is_shared(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_MPS);
  struct gs_stamp end[3];
  for (uint32_t slot = 0; slot < 2; slot++) {
    dram_kernel(gpu, slot, 0, 6 * MS, 750, 1000);
    event(gpu, slot, 0, &end[slot]);
  }
  kernel(gpu, 2, 0, 6 * MS, 100); /* has nothing to do with DRAM */
  event(gpu, 2, 0, &end[2]);
  clock_ns += 100 * MS;
  check_near(reached_ns(gpu, 0, &end[0]), 9 * MS, 1);
  check_near(reached_ns(gpu, 1, &end[1]), 9 * MS, 1);
  CHECK_EQUAL(reached_ns(gpu, 2, &end[2]), 6 * MS);
  CHECK_EQUAL(gpu->dram_bytes, 2ull * 750 * 6 * MS);
  CHECK_EQUAL(gpu->queues[0].dram_bytes, 750ull * 6 * MS);
  CHECK_EQUAL(gpu->queues[2].dram_bytes, 0);
  check_near((long long)gpu->memory_ns, 9 * MS, 1);
  gpu = begin_engine(GS_SHARING_MPS); /* what fits disturbs nobody */
  for (uint32_t slot = 0; slot < 2; slot++) {
    dram_kernel(gpu, slot, 0, 6 * MS, 500, 1000);
    event(gpu, slot, 0, &end[slot]);
  }
  clock_ns += 100 * MS;
  CHECK_EQUAL(reached_ns(gpu, 0, &end[0]), 6 * MS);
  CHECK_EQUAL(reached_ns(gpu, 1, &end[1]), 6 * MS);
}

/* The part that waits for memory is what gets slower. 1000/(x) + 500/(0.5 + 0.5 x) = 1000 with x the stretch: x = (1 + 5^0.5)/2,
 * worked out by hand: x (0.5 + 0.5 x) = 0.5 + 0.5 x + 0.5 x, so x^2 - x - 1 = 0. */
void test_dram_slows_what_waits(void) {
  static const double golden = 1.6180339887498949;
  struct gs_gpu *gpu = begin_engine(GS_SHARING_MPS);
  struct gs_stamp end[2];
  dram_kernel(gpu, 0, 0, 1000 * MS, 1000, 1000);
  dram_kernel(gpu, 1, 0, 10 * MS, 500, 500);
  event(gpu, 1, 0, &end[1]);
  clock_ns += 3000ull * MS;
  check_near(reached_ns(gpu, 1, &end[1]), (long long)(10e6 * (0.5 + 0.5 * golden)), 1);
  gs_engine_update(gpu);
  check_near((long long)gpu->queues[0].busy_ns, (long long)(1000e6 + 10e6 * (0.5 + 0.5 * golden) * (1 - 1 / golden)),
             3);
}

/* The sum of what is taken never exceeds what there is, whatever runs. */
void test_dram_is_never_more_than_whole(void) {
  unsigned state = 11;
  struct gs_gpu *gpu = begin_engine(GS_SHARING_MPS);
  gs_self.region->settings.dram_reach_permille = 900;
  for (int i = 0; i < 400; i++) {
    uint32_t slot = (uint32_t)rand_r(&state) % 6;
    uint32_t bound = rand_r(&state) % 3 ? GS_BOUND_AS_USED : 100 + (uint32_t)rand_r(&state) % 900;
    dram_kernel(gpu, slot, (uint32_t)rand_r(&state) % 2, (1 + (uint64_t)rand_r(&state) % 40) * 100 * US,
                (uint32_t)rand_r(&state) % 1000, bound);
    if (i % 3 == 0) copy(gpu, slot, 3, i % 2 ? GS_WAY_RX : GS_WAY_TX, 1 * MS);
    uint64_t before = gpu->dram_bytes;
    uint64_t link = gpu->rx_bytes;
    clock_ns += 1 * MS;
    gs_engine_update(gpu);
    /* a ns of each of twelve kernels may count a look later */
    CHECK(gpu->dram_bytes - before <= 900ull * MS + 12 * 1000);
    CHECK(gpu->rx_bytes - link <= 20ull * MS + 6 * 20);
  }
  CHECK(gpu->dram_bytes > 100ull * 900 * MS); /* and it was busy */
}

/* Those who live in the L2 cache share that, and leave DRAM alone unless its traffic takes of the cache. */
void test_cache_is_shared(void) {
  const struct gs_work cached = {.kind = GS_WORK_KERNEL,
                                 .ns = 4 * MS,
                                 .sm_permille = 100,
                                 .cache_permille = 1000,
                                 .bound_permille = GS_BOUND_AS_USED};
  struct gs_stamp end[3];
  for (uint32_t taken = 0; taken <= 1000; taken += 1000) {
    struct gs_gpu *gpu = begin_engine(GS_SHARING_MPS);
    gs_self.region->settings.cache_dram_permille = taken;
    give(gpu, 0, 0, &cached);
    event(gpu, 0, 0, &end[0]);
    dram_kernel(gpu, 1, 0, 4 * MS, 1000, 1000);
    event(gpu, 1, 0, &end[1]);
    clock_ns += 100 * MS;
    CHECK(reached_ns(gpu, 0, &end[0]) == 4 * MS || taken);
    CHECK(reached_ns(gpu, 1, &end[1]) == 4 * MS || taken);
    CHECK(reached_ns(gpu, 0, &end[0]) > 5 * MS || !taken);
    CHECK_EQUAL(gpu->queues[0].dram_bytes, 0);
  }
  struct gs_gpu *gpu = begin_engine(GS_SHARING_MPS);
  for (uint32_t slot = 0; slot < 2; slot++) {
    give(gpu, slot, 0, &cached);
    event(gpu, slot, 0, &end[slot]);
  }
  clock_ns += 100 * MS;
  CHECK_EQUAL(reached_ns(gpu, 0, &end[0]), 8 * MS);
  CHECK_EQUAL(gpu->dram_bytes, 0);
}
