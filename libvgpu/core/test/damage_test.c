/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * damage_test.c - an idle process holds memory while somebody damages its slot, or the agent has frozen the
 * allocation: no other process gets what it holds. And claims that were killed halfway are not taken for damage.
 */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"

enum { LIMIT = 1000, HELD = 600 };

/* A token as processes write it. */
static uint64_t token_of(uint64_t number, pid_t pid) {
  return (2 * number + 1) << VGPU_PID_BITS | (uint64_t)pid;
}

/* Pages on which an idle child holds HELD bytes in slot 0. */
struct scene {
  struct pair pair;
  struct vgpu_book *book; /* of this process */
  struct vgpu_usage_slot *slot;
  pid_t child;
};

static struct scene begin(void) {
  struct scene scene = {.pair = make_pair(1, LIMIT)};
  int ready[2];
  char byte;
  if (pipe(ready) != 0) {
    exit(2);
  }
  scene.child = fork();
  if (scene.child == 0) {
    struct vgpu_book *book = open_book(scene.pair);
    if (vgpu_reserve(book, 0, DEVICE, HELD) != 0 || write(ready[1], "x", 1) != 1) {
      _exit(1);
    }
    pause();
    _exit(0);
  }
  CHECK_EQUAL(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  scene.book = open_book(scene.pair);
  scene.slot = vgpu_slot_at(scene.book, 0);
  return scene;
}

static void end_child(struct scene *scene) {
  if (scene->child != 0) {
    kill(scene->child, SIGKILL);
    waitpid(scene->child, NULL, 0);
    scene->child = 0;
  }
}

static void end(struct scene *scene) {
  end_child(scene);
  close_book(scene->book);
  free_pair(scene->pair);
}

static void test_frozen(void) {
  struct pair pair = make_pair(1, LIMIT);
  struct vgpu_book *book = open_book(pair), *other = open_book(pair);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, HELD), 0);
  vgpu_limits_freeze(pair.limits, VGPU_FROZEN_HEADER);
  CHECK_EQUAL(pair.limits->frozen, VGPU_FROZEN_HEADER);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), -EPROTO);
  CHECK_EQUAL(vgpu_reserve(other, 0, DEVICE, 1), -EPROTO);
  CHECK_EQUAL(vgpu_limit_bytes(book, 0), LIMIT);
  CHECK_EQUAL(vgpu_used_bytes(other, 0), HELD);
  vgpu_release(book, 0, DEVICE, 100);
  CHECK_EQUAL(page_used(pair), HELD - 100);
  vgpu_charge(book, 0, DEVICE, 50);
  CHECK_EQUAL(page_used(pair), HELD - 50);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), -EPROTO);
  CHECK_EQUAL(vgpu_limits_raise_epoch(pair.limits), 2);
  CHECK_EQUAL(pair.limits->frozen, 0);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 50), 0);
  CHECK_EQUAL(vgpu_reserve(other, 0, DEVICE, LIMIT - HELD), 0);
  close_book(book);
  close_book(other);
  free_pair(pair);
}

/* Random bytes in the slot, under a header that is whole: told at once by the shim and by the agent. */
static void test_random_slot(bool whole) {
  for (uint64_t round = 1; round <= 64; round++) {
    struct scene scene = begin();
    struct vgpu_usage_process process;
    if (round % 2 == 0) { /* the process that asks is registered already */
      CHECK_EQUAL(vgpu_reserve(scene.book, 0, DEVICE, 1), 0);
    }
    uint64_t *words = (uint64_t *)scene.slot, random = round * 0x9e3779b97f4a7c15ULL;
    size_t count = whole ? (sizeof(struct vgpu_usage_slot) + sizeof(struct vgpu_usage_slot_device)) / 8 : 8;
    for (size_t i = 0; i < count; i++) {
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      words[i] = random | (uint64_t)1 << 63;
    }
    CHECK_EQUAL(vgpu_usage_read_process(scene.pair.usage, 0, 1, &process), -EBADMSG);
    CHECK_EQUAL(vgpu_reserve(scene.book, 0, DEVICE, LIMIT - HELD + 1), -EPROTO);
    CHECK_EQUAL(vgpu_reserve(scene.book, 0, DEVICE, 1), -EPROTO);
    end(&scene);
  }
}

/* What a process could have written in the middle of a re-claim: waited for and refused while it lives; right again
 * once the process has written its slot, or is dead. */
static void test_doubtful_slot(bool dies) {
  struct scene scene = begin();
  struct timespec from, to;
  uint64_t owner = scene.slot->owner;
  scene.slot->ready = token_of(77, 4321);
  clock_gettime(CLOCK_MONOTONIC, &from);
  CHECK(vgpu_reserve(scene.book, 0, DEVICE, LIMIT - HELD + 1) < 0);
  clock_gettime(CLOCK_MONOTONIC, &to);
  CHECK(to.tv_sec - from.tv_sec < 10);
  CHECK_EQUAL(vgpu_reserve(scene.book, 0, DEVICE, LIMIT - HELD), 0);
  vgpu_release(scene.book, 0, DEVICE, LIMIT - HELD);
  if (dies) {
    end_child(&scene);
    CHECK_EQUAL(vgpu_reserve(scene.book, 0, DEVICE, LIMIT), 0);
    CHECK_EQUAL(slots_taken(scene.book), 1);
  } else {
    scene.slot->ready = owner;
    CHECK_EQUAL(vgpu_reserve(scene.book, 0, DEVICE, LIMIT - HELD), 0);
    CHECK_EQUAL(page_used(scene.pair), LIMIT);
  }
  end(&scene);
}

/* A claim that was killed on a slot with leavings counts nothing, not for an instant; nor does one of an older epoch. */
static void test_leavings(bool folded) {
  struct scene scene = begin();
  uint64_t old = scene.slot->owner;
  end_child(&scene);
  scene.slot->owner = token_of(5, getppid()); /* alive: so it is never reaped here */
  scene.slot->folded = folded ? old : 0;
  scene.pair.limits->epoch += !folded;
  CHECK_EQUAL(vgpu_reserve(scene.book, 0, DEVICE, LIMIT), 0);
  CHECK_EQUAL(scene.slot->owner, token_of(5, getppid()));
  end(&scene);
}

/* No process is ready above the high-water mark. */
static void test_hidden_slot(void) {
  struct scene scene = begin();
  struct vgpu_usage_process process;
  CHECK_EQUAL(vgpu_usage_read_process(scene.pair.usage, 0, 1, &process), 1);
  scene.pair.usage->slot_high_water = 0;
  CHECK_EQUAL(vgpu_usage_read_process(scene.pair.usage, 0, 1, &process), -EBADMSG);
  CHECK_EQUAL(vgpu_reserve(scene.book, 0, DEVICE, LIMIT - HELD + 1), -ENOMEM); /* raised again by the claim */
  end(&scene);
}

int main(void) {
  test_frozen();
  test_random_slot(true);
  test_random_slot(false);
  test_doubtful_slot(false);
  test_doubtful_slot(true);
  test_leavings(true);
  test_leavings(false);
  test_hidden_slot();
  return check_end();
}
