/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * bound_test.c - launches in virtual time whose costs are not what they were, or are not known, or are called waiting: what
 * goes before it is measured is bounded and paid for, so that the share is met over some seconds.
 */
#include <sys/wait.h>

#include "flood.h"

#define START (1000 * SECOND)

enum { SHARE_PPM = 200000 };

/* GPU time used in `time_ns` with a share of 200000, in millionths. */
static uint64_t run(void (*prepare)(struct flooder *), bool is_collective, uint64_t time_ns) {
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, SHARE_PPM, START);
  struct flooder *flooder = make_flooder(pair, MILLISECOND);
  flooder->prepare = prepare;
  flooder->is_collective = is_collective;
  flooder->patience_ns = is_collective ? 0 : VGPU_WAIT_MAX_NS;
  flooder->next_ns = gpu_free_ns = START;
  run_until(&flooder, 1, START + time_ns);
  uint64_t used = flooder->used_ns < gpu_free_ns ? flooder->used_ns : 0;
  used -= gpu_free_ns > START + time_ns ? gpu_free_ns - START - time_ns : 0; /* what is queued still */
  free_flooder(flooder);
  free_pair(pair);
  return used * 1000 / (time_ns / 1000);
}

static void check_bound(const char *what, uint64_t used, uint64_t least, uint64_t most) {
  CHECK(used >= least && used <= most);
  if (used < least || used > most) {
    printf("%s: used %llu\n", what, (unsigned long long)used);
  }
}

/* A graph that is updated between short and long content: 4 launches short, 30 long, no waiting in between. */
static void vary_graph(struct flooder *flooder) {
  uint64_t step = flooder->launched % 34;
  flooder->fixed_ns = step < 4 ? MICROSECOND : 10 * MILLISECOND;
  if (step == 0 || step == 4) {
    vgpu_cost_doubt(cost_of(flooder));
  }
}

/* The same graph, updated before each launch. */
static void update_always(struct flooder *flooder) {
  flooder->fixed_ns = flooder->launched % 8 == 0 ? 20 * MICROSECOND : 5 * MILLISECOND;
  vgpu_cost_doubt(cost_of(flooder));
}

/* A kernel whose arguments decide: short for long, then long as often as the queue holds. */
static void vary_arguments(struct flooder *flooder) {
  flooder->fixed_ns = flooder->launched % 11000 < 10000 ? 10 * MICROSECOND : 10 * MILLISECOND;
}

/* Each launch is of a new kernel. */
static void always_new(struct flooder *flooder) {
  flooder->function = flooder->launched * 64;
  flooder->fixed_ns = 10 * MILLISECOND;
}

static void test_varying(void) {
  check_bound("graph", run(vary_graph, false, 10 * SECOND), 185000, 210000);
  check_bound("graph, each launch", run(update_always, false, 10 * SECOND), 170000, 210000);
  check_bound("arguments", run(vary_arguments, false, 100 * SECOND), 150000, 230000);
  check_bound("new kernels", run(always_new, false, 10 * SECOND), 185000, 210000);
}

static void long_kernels(struct flooder *flooder) {
  flooder->fixed_ns = 100 * MILLISECOND;
}

static void kernels(struct flooder *flooder) {
  flooder->fixed_ns = 10 * MILLISECOND;
}

static void varied_kernels(struct flooder *flooder) {
  flooder->fixed_ns = flooder->launched % 2 == 0 ? 10 * MICROSECOND : 20 * MILLISECOND;
}

/* Patience ends for collectives as in libvgpu: kept waiting from 200 ms of debt on. */
static void prepare_collective(struct flooder *flooder) {
  bool is_late = vgpu_rate_debt_ns(&flooder->pacer.rate, flooder->next_ns) >= 200 * MILLISECOND;
  flooder->patience_ns = is_late ? VGPU_WAIT_MAX_NS : 0;
}

static void long_collectives(struct flooder *flooder) {
  prepare_collective(flooder);
  long_kernels(flooder);
}

static void collectives(struct flooder *flooder) {
  prepare_collective(flooder);
  kernels(flooder);
}

static void varied_collectives(struct flooder *flooder) {
  prepare_collective(flooder);
  varied_kernels(flooder);
}

/* A program that calls all its kernels collectives. */
static void test_collectives(void) {
  check_bound("100 ms", run(long_collectives, true, 10 * SECOND), 150000, 250000);
  check_bound("10 ms", run(collectives, true, 10 * SECOND), 150000, 250000);
  check_bound("10 us and 20 ms", run(varied_collectives, true, 10 * SECOND), 150000, 250000);
}

/* Processes that launch once and are gone before anybody knows what became of it. */
static void test_killed(void) {
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, SHARE_PPM, START);
  uint64_t *now = shared_memory(4096), used = 0;
  *now = START;
  while (*now < START + 30 * SECOND) {
    pid_t pid = fork();
    if (pid == 0) {
      struct flooder *flooder = make_flooder(pair, 100 * MILLISECOND);
      flooder->next_ns = gpu_free_ns = *now;
      while (flooder->launched == 0) {
        step(flooder);
      }
      *now = gpu_free_ns;
      _exit(0);
    }
    waitpid(pid, NULL, 0);
    used += 100 * MILLISECOND;
  }
  check_bound("killed", used * 1000 / ((*now - START) / 1000), 10000, 260000);
  munmap(now, 4096);
  free_pair(pair);
}

/* A thread that leaves a wait by longjmp has claimed nothing, and does not count as a waiter for ever. */
static void test_left(void) {
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, SHARE_PPM, START);
  struct flooder *flooder = make_flooder(pair, 2 * SECOND);
  flooder->next_ns = gpu_free_ns = START;
  step(flooder);
  flooder->next_ns = gpu_free_ns;
  flooder->function = 64;
  flooder->fixed_ns = MILLISECOND;
  step(flooder); /* it is kept waiting, and goes away */
  CHECK(flooder->told_ns != 0);
  CHECK_EQUAL(cost_of(flooder)->first, 0);
  flooder->ticket = (struct vgpu_ticket){0};
  flooder->told_ns = flooder->began_ns = 0;
  flooder->next_ns = START + 20 * SECOND;
  step(flooder);
  CHECK_EQUAL(flooder->launched, 2);
  CHECK_EQUAL(flooder->pacer.rate.waiters, 0);
  free_flooder(flooder);
  free_pair(pair);
}

/* No more than so many launches whose cost is not settled go at a time; those that never end are not waited for for ever. */
static void test_many_unknown(void) {
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, SHARE_PPM, START);
  struct flooder *flooder = make_flooder(pair, MILLISECOND);
  uint64_t now = START;
  uint32_t went = 0;
  for (uint64_t i = 0; i < 200; i++) {
    struct vgpu_ticket ticket = {0};
    flooder->function = i * 64;
    for (uint64_t begun = now;
         vgpu_pace(&flooder->pacer, cost_of(flooder), now, now - begun, VGPU_WAIT_MAX_NS, &ticket);) {
      now += MILLISECOND;
      if (ticket.busy && went == 0) {
        went = (uint32_t)i;
      }
    }
  }
  CHECK_EQUAL(went, VGPU_SETTLING_MOST);
  CHECK(now < START + 90 * SECOND);
  free_flooder(flooder);
  free_pair(pair);
}

int main(void) {
  test_varying();
  test_collectives();
  test_killed();
  test_left();
  test_many_unknown();
  return check_end();
}
