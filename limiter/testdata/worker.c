/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * worker.c - one process of a container, for the tests of package limiter: it uses the memory book on real page
 * files as libvgpu would, and keeps beside it what a driver would hold. Built by the tests.
 *
 *   worker race DIR DRIVER THREADS ROUNDS   reserve and release at random, all threads at once
 *   worker hold DIR DRIVER BYTES            reserve once, keep it until told to stop
 *   worker loop DIR DRIVER                  reserve and release until killed
 *   worker observe DIR DRIVER               sum the usage page until told to stop
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../libvgpu/core/page.h"
#include "../../libvgpu/core/slot.h"

/* Shared by all workers of a test and by the test, which reads it as an array of words in this order. */
struct driver {
  uint64_t held;       /* bytes that the driver would hold now */
  uint64_t high_water; /* the most it ever held */
  uint64_t admitted;
  uint64_t refused;
  uint64_t errors;        /* requests that ended otherwise */
  uint64_t slowest_ns;    /* the longest that a request took */
  uint64_t observations;  /* sums of the page that were stable */
  uint64_t observed_high; /* the largest of them */
  uint64_t ready;         /* workers that reached their start line */
  uint64_t start;         /* set by the test */
  uint64_t stop;          /* set by the test */
};

static struct driver *driver;
static struct vgpu_book book;

static void *map(const char *path, int flags, int protection, size_t *bytes) {
  struct stat stat;
  int fd = open(path, flags | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &stat) != 0) {
    perror(path);
    exit(2);
  }
  *bytes = (size_t)stat.st_size;
  void *memory = mmap(NULL, *bytes, protection, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    perror(path);
    exit(2);
  }
  close(fd);
  return memory;
}

static void open_all(const char *directory, const char *driver_path) {
  char path[4096];
  size_t limits_bytes, usage_bytes, driver_bytes;
  snprintf(path, sizeof(path), "%s/limits", directory);
  void *limits = map(path, O_RDONLY, PROT_READ, &limits_bytes);
  snprintf(path, sizeof(path), "%s/usage", directory);
  void *usage = map(path, O_RDWR, PROT_READ | PROT_WRITE, &usage_bytes);
  driver = map(driver_path, O_RDWR, PROT_READ | PROT_WRITE, &driver_bytes);
  if (vgpu_book_open(&book, limits, limits_bytes, usage, usage_bytes) != 0) {
    fprintf(stderr, "cannot open the book\n");
    exit(2);
  }
  uint32_t *canary = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (canary != MAP_FAILED && madvise(canary, 4096, MADV_WIPEONFORK) == 0) {
    book.fork_canary = canary;
  }
}

static void raise_to(uint64_t *word, uint64_t value) {
  uint64_t seen = vgpu_load(word);
  while (seen < value && !__atomic_compare_exchange_n(word, &seen, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
}

static void wait_for(uint64_t *word) {
  vgpu_add(&driver->ready, 1);
  while (vgpu_load(word) == 0) {
    usleep(50);
  }
}

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t seed_of(uint64_t salt) {
  return (now_ns() ^ ((uint64_t)getpid() << 32)) + salt * 7919;
}

static uint64_t next_random(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static int timed_reserve(enum vgpu_kind kind, uint64_t bytes) {
  uint64_t from = now_ns();
  int result = vgpu_reserve(&book, 0, kind, bytes);
  raise_to(&driver->slowest_ns, now_ns() - from);
  if (result == -ENOMEM) {
    vgpu_count_refusal(&book, 0);
  }
  vgpu_add(result == 0 ? &driver->admitted : result == -ENOMEM ? &driver->refused : &driver->errors, 1);
  return result;
}

static void *race(void *argument) {
  uint64_t rounds = *(uint64_t *)argument, limit = vgpu_limit_bytes(&book, 0);
  uint64_t random = seed_of((uint64_t)pthread_self() >> 12);
  for (uint64_t i = 0; i < rounds; i++) {
    uint64_t bytes = next_random(&random) % (limit / 8) + 1;
    enum vgpu_kind kind = (enum vgpu_kind)(i % 3);
    if (timed_reserve(kind, bytes) != 0) {
      continue;
    }
    raise_to(&driver->high_water, vgpu_add(&driver->held, bytes));
    if (i % 4 == 0) {
      sched_yield();
    }
    __atomic_sub_fetch(&driver->held, bytes, __ATOMIC_SEQ_CST);
    vgpu_release(&book, 0, kind, bytes);
  }
  return NULL;
}

static int run_race(int threads, uint64_t rounds) {
  pthread_t handles[64];
  wait_for(&driver->start);
  for (int i = 0; i < threads; i++) {
    if (pthread_create(&handles[i], NULL, race, &rounds) != 0) {
      return 2;
    }
  }
  for (int i = 0; i < threads; i++) {
    pthread_join(handles[i], NULL);
  }
  return 0;
}

static int run_hold(uint64_t bytes) {
  wait_for(&driver->start);
  if (timed_reserve(VGPU_KIND_DEVICE, bytes) == 0) {
    raise_to(&driver->high_water, vgpu_add(&driver->held, bytes));
  }
  while (vgpu_load(&driver->stop) == 0) {
    usleep(200);
  }
  return 0;
}

static _Noreturn void run_loop(void) {
  enum { HELD = 4 };
  uint64_t held[HELD] = {0}, random = seed_of(0), limit = vgpu_limit_bytes(&book, 0);
  vgpu_add(&driver->ready, 1);
  for (;;) {
    uint64_t *one = &held[next_random(&random) % HELD];
    if (*one != 0) {
      vgpu_release(&book, 0, VGPU_KIND_DEVICE, *one);
      *one = 0;
    } else {
      uint64_t bytes = next_random(&random) % (limit / 2) + 1;
      *one = timed_reserve(VGPU_KIND_DEVICE, bytes) == 0 ? bytes : 0;
    }
  }
}

/* One look at the slots: what they charge, and a mark of every word that a reservation changes. */
static uint64_t look(uint64_t *mark) {
  uint64_t sum = 0;
  *mark = 0;
  for (uint32_t i = 0; i < book.slot_count; i++) {
    struct vgpu_usage_slot *slot = vgpu_slot_at(&book, i);
    uint64_t owner = vgpu_load(&slot->owner), charged = 0;
    if (owner == 0 || vgpu_load(&slot->ready) != owner) {
      continue;
    }
    struct vgpu_usage_slot_device *books = vgpu_slot_device(slot, 0);
    for (int kind = 0; kind < VGPU_KIND_COUNT; kind++) {
      charged += vgpu_load(&books->charged_bytes[kind]);
    }
    uint64_t passed = vgpu_load(&books->allocations) ^ (vgpu_load(&books->frees) << 32);
    *mark = (*mark ^ owner ^ passed ^ (charged << 7)) * 0x9e3779b97f4a7c15ULL;
    sum += charged;
  }
  return sum;
}

static int run_observe(void) {
  vgpu_add(&driver->ready, 1);
  while (vgpu_load(&driver->stop) == 0) {
    uint64_t first_mark, second_mark;
    uint64_t first = look(&first_mark), second = look(&second_mark);
    if (first == second && first_mark == second_mark) {
      vgpu_add(&driver->observations, 1);
      raise_to(&driver->observed_high, first);
      usleep(100);
    }
  }
  return 0;
}

int main(int argc, char **argv) {
  if (argc < 4) {
    return 2;
  }
  open_all(argv[2], argv[3]);
  if (strcmp(argv[1], "race") == 0 && argc == 6) {
    return run_race(atoi(argv[4]), strtoull(argv[5], NULL, 10));
  }
  if (strcmp(argv[1], "hold") == 0 && argc == 5) {
    return run_hold(strtoull(argv[4], NULL, 10));
  }
  if (strcmp(argv[1], "loop") == 0) {
    run_loop();
  }
  if (strcmp(argv[1], "observe") == 0) {
    return run_observe();
  }
  return 2;
}
