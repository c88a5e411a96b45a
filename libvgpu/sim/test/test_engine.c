/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_engine.c - the engine alone in virtual time: to the nanosecond, whatever the load of the machine.
 */
#define _GNU_SOURCE
#include <string.h>

#include "virtual_engine.h"

/* 5 ms each, from the same time on: slices 0-2, 2-4, 4-6, 6-8, and the rest of 8-9 is given up. */
void test_engine_time_slices(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
  struct gs_stamp start[2];
  struct gs_stamp end[2];
  for (uint32_t slot = 0; slot < 2; slot++) {
    event(gpu, slot, 0, &start[slot]);
    kernel(gpu, slot, 0, 5 * MS, 1000);
    event(gpu, slot, 0, &end[slot]);
  }
  clock_ns += 100 * MS;
  CHECK_EQUAL(reached_us(gpu, 0, &start[0]), 0);
  CHECK_EQUAL(reached_us(gpu, 0, &end[0]), 9000);
  CHECK_EQUAL(reached_us(gpu, 1, &start[1]), 2000); /* its context had to be scheduled first */
  CHECK_EQUAL(reached_us(gpu, 1, &end[1]), 10000);
  CHECK_EQUAL(gpu->busy_ns, 10 * MS);
  CHECK_EQUAL(gpu->queues[0].busy_ns, 5 * MS);
}

/* Who runs out of work gives the rest of its slice up; who comes later waits for its turn. */
void test_engine_turns(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
  struct gs_stamp end[3];
  kernel(gpu, 0, 0, 10 * MS, 1000);
  event(gpu, 0, 0, &end[0]);
  clock_ns += 2500 * US; /* in the middle of the second slice */
  kernel(gpu, 2, 0, 100 * US, 1000);
  event(gpu, 2, 0, &end[2]);
  kernel(gpu, 1, 0, 3 * MS, 1000);
  event(gpu, 1, 0, &end[1]);
  clock_ns += 100 * MS;
  /* 0: 0-4, 1: 4-6, 2: 6-6.1, 0: 6.1-8.1, 1: 8.1-9.1, 0: 9.1-13.1 */
  CHECK_EQUAL(reached_us(gpu, 1, &end[1]), 9100);
  CHECK_EQUAL(reached_us(gpu, 2, &end[2]), 6100);
  CHECK_EQUAL(reached_us(gpu, 0, &end[0]), 13100);
}

void test_engine_mps(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_MPS);
  struct gs_stamp end[3];
  kernel(gpu, 0, 0, 5 * MS, 1000);
  event(gpu, 0, 0, &end[0]);
  clock_ns += 1 * MS;
  kernel(gpu, 1, 0, 2 * MS, 1000);
  event(gpu, 1, 0, &end[1]);
  clock_ns += 100 * MS;
  /* Alone for 1 ms, then both at half speed: 1 is done after 4 ms, 0 has 2 ms left. */
  CHECK_EQUAL(reached_us(gpu, 1, &end[1]), 5000);
  CHECK_EQUAL(reached_us(gpu, 0, &end[0]), 7000);
  CHECK_EQUAL(gpu->busy_ns, 7 * MS);
  CHECK_EQUAL(gpu->queues[0].busy_ns, 7 * MS);
  CHECK_EQUAL(gpu->queues[1].busy_ns, 4 * MS);
  gpu = begin_engine(GS_SHARING_MPS);
  for (uint32_t slot = 0; slot < 3; slot++) {
    kernel(gpu, slot, 0, 4 * MS, 500);
    event(gpu, slot, 0, &end[slot]);
  }
  clock_ns += 100 * MS;
  for (uint32_t slot = 0; slot < 3; slot++)
    CHECK_EQUAL(reached_us(gpu, slot, &end[slot]), 6000); /* 1500 thousandths are wanted */
}

/* Two half-card kernels in two channels take the time of one; three share. The whole is sliced as one process. */
void test_engine_channels_overlap(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
  struct gs_stamp end[4];
  kernel(gpu, 0, 1, 1 * MS, 500);
  event(gpu, 0, 1, &end[1]);
  kernel(gpu, 0, 2, 1 * MS, 500);
  event(gpu, 0, 2, &end[2]);
  clock_ns += 10 * MS;
  CHECK_EQUAL(reached_us(gpu, 0, &end[1]), 1000);
  CHECK_EQUAL(reached_us(gpu, 0, &end[2]), 1000);
  CHECK_EQUAL(gpu->queues[0].busy_ns, 1 * MS);
  for (uint32_t channel = 1; channel < 4; channel++) {
    kernel(gpu, 0, channel, 1 * MS, 1000);
    event(gpu, 0, channel, &end[channel]);
  }
  kernel(gpu, 1, 0, 1 * MS, 1000);
  event(gpu, 1, 0, &end[0]);
  clock_ns += 10 * MS;
  CHECK_EQUAL(reached_us(gpu, 1, &end[0]), 13000);
  CHECK_EQUAL(reached_us(gpu, 0, &end[3]), 14000);
}

void test_engine_waits(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
  struct gs_stamp first;
  struct gs_stamp second;
  struct gs_stamp third;
  const struct gs_work barrier = {
      .kind = GS_WORK_KERNEL, .ns = 1 * MS, .sm_permille = 100, .after_channels = 1u << 1 | 1u << 2};
  kernel(gpu, 0, 1, 3 * MS, 100);
  event(gpu, 0, 1, &first);
  kernel(gpu, 0, 1, 4 * MS, 100);
  wait_for_event(gpu, 2, &first);
  kernel(gpu, 0, 2, 1 * MS, 100);
  event(gpu, 0, 2, &second);
  gs_engine_enqueue(gpu, 0, &barrier);
  kernel(gpu, 0, 1, 5 * MS, 100); /* later: the barrier is not for it */
  event(gpu, 0, 0, &third);
  gs_engine_wait(gpu, third.mark);
  CHECK_EQUAL(reached_us(gpu, 0, &first), 3000);
  CHECK_EQUAL(reached_us(gpu, 0, &second), 4000);
  CHECK_EQUAL(reached_us(gpu, 0, &third), 8000);
  CHECK(clock_ns >= 1008 * MS && clock_ns < 1008 * MS + 100 * US);
  CHECK(!gs_engine_channels_done(gpu, 1u << 1));
  gs_engine_wait_channels(gpu, GS_ALL_CHANNELS);
  CHECK(clock_ns >= 1012 * MS && clock_ns < 1012 * MS + 100 * US);
}

/* Gives eight processes 1 to 8 ms of work each, the fourth one's first; answers its mark. */
static uint64_t start_eight(struct gs_gpu *gpu) {
  uint64_t mark = kernel(gpu, 3, 0, 7 * MS, 1000);
  for (uint32_t slot = 0; slot < 8; slot++)
    if (slot != 3) kernel(gpu, slot, 0, (1 + slot) * MS, 1000);
  gs_self.slot = 3;
  sleeps = 0;
  return mark;
}

/* A wait ends in time and takes few looks: sleeps are as long as what is known allows. */
void test_engine_wake_ups(void) {
  for (int i = 0; i < 2; i++) {
    enum gs_sharing sharing = i == 0 ? GS_SHARING_TIME_SLICE : GS_SHARING_MPS;
    struct gs_gpu *gpu = begin_engine(sharing);
    gs_engine_wait(gpu, start_eight(gpu));
    uint64_t woken = clock_ns;
    CHECK(sleeps <= (sharing == GS_SHARING_TIME_SLICE ? 2 : 40));
    gpu = begin_engine(sharing);
    uint64_t mark = start_eight(gpu);
    while (!gs_engine_done(gpu, mark))
      clock_ns += 10 * US;
    CHECK(clock_ns > 1030 * MS);
    CHECK(woken >= clock_ns - 10 * US && woken <= clock_ns + 50 * US);
  }
}

/* 1024 pieces of work are taken at once; the next has to wait for the first to be done. */
void test_engine_queue_fills(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
  for (int i = 0; i < GS_QUEUE_DEPTH; i++)
    kernel(gpu, 0, (uint32_t)i % 2, 10 * MS, 500);
  CHECK_EQUAL(clock_ns, 1000 * MS);
  kernel(gpu, 0, 0, 10 * MS, 500);
  CHECK(clock_ns >= 1010 * MS && clock_ns < 1010 * MS + 100 * US);
  kernel(gpu, 1, 0, 10 * MS, 1000); /* each process has a queue of its own */
  CHECK(clock_ns < 1010 * MS + 100 * US);
}

void test_engine_samples(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
  gs_self.region->settings.sample_lag_ns = 25 * MS;
  clock_ns += 1 * MS;
  kernel(gpu, 0, 0, 6400 * US, 1000);
  kernel(gpu, 1, 0, 1 * MS, 1000);
  clock_ns = 1035 * MS - 1;
  CHECK_EQUAL(gs_engine_sample(gpu, 0).busy_ns, 0); /* of the period before */
  CHECK_EQUAL(gs_engine_sample(gpu, 0).end_ns, 1000 * MS);
  clock_ns = 1035 * MS;
  struct gs_sample sample = gs_engine_sample(gpu, 0);
  CHECK_EQUAL(sample.end_ns, 1010 * MS);
  CHECK_EQUAL(sample.busy_ns, 6400 * US);
  CHECK_EQUAL(sample.percent, 64);
  CHECK_EQUAL(gs_engine_sample(gpu, 1).percent, 10);
  CHECK_EQUAL(gs_engine_sample(gpu, 2).busy_ns, 0);
  CHECK_EQUAL(gs_engine_sample(gpu, -1).percent, 74);
  clock_ns = 1045 * MS;
  CHECK_EQUAL(gs_engine_sample(gpu, 0).busy_ns, 0);
  gs_self.region->settings.sample_lag_ns = 0;
  gs_self.region->settings.missing_percent = 30;
  int missing = 0;
  for (int i = 0; i < 1000; i++) {
    kernel(gpu, 0, 0, 10 * MS, 1000);
    clock_ns += 10 * MS;
    missing += gs_engine_sample(gpu, 0).busy_ns == 0;
  }
  CHECK(missing > 250 && missing < 350);
}

void test_engine_jitter(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
  struct gs_stamp start;
  struct gs_stamp end;
  long long least = 1000000;
  long long most = 0;
  gs_self.region->settings.jitter_permille = 50;
  for (int i = 0; i < 1000; i++) {
    event(gpu, 0, 0, &start);
    kernel(gpu, 0, 0, 1 * MS, 1000);
    event(gpu, 0, 0, &end);
    clock_ns += 10 * MS;
    long long took = reached_us(gpu, 0, &end) - reached_us(gpu, 0, &start);
    least = took < least ? took : least;
    most = took > most ? took : most;
  }
  CHECK(least >= 949 && least < 960 && most > 1040 && most <= 1050);
  CHECK(gpu->busy_ns > 995ull * MS && gpu->busy_ns < 1005ull * MS);
}

/* A stamp that is recorded anew belongs to the new record alone. */
void test_engine_records_again(void) {
  struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
  struct gs_stamp stamp;
  kernel(gpu, 0, 0, 1 * MS, 1000);
  event(gpu, 0, 0, &stamp);
  kernel(gpu, 0, 0, 1 * MS, 1000);
  event(gpu, 0, 0, &stamp);
  clock_ns += 1500 * US;
  CHECK_EQUAL(reached_us(gpu, 0, &stamp), -1);
  clock_ns += 1500 * US;
  CHECK_EQUAL(reached_us(gpu, 0, &stamp), 2000);
}

enum { PIECES = 300, PROCESSES = 4 };

/* Links as somebody might leave them who dies while changing them, put right again. */
static void wound_and_repair(struct gs_gpu *gpu) {
  for (uint32_t slot = 0; slot < PROCESSES; slot++) {
    struct gs_queue *queue = &gpu->queues[slot];
    for (uint32_t channel = 0; channel < GS_CHANNELS; channel++)
      queue->channel[channel].head = queue->channel[channel].tail = (uint16_t)(1 + channel);
    queue->free = queue->reached = 5;
    queue->channels = 0xf0f0;
    queue->count = 7;
  }
  gpu->ready[0] = 0xff;
  gpu->ready_words = 0xff;
  gs_engine_repair(gpu);
}

/* Much work by chance, looked at every `look_ns`; answers a sum over when the events of the first `recorders` processes
 * were reached. */
static uint64_t run_by_chance(enum gs_sharing sharing, uint64_t look_ns, bool wounded, uint32_t recorders) {
  static struct gs_stamp stamps[PIECES];
  struct gs_gpu *gpu = begin_engine(sharing);
  unsigned state = 7;
  uint64_t sum = 0;
  memset(stamps, 0, sizeof stamps);
  for (uint32_t i = 0; i < PIECES; i++) {
    uint32_t slot = (uint32_t)rand_r(&state) % PROCESSES;
    uint32_t channel = (uint32_t)rand_r(&state) % 4;
    kernel(gpu, slot, channel, 1 + (uint64_t)rand_r(&state) % (3 * MS), 250 * (1 + (uint32_t)rand_r(&state) % 4));
    if (slot < recorders) event(gpu, slot, channel, &stamps[i]);
    if (slot < recorders && i % 3 == 0) wait_for_event(gpu, (channel + 1) % 4, &stamps[i]);
    uint64_t next = clock_ns + (uint64_t)rand_r(&state) % (4 * MS);
    for (; clock_ns + look_ns < next; clock_ns += look_ns)
      gs_engine_update(gpu);
    clock_ns = next;
    if (wounded && i % 3 == 0) wound_and_repair(gpu);
  }
  clock_ns += 3000ull * MS;
  for (uint32_t slot = 0; slot < PROCESSES; slot++) {
    gs_self.slot = slot;
    (void)gs_engine_stamp(gpu, &(struct gs_stamp){.mark = 1});
    CHECK(gs_engine_channels_done(gpu, GS_ALL_CHANNELS));
    CHECK_EQUAL(gpu->queues[slot].count, 0);
  }
  for (uint32_t i = 0; i < PIECES; i++)
    sum = sum * 31 + stamps[i].reached_ns;
  return sum;
}

/* What happens on the GPU does not depend on who looks how often. */
void test_engine_is_lazy(void) {
  for (int i = 0; i < 2; i++) {
    enum gs_sharing sharing = i == 0 ? GS_SHARING_TIME_SLICE : GS_SHARING_MPS;
    uint64_t rarely = run_by_chance(sharing, 1000 * MS, false, PROCESSES);
    CHECK(run_by_chance(sharing, 777 * US, false, PROCESSES) == rarely);
    CHECK(run_by_chance(sharing, 1 * US + 1, false, PROCESSES) == rarely);
  }
}

/* Nor on links that somebody left half changed. */
void test_engine_repair(void) {
  for (int i = 0; i < 2; i++) {
    enum gs_sharing sharing = i == 0 ? GS_SHARING_TIME_SLICE : GS_SHARING_MPS;
    CHECK(run_by_chance(sharing, 1000 * MS, true, 1) == run_by_chance(sharing, 1000 * MS, false, 1));
  }
}

/* Simulating a flood of small kernels: what one costs, enqueued and carried out. */
void test_engine_cost(void) {
  enum { KERNELS = 1000000 };
  double best = 1e9;
  for (int round = 0; round < 3; round++) {
    struct gs_gpu *gpu = begin_engine(GS_SHARING_TIME_SLICE);
    uint64_t start = cpu_ns();
    for (int i = 0; i < KERNELS; i++) {
      kernel(gpu, 0, 0, 20 * US, 1000);
      clock_ns += 20 * US;
    }
    double each = (double)(cpu_ns() - start) / KERNELS;
    best = each < best ? each : best;
  }
  printf("         a simulated kernel %.0f ns\n", best);
  fflush(stdout);
  CHECK(best < 500);
}
