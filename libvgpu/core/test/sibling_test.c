/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * sibling_test.c - processes of one container that share a GPU in time slices, in virtual time and without an agent: what
 * each of their launches takes by the clock holds the slices of the others, and is not paid for many times over.
 */
#include "flood.h"

#define START (1000 * SECOND)
struct sibling {
  struct vgpu_book *book;
  struct vgpu_rate_book rate;
};

static struct sibling make_sibling(struct pair pair) {
  struct sibling sibling = {.book = open_book(pair)};
  vgpu_rate_open(&sibling.rate, sibling.book, 0, VGPU_PPM);
  return sibling;
}

/* Lets it launch something that seems to take a millisecond. */
static void launch_now(struct sibling *sibling, uint64_t now) {
  uint64_t bought = 0;
  CHECK_EACH(vgpu_rate_buy(&sibling->rate, MILLISECOND, now, true, &bought) == 0);
}

static void measure(struct sibling *sibling, uint64_t elapsed, uint64_t now) {
  vgpu_rate_measured(&sibling->rate, elapsed - MILLISECOND, elapsed, now);
}

static uint64_t debt_ms(struct sibling *sibling, uint64_t now) {
  return (vgpu_rate_debt_ns(&sibling->rate, now) + MILLISECOND / 2) / MILLISECOND;
}

/* What overlapped is paid for once, and each process is in debt with the container's. */
static void test_overlapping(void) {
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, 100000, START);
  struct vgpu_usage_device *usage = (struct vgpu_usage_device *)(pair.usage + 1);
  struct sibling siblings[20];
  uint64_t now = START + 10 * SECOND;
  for (int i = 0; i < 20; i++) {
    siblings[i] = make_sibling(pair);
  }
  for (int round = 0; round < 3; round++) {
    usage->even_ns = round == 1 ? UINT64_MAX : usage->even_ns; /* damage heals */
    for (int i = 0; i < 20; i++) {
      launch_now(&siblings[i], now);
    }
    now += 4 * SECOND;
    for (int i = 0; i < 20; i++) {
      measure(&siblings[i], 4 * SECOND, now);
    }
    CHECK_EACH(debt_ms(&siblings[round], now) <= 3600 && debt_ms(&siblings[round], now) >= 3597);
    now += 40 * SECOND;
  }
  CHECK_EQUAL(usage->charged_ns / SECOND, 3 * 20 * 4); /* told as it was measured */
  for (int i = 0; i < 20; i++) {
    CHECK_EACH(siblings[i].rate.served_ns >= 12 * SECOND); /* and all have had their turn */
    close_book(siblings[i].book);
  }
  free_pair(pair);
}

/* One by one, and one begun while the other ran although there seemed to be no debt: all of it is paid for. */
static void test_in_full(void) {
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, 100000, START);
  struct sibling one = make_sibling(pair), other = make_sibling(pair);
  uint64_t now = START + 10 * SECOND;
  launch_now(&one, now);
  measure(&one, 30 * SECOND, now + 30 * SECOND);
  CHECK(debt_ms(&one, now + 30 * SECOND) >= 26997);
  CHECK_EQUAL(debt_ms(&one, now + 30 * SECOND), debt_ms(&other, now + 30 * SECOND));
  now += 1000 * SECOND;
  launch_now(&one, now);
  launch_now(&other, now + 5 * SECOND);
  measure(&one, 10 * SECOND, now + 10 * SECOND);
  CHECK(debt_ms(&one, now + 10 * SECOND) >= 8995);
  measure(&other, 10 * SECOND, now + 15 * SECOND);
  CHECK(debt_ms(&one, now + 15 * SECOND) >= 13495 && debt_ms(&one, now + 15 * SECOND) <= 13500);
  close_book(one.book);
  close_book(other.book);
  free_pair(pair);
}

/* Whatever is written into the word of the usage page: a process pays what it used itself, at the least. */
static void test_damage(void) {
  uint64_t words[] = {0, 1, START, START + 1009 * SECOND, START + 1010 * SECOND, UINT64_MAX, (uint64_t)1 << 63};
  for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
    struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, 100000, START);
    struct sibling one = make_sibling(pair);
    uint64_t now = START + 1000 * SECOND;
    launch_now(&one, now);
    ((struct vgpu_usage_device *)(pair.usage + 1))->even_ns = words[i];
    measure(&one, 10 * SECOND, now + 10 * SECOND);
    CHECK_EACH(debt_ms(&one, now + 10 * SECOND) >= 8995 && debt_ms(&one, now + 10 * SECOND) <= 9000);
    close_book(one.book);
    free_pair(pair);
  }
}

int main(void) {
  test_overlapping();
  test_in_full();
  test_damage();
  return check_end();
}
