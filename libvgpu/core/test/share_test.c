/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * share_test.c - processes and threads that share the GPU time of one allocation, in real time: what they buy together, an
 * agent that publishes all the while, and processes that are killed.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "flood.h"

static uint64_t clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

static void sleep_ns(uint64_t nanoseconds) {
  struct timespec time = {(time_t)(nanoseconds / SECOND), (long)(nanoseconds % SECOND)};
  nanosleep(&time, NULL);
}

/* What processes tell each other beside the pages. */
struct board {
  uint64_t used_ns[16];    /* GPU time launched, by process */
  uint64_t longest_ns[16]; /* that it waited */
};

/* Launches kernels of `kernel_ns` until `end_ns`, of known cost and without a GPU. */
static void buy_until(struct vgpu_rate_book *rate, struct board *board, uint32_t index, uint64_t kernel_ns,
                      uint64_t end_ns) {
  int64_t credit = 0;
  for (uint64_t now = clock_ns(); now < end_ns;) {
    uint64_t bought = 0, from = now, told = 0, wait;
    while (credit < (int64_t)kernel_ns &&
           (wait = vgpu_rate_buy(rate, kernel_ns, now, now - from >= VGPU_WAIT_MAX_NS, &bought)) != 0 && now < end_ns) {
      wait = wait < 100 * MILLISECOND ? wait : 100 * MILLISECOND;
      vgpu_rate_waiting(rate, now, now + wait, told != 0 ? now - told : 0);
      told = now;
      sleep_ns(wait);
      now = clock_ns();
    }
    if (told != 0) {
      vgpu_rate_waited(rate, now, now - told);
    }
    board->longest_ns[index] = now - from > board->longest_ns[index] ? now - from : board->longest_ns[index];
    if (now < end_ns) {
      credit += (int64_t)bought - (int64_t)kernel_ns;
      __atomic_fetch_add(&board->used_ns[index], kernel_ns, __ATOMIC_RELAXED);
      now = clock_ns();
    }
  }
}

static pid_t start_buyer(struct pair pair, struct board *board, uint32_t index, uint64_t kernel_ns, uint64_t end_ns) {
  pid_t pid = fork();
  if (pid == 0) {
    struct vgpu_rate_book rate;
    vgpu_rate_open(&rate, open_book(pair), 0, VGPU_PPM);
    buy_until(&rate, board, index, kernel_ns, end_ns);
    _exit(0);
  }
  return pid;
}

/* Eight processes at once: never more than the share, the burst, and one kernel each; each of them its part. */
static void test_race(uint32_t share_ppm) {
  enum { PROCESSES = 8 };
  uint64_t start = clock_ns(), time = 2 * SECOND, most = 0, sum = 0, kernels = 0;
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, share_ppm, start);
  struct board *board = shared_memory(sizeof(*board));
  pid_t pids[PROCESSES];
  for (uint32_t i = 0; i < PROCESSES; i++) {
    uint64_t kernel = (i % 4 + 1) * 250 * MICROSECOND;
    kernels += kernel;
    pids[i] = start_buyer(pair, board, i, kernel, start + time);
  }
  for (uint32_t i = 0; i < PROCESSES; i++) {
    int status = 0;
    CHECK(waitpid(pids[i], &status, 0) == pids[i] && status == 0);
    sum += board->used_ns[i];
    most = board->used_ns[i] > most ? board->used_ns[i] : most;
  }
  uint64_t entitled = (time + VGPU_BURST_NS) * share_ppm / VGPU_PPM;
  CHECK(sum <= entitled + kernels);
  CHECK(sum >= entitled / 2); /* the burst covers what a busy machine is late by */
  for (uint32_t i = 0; i < PROCESSES; i++) {
    CHECK(board->used_ns[i] * 3 > most);
  }
  CHECK_EQUAL(((struct vgpu_usage_device *)(pair.usage + 1))->throttled_ns > 0, 1);
  munmap(board, sizeof(*board));
  free_pair(pair);
}

/* Processes that are killed while they buy and wait, again and again: the others go on, and get all of it. */
static void test_kills(uint32_t kills) {
  enum { VICTIMS = 4 };
  uint64_t start = clock_ns();
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, 500000, start);
  struct board *board = shared_memory(sizeof(*board));
  pid_t pids[VICTIMS], survivor = start_buyer(pair, board, VICTIMS, 100 * MICROSECOND, start + 3600 * SECOND);
  for (uint32_t i = 0; i < VICTIMS; i++) {
    pids[i] = start_buyer(pair, board, i, 50 * MICROSECOND, start + 3600 * SECOND);
  }
  for (uint32_t i = 0; i < kills; i++) {
    uint32_t victim = i % VICTIMS;
    sleep_ns((i * 7919) % 2000 * MICROSECOND);
    kill(pids[victim], SIGKILL);
    waitpid(pids[victim], NULL, 0);
    pids[victim] = start_buyer(pair, board, victim, 50 * MICROSECOND, start + 3600 * SECOND);
  }
  for (uint32_t i = 0; i < VICTIMS; i++) {
    kill(pids[i], SIGKILL);
    waitpid(pids[i], NULL, 0);
  }
  uint64_t before = __atomic_load_n(&board->used_ns[VICTIMS], __ATOMIC_RELAXED), from = clock_ns();
  sleep_ns(500 * MILLISECOND);
  uint64_t used = __atomic_load_n(&board->used_ns[VICTIMS], __ATOMIC_RELAXED) - before, time = clock_ns() - from;
  CHECK(used <= time / 2 + 11 * MILLISECOND);
  CHECK(used >= time / 2 / 2); /* what a busy machine leaves of it */
  CHECK(board->longest_ns[VICTIMS] < 2 * SECOND);
  uint64_t sum = 0, end = clock_ns();
  for (uint32_t i = 0; i <= VICTIMS; i++) {
    sum += board->used_ns[i];
  }
  /* Each victim may have had what it bought ahead, but what it did not use died with it. */
  CHECK(sum <= (end - start + VGPU_BURST_NS) / 2 + 5 * 100 * MICROSECOND);
  kill(survivor, SIGKILL);
  waitpid(survivor, NULL, 0);
  munmap(board, sizeof(*board));
  free_pair(pair);
}

/* A waiter that died is waited for a few milliseconds, and no longer. In virtual time. */
static void test_dead_waiter(void) {
  uint64_t now = clock_ns() + SECOND, bought;
  struct pair pair = make_compute_pair(VGPU_COMPUTE_HARD, 500000, now - SECOND);
  struct vgpu_rate_book rate, dead;
  struct vgpu_book *books[] = {open_book(pair), open_book(pair)};
  vgpu_rate_open(&rate, books[0], 0, VGPU_PPM);
  vgpu_rate_open(&dead, books[1], 0, VGPU_PPM);
  CHECK_EQUAL(vgpu_rate_buy(&dead, 1000, now, false, &bought), 0);
  CHECK_EQUAL(vgpu_rate_buy(&rate, 50 * MILLISECOND, now, false, &bought), 0);
  uint64_t wait = vgpu_rate_buy(&dead, 1000, now, false, &bought);
  CHECK(wait > 70 * MILLISECOND);
  vgpu_rate_waiting(&dead, now, now + wait, 0); /* its last words */
  uint64_t from = now + wait, waited = 0;
  CHECK(vgpu_rate_buy(&rate, 1000, now, false, &bought) > 0);
  vgpu_rate_waiting(&rate, now, now + wait, 0);
  while ((wait = vgpu_rate_buy(&rate, 1000, from + waited, false, &bought)) != 0) {
    waited += wait;
  }
  CHECK(waited > 3 * MILLISECOND && waited <= 5 * MILLISECOND);
  CHECK_EQUAL(vgpu_rate_buy(&rate, 1000, from + waited, false, &bought), 0);
  close_book(books[0]);
  close_book(books[1]);
  free_pair(pair);
}

struct crowd {
  struct pair pair;
  struct vgpu_pacer pacer;
  struct vgpu_costs costs;
  uint64_t launched_ns; /* atomic */
  uint64_t end_ns;
};

static void *launch_in_crowd(void *argument) {
  struct crowd *crowd = argument;
  struct vgpu_cost *cost = vgpu_cost_find(&crowd->costs, crowd, 1, 1);
  for (uint64_t now = clock_ns(); now < crowd->end_ns; now = clock_ns()) {
    struct vgpu_ticket ticket = {0};
    uint64_t from = now, told = 0, wait;
    if (!vgpu_pace_quick(&crowd->pacer, cost, &ticket)) {
      while ((wait = vgpu_pace(&crowd->pacer, cost, now, now - from, VGPU_WAIT_MAX_NS, &ticket)) != 0) {
        if (!ticket.busy) {
          vgpu_rate_waiting(&crowd->pacer.rate, now, now + wait, told != 0 ? now - told : 0);
          told = now;
        }
        sleep_ns(wait < MILLISECOND ? wait : MILLISECOND);
        now = clock_ns();
      }
      if (told != 0) {
        vgpu_rate_waited(&crowd->pacer.rate, now, now - told);
      }
    }
    __atomic_fetch_add(&crowd->launched_ns, 20 * MICROSECOND, __ATOMIC_RELAXED);
    if (ticket.sample) {
      vgpu_pace_measured(&crowd->pacer, &ticket, 20 * MICROSECOND, clock_ns());
    }
  }
  return NULL;
}

static void *steer(void *argument) {
  struct crowd *crowd = argument;
  for (uint64_t i = 0; clock_ns() < crowd->end_ns; i++) {
    uint64_t now = clock_ns();
    publish(crowd->pair, i % 2 == 0 ? 200000 : 400000, 1000000, i % 3 == 0 ? VGPU_RATE_ALONE : 0, now);
    vgpu_limits_beat(crowd->pair.limits);
    sleep_ns(20 * MICROSECOND);
  }
  return NULL;
}

/* Threads of one process, beside an agent that publishes as fast as it can: lines are read whole, so the mean of its
 * rates is what they get, by the line itself. */
static void test_threads(void) {
  enum { THREADS = 4 };
  static struct crowd crowd;
  pthread_t threads[THREADS], agent;
  struct vgpu_line line;
  uint64_t start = clock_ns();
  crowd.pair = make_compute_pair(VGPU_COMPUTE_ELASTIC, 300000, start);
  crowd.end_ns = start + SECOND;
  struct vgpu_book *book = open_book(crowd.pair);
  vgpu_rate_open(&crowd.pacer.rate, book, 0, VGPU_PPM);
  pthread_create(&agent, NULL, steer, &crowd);
  for (int i = 0; i < THREADS; i++) {
    pthread_create(&threads[i], NULL, launch_in_crowd, &crowd);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
  }
  pthread_join(agent, NULL);
  CHECK(vgpu_line_read(&crowd.pair.limits->devices[0], &line));
  uint64_t entitled = vgpu_line_at(&line, clock_ns());
  CHECK(crowd.launched_ns <= entitled + 8 * MILLISECOND + MILLISECOND + THREADS * 20 * MICROSECOND);
  CHECK(crowd.launched_ns >= entitled / 2);
  vgpu_pace_flush(&crowd.pacer, clock_ns());
  close_book(book);
  free_pair(crowd.pair);
}

int main(void) {
  test_race(300000);
  test_race(1000000);
  test_dead_waiter();
  test_kills(1000);
  test_threads();
  return check_end();
}
