/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_bandwidth.c - how copies and kernels share the link and DRAM, in virtual time. The link gives 20 bytes per ns, DRAM
 * 1000. Rates are rounded to 31 bits, so that a time of 10 ms may be one ns too long.
 */
#include <string.h>

#include "virtual_engine.h"

/* Copies of two processes in one direction share it, those in the other one do not care. */
void test_copies_share_the_link(void) {
  for (int i = 0; i < 2; i++) {
    struct gs_gpu *gpu = begin_engine(i == 0 ? GS_SHARING_TIME_SLICE : GS_SHARING_MPS);
    struct gs_stamp end[3];
    copy(gpu, 0, 1, GS_WAY_RX, 4 * MS);
    event(gpu, 0, 1, &end[0]);
    copy(gpu, 1, 1, GS_WAY_TX, 4 * MS);
    event(gpu, 1, 1, &end[1]);
    clock_ns += 1 * MS;
    copy(gpu, 2, 1, GS_WAY_RX, 1 * MS);
    event(gpu, 2, 1, &end[2]);
    clock_ns += 100 * MS;
    CHECK_EQUAL(reached_ns(gpu, 0, &end[0]), 5 * MS); /* alone to 1, by halves to 3, alone */
    CHECK_EQUAL(reached_ns(gpu, 1, &end[1]), 4 * MS);
    CHECK_EQUAL(reached_ns(gpu, 2, &end[2]), 3 * MS);
    CHECK_EQUAL(gpu->rx_bytes, 5ull * 20 * MS);
    CHECK_EQUAL(gpu->tx_bytes, 4ull * 20 * MS);
    CHECK_EQUAL(gpu->queues[2].rx_bytes, 1ull * 20 * MS);
    CHECK_EQUAL(gpu->queues[0].copy_ns[GS_WAY_RX], 5 * MS);
    CHECK_EQUAL(gpu->copy_ns[GS_WAY_RX], 5 * MS);
    CHECK_EQUAL(gpu->copy_ns[GS_WAY_TX], 4 * MS);
    CHECK_EQUAL(gpu->busy_ns, 0); /* no kernel ran */
  }
}

/* One process' copies wait for its copy engine in their order, so that it does not get more of the link by having more. */
void test_copy_engines(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
  struct gs_stamp end[5];
  for (uint32_t channel = 3; channel > 0; channel--) {
    copy(gpu, 0, channel, GS_WAY_RX, 2 * MS);
    event(gpu, 0, channel, &end[channel]);
  }
  copy(gpu, 0, 5, GS_WAY_TX, 1 * MS);
  event(gpu, 0, 5, &end[4]);
  copy(gpu, 1, 1, GS_WAY_RX, 2 * MS);
  event(gpu, 1, 1, &end[0]);
  clock_ns += 100 * MS;
  CHECK_EQUAL(reached_ns(gpu, 1, &end[0]), 4 * MS);
  CHECK_EQUAL(reached_ns(gpu, 0, &end[3]), 4 * MS);
  CHECK_EQUAL(reached_ns(gpu, 0, &end[2]), 6 * MS);
  CHECK_EQUAL(reached_ns(gpu, 0, &end[1]), 8 * MS);
  CHECK_EQUAL(reached_ns(gpu, 0, &end[4]), 1 * MS);
  gpu = begin_engine(GS_SHARING_TIME_SLICE);
  gs_self.region->settings.copy_engines = 1;
  copy(gpu, 0, 1, GS_WAY_RX, 2 * MS);
  event(gpu, 0, 1, &end[1]);
  copy(gpu, 0, 2, GS_WAY_TX, 1 * MS);
  event(gpu, 0, 2, &end[2]);
  clock_ns += 100 * MS;
  CHECK_EQUAL(reached_ns(gpu, 0, &end[1]), 2 * MS);
  CHECK_EQUAL(reached_ns(gpu, 0, &end[2]), 3 * MS);
}

/* Copies do not wait for slices, nor events next to them; kernels do, and are not disturbed. */
void test_copies_beside_slices(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
  struct gs_stamp end[2];
  struct gs_stamp before;
  struct gs_stamp after;
  struct gs_stamp behind;
  kernel(gpu, 0, 0, 5 * MS, 1000);
  event(gpu, 0, 0, &end[0]);
  event(gpu, 1, 1, &before);
  clock_ns += 500 * US;
  CHECK_EQUAL(reached_ns(gpu, 1, &before), -1); /* of a process that only waits for its turn */
  copy(gpu, 1, 1, GS_WAY_TX, 1 * MS);
  event(gpu, 1, 1, &after);
  kernel(gpu, 1, 1, 3 * MS, 1000);
  event(gpu, 1, 1, &behind);
  kernel(gpu, 1, 2, 900 * US, 1000);
  event(gpu, 1, 2, &end[1]);
  clock_ns += 100 * MS;
  CHECK_EQUAL(reached_ns(gpu, 1, &before), 500 * US);
  CHECK_EQUAL(reached_ns(gpu, 1, &after), 1500 * US);
  /* 0: 0-2, 1: 2-4, both kernels at half speed to 3.8, 0: 4-6, 1: 6-7.9, 0: 7.9-8.9 */
  CHECK_EQUAL(reached_ns(gpu, 1, &end[1]), 3800 * US);
  CHECK_EQUAL(reached_ns(gpu, 1, &behind), 7900 * US);
  CHECK_EQUAL(reached_ns(gpu, 0, &end[0]), 8900 * US);
  CHECK_EQUAL(gpu->queues[1].busy_ns, 3900 * US);
  CHECK_EQUAL(gpu->busy_ns, 8900 * US);
}

/* Who waits for a kernel while others copy sleeps as long as others' slices let it expect, and wakes in time. */
void test_copies_and_wake_ups(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
  for (uint32_t slot = 1; slot < 4; slot++) {
    kernel(gpu, slot, 0, 20 * MS, 1000);
    copy(gpu, slot, 1, GS_WAY_RX, 20 * MS);
    kernel(gpu, slot, 1, 20 * MS, 1000);
  }
  uint64_t mark = kernel(gpu, 0, 0, 5 * MS, 1000);
  sleeps = 0;
  gs_engine_wait(gpu, mark);
  /* 1: 0-2, 2: 2-4, 3: 4-6, 0: 6-8, ... 14-16, 22-23 */
  check_near((long long)clock_ns - 1000 * MS, 23 * MS, 50 * US);
  CHECK(sleeps <= 4);
}

/* A copy waits for the kernel before it in its stream, and the kernel behind it for the copy, as long as that takes. */
void test_copies_in_order(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
  struct gs_stamp end[2];
  kernel(gpu, 0, 1, 1 * MS, 1000);
  copy(gpu, 0, 1, GS_WAY_RX, 2 * MS);
  kernel(gpu, 0, 1, 1 * MS, 1000);
  event(gpu, 0, 1, &end[0]);
  copy(gpu, 1, 1, GS_WAY_RX, 2 * MS);
  gs_self.slot = 1;
  gs_engine_wait(gpu, gs_engine_channel_mark(gpu, 1));
  check_near((long long)clock_ns - 1000 * MS, 3 * MS, 50 * US); /* alone to 1, half to 3 */
  gs_self.slot = 0;
  gs_engine_wait_channels(gpu, GS_ALL_CHANNELS);
  check_near((long long)clock_ns - 1000 * MS, 5 * MS, 50 * US);
  CHECK_EQUAL(reached_ns(gpu, 0, &end[0]), 5 * MS);
}

/* Lower clocks and a link with less of its lanes slow what waits for them, from the moment on. */
void test_card_gets_slower(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
  struct gs_stamp end[2];
  kernel(gpu, 0, 0, 10 * MS, 1000);
  event(gpu, 0, 0, &end[0]);
  copy(gpu, 0, 1, GS_WAY_RX, 10 * MS);
  event(gpu, 0, 1, &end[1]);
  clock_ns += 5 * MS;
  gs_engine_update(gpu);
  gpu->live.clock_permille = 500;
  gpu->live.link_generation = 3;
  gpu->live.link_width = 8;
  gpu->live.changes++;
  clock_ns += 100 * MS;
  CHECK_EQUAL(reached_ns(gpu, 0, &end[0]), 15 * MS);
  CHECK_EQUAL(reached_ns(gpu, 0, &end[1]), 25 * MS);
  gpu = begin_engine(GS_SHARING_TIME_SLICE);
  gpu->live.memory_clock_permille = 500;
  dram_kernel(gpu, 0, 0, 10 * MS, 1000, 600);
  event(gpu, 0, 0, &end[0]);
  clock_ns += 100 * MS;
  check_near(reached_ns(gpu, 0, &end[0]), 20 * MS, 2); /* DRAM's half is all it can get */
  gpu = begin_engine(GS_SHARING_TIME_SLICE);
  gpu->live.clock_permille = 500;
  dram_kernel(gpu, 0, 0, 10 * MS, 500, 600);
  event(gpu, 0, 0, &end[0]);
  clock_ns += 100 * MS;
  check_near(reached_ns(gpu, 0, &end[0]), 14 * MS, 1); /* 6 ms wait for memory, 4 compute */
}

/* What the counters were at a tick, also when nobody looked then and when nothing ran. */
void test_totals_at_ticks(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
  gs_engine_update(gpu);
  copy(gpu, 0, 1, GS_WAY_RX, 25 * MS);
  dram_kernel(gpu, 0, 0, 15 * MS, 500, 500);
  clock_ns += 200 * MS;
  CHECK_EQUAL(gs_engine_totals(gpu, 1009 * MS).rx_bytes, 0);
  CHECK_EQUAL(gs_engine_totals(gpu, 1010 * MS).rx_bytes, 20ull * 10 * MS);
  CHECK_EQUAL(gs_engine_totals(gpu, 1020 * MS).rx_bytes, 20ull * 20 * MS);
  CHECK_EQUAL(gs_engine_totals(gpu, 1030 * MS).rx_bytes, 20ull * 25 * MS);
  CHECK_EQUAL(gs_engine_totals(gpu, 1200 * MS).rx_bytes, 20ull * 25 * MS);
  CHECK_EQUAL(gs_engine_totals(gpu, 1010 * MS).dram_bytes, 500ull * 10 * MS);
  CHECK_EQUAL(gs_engine_totals(gpu, 1020 * MS).dram_bytes, 500ull * 15 * MS);
  CHECK_EQUAL(gs_engine_totals(gpu, 1020 * MS).busy_ns, 15 * MS);
  CHECK_EQUAL(gs_engine_totals(gpu, 1020 * MS).memory_ns, 15 * MS);
  CHECK_EQUAL(gs_engine_totals(gpu, 1020 * MS).sm_work, 100ull * 15 * MS);
  clock_ns += 60000ull * MS; /* longer than is kept */
  CHECK_EQUAL(gs_engine_totals(gpu, clock_ns).rx_bytes, 20ull * 25 * MS);
  CHECK_EQUAL(gs_engine_sample(gpu, -1).memory_percent, 0);
}

void test_memory_samples(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
  dram_kernel(gpu, 0, 0, 3 * MS, 10, 10); /* however little it takes */
  kernel(gpu, 0, 0, 4 * MS, 1000);
  clock_ns += 10 * MS;
  CHECK_EQUAL(gs_engine_sample(gpu, -1).percent, 70);
  CHECK_EQUAL(gs_engine_sample(gpu, -1).memory_percent, 30);
  CHECK_EQUAL(gs_engine_sample(gpu, 0).memory_percent, 30);
}

enum { PIECES = 300, PROCESSES = 4 };

/* Kernels, copies and waits by chance, looked at every `look_ns`; answers a sum over when the first recorders' events were
 * reached, and what was moved. */
static uint64_t run_by_chance(enum gs_sharing sharing, uint64_t look_ns, bool repaired) {
  static struct gs_stamp stamps[PIECES];
  struct gs_gpu *gpu = begin_engine(sharing);
  unsigned state = 5;
  uint64_t sum = 0;
  memset(stamps, 0, sizeof stamps);
  for (uint32_t i = 0; i < PIECES; i++) {
    uint32_t slot = (uint32_t)rand_r(&state) % PROCESSES;
    uint32_t channel = (uint32_t)rand_r(&state) % 4;
    uint64_t ns = 1 + (uint64_t)rand_r(&state) % (3 * MS);
    if (rand_r(&state) % 2)
      copy(gpu, slot, channel, rand_r(&state) % 2 ? GS_WAY_RX : GS_WAY_TX, ns);
    else
      dram_kernel(gpu, slot, channel, ns, (uint32_t)rand_r(&state) % 1000, GS_BOUND_AS_USED);
    if (!repaired || slot == 0) event(gpu, slot, channel, &stamps[i]);
    if (slot == 0 && i % 3 == 0) wait_for_event(gpu, (channel + 1) % 4, &stamps[i]);
    uint64_t next = clock_ns + (uint64_t)rand_r(&state) % (4 * MS);
    for (; clock_ns + look_ns < next; clock_ns += look_ns)
      gs_engine_update(gpu);
    clock_ns = next;
    if (repaired && i % 5 == 0 && look_ns < 1000 * MS) gs_engine_repair(gpu);
  }
  clock_ns += 3000ull * MS;
  for (uint32_t slot = 0; slot < PROCESSES; slot++) {
    gs_self.slot = slot;
    (void)gs_engine_stamp(gpu, &(struct gs_stamp){.mark = 1});
    CHECK(gs_engine_channels_done(gpu, GS_ALL_CHANNELS));
    CHECK_EQUAL(gpu->queues[slot].count, 0);
    CHECK_EQUAL(gpu->queues[slot].copies, 0);
    sum = sum * 31 + gpu->queues[slot].dram_bytes + gpu->queues[slot].copy_ns[GS_WAY_RX];
  }
  CHECK_EQUAL(gpu->copies, 0);
  for (uint32_t i = 0; i < PIECES; i++)
    sum = sum * 31 + stamps[i].reached_ns;
  return sum * 31 + gpu->memory_ns + gpu->rx_bytes;
}

/* What happens does not depend on who looks how often, nor on links that were made anew. */
void test_bandwidth_is_lazy(void) {
  for (int i = 0; i < 2; i++) {
    enum gs_sharing sharing = i == 0 ? GS_SHARING_TIME_SLICE : GS_SHARING_MPS;
    uint64_t rarely = run_by_chance(sharing, 1000 * MS, false);
    CHECK(run_by_chance(sharing, 777 * US, false) == rarely);
    CHECK(run_by_chance(sharing, 7 * US + 1, false) == rarely);
    CHECK(run_by_chance(sharing, 100 * US, true) == run_by_chance(sharing, 1000 * MS, true));
  }
}

/* What a step costs where four kernels of four processes want more of DRAM than there is. */
void test_bandwidth_cost(void) {
  enum { KERNELS = 100000 };
  struct gs_gpu *gpu = begin_engine(GS_SHARING_MPS);
  uint64_t start = cpu_ns();
  for (uint32_t i = 0; i < KERNELS; i++) {
    dram_kernel(gpu, i % 4, 0, 80 * US, 600, GS_BOUND_AS_USED);
    clock_ns += 50 * US;
  }
  double each = (double)(cpu_ns() - start) / KERNELS;
  printf("         a simulated kernel among four that want more than there is %.0f ns\n", each);
  fflush(stdout);
  CHECK(each < 20000);
}
