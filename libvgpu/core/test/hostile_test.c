/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hostile_test.c - random damage to a usage page. The readers never leave the page nor return an absurd sum; a book
 * on it never admits more than the limit for its own process, never waits long, and holds again once the page is
 * put right. VGPU_SEED repeats a run.
 */
#include <errno.h>
#include <time.h>

#include "check.h"

enum { ROUNDS = 3000, LIMIT = 1000, HELD = 600, SLOW_SECONDS = 20 };

static uint64_t random_state;

static uint64_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

/* A word as damage likes it: nothing, everything, small, near the bounds, a token of ours with another pid. */
static uint64_t nasty_word(const struct vgpu_book *book) {
  switch (next_random() % 8) {
  case 0:
    return 0;
  case 1:
    return UINT64_MAX;
  case 2:
    return next_random() % 64;
  case 3:
    return VGPU_BYTES_MAX + next_random() % 3 - 1;
  case 4:
    return (uint64_t)1 << (next_random() % 64);
  case 5:
    return (book->token & ~VGPU_PID_MASK) | (next_random() % 1000);
  case 6:
    return book->token;
  default:
    return next_random();
  }
}

/* Changes some words, mostly where the processes are. */
static void damage(struct pair pair, const struct vgpu_book *book) {
  uint64_t *words = (uint64_t *)pair.usage;
  size_t all = pair.usage_bytes / sizeof(*words), near = vgpu_usage_slot_offset(book->device_count, 4) / sizeof(*words);
  for (uint64_t i = next_random() % 12 + 1; i > 0; i--) {
    words[next_random() % (next_random() % 4 == 0 ? all : near)] = nasty_word(book);
  }
  if (next_random() % 4 == 0) { /* a registered stranger */
    struct vgpu_usage_slot *slot = vgpu_slot_at(book, (uint32_t)(next_random() % 6));
    slot->owner = slot->ready = nasty_word(book);
    slot->epoch = 1;
  }
}

/* What the agent makes of a private copy of the page. */
static void read_all(struct pair pair) {
  struct vgpu_usage_page *copy = malloc(pair.usage_bytes); /* so that the address sanitizer sees its ends */
  memcpy(copy, pair.usage, pair.usage_bytes);
  if (vgpu_usage_check(copy, pair.usage_bytes, 2, VGPU_ABI_VERSION) == 0) {
    for (uint32_t device = 0; device < 2; device++) {
      struct vgpu_usage_view view;
      if (vgpu_usage_read_device(copy, device, 1, &view) == 0) {
        CHECK(view.used_bytes <= VGPU_BYTES_MAX);
      }
    }
    for (uint32_t i = 0; i < VGPU_SLOT_COUNT; i++) {
      struct vgpu_usage_process process;
      if (vgpu_usage_read_process(copy, i, 1, &process) == 1 && (process.pid == 0 || process.pid > VGPU_PID_MASK)) {
        CHECK(false);
      }
    }
  }
  free(copy);
}

static void one_round(void) {
  struct pair pair = make_pair(2, LIMIT);
  struct vgpu_book *book = open_book(pair);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, HELD), 0);
  damage(pair, book);
  read_all(pair);
  CHECK(vgpu_reserve(book, 0, DEVICE, LIMIT - HELD + 1) != 0);
  if (vgpu_reserve(book, 0, MANAGED, LIMIT - HELD) == 0) {
    CHECK(vgpu_reserve(book, 0, DEVICE, 1) != 0);
    vgpu_release(book, 0, MANAGED, LIMIT - HELD);
  }
  CHECK(vgpu_used_bytes(book, 0) >= HELD);
  vgpu_release(book, 0, DEVICE, HELD / 2);
  vgpu_usage_repair(pair.usage, 2, VGPU_ABI_VERSION);
  read_all(pair);
  CHECK(vgpu_reserve(book, 0, DEVICE, LIMIT - HELD / 2 + 1) != 0);
  CHECK_EQUAL(book->private_total[0], HELD / 2);
  close_book(book);
  free_pair(pair);
}

int main(void) {
  struct timespec from, to;
  clock_gettime(CLOCK_MONOTONIC, &from);
  const char *seed = getenv("VGPU_SEED");
  uint64_t start =
      seed != NULL ? strtoull(seed, NULL, 10) : (uint64_t)from.tv_nsec + (uint64_t)from.tv_sec * 1000000000;
  random_state = start | 1;
  for (int i = 0; i < ROUNDS && checks_failed == 0; i++) {
    one_round();
    clock_gettime(CLOCK_MONOTONIC, &to);
    if (to.tv_sec - from.tv_sec > SLOW_SECONDS) {
      printf("stopped after %d rounds\n", i + 1);
      break;
    }
  }
  if (checks_failed != 0) {
    printf("VGPU_SEED=%llu\n", (unsigned long long)start);
  } else {
    checks_passed = 1; /* one test, however many rounds this machine had time for */
  }
  return check_end();
}
