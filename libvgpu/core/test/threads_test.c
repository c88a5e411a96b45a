/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * threads_test.c - many threads on three books of one page, while limits and the epoch change. The sum that the
 * driver would hold is kept beside the book and compared with the limit at every admission.
 */
#include <errno.h>
#include <pthread.h>

#include "check.h"

enum { THREADS = 6, BOOKS = 3, ROUNDS = 4000, LIMIT = 1000 };

struct worker {
  pthread_t thread;
  struct vgpu_book *book;
  unsigned seed;
  uint64_t admitted;
  uint64_t refused;
};

static uint64_t driver_bytes, driver_high_water;
static uint32_t stop;

static void *work(void *argument) {
  struct worker *worker = argument;
  for (int i = 0; i < ROUNDS; i++) {
    uint64_t bytes = (uint64_t)(rand_r(&worker->seed) % (2 * LIMIT / 3));
    enum vgpu_kind kind = (enum vgpu_kind)(i % 3);
    if (vgpu_reserve(worker->book, 0, kind, bytes) != 0) {
      worker->refused++;
      continue;
    }
    worker->admitted++;
    uint64_t now = __atomic_add_fetch(&driver_bytes, bytes, __ATOMIC_SEQ_CST);
    uint64_t high = __atomic_load_n(&driver_high_water, __ATOMIC_SEQ_CST);
    while (high < now &&
           !__atomic_compare_exchange_n(&driver_high_water, &high, now, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    __atomic_sub_fetch(&driver_bytes, bytes, __ATOMIC_SEQ_CST);
    if (i % 4 == 0) {
      vgpu_cancel(worker->book, 0, kind, bytes);
    } else {
      vgpu_release(worker->book, 0, kind, bytes);
    }
  }
  return NULL;
}

static void *query(void *argument) {
  struct vgpu_book *book = argument;
  uint64_t most = 0;
  while (__atomic_load_n(&stop, __ATOMIC_SEQ_CST) == 0) {
    uint64_t used = vgpu_used_bytes(book, 0);
    most = used > most ? used : most;
    usleep(50);
  }
  return (void *)(uintptr_t)most;
}

static void *raise_epochs(void *argument) {
  struct vgpu_limits_page *page = argument;
  for (int i = 0; __atomic_load_n(&stop, __ATOMIC_SEQ_CST) == 0; i++) {
    vgpu_limits_raise_epoch(page);
    vgpu_limits_set_memory(page, 0, LIMIT - (uint64_t)(i % 2) * 100);
    usleep(200);
  }
  return NULL;
}

/* Runs all threads beside `disturb`. Books of one process see each other as alive. */
static void run(struct pair pair, void *(*disturb)(void *), void *argument) {
  struct worker workers[THREADS] = {0};
  struct vgpu_book *books[BOOKS];
  pthread_t disturber;
  uint64_t admitted = 0, refused = 0;
  driver_bytes = driver_high_water = 0;
  stop = 0;
  for (int i = 0; i < BOOKS; i++) {
    books[i] = open_book(pair);
  }
  pthread_create(&disturber, NULL, disturb, argument != NULL ? argument : books[0]);
  for (int i = 0; i < THREADS; i++) {
    workers[i].book = books[i % BOOKS];
    workers[i].seed = (unsigned)i + 1;
    pthread_create(&workers[i].thread, NULL, work, &workers[i]);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(workers[i].thread, NULL);
    admitted += workers[i].admitted;
    refused += workers[i].refused;
  }
  __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
  pthread_join(disturber, NULL);
  CHECK_EQUAL(admitted + refused, THREADS * ROUNDS);
  CHECK(admitted > 0);
  CHECK_EQUAL(driver_bytes, 0);
  for (int i = 0; i < BOOKS; i++) {
    CHECK_EQUAL(books[i]->private_total[0], 0);
    CHECK_EQUAL(vgpu_slot_device(own_slot(books[i]), 0)->trying_bytes, 0);
    CHECK_EQUAL(vgpu_used_bytes(books[i], 0), 0);
    close_book(books[i]);
  }
}

int main(void) {
  struct pair pair = make_pair(1, LIMIT);
  run(pair, query, NULL);
  CHECK(driver_high_water <= LIMIT);
  struct vgpu_usage_view view;
  CHECK_EQUAL(vgpu_usage_read_device(pair.usage, 0, 1, &view), 0);
  CHECK(view.allocations > 0);
  free_pair(pair);

  pair = make_pair(1, LIMIT);
  run(pair, raise_epochs, pair.limits); /* sums may pass the limit here: a raise forgets the living */
  free_pair(pair);
  return check_end();
}
