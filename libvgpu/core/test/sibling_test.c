/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * sibling_test.c - processes of one container that share a GPU in time slices, in virtual time and without an agent: what
 * each of their launches takes by the clock holds the slices of the others, and is not paid for many times over.
 */
#include "flood.h"

#define START (1000 * SECOND)
#define SLICE (2 * MILLISECOND)
#define BUSY_PATIENCE (3 * SECOND) /* as in libvgpu */

enum { LAUNCHERS_MOST = 64, UNDER_WAY_MOST = 16 };
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

/* A process that always has a next launch, of which at most so many are under way. */
struct launcher {
  struct vgpu_book *book;
  struct vgpu_pacer pacer;
  struct vgpu_costs costs;
  struct vgpu_ticket ticket;
  uint64_t begun_ns, told_ns, next_ns;
  struct {
    struct vgpu_ticket ticket;
    uint64_t began_ns, left_ns;
  } queue[UNDER_WAY_MOST]; /* the first one runs */
  uint32_t queued;
};

struct node {
  struct pair pair;
  struct launcher *launchers[LAUNCHERS_MOST];
  uint32_t count, next;
  uint64_t kernel_ns, used_ns, last_ns, gap_ns; /* of the GPU: used, when last, and how long it was not */
};

static struct node make_node(uint32_t count, uint32_t share_ppm, uint64_t kernel_ns) {
  struct node node = {.pair = make_compute_pair(VGPU_COMPUTE_HARD, share_ppm, START),
                      .count = count,
                      .kernel_ns = kernel_ns,
                      .last_ns = START};
  for (uint32_t i = 0; i < count; i++) {
    struct launcher *launcher = node.launchers[i] = calloc(1, sizeof(*launcher));
    launcher->book = open_book(node.pair);
    launcher->next_ns = START + i * MICROSECOND;
    vgpu_rate_open(&launcher->pacer.rate, launcher->book, 0, VGPU_PPM);
  }
  return node;
}

static void free_node(struct node *node) {
  for (uint32_t i = 0; i < node->count; i++) {
    close_book(node->launchers[i]->book);
    free(node->launchers[i]);
  }
  free_pair(node->pair);
}

/* Asks once, and launches or waits. */
static void ask(const struct node *node, struct launcher *launcher, uint64_t now) {
  struct vgpu_cost *cost = vgpu_cost_find(&launcher->costs, launcher, 100, 256);
  launcher->begun_ns = launcher->begun_ns != 0 ? launcher->begun_ns : now;
  uint64_t waited = now - launcher->begun_ns;
  launcher->ticket.blind |= launcher->ticket.cost == NULL && waited > BUSY_PATIENCE;
  uint64_t wait = vgpu_pace(&launcher->pacer, cost, now, waited, VGPU_WAIT_MAX_NS, &launcher->ticket);
  if (wait != 0) {
    uint64_t piece = wait < 100 * MILLISECOND ? wait : 100 * MILLISECOND;
    if (!launcher->ticket.busy) {
      vgpu_rate_waiting(&launcher->pacer.rate, now, now + piece, launcher->told_ns != 0 ? now - launcher->told_ns : 0);
      launcher->told_ns = now;
    }
    launcher->next_ns = now + piece;
    return;
  }
  if (launcher->told_ns != 0) {
    vgpu_rate_waited(&launcher->pacer.rate, now, now - launcher->told_ns);
  }
  launcher->ticket.sample = true; /* also one that went out of patience */
  launcher->queue[launcher->queued].ticket = launcher->ticket;
  launcher->queue[launcher->queued].left_ns = node->kernel_ns;
  launcher->queue[launcher->queued++].began_ns = now;
  launcher->ticket = (struct vgpu_ticket){0};
  launcher->begun_ns = launcher->told_ns = 0;
  launcher->next_ns = now + LAUNCH_NS;
}

/* One slice of the GPU, for whose turn it is. */
static void run_slice(struct node *node, uint64_t now) {
  for (uint32_t tries = 0; tries < node->count; tries++) {
    struct launcher *launcher = node->launchers[node->next++ % node->count];
    if (launcher->queued == 0) {
      continue;
    }
    node->gap_ns = now - node->last_ns > node->gap_ns ? now - node->last_ns : node->gap_ns;
    node->last_ns = now;
    node->used_ns += SLICE;
    launcher->queue[0].left_ns -= SLICE;
    if (launcher->queue[0].left_ns == 0) {
      uint64_t end = now + SLICE;
      vgpu_pace_measured(&launcher->pacer, &launcher->queue[0].ticket, end - launcher->queue[0].began_ns, end);
      memmove(launcher->queue, launcher->queue + 1, sizeof(launcher->queue) - sizeof(*launcher->queue));
      launcher->queued--;
      launcher->queue[0].began_ns = launcher->queue[0].began_ns < end ? end : launcher->queue[0].began_ns;
    }
    return;
  }
}

static void run(struct node *node, uint64_t from, uint64_t to) {
  for (uint64_t now = from; now < to; now += SLICE) {
    for (uint32_t i = 0; i < node->count; i++) {
      struct launcher *launcher = node->launchers[i];
      while (launcher->next_ns <= now && launcher->queued < UNDER_WAY_MOST) {
        ask(node, launcher, now > launcher->next_ns ? now : launcher->next_ns);
      }
    }
    run_slice(node, now);
  }
}

/* Many processes that start together: few launch before the first one is measured, and nothing stands still for long. */
static void test_many(uint32_t count) {
  struct node node = make_node(count, 100000, 200 * MILLISECOND);
  run(&node, START, START + MINUTE);
  CHECK(node.used_ns >= 4800 * MILLISECOND && node.used_ns <= 7200 * MILLISECOND);
  CHECK(node.gap_ns <= 10 * SECOND + 100 * MILLISECOND);
  free_node(&node);
}

int main(void) {
  test_overlapping();
  test_in_full();
  test_damage();
  test_many(20);
  test_many(50);
  test_many(1);
  return check_end();
}
