/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pace_test.c - launches in virtual time: what a share comes to in the long run, for kernels of any length; debt and the
 * longest wait; turns among processes.
 */
#include "flood.h"

#define START (1000 * SECOND)

/* GPU time used in `time_ns` by a process that floods, in millionths. */
static uint64_t flood_ppm(uint32_t share_ppm, uint64_t kernel_ns, uint64_t time_ns, bool sync) {
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, share_ppm, START);
  struct flooder *flooder = make_flooder(pair, kernel_ns);
  flooder->sync = sync;
  flooder->next_ns = gpu_free_ns = START;
  run_until(&flooder, 1, START + time_ns);
  uint64_t used = flooder->used_ns * 1000 / (time_ns / 1000);
  uint64_t own = kernel_ns * VGPU_PPM / share_ppm;
  CHECK(flooder->longest_wait_ns <= (own > VGPU_WAIT_MAX_NS ? own : VGPU_WAIT_MAX_NS));
  free_flooder(flooder);
  free_pair(pair);
  return used;
}

static void check_share(uint32_t share_ppm, uint64_t kernel_ns, bool sync) {
  uint64_t period = kernel_ns * VGPU_PPM / share_ppm;
  if (period > VGPU_WAIT_OWN_NS) {
    return; /* more than the longest wait pays for */
  }
  uint64_t time = period * 100 > 60 * SECOND ? period * 100 : 60 * SECOND;
  uint64_t used = flood_ppm(share_ppm, kernel_ns, time, sync);
  uint64_t slack = 2 * kernel_ns * VGPU_PPM / time + 500; /* the first kernel, the last one, and the burst */
  bool exact = used <= share_ppm + slack && used + slack >= share_ppm;
  CHECK(exact);
  if (!exact) {
    printf("share %u, kernels of %llu ns, %s: used %llu\n", share_ppm, (unsigned long long)kernel_ns,
           sync ? "one at a time" : "as many as possible", (unsigned long long)used);
  }
}

static void test_exact(void) {
  uint32_t shares[] = {10000, 100000, 250000, 300000, 500000, 750000, 900000, 1000000};
  uint64_t kernels[] = {20 * MICROSECOND,  200 * MICROSECOND, 2 * MILLISECOND, 20 * MILLISECOND,
                        200 * MILLISECOND, 2 * SECOND,        30 * SECOND};
  for (size_t s = 0; s < sizeof(shares) / sizeof(*shares); s++) {
    for (size_t k = 0; k < sizeof(kernels) / sizeof(*kernels); k++) {
      check_share(shares[s], kernels[k], false);
      check_share(shares[s], kernels[k], true);
    }
  }
}

/* Small launches after a huge one wait the longest wait each, and what they did not wait for is not forgotten. */
static void test_longest_wait(void) {
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, 10000, START);
  struct flooder *flooder = make_flooder(pair, 30 * SECOND);
  flooder->sync = true;
  flooder->next_ns = gpu_free_ns = START;
  run_until(&flooder, 1, START + 200 * SECOND);
  CHECK_EQUAL(flooder->launched, 1);
  free_flooder(flooder);

  flooder = make_flooder(pair, MILLISECOND);
  flooder->sync = true;
  flooder->next_ns = START + 200 * SECOND;
  run_until(&flooder, 1, START + 1000 * SECOND);
  uint64_t debt = vgpu_rate_debt_ns(&flooder->pacer.rate, flooder->next_ns);
  CHECK(flooder->launched >= 75 && flooder->launched <= 81);
  CHECK_EQUAL(flooder->longest_wait_ns, VGPU_WAIT_MAX_NS);
  CHECK_EQUAL(debt, 30 * SECOND + flooder->used_ns - (flooder->next_ns - START) / 100);
  free_flooder(flooder);
  free_pair(pair);
}

/* Threads that wait together longer than the longest wait have no more than the share for that. */
static void test_many_wait_long(void) {
  enum { WAITERS = 16 };
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, 300000, START);
  struct flooder *flooders[WAITERS];
  uint64_t used = 0;
  for (int i = 0; i < WAITERS; i++) {
    flooders[i] = make_flooder(pair, SECOND);
    flooders[i]->sync = true;
    flooders[i]->next_ns = gpu_free_ns = START;
  }
  run_until(flooders, WAITERS, START + 600 * SECOND);
  for (int i = 0; i < WAITERS; i++) {
    used += flooders[i]->used_ns;
    free_flooder(flooders[i]);
  }
  CHECK(used >= 175 * SECOND && used <= (180 + WAITERS) * SECOND); /* the first launch of each is not known yet */
  free_pair(pair);
}

/* A program below its share is never kept waiting: 80 % of the time at 90 %. */
static void test_below_the_share(void) {
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, 900000, START);
  struct flooder *flooder = make_flooder(pair, MILLISECOND);
  flooder->sync = true;
  flooder->next_ns = gpu_free_ns = START;
  for (uint64_t i = 0; i < 20000; i++) {
    step(flooder);
    flooder->next_ns += MILLISECOND / 4;
  }
  CHECK_EQUAL(flooder->longest_wait_ns, 0);
  CHECK_EQUAL(flooder->launched, 20000);
  vgpu_pace_flush(&flooder->pacer, flooder->next_ns);
  const struct vgpu_usage_device *usage = (const struct vgpu_usage_device *)(pair.usage + 1);
  CHECK_EQUAL(usage->launches, 20000);
  CHECK_EQUAL(usage->throttled_ns, 0);
  CHECK_EQUAL(usage->waited_ns, 0);
  free_flooder(flooder);
  free_pair(pair);
}

/* The rate in force holds from its publication on, up and down, with what was lent and the scale of costs. */
static void test_live_change(void) {
  struct pair pair = make_compute_pair(VGPU_COMPUTE_ELASTIC, 300000, START);
  struct flooder *flooder = make_flooder(pair, 2 * MILLISECOND);
  uint32_t steps[][2] = {{300000, 1000000}, {600000, 1000000}, {1010000, 1000000}, {100000, 1000000},
                         {600000, 2000000}, {600000, 500000},  {50000, 10000000},  {50000, 100000}};
  flooder->next_ns = gpu_free_ns = START;
  for (uint64_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
    uint64_t from = START + i * 10 * SECOND, used = flooder->used_ns;
    publish(pair, steps[i][0], steps[i][1], 0, from);
    flooder->next_ns = from; /* as if woken */
    run_until(&flooder, 1, from + 10 * SECOND);
    uint64_t wanted = (uint64_t)steps[i][0] * 1000000 / steps[i][1] * 10000, got = flooder->used_ns - used;
    CHECK(got <= wanted + 45 * MILLISECOND && got + 45 * MILLISECOND >= wanted);
  }
  free_flooder(flooder);
  free_pair(pair);
}

static uint64_t mixed_duration(struct flooder *flooder) {
  flooder->random ^= flooder->random << 13;
  flooder->random ^= flooder->random >> 7;
  flooder->random ^= flooder->random << 17;
  uint64_t random = flooder->random >> 16;
  switch (flooder->fixed_ns) {
  case 0: /* wide */
    return 10 * MICROSECOND + random % (10 * MILLISECOND);
  case 1: /* short, wide */
    return 2 * MICROSECOND + random % (100 * MICROSECOND);
  case 2: /* rare long ones */
    return random % 100 == 0 ? 100 * MILLISECOND : 20 * MICROSECOND;
  case 3: /* two kinds, astride of what is long */
    return random % 2 == 0 ? 100 * MICROSECOND : 300 * MICROSECOND;
  default: /* in step with how often launches are measured */
    return flooder->launched % 16 == 0 ? 150 * MICROSECOND : 10 * MICROSECOND;
  }
}

/* One key, kernels of many durations: alone, the share is met all the same, once the key is known. */
static void test_mixed_durations(void) {
  for (uint64_t kind = 0; kind < 5; kind++) {
    struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, 300000, START);
    struct flooder *flooder = make_flooder(pair, kind);
    flooder->duration = mixed_duration;
    flooder->next_ns = gpu_free_ns = START;
    publish(pair, 300000, 1000000, VGPU_RATE_ALONE, START);
    run_until(&flooder, 1, START + 10 * SECOND);
    uint64_t learnt = flooder->used_ns;
    run_until(&flooder, 1, START + 110 * SECOND);
    uint64_t used = (flooder->used_ns - learnt) / 100000;
    uint64_t off = kind == 2 ? 30000 : 3000; /* a hundred that are seldom measured say little about ten thousand */
    CHECK(used > 300000 - off && used < 300000 + off);
    if (used <= 300000 - off || used >= 300000 + off) {
      printf("kind %llu: used %llu\n", (unsigned long long)kind, (unsigned long long)used);
    }
    free_flooder(flooder);
    free_pair(pair);
  }
}

/* Processes of one container get the same, whatever their kernels take, and together the share. */
static void test_turns(uint64_t count, const uint64_t *kernels, uint32_t share_ppm) {
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, share_ppm, START);
  struct flooder *flooders[8];
  uint64_t together = 0;
  gpu_free_ns = START;
  for (uint64_t i = 0; i < count; i++) {
    flooders[i] = make_flooder(pair, kernels[i]);
    flooders[i]->next_ns = START + i;
  }
  run_until(flooders, count, START + 20 * SECOND);
  for (uint64_t i = 0; i < count; i++) {
    uint64_t fair = 20 * (uint64_t)share_ppm * 1000 / count;
    together += flooders[i]->used_ns;
    CHECK(flooders[i]->used_ns > fair * 95 / 100 && flooders[i]->used_ns < fair * 105 / 100);
    if (flooders[i]->used_ns <= fair * 95 / 100 || flooders[i]->used_ns >= fair * 105 / 100) {
      printf("kernels of %llu ns: %llu, fair %llu\n", (unsigned long long)kernels[i],
             (unsigned long long)flooders[i]->used_ns, (unsigned long long)fair);
    }
  }
  uint64_t all = 20 * (uint64_t)share_ppm * 1000;
  CHECK(together < all + 100 * MILLISECOND && together + 200 * MILLISECOND > all);

  /* One joins later, and is no further behind than the others. */
  struct flooder *late = make_flooder(pair, MILLISECOND);
  uint64_t used[8];
  flooders[count] = late;
  late->next_ns = START + 20 * SECOND;
  for (uint64_t i = 0; i <= count; i++) {
    used[i] = flooders[i]->used_ns;
  }
  run_until(flooders, count + 1, START + 40 * SECOND);
  for (uint64_t i = 0; i <= count; i++) {
    uint64_t fair = all / (count + 1), got = flooders[i]->used_ns - used[i];
    CHECK(got > fair * 95 / 100 && got < fair * 105 / 100);
  }
  for (uint64_t i = 0; i <= count; i++) {
    free_flooder(flooders[i]);
  }
  free_pair(pair);
}

/* Garbage all over the usage page, every millisecond: no more than the share, and nobody waits for ever. */
static void test_garbage(void) {
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, 300000, START);
  struct flooder *flooder = make_flooder(pair, 2 * MILLISECOND);
  uint64_t *words = (uint64_t *)pair.usage, random = 1, far = vgpu_usage_slot_offset(1, 4) / sizeof(*words);
  flooder->next_ns = gpu_free_ns = START;
  for (uint64_t now = START; now < START + 20 * SECOND; now += MILLISECOND) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    uint64_t word = (random >> 20) % 4 == 0 ? random : (random >> 20) % 4 == 1 ? UINT64_MAX : now + random % SECOND;
    words[1 + (random >> 33) % (far - 1)] = (random >> 20) % 4 == 2 ? 0 : word;
    run_until(&flooder, 1, now + MILLISECOND);
  }
  CHECK(flooder->used_ns <= 6 * SECOND + 20 * MILLISECOND);
  CHECK(flooder->launched > 0);
  CHECK(flooder->longest_wait_ns <= VGPU_WAIT_MAX_NS);
  free_flooder(flooder);
  free_pair(pair);
}

/* Runs for a second, in which an agent steers or does not. Returns the cost that is charged then. */
static uint64_t cost_after(struct flooder *flooder, struct pair pair, uint64_t *now_ns, bool steered) {
  for (int i = 0; i < 10; i++) {
    if (steered) {
      vgpu_limits_beat(pair.limits);
    }
    *now_ns += SECOND / 10;
    run_until(&flooder, 1, *now_ns);
  }
  return cost_of(flooder)->cost_ns;
}

/* Scale and costs belong together: when the agent is gone, what is known is learnt no further. */
static void test_costs_without_the_agent(void) {
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, 500000, START);
  struct flooder *flooder = make_flooder(pair, 2 * MILLISECOND);
  uint64_t now = START;
  flooder->sync = true;
  flooder->next_ns = gpu_free_ns = START;
  CHECK_EQUAL(cost_after(flooder, pair, &now, true), 2 * MILLISECOND);
  cost_after(flooder, pair, &now, false);
  flooder->fixed_ns = MILLISECOND;
  CHECK_EQUAL(cost_after(flooder, pair, &now, false), 2 * MILLISECOND);
  CHECK(cost_after(flooder, pair, &now, true) < 1100 * MICROSECOND);
  free_flooder(flooder);
  free_pair(pair);
}

int main(void) {
  test_costs_without_the_agent();
  test_exact();
  test_longest_wait();
  test_many_wait_long();
  test_below_the_share();
  test_live_change();
  test_mixed_durations();
  test_turns(2, (uint64_t[]){20 * MILLISECOND, 200 * MICROSECOND}, 500000);
  test_turns(2, (uint64_t[]){200 * MICROSECOND, 20 * MICROSECOND}, 100000);
  test_turns(3, (uint64_t[]){20 * MILLISECOND, 2 * MILLISECOND, 20 * MICROSECOND}, 900000);
  test_turns(2, (uint64_t[]){100 * MILLISECOND, MILLISECOND}, 300000);
  test_garbage();
  return check_end();
}
