/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * rate_test.c - the compute bucket, one word at a time: credit, debt, waits, corrections, lines that change or are of
 * another clock, a heartbeat that stops, ceilings, and what damage to the shared words is worth.
 *
 * size: one fixture and one way to buy; a small function for each rule of the contract.
 */
#include "../slot.h"
#include "flood.h"

#define START (1000 * SECOND)

static struct vgpu_usage_device *usage_of(struct pair pair) {
  return (struct vgpu_usage_device *)(pair.usage + 1);
}

struct setup {
  struct pair pair;
  struct vgpu_book *book;
  struct vgpu_rate_book rate;
};

static struct setup set_up(uint32_t mode, uint32_t share_ppm, uint32_t ceiling_ppm) {
  struct setup setup = {.pair = make_compute_pair(mode, share_ppm, START)};
  setup.book = open_book(setup.pair);
  vgpu_rate_open(&setup.rate, setup.book, 0, ceiling_ppm);
  return setup;
}

static void tear_down(struct setup *setup) {
  close_book(setup->book);
  free_pair(setup->pair);
}

/* Buys at `now`; the wait, or 0. */
static uint64_t buy(struct setup *setup, uint64_t cost, uint64_t now) {
  uint64_t bought = 0, wait = vgpu_rate_buy(&setup->rate, cost, now, false, &bought);
  CHECK_EACH(wait != 0 || bought >= cost);
  CHECK_EACH(wait == 0 || wait >= VGPU_WAIT_MIN_NS);
  return wait;
}

/* How much can be bought at `now` in purchases of `cost`. */
static uint64_t buy_all(struct setup *setup, uint64_t cost, uint64_t now) {
  uint64_t sum = 0, bought = 0;
  while (sum < 1000 * SECOND && vgpu_rate_buy(&setup->rate, cost, now, false, &bought) == 0) {
    sum += bought;
  }
  return sum;
}

static void test_credit_and_debt(void) {
  struct setup setup = set_up(VGPU_COMPUTE_HARD, 300000, VGPU_PPM);
  /* An idle allocation has the burst, and no more. */
  CHECK_EQUAL(buy_all(&setup, 10000, START + 100 * SECOND), 6000000 + 10000);
  CHECK_EQUAL(buy(&setup, 10000, START + 100 * SECOND), VGPU_WAIT_MIN_NS);
  /* What is bought without debt may cost anything; it is paid for before the next. */
  uint64_t now = START + 200 * SECOND;
  CHECK_EQUAL(buy(&setup, 206 * MILLISECOND, now), 0);
  uint64_t wait = buy(&setup, 1000, now);
  CHECK(wait >= 200 * MILLISECOND * 10 / 3 && wait <= 200 * MILLISECOND * 10 / 3 + 2);
  CHECK_EQUAL(vgpu_rate_debt_ns(&setup.rate, now), 200 * MILLISECOND);
  CHECK(buy(&setup, 1000, now + wait - VGPU_WAIT_MIN_NS) != 0);
  CHECK_EQUAL(buy(&setup, 1000, now + wait), 0);
  /* By force, whatever the debt. */
  uint64_t bought = 0;
  CHECK_EQUAL(vgpu_rate_buy(&setup.rate, 30 * SECOND, now + wait, true, &bought), 0);
  CHECK_EQUAL(bought, 30 * SECOND);
  CHECK_EQUAL(vgpu_rate_debt_ns(&setup.rate, now + wait) / MILLISECOND, 30000);
  /* Corrections, down and up. */
  vgpu_rate_correct(&setup.rate, -(int64_t)(29 * SECOND));
  CHECK_EQUAL(vgpu_rate_debt_ns(&setup.rate, now + wait) / MILLISECOND, 1000);
  vgpu_rate_correct(&setup.rate, (int64_t)SECOND);
  CHECK_EQUAL(vgpu_rate_debt_ns(&setup.rate, now + wait) / MILLISECOND, 2000);
  uint64_t charged = usage_of(setup.pair)->charged_ns; /* what spun is told in full, and paid for in part */
  vgpu_rate_mix(&setup.rate, 100 * MILLISECOND, false);
  vgpu_rate_mix(&setup.rate, 300 * MILLISECOND, true);
  CHECK(vgpu_rate_is_mixed(&setup.rate));
  vgpu_rate_spun(&setup.rate, 16 * SECOND);
  CHECK_EQUAL(vgpu_rate_debt_ns(&setup.rate, now + wait) / MILLISECOND, 3000);
  CHECK_EQUAL(usage_of(setup.pair)->charged_ns - charged, 16 * SECOND);
  vgpu_rate_mix(&setup.rate, 200 * MILLISECOND, true); /* and in full by who runs hardly anything else */
  CHECK(!vgpu_rate_is_mixed(&setup.rate));
  vgpu_rate_spun(&setup.rate, 10 * SECOND + VGPU_SPIN_FREE_NS);
  CHECK_EQUAL(vgpu_rate_debt_ns(&setup.rate, now + wait) / MILLISECOND, 13000);
  vgpu_rate_correct(&setup.rate, INT64_MIN); /* nonsense is worth no credit */
  CHECK_EQUAL(buy_all(&setup, 10000, now + wait), 10000);
  tear_down(&setup);
}

/* What first launches are charged follows what they take; words of the page are bounded. */
static void test_first(void) {
  struct setup setup = set_up(VGPU_COMPUTE_HARD, 300000, VGPU_PPM);
  struct vgpu_usage_device *usage = usage_of(setup.pair);
  CHECK_EQUAL(vgpu_rate_first_ns(&setup.rate), VGPU_FIRST_MIN_NS);
  for (int i = 0; i < 10; i++) {
    vgpu_rate_first(&setup.rate, 100 * MILLISECOND);
  }
  CHECK(vgpu_rate_first_ns(&setup.rate) > 99 * MILLISECOND && vgpu_rate_first_ns(&setup.rate) <= 100 * MILLISECOND);
  vgpu_rate_first(&setup.rate, UINT64_MAX);
  CHECK(vgpu_rate_first_ns(&setup.rate) <= VGPU_FIRST_MAX_NS);
  for (int i = 0; i < 100; i++) {
    vgpu_rate_first(&setup.rate, 0);
  }
  CHECK_EQUAL(vgpu_rate_first_ns(&setup.rate), VGPU_FIRST_MIN_NS);
  usage->first_ns = UINT64_MAX;
  CHECK_EQUAL(vgpu_rate_first_ns(&setup.rate), VGPU_FIRST_MAX_NS);
  tear_down(&setup);
}

/* What is bought ahead is little, never on credit, and counts. */
static void test_ahead(void) {
  for (uint32_t share = 10000; share <= 1000000; share += 90000) {
    struct setup setup = set_up(VGPU_COMPUTE_HARD, share, VGPU_PPM);
    uint64_t bought = 0, burst = 20 * (uint64_t)share, now = START + SECOND;
    CHECK_EQUAL(vgpu_rate_buy(&setup.rate, 1000, now, false, &bought), 0);
    CHECK_EQUAL(bought, 1000 + (burst / 10 < VGPU_GRAB_NS ? burst / 10 : VGPU_GRAB_NS));
    CHECK_EQUAL(usage_of(setup.pair)->charged_ns, bought);
    CHECK_EQUAL(vgpu_rate_buy(&setup.rate, burst, now, false, &bought), 0);
    CHECK_EQUAL(bought, burst);
    tear_down(&setup);
  }
}

/* A line that is continued again and again neither loses nor makes entitlement. */
static void test_continued(void) {
  struct pair pair = make_compute_pair(VGPU_COMPUTE_ELASTIC, 300000, START);
  struct vgpu_line line;
  uint64_t now = START, random = 4711, millionths = 0;
  uint32_t rate = 300000;
  for (int i = 0; i < 100000; i++) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    uint64_t step = (random >> 30) % (40 * MILLISECOND);
    millionths += step / 1000 * rate / 1000;
    now += step;
    rate = 10000 + (uint32_t)(random >> 40) % 1000000;
    publish(pair, rate, 1000000, 0, now);
  }
  CHECK(vgpu_line_read(&pair.limits->devices[0], &line));
  uint64_t entitled = vgpu_line_at(&line, now);
  CHECK(entitled + 100000 * 3000 > millionths && entitled < millionths + 100000 * 3000);
  CHECK_EQUAL(line.since_ns, now);

  /* A grant that changes goes on from where the line is, at once. */
  struct vgpu_compute compute = {VGPU_COMPUTE_HARD, 500000, 500000};
  CHECK_EQUAL(vgpu_limits_set_compute(pair.limits, 0, &compute, now + SECOND), 0);
  CHECK(vgpu_line_read(&pair.limits->devices[0], &line));
  CHECK_EQUAL(line.rate_ppm, 500000);
  CHECK_EQUAL(line.entitled_ns, entitled + (uint64_t)rate * 1000);
  CHECK_EQUAL(vgpu_limits_set_compute(pair.limits, 1, &compute, now), -EINVAL);
  free_pair(pair);
}

/* An agent that was killed between the two stores of a publication: the line in force stays, the next one is whole. */
static void test_half_published(void) {
  struct setup setup = set_up(VGPU_COMPUTE_HARD, 300000, VGPU_PPM);
  struct vgpu_limits_device *device = &setup.pair.limits->devices[0];
  memset(&device->rates[(device->rate_generation + 1) & 1], 0xff, sizeof(struct vgpu_rate));
  CHECK_EQUAL(buy_all(&setup, 10000, START + SECOND), 6000000 + 10000);
  publish(setup.pair, 100000, 1000000, 0, START + SECOND);
  CHECK_EQUAL(buy_all(&setup, 10000, START + 2 * SECOND), 2000000 + 10000);
  tear_down(&setup);
}

/* Absurd values of the limits page are bounded, and never unlimited. */
static void test_bounds(void) {
  uint64_t words[] = {0, 1, UINT32_MAX, UINT64_MAX, (uint64_t)1 << 63, (uint64_t)1 << 60, START};
  size_t count = sizeof(words) / sizeof(*words);
  for (size_t i = 0; i < count * count * count * count; i++) {
    struct setup setup = set_up(VGPU_COMPUTE_HARD, 300000, VGPU_PPM);
    struct vgpu_limits_device *device = &setup.pair.limits->devices[0];
    struct vgpu_rate *rate = &device->rates[device->rate_generation & 1];
    rate->since_ns = words[i % count];
    rate->entitled_ns = words[i / count % count];
    rate->rate_ppm = (uint32_t)words[i / count / count % count];
    rate->scale_ppm = (uint32_t)words[i / count / count / count];
    rate->flags = UINT32_MAX;
    uint64_t sum = buy_all(&setup, 10000, START + SECOND) + buy_all(&setup, 10000, START + 2 * SECOND);
    uint64_t most = 10 * (2 * 20 + 1000) * MILLISECOND * 105 / 100; /* at the largest rate and the least scale */
    CHECK_EACH(sum <= most);
    tear_down(&setup);
  }
}

/* A line from another boot: the rate holds from when this process first saw it. */
static void test_other_clock(void) {
  struct setup setup = set_up(VGPU_COMPUTE_HARD, 300000, VGPU_PPM);
  uint64_t now = 5 * SECOND; /* the line begins at 1000 s */
  usage_of(setup.pair)->spent_ns = 0;
  CHECK(buy(&setup, SECOND, now) == 0);
  uint64_t wait = buy(&setup, SECOND, now);
  CHECK(wait > 3300 * MILLISECOND && wait < 3400 * MILLISECOND);
  CHECK(buy(&setup, SECOND, now + wait / 2) != 0);
  CHECK_EQUAL(buy(&setup, SECOND, now + wait), 0);
  struct vgpu_line line = {.since_ns = now + wait, .entitled_ns = usage_of(setup.pair)->spent_ns, .rate_ppm = 600000};
  vgpu_line_publish(&setup.pair.limits->devices[0], &line); /* somebody of this boot steers, from what was spent */
  CHECK_EQUAL(buy(&setup, SECOND, now + wait), 0);
  wait = buy(&setup, SECOND, now + wait);
  CHECK(wait > 1600 * MILLISECOND && wait < 1700 * MILLISECOND);
  tear_down(&setup);
  /* A little ahead is but the time between looking at the clock and reading. */
  setup = set_up(VGPU_COMPUTE_HARD, 300000, VGPU_PPM);
  CHECK_EQUAL(buy(&setup, 1000, START - MILLISECOND), 0);
  CHECK_EQUAL(setup.rate.anchor_generation, 0);
  tear_down(&setup);
}

/* Damage to the limits page while a process runs, at any place: it goes on within a second or so, and has no more than ten
 * times (the scale of costs) the largest rate. */
static void test_damaged_line(void) {
  uint64_t random = 7;
  for (int i = 0; i < 3000; i++) {
    struct setup setup = set_up(VGPU_COMPUTE_HARD, 300000, VGPU_PPM);
    struct vgpu_limits_device *device = &setup.pair.limits->devices[0];
    uint64_t now = START, sum = 0, gap = 0;
    for (; now < START + 100 * SECOND; now += SECOND) { /* much was bought */
      buy(&setup, 300 * MILLISECOND, now);
    }
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    size_t from = 88 + (random >> 33) % 100, to = from + (random >> 20) % 100;
    for (size_t at = from; at < to && at < sizeof(*device); at++) {
      random = random * 6364136223846793005ULL + 1442695040888963407ULL;
      ((uint8_t *)device)[at] = i % 3 == 0 ? 0 : i % 3 == 1 ? 0xff : (uint8_t)(random >> 40);
    }
    if (device->compute_mode != VGPU_COMPUTE_NONE) {
      uint64_t last = now;
      for (uint64_t end = now + 10 * SECOND; now < end; now += MILLISECOND) {
        uint64_t bought = buy_all(&setup, MILLISECOND, now);
        gap = bought != 0 || now - last < gap ? gap : now - last;
        last = bought != 0 ? now : last;
        sum += bought;
      }
      CHECK_EACH(gap <= 2 * SECOND);
      CHECK_EACH(sum <= 105 * SECOND + SECOND);
    }
    tear_down(&setup);
  }
}

/* The agent is gone: the line goes on, the time is counted, and in the end what was lent is given back. */
static void test_heartbeat(void) {
  struct setup setup = set_up(VGPU_COMPUTE_ELASTIC, 300000, VGPU_PPM);
  struct vgpu_usage_device *usage = usage_of(setup.pair);
  CHECK(vgpu_rate_is_alone(&setup.rate)); /* nobody ever steered */
  uint64_t now = START;
  vgpu_limits_beat(setup.pair.limits);
  publish(setup.pair, 1000000, 1000000, VGPU_RATE_ALONE, now);
  uint64_t sum = 0;
  for (uint64_t i = 0; i < 2000; i++, now += MILLISECOND) {
    sum += buy_all(&setup, 10000, now);
  }
  CHECK(vgpu_rate_is_alone(&setup.rate) && vgpu_rate_is_open(&setup.rate));
  CHECK_EQUAL(usage->degraded_ns, 0);
  CHECK(sum >= 1999 * MILLISECOND && sum < 2021 * MILLISECOND);
  now += MILLISECOND;
  for (uint64_t i = 0; i < 60000; i++, now += MILLISECOND) {
    sum += buy_all(&setup, 10000, now);
  }
  CHECK(!vgpu_rate_is_alone(&setup.rate));
  CHECK(usage->degraded_ns / MILLISECOND >= 59990 && usage->degraded_ns / MILLISECOND <= 60002);
  CHECK(sum / MILLISECOND >= 61990 && sum / MILLISECOND <= 62022); /* the loan holds as yet */
  sum = 0;
  for (uint64_t i = 0; i < 10000; i++, now += MILLISECOND) {
    sum += buy_all(&setup, 10000, now);
  }
  CHECK(sum / MILLISECOND >= 2990 && sum / MILLISECOND <= 3030); /* and now the share */
  vgpu_limits_beat(setup.pair.limits);
  publish(setup.pair, 600000, 1000000, 0, now);
  uint64_t degraded = usage->degraded_ns;
  sum = 0;
  for (uint64_t i = 0; i < 1000; i++, now += MILLISECOND) {
    sum += buy_all(&setup, 10000, now);
  }
  CHECK(sum / MILLISECOND >= 590 && sum / MILLISECOND <= 625);
  CHECK_EQUAL(usage->degraded_ns, degraded);
  tear_down(&setup);
}

/* The environment's ceiling lowers the rate of its process, with a line or without, and raises nothing. */
static void test_ceiling(void) {
  struct {
    uint32_t mode, share, ceiling, want;
  } cases[] = {{VGPU_COMPUTE_HARD, 500000, 200000, 200000},
               {VGPU_COMPUTE_HARD, 200000, 500000, 200000},
               {VGPU_COMPUTE_NONE, 0, 250000, 250000},
               {VGPU_COMPUTE_HARD, 500000, 0, 10000},
               {VGPU_COMPUTE_HARD, 500000, UINT32_MAX, 500000}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
    struct setup setup = set_up(cases[i].mode, cases[i].share, cases[i].ceiling);
    CHECK(vgpu_rate_is_limiting(&setup.rate));
    CHECK_EQUAL(vgpu_rate_ppm(&setup.rate), cases[i].want);
    uint64_t sum = 0;
    for (uint64_t now = START; now < START + 10 * SECOND; now += MILLISECOND) {
      sum += buy_all(&setup, 10000, now);
    }
    uint64_t want = (uint64_t)cases[i].want * 10000;
    CHECK(sum >= want - MILLISECOND && sum <= want + 21 * MILLISECOND);
    tear_down(&setup);
  }
  struct setup setup = set_up(VGPU_COMPUTE_NONE, 0, VGPU_PPM);
  CHECK(!vgpu_rate_is_limiting(&setup.rate));
  CHECK_EQUAL(buy_all(&setup, SECOND, START), 1000 * SECOND);
  tear_down(&setup);
}

/* Shared words are written when there is something new to say, once a millisecond at most. */
static void test_what_is_told(void) {
  struct setup setup = set_up(VGPU_COMPUTE_HARD, 500000, VGPU_PPM);
  struct vgpu_usage_device *usage = usage_of(setup.pair);
  buy(&setup, 1000, START + 5);
  CHECK_EQUAL(usage->wanted_ns, START + 5);
  buy(&setup, 1000, START + 999999);
  CHECK_EQUAL(usage->wanted_ns, START + 5);
  buy(&setup, 1000, START + 1000005);
  CHECK_EQUAL(usage->wanted_ns, START + 1000005);
  usage->wanted_ns = UINT64_MAX; /* damage heals */
  buy(&setup, 1000, START + 2000000);
  CHECK_EQUAL(usage->wanted_ns, START + 2000000);
  struct vgpu_usage_slot_device *books = vgpu_slot_device(own_slot(setup.book), 0);
  vgpu_rate_waiting(&setup.rate, START, START + 300, 0);
  CHECK_EQUAL(usage->waited_ns, START);
  CHECK_EQUAL(books->waiting_ns, START + 300);
  vgpu_rate_waiting(&setup.rate, START, START + 400, 0); /* another thread */
  vgpu_rate_waiting(&setup.rate, START + 300, START + 600, 300);
  vgpu_rate_waited(&setup.rate, START + 500, 200);
  CHECK_EQUAL(books->waiting_ns, START + 600);
  vgpu_rate_waited(&setup.rate, START + 600, 600);
  CHECK_EQUAL(books->waiting_ns, START + 600 - VGPU_TURN_NS - 1);
  vgpu_rate_waited(&setup.rate, START + 600, 0); /* once too often */
  CHECK_EQUAL(setup.rate.waiters, 0);
  CHECK_EQUAL(usage->throttled_ns, 1100);
  CHECK_EQUAL(books->throttled_ns, 1100);
  vgpu_rate_count(&setup.rate, 7, START);
  CHECK_EQUAL(usage->launches, 7);
  CHECK_EQUAL(books->launches, 7);
  tear_down(&setup);
}

/* Every slot taken: no turns, limited all the same. */
static void test_no_slot(void) {
  struct setup setup = set_up(VGPU_COMPUTE_HARD, 300000, VGPU_PPM);
  for (uint32_t i = 0; i < VGPU_SLOT_COUNT; i++) {
    struct vgpu_usage_slot *slot = vgpu_slot_at(setup.book, i);
    slot->owner = slot->ready = ((uint64_t)(2 * i + 1) << VGPU_PID_BITS) | (uint64_t)getppid();
    slot->epoch = 1;
  }
  setup.pair.usage->slot_high_water = VGPU_SLOT_COUNT;
  CHECK_EQUAL(buy_all(&setup, 10000, START + SECOND), 6000000 + 10000);
  CHECK_EQUAL(setup.book->token, 0);
  tear_down(&setup);
}

/* A process that puts the shared word back has its own, and garbage there is worth one burst, or nothing. */
static void test_damage(void) {
  struct setup setup = set_up(VGPU_COMPUTE_HARD, 300000, VGPU_PPM);
  struct vgpu_usage_device *usage = usage_of(setup.pair);
  uint64_t sum = 0, random = 99;
  for (uint64_t now = START; now < START + 10 * SECOND; now += MILLISECOND) {
    usage->spent_ns = 0;
    sum += buy_all(&setup, 10000, now);
  }
  CHECK(sum >= 2999 * MILLISECOND && sum <= 3007 * MILLISECOND);
  sum = 0;
  for (uint64_t now = START + 20 * SECOND; now < START + 30 * SECOND; now += MILLISECOND) {
    uint64_t *words = (uint64_t *)usage + (random >> 33) % (sizeof(*usage) / 8);
    *words = (random >> 20) % 4 == 0 ? random : (random >> 20) % 4 == 1 ? UINT64_MAX : now / 4;
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    sum += buy_all(&setup, 10000, now);
  }
  CHECK(sum <= 3010 * MILLISECOND);
  /* Damage is healed by the next purchase. */
  usage->spent_ns = UINT64_MAX;
  uint64_t now = START + 100 * SECOND;
  CHECK_EQUAL(buy(&setup, 1000, now), 0);
  CHECK(buy(&setup, 1000, now) != 0);
  CHECK_EQUAL(buy(&setup, 1000, now + MILLISECOND), 0);
  tear_down(&setup);
}

/* Ten years of uptime, at every rate. */
static void test_long_uptime(void) {
  for (uint32_t share = 10000; share <= 1000000; share += 330000) {
    struct setup setup = set_up(VGPU_COMPUTE_HARD, share, VGPU_PPM);
    uint64_t now = START + (uint64_t)10 * 366 * 86400 * SECOND;
    CHECK_EQUAL(buy_all(&setup, 1000000, now) / MILLISECOND, (20 * (uint64_t)share + 999999) / 1000000);
    CHECK_EQUAL(buy(&setup, 20 * MINUTE, now + SECOND), 0);
    uint64_t wait = buy(&setup, 1, now + SECOND);
    CHECK(wait > 19 * MINUTE / share * VGPU_PPM && wait < 21 * MINUTE / share * VGPU_PPM);
    tear_down(&setup);
  }
}

int main(void) {
  test_credit_and_debt();
  test_first();
  test_ahead();
  test_continued();
  test_half_published();
  test_bounds();
  test_other_clock();
  test_damaged_line();
  test_heartbeat();
  test_ceiling();
  test_what_is_told();
  test_no_slot();
  test_damage();
  test_long_uptime();
  return check_end();
}
