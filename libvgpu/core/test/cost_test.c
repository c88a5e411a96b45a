/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * cost_test.c - what launches cost: the table, what is measured, what is learnt from it, and from nonsense.
 */
#include <pthread.h>

#include "flood.h"

static struct vgpu_costs costs;

static struct vgpu_cost *find(uint64_t function, uint64_t blocks, uint32_t threads) {
  return vgpu_cost_find(&costs, (const void *)(uintptr_t)function, blocks, threads);
}

static void test_table(void) {
  memset(&costs, 0, sizeof(costs));
  struct vgpu_cost *cost = find(1, 100, 256);
  CHECK(find(1, 100, 256) == cost);
  CHECK(find(1, 101, 256) == cost);
  CHECK(find(1, 200, 256) != cost);
  CHECK(find(1, 100, 512) != cost);
  CHECK(find(2, 100, 256) != cost);
  CHECK(find(1, 0, 0) != cost);
  CHECK(find(0, 0, 0) != &costs.last_resort);
  CHECK(find(1, UINT64_MAX, UINT32_MAX) == find(1, UINT64_MAX, UINT32_MAX));
  for (uint64_t i = 0; i < 100000; i++) {
    cost = find(i << 4, i, 1);
    CHECK_EACH(cost >= costs.entries && cost <= &costs.last_resort);
  }
  CHECK(find(99999 << 4, 99999, 1) == &costs.last_resort);
  uint32_t used = 0;
  for (uint32_t i = 0; i < VGPU_COST_ENTRIES; i++) {
    used += costs.entries[i].key != 0;
  }
  CHECK_EQUAL(used, VGPU_COST_ENTRIES);
}

/* One launch of a key at a time is unknown; the others wait for it. */
static void test_first(void) {
  struct vgpu_cost cost = {0};
  CHECK_EQUAL(vgpu_cost_next(&cost), VGPU_COST_FIRST);
  CHECK_EQUAL(vgpu_cost_next(&cost), VGPU_COST_FIRST); /* nothing was launched: it may never be */
  CHECK(vgpu_cost_claim(&cost));
  CHECK(!vgpu_cost_claim(&cost));
  CHECK_EQUAL(vgpu_cost_next(&cost), VGPU_COST_BUSY);
  vgpu_cost_give_up(&cost);
  CHECK_EQUAL(vgpu_cost_next(&cost), VGPU_COST_FIRST);
  CHECK_EQUAL(vgpu_cost_guess(&cost), VGPU_COST_GUESS_NS);
  CHECK_EQUAL(vgpu_cost_guess(&cost), VGPU_COST_GUESS_NS);
  /* What it took, and what the two guesses were too high by. */
  CHECK_EQUAL(vgpu_cost_learn(&cost, 300000, 0, false), 300000 + 2 * (300000 - 1000000));
  CHECK_EQUAL(cost.cost_ns, 300000);
  CHECK_EQUAL(vgpu_cost_guess(&cost), 300000);
  CHECK_EQUAL(vgpu_cost_learn(&cost, 300000, 300000, false), 0);
  vgpu_cost_forget(&cost);
  CHECK_EQUAL(vgpu_cost_next(&cost), VGPU_COST_FIRST);
  CHECK_EQUAL(vgpu_cost_learn(&cost, 7000, 0, false), 7000);
  CHECK_EQUAL(cost.cost_ns, 7000);
}

/* How many of `launches` are measured, each of them taking `duration_ns`. */
static uint32_t measured(struct vgpu_cost *cost, uint32_t launches, uint64_t duration_ns, bool alone) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < launches; i++) {
    uint64_t charged = cost->cost_ns;
    enum vgpu_cost_step step = vgpu_cost_next(cost);
    if (step != VGPU_COST_CHARGE) {
      bool is_settled = step == VGPU_COST_FIRST || step == VGPU_COST_SETTLE;
      vgpu_cost_learn(cost, duration_ns, is_settled ? 0 : charged, alone);
      count++;
    }
  }
  return count;
}

static void test_sampling(void) {
  struct vgpu_cost cost = {0};
  uint32_t early = measured(&cost, 100, 20000, true);
  CHECK(early >= VGPU_COST_FRESH + 4 && early <= 16);
  uint32_t steady = measured(&cost, 6400, 20000, true);
  CHECK(steady > 90 && steady < 115);
  CHECK_EQUAL(measured(&cost, 6400, 20000, false) > 90, 1);
  measured(&cost, 128, 20000 * 5, true); /* it takes longer all of a sudden */
  uint32_t changed = measured(&cost, 640, 100000, true);
  CHECK(changed > 15 && changed < 60);
  struct vgpu_cost another = {0};
  CHECK_EQUAL(measured(&another, 1000, VGPU_COST_LONG_NS, true), 1000);
  CHECK_EQUAL(measured(&another, 1000, 20000, true), 1000); /* long ones may come back */
  measured(&another, 2 * VGPU_COST_LONG_AGO, 20000, true);
  CHECK(measured(&another, 1000, 20000, true) < 100);
}

/* Alone, the estimate is the mean, and what a long launch was charged is put right to the nanosecond. */
static void test_alone(void) {
  struct vgpu_cost cost = {0};
  CHECK_EQUAL(vgpu_cost_learn(&cost, 90000000, 0, true), 90000000); /* with the loading of its code */
  CHECK_EQUAL(vgpu_cost_learn(&cost, 10000, 90000000, true), 10000 - 90000000);
  CHECK_EQUAL(cost.cost_ns, 10000);
  uint64_t sum = 0, estimates = 0, random = 12345;
  for (int i = 0; i < 100000; i++) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    uint64_t duration = 1000 + (random >> 33) % 100000;
    vgpu_cost_learn(&cost, duration, cost.cost_ns, true);
    sum += duration;
    estimates += cost.cost_ns;
  }
  CHECK(estimates > sum * 98 / 100 && estimates < sum * 102 / 100);
  CHECK_EQUAL(vgpu_cost_learn(&cost, 5000000, 1000000, true), 4000000);
  CHECK_EQUAL(vgpu_cost_learn(&cost, 5000, 1000000, true), 5000 - 1000000);
}

/* Beside others, the estimate follows what was not interrupted. */
static void test_beside_others(void) {
  struct vgpu_cost cost = {0};
  CHECK_EQUAL(vgpu_cost_learn(&cost, 5000000, 0, false), 5000000);
  for (int i = 0; i < 400; i++) { /* two of three launches are interrupted by another's slice */
    CHECK_EACH(vgpu_cost_learn(&cost, i % 3 == 0 ? 1000000 : 3000000, 1000000, false) == 0);
  }
  CHECK(cost.cost_ns >= 1000000 && cost.cost_ns < 1450000);
  for (int i = 0; i < 400; i++) { /* it takes longer now */
    vgpu_cost_learn(&cost, 4000000, 1000000, false);
  }
  CHECK(cost.cost_ns > 3900000);
}

/* Held: what was charged on average, whatever the last samples were. */
static void test_held(void) {
  struct vgpu_cost cost = {0};
  vgpu_cost_hold(&cost);
  CHECK_EQUAL(cost.cost_ns, 0); /* not known */
  uint64_t charged = 0, random = 12345, launches = 2000, lowest = UINT64_MAX, highest = 0;
  for (uint64_t i = 0; i < launches; i++) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    vgpu_cost_learn(&cost, (random >> 33) % 3 == 0 ? 1000000 : 3000000, 1000000, false);
    if (i >= launches / 2) {
      charged += cost.cost_ns;
      lowest = cost.usual_ns < lowest ? cost.usual_ns : lowest;
      highest = cost.usual_ns > highest ? cost.usual_ns : highest;
    }
  }
  uint64_t mean = charged / (launches / 2);
  CHECK(lowest > mean * 92 / 100 && highest < mean * 108 / 100);
  vgpu_cost_learn(&cost, 1000000, 1000000, false);
  vgpu_cost_learn(&cost, 1000000, 1000000, false);
  CHECK(cost.cost_ns < mean * 92 / 100);
  vgpu_cost_hold(&cost);
  CHECK(cost.cost_ns > mean * 92 / 100 && cost.cost_ns < mean * 108 / 100);
}

/* What a collective takes beyond its usual is waiting for its peers; its estimate does not follow that. */
static void test_collective(void) {
  struct vgpu_cost cost = {.flags = VGPU_COST_COLLECTIVE};
  CHECK_EQUAL(vgpu_cost_next(&cost), VGPU_COST_FIRST);
  CHECK_EQUAL(vgpu_cost_spun(&cost, 5 * SECOND, VGPU_COST_GUESS_NS), 5 * SECOND - VGPU_COST_GUESS_NS);
  CHECK_EQUAL(vgpu_cost_learn(&cost, 5 * SECOND, 0, true), VGPU_COST_GUESS_NS);
  for (int i = 0; i < 100; i++) {
    CHECK_EACH(vgpu_cost_learn(&cost, i % 4 == 0 ? 300000 : 20 * MILLISECOND, cost.cost_ns, true) == 0);
  }
  CHECK(cost.cost_ns >= 300000 && cost.cost_ns < 1500 * MICROSECOND);
  CHECK_EQUAL(vgpu_cost_spun(&cost, 20 * MILLISECOND, 300000), 20 * MILLISECOND - 300000);
  CHECK_EQUAL(vgpu_cost_spun(&cost, 200000, 300000), 0);
  CHECK_EQUAL(vgpu_cost_spun(&cost, UINT64_MAX, 300000), 0);
  struct vgpu_cost other = {0};
  CHECK_EQUAL(vgpu_cost_spun(&other, 20 * MILLISECOND, 300000), 0);
}

static void test_nonsense(void) {
  uint64_t nonsense[] = {(uint64_t)-1, (uint64_t)-20000, (uint64_t)1 << 63, 25 * 3600 * SECOND};
  for (size_t i = 0; i < sizeof(nonsense) / sizeof(*nonsense); i++) {
    struct vgpu_cost cost = {0};
    CHECK_EQUAL(vgpu_cost_next(&cost), VGPU_COST_FIRST);
    CHECK_EQUAL(vgpu_cost_learn(&cost, nonsense[i], 0, true), VGPU_COST_GUESS_NS);
    CHECK_EQUAL(cost.cost_ns, 0);
    CHECK_EQUAL(vgpu_cost_next(&cost), VGPU_COST_FIRST);
    CHECK_EQUAL(vgpu_cost_learn(&cost, 20000, 0, true), 20000 + 20000 - 1000000); /* and the guess is put right */
    CHECK_EQUAL(vgpu_cost_learn(&cost, nonsense[i], 20000, true), 0);
    CHECK_EQUAL(cost.cost_ns, 20000);
    CHECK(vgpu_cost_learn(&cost, 0, 20000, true) <= 0); /* below what the clock resolves */
    CHECK(cost.cost_ns >= 500);
    CHECK_EQUAL(vgpu_cost_learn(&cost, 2 * 3600 * SECOND, 0, true), VGPU_COST_MAX_NS);
  }
}

/* A handle that is another function's now: the estimate follows within some hundred launches up, some thousand down. */
static void test_handle_used_again(void) {
  struct vgpu_cost cost = {0};
  measured(&cost, 10000, 100000, true);
  measured(&cost, 12000, 5000, true);
  CHECK(cost.cost_ns < 15000);
  measured(&cost, 600, 150000, true);
  CHECK(cost.cost_ns > 120000 && cost.cost_ns < 160000);
  vgpu_cost_doubt(&cost);
  CHECK_EQUAL(cost.cost_ns > 120000, 1);
  CHECK_EQUAL(vgpu_cost_next(&cost), VGPU_COST_SETTLE);
  vgpu_cost_learn(&cost, 9000000, 0, false);
  CHECK_EQUAL(cost.cost_ns, 9000000);
}

static void *use_table(void *argument) {
  uint64_t seed = (uint64_t)(uintptr_t)argument;
  for (uint64_t i = 0; i < 20000; i++) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    struct vgpu_cost *cost = find((seed >> 40) % 3000, 1, 1);
    enum vgpu_cost_step step = vgpu_cost_next(cost);
    if (step == VGPU_COST_FIRST && !vgpu_cost_claim(cost)) {
      continue;
    }
    if (step == VGPU_COST_FIRST && seed % 5 == 0) {
      vgpu_cost_give_up(cost);
    } else if (step == VGPU_COST_FIRST || step == VGPU_COST_SAMPLE || step == VGPU_COST_SETTLE) {
      vgpu_cost_learn(cost, 10000 + seed % 1000000, step != VGPU_COST_SAMPLE ? 0 : 10000, seed % 2 == 0);
    } else if (step == VGPU_COST_BUSY) {
      vgpu_cost_guess(cost);
    }
    if (seed % 1000 == 0) {
      vgpu_cost_doubt(cost);
    }
  }
  return NULL;
}

static void test_threads(void) {
  pthread_t threads[4];
  memset(&costs, 0, sizeof(costs));
  for (uintptr_t i = 0; i < 4; i++) {
    pthread_create(&threads[i], NULL, use_table, (void *)(i + 1));
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
  }
  uint32_t twice = 0, known = 0;
  for (uint32_t i = 0; i < VGPU_COST_ENTRIES; i++) {
    struct vgpu_cost *cost = &costs.entries[i];
    twice += cost->key != 0 && i > 0 && cost->key == costs.entries[i - 1].key;
    known += cost->cost_ns >= 10000 && cost->cost_ns <= 1010000;
    CHECK_EACH(cost->cost_ns == 0 || (cost->cost_ns >= 10000 && cost->cost_ns <= 1010000));
  }
  CHECK_EQUAL(twice, 0);
  CHECK(known > 2000);
}

int main(void) {
  test_table();
  test_first();
  test_sampling();
  test_alone();
  test_beside_others();
  test_held();
  test_collective();
  test_nonsense();
  test_handle_used_again();
  test_threads();
  return check_end();
}
