/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * traffic_test.c - the traffic book: exact counts, which classes are kept, kills in the middle, hostile bytes.
 */
#include "../traffic.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "check.h"

#define SECOND ((uint64_t)1000000000)

static struct vgpu_usage_traffic *make_book(void) {
  return shared_memory(sizeof(struct vgpu_usage_traffic));
}

static struct vgpu_sample sample_of(uint64_t id, uint64_t ns) {
  return (struct vgpu_sample){.id = id, .kind = VGPU_CLASS_KERNEL, .operations = 1, .ns = ns};
}

static const struct vgpu_class_view *class_of(const struct vgpu_traffic_view *view, uint64_t id) {
  for (uint32_t i = 0; i < view->class_count; i++) {
    if (view->classes[i].id == id) {
      return &view->classes[i];
    }
  }
  return NULL;
}

static void test_place(void) {
  struct pair pair = make_pair(2, 5);
  struct vgpu_book *book = open_book(pair);
  char *second = (char *)vgpu_traffic_of(book, 1);
  CHECK_EQUAL(second - (char *)pair.usage, 151552 + 5120);
  CHECK(vgpu_traffic_of(book, 2) == NULL);
  CHECK(second + sizeof(struct vgpu_usage_traffic) <= (char *)pair.usage + pair.usage_bytes);
  close_book(book);
  /* Pages of the version before have none, and work as ever. */
  pair.limits->abi_version = VGPU_ABI_NO_TRAFFIC;
  vgpu_usage_repair(pair.usage, 2, VGPU_ABI_NO_TRAFFIC);
  struct vgpu_book older = {.limits = NULL};
  CHECK_EQUAL(vgpu_book_open(&older, pair.limits, VGPU_LIMITS_PAGE_BYTES, pair.usage, pair.usage_bytes), -EINVAL);
  CHECK_EQUAL(vgpu_book_open(&older, pair.limits, VGPU_LIMITS_PAGE_BYTES, pair.usage, 151552), 0);
  CHECK(vgpu_traffic_of(&older, 0) == NULL);
  CHECK_EQUAL(vgpu_reserve(&older, 0, DEVICE, 5), 0);
  CHECK_EQUAL(vgpu_reserve(&older, 0, DEVICE, 1), -ENOMEM);
  vgpu_book_close(&older);
  free_pair(pair);
}

static void test_counts(void) {
  struct vgpu_usage_traffic *book = make_book();
  struct vgpu_traffic_view view;
  vgpu_traffic_copied(book, VGPU_HOST_TO_DEVICE, 100);
  vgpu_traffic_copied(book, VGPU_HOST_TO_DEVICE, 23);
  vgpu_traffic_copied(book, VGPU_BETWEEN_DEVICES, 1);
  vgpu_traffic_stalled(book, 50);
  vgpu_traffic_read(book, &view);
  CHECK_EQUAL(view.calls[VGPU_HOST_TO_DEVICE], 2);
  CHECK_EQUAL(view.bytes[VGPU_HOST_TO_DEVICE], 123);
  CHECK_EQUAL(view.calls[VGPU_DEVICE_TO_HOST] + view.calls[VGPU_WITHIN_DEVICE], 0);
  CHECK_EQUAL(view.bytes[VGPU_BETWEEN_DEVICES], 1);
  CHECK_EQUAL(view.stalls, 1);
  CHECK_EQUAL(view.stalled_ns, 50);
  CHECK_EQUAL(view.class_count, 0);
}

/* Copies of about the same size are one class, whoever makes them; others are not. */
static void test_ids(void) {
  uint64_t id = vgpu_traffic_copy_id(VGPU_HOST_TO_DEVICE, true, 1 << 20);
  CHECK_EQUAL(vgpu_traffic_copy_id(VGPU_HOST_TO_DEVICE, true, (1 << 20) + 100000), id);
  CHECK(vgpu_traffic_copy_id(VGPU_HOST_TO_DEVICE, true, (1 << 20) + 140000) != id);
  CHECK(vgpu_traffic_copy_id(VGPU_HOST_TO_DEVICE, true, 1 << 21) != id);
  CHECK(vgpu_traffic_copy_id(VGPU_HOST_TO_DEVICE, false, 1 << 20) != id);
  CHECK(vgpu_traffic_copy_id(VGPU_DEVICE_TO_HOST, true, 1 << 20) != id);
  CHECK(vgpu_traffic_copy_id(VGPU_HOST_TO_DEVICE, true, 0) != 0);
  CHECK(vgpu_traffic_id(5, 1) != vgpu_traffic_id(5, 3));
  CHECK(vgpu_traffic_id(0, 0) != 0);
}

static void test_ring(void) {
  struct vgpu_usage_traffic *book = make_book();
  struct vgpu_traffic_view view;
  for (uint64_t i = 1; i <= 40; i++) {
    struct vgpu_sample sample = {
        .id = 7, .kind = VGPU_CLASS_DEVICE_TO_HOST, .operations = 3, .bytes = 10, .ns = i * 160 + 5};
    vgpu_traffic_sample(book, &sample, i * SECOND);
    vgpu_traffic_read(book, &view);
    CHECK_EACH(view.class_count == 1 && view.classes[0].samples == i && view.classes[0].operations == 3 * i);
    CHECK_EACH(view.classes[0].recent_count == (i < VGPU_CLASS_RECENT ? i : VGPU_CLASS_RECENT));
    CHECK_EACH(view.classes[0].recent_ns[view.classes[0].recent_count - 1] == i * 160);
  }
  CHECK_EQUAL(view.classes[0].recent_ns[0], (40 - VGPU_CLASS_RECENT + 1) * 160);
  CHECK_EQUAL(view.classes[0].kind, VGPU_CLASS_DEVICE_TO_HOST);
  CHECK_EQUAL(view.classes[0].bytes, 400);
  CHECK_EQUAL(view.classes[0].time_ns, 40 * 41 / 2 * 160 + 40 * 5);
  /* Extremes are kept within what the ring can say; what no clock measures is dropped. */
  struct vgpu_sample longest = sample_of(7, 80000 * SECOND), impossible = sample_of(7, 90000 * SECOND);
  struct vgpu_sample shortest = sample_of(7, 0);
  vgpu_traffic_sample(book, &longest, 41 * SECOND);
  vgpu_traffic_sample(book, &impossible, 41 * SECOND);
  vgpu_traffic_sample(book, &shortest, 41 * SECOND);
  vgpu_traffic_read(book, &view);
  CHECK_EQUAL(view.classes[0].samples, 42);
  CHECK_EQUAL(view.classes[0].recent_ns[VGPU_CLASS_RECENT - 1], 16);
  CHECK_EQUAL(view.classes[0].recent_ns[VGPU_CLASS_RECENT - 2], (uint64_t)UINT32_MAX * 16);
}

/* Many classes, whose times differ: those that take the most are kept, and their samples with them. */
static void test_space_saving(void) {
  enum { CLASSES = 200, ROUNDS = 300 };
  struct vgpu_usage_traffic *book = make_book();
  struct vgpu_traffic_view view;
  uint64_t now = SECOND, large = 0;
  for (uint64_t round = 0; round < ROUNDS; round++) {
    for (uint64_t id = 1; id <= CLASSES; id++) {
      struct vgpu_sample sample = sample_of(id * 7919, id <= 12 ? 1000000 : 5000 + id);
      vgpu_traffic_sample(book, &sample, now += 1000);
    }
  }
  vgpu_traffic_read(book, &view);
  for (uint64_t id = 1; id <= 12; id++) {
    const struct vgpu_class_view *class = class_of(&view, id * 7919);
    large += class != NULL && class->samples > ROUNDS * 9 / 10;
  }
  CHECK_EQUAL(large, 12);
  CHECK_EQUAL(view.class_count, VGPU_CLASS_COUNT);
  /* A phase that ended makes room for what runs now. */
  now += 200 * SECOND;
  for (uint64_t round = 0; round < 60; round++) {
    for (uint64_t id = 1; id <= 20; id++) {
      struct vgpu_sample sample = sample_of(id * 104729, 3000);
      vgpu_traffic_sample(book, &sample, now += 1000000);
    }
  }
  vgpu_traffic_read(book, &view);
  uint64_t fresh = 0;
  for (uint64_t id = 1; id <= 20; id++) {
    const struct vgpu_class_view *class = class_of(&view, id * 104729);
    fresh += class != NULL && class->samples >= 40;
  }
  CHECK_EQUAL(fresh, 20);
}

/* A killed one has left a class half replaced: it is no class, and somebody else's after a second. */
static void test_half_replaced(void) {
  struct vgpu_usage_traffic *book = make_book();
  struct vgpu_traffic_view view;
  for (uint64_t id = 1; id <= VGPU_CLASS_COUNT; id++) {
    struct vgpu_sample sample = sample_of(id, SECOND * id);
    vgpu_traffic_sample(book, &sample, SECOND);
  }
  struct vgpu_class *first = &book->classes[0];
  first->claimed_ns = 2 * SECOND;
  first->id = 0;
  first->score_ns = 0;
  struct vgpu_sample other = sample_of(1000, SECOND);
  vgpu_traffic_sample(book, &other, 2 * SECOND + 1000);
  vgpu_traffic_read(book, &view);
  CHECK_EQUAL(view.class_count, VGPU_CLASS_COUNT - 1);
  CHECK(class_of(&view, 1000) == NULL && class_of(&view, 1) == NULL);
  vgpu_traffic_sample(book, &other, 3 * SECOND + 1000);
  vgpu_traffic_read(book, &view);
  CHECK_EQUAL(view.class_count, VGPU_CLASS_COUNT);
  CHECK(class_of(&view, 1000) != NULL && class_of(&view, 1000)->samples == 1);
  /* Ids that differ: it was being replaced while it was read. */
  first->id_again = 5;
  vgpu_traffic_read(book, &view);
  CHECK_EQUAL(view.class_count, VGPU_CLASS_COUNT - 1);
}

static bool is_sane(const struct vgpu_traffic_view *view) {
  const uint64_t most = (uint64_t)1 << 60;
  bool sane = view->stalls <= most && view->stalled_ns <= most && view->class_count <= VGPU_CLASS_COUNT;
  for (int i = 0; i < VGPU_DIRECTION_COUNT; i++) {
    sane = sane && view->calls[i] <= most && view->bytes[i] <= most;
  }
  for (uint32_t i = 0; sane && i < view->class_count; i++) {
    const struct vgpu_class_view *class = &view->classes[i];
    sane = class->id != 0 && class->samples > 0 && class->operations >= class->samples && class->operations <= most &&
           class->time_ns <= most && class->recent_count <= VGPU_CLASS_RECENT && class->kind >= 1 &&
           class->kind <= VGPU_CLASS_KIND_LAST;
    for (uint32_t j = 0; j < class->recent_count; j++) {
      sane = sane && class->recent_ns[j] != 0;
    }
  }
  return sane;
}

static uint64_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
  return *state >> 11 ^ *state << 47;
}

/* Any bytes: reading stays within bounds, and writers go on. */
static void test_hostile(void) {
  struct vgpu_usage_traffic *book = make_book();
  struct vgpu_traffic_view view;
  uint64_t state = 42, *words = (uint64_t *)book, bad = 0;
  for (int round = 0; round < 3000; round++) {
    for (size_t i = 0; i < sizeof(*book) / 8; i++) {
      uint64_t random = next_random(&state);
      words[i] = round % 3 == 0 ? random : random % 4 == 0 ? UINT64_MAX : random % 4 == 1 ? 0 : words[i];
    }
    for (int i = 0; i < 20; i++) {
      struct vgpu_sample sample = sample_of(next_random(&state), next_random(&state) >> (i * 3));
      sample.operations = next_random(&state) >> i;
      vgpu_traffic_sample(book, &sample, next_random(&state) >> (i * 3));
    }
    vgpu_traffic_copied(book, VGPU_DEVICE_TO_HOST, UINT64_MAX);
    vgpu_traffic_read(book, &view);
    bad += !is_sane(&view);
  }
  CHECK_EQUAL(bad, 0);
}

static void sample_for_ever(struct vgpu_usage_traffic *book, uint64_t seed) {
  for (uint64_t state = seed, now = 10 * SECOND;; now += 50000) {
    struct vgpu_sample sample = sample_of(1 + next_random(&state) % 60, 1000 + next_random(&state) % 1000);
    vgpu_traffic_sample(book, &sample, now);
  }
}

/* Processes that are killed while they replace classes: readers never see nonsense, and nothing is stuck. */
static void test_kills(void) {
  struct vgpu_usage_traffic *book = make_book();
  struct vgpu_traffic_view view;
  uint64_t bad = 0;
  for (uint64_t i = 0; i < 60; i++) {
    pid_t children[2];
    for (uint64_t j = 0; j < 2; j++) {
      children[j] = fork();
      if (children[j] == 0) {
        sample_for_ever(book, 2 * i + j);
      }
    }
    usleep(500 + 97 * (useconds_t)i);
    for (int j = 0; j < 300; j++) {
      struct vgpu_usage_traffic copy = *book;
      vgpu_traffic_read(&copy, &view);
      bad += !is_sane(&view);
    }
    for (int j = 0; j < 2; j++) {
      kill(children[j], SIGKILL);
      waitpid(children[j], NULL, 0);
    }
  }
  CHECK_EQUAL(bad, 0);
  for (uint64_t round = 0; round < 50; round++) {
    for (uint64_t id = 1; id <= VGPU_CLASS_COUNT; id++) {
      struct vgpu_sample sample = sample_of(id << 20, SECOND);
      vgpu_traffic_sample(book, &sample, 1000000 * SECOND + round * 2 * SECOND);
    }
  }
  vgpu_traffic_read(book, &view);
  CHECK_EQUAL(view.class_count, VGPU_CLASS_COUNT);
  uint64_t kept = 0;
  for (uint64_t id = 1; id <= VGPU_CLASS_COUNT; id++) {
    kept += class_of(&view, id << 20) != NULL;
  }
  CHECK(kept >= VGPU_CLASS_COUNT - 1);
}

enum { THREADS = 4, PER_THREAD = 20000 };

static void *use(void *memory) {
  struct vgpu_usage_traffic *book = memory;
  uint64_t state = (uint64_t)(uintptr_t)&state;
  for (uint64_t i = 0; i < PER_THREAD; i++) {
    vgpu_traffic_copied(book, VGPU_HOST_TO_DEVICE, 3);
    vgpu_traffic_stalled(book, 2);
    struct vgpu_sample sample = sample_of(1 + next_random(&state) % 40, 100);
    vgpu_traffic_sample(book, &sample, SECOND + i * 1000);
    if (i % 1000 == 0) {
      struct vgpu_traffic_view view;
      vgpu_traffic_read(book, &view);
    }
  }
  return NULL;
}

static void test_threads(void) {
  struct vgpu_usage_traffic *book = make_book();
  struct vgpu_traffic_view view;
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    pthread_create(&threads[i], NULL, use, book);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
  }
  vgpu_traffic_read(book, &view);
  CHECK_EQUAL(view.calls[VGPU_HOST_TO_DEVICE], THREADS * PER_THREAD);
  CHECK_EQUAL(view.bytes[VGPU_HOST_TO_DEVICE], THREADS * PER_THREAD * 3);
  CHECK_EQUAL(view.stalled_ns, THREADS * PER_THREAD * 2);
  CHECK(is_sane(&view));
}

int main(void) {
  test_place();
  test_counts();
  test_ids();
  test_ring();
  test_space_saving();
  test_half_replaced();
  test_hostile();
  test_kills();
  test_threads();
  return check_end();
}
