/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * check.h - what the tests of the core share: a count of checks, and a pair of pages in shared memory.
 */
#ifndef VGPU_CHECK_H
#define VGPU_CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../life.h"
#include "../page.h"
#include "../slot.h"

#define DEVICE VGPU_KIND_DEVICE
#define MANAGED VGPU_KIND_MANAGED
#define POOL VGPU_KIND_POOL

static int checks_passed, checks_failed, checks_skipped;

#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)
#define CHECK_EQUAL(got, want) check_equal((uint64_t)(got), (uint64_t)(want), #got, __FILE__, __LINE__)

/* A check that is made so often that it counts only when it fails. */
#define CHECK_EACH(condition)                                       \
  do {                                                              \
    if (!(condition)) check(false, #condition, __FILE__, __LINE__); \
  } while (0)

static inline void check(bool holds, const char *text, const char *file, int line) {
  checks_passed += holds;
  checks_failed += !holds;
  if (!holds) {
    printf("%s:%d: not true: %s\n", file, line, text);
  }
}

static inline void check_equal(uint64_t got, uint64_t want, const char *text, const char *file, int line) {
  checks_passed += got == want;
  checks_failed += got != want;
  if (got != want) {
    printf("%s:%d: %s is %lld, not %lld\n", file, line, text, (long long)got, (long long)want);
  }
}

/* Last line of a test program, and its exit code. */
static inline int check_end(void) {
  printf("%d passed, %d failed, %d skipped\n", checks_passed, checks_failed, checks_skipped);
  return checks_failed != 0;
}

/* A pair of pages that forked children share. */
struct pair {
  struct vgpu_limits_page *limits;
  struct vgpu_usage_page *usage;
  size_t usage_bytes;
  int usage_file; /* in memory */
};

static inline void *shared_memory(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    perror("mmap");
    exit(2);
  }
  return memory;
}

/* Pages for `devices` devices, each with `limit` bytes. */
static inline struct pair make_pair(uint32_t devices, uint64_t limit) {
  struct pair pair = {shared_memory(VGPU_LIMITS_PAGE_BYTES), NULL, vgpu_usage_page_bytes(devices, VGPU_ABI_VERSION),
                      -1};
  pair.usage_file = memfd_create("usage", MFD_CLOEXEC);
  if (pair.usage_file < 0 || ftruncate(pair.usage_file, (off_t)pair.usage_bytes) != 0) {
    perror("memfd_create");
    exit(2);
  }
  pair.usage = mmap(NULL, pair.usage_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pair.usage_file, 0);
  if (pair.usage == MAP_FAILED) {
    perror("mmap");
    exit(2);
  }
  vgpu_limits_init(pair.limits, (const uint8_t *)"key", 3, devices);
  for (uint32_t i = 0; i < devices; i++) {
    char uuid[32];
    int length = snprintf(uuid, sizeof(uuid), "GPU-%u", i);
    vgpu_limits_write(pair.limits, i, (const uint8_t *)uuid, (size_t)length, 1, limit);
  }
  vgpu_usage_init(pair.usage, devices);
  return pair;
}

static inline void free_pair(struct pair pair) {
  munmap(pair.limits, VGPU_LIMITS_PAGE_BYTES);
  munmap(pair.usage, pair.usage_bytes);
  close(pair.usage_file);
}

/* A word that the kernel wipes in forked children. */
static inline uint32_t *make_canary(void) {
  void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK) != 0) {
    perror("canary");
    exit(2);
  }
  return page;
}

/* A book of this process on the pages, with an open file description of its own. */
static inline struct vgpu_book *open_book(struct pair pair) {
  struct vgpu_book *book = calloc(1, sizeof(*book));
  if (book == NULL || vgpu_book_open(book, pair.limits, VGPU_LIMITS_PAGE_BYTES, pair.usage, pair.usage_bytes) != 0) {
    printf("cannot open the book\n");
    exit(2);
  }
  book->fork_canary = make_canary();
  char path[64];
  snprintf(path, sizeof(path), "/proc/self/fd/%d", pair.usage_file);
  vgpu_book_use_file(book, open(path, O_RDWR | O_CLOEXEC));
  return book;
}

static inline void close_book(struct vgpu_book *book) {
  vgpu_book_close(book);
  munmap(book->fork_canary, 4096);
  free(book);
}

/* What the slots that count say about device 0, as an outsider reads it. */
static inline uint64_t page_used(struct pair pair) {
  struct vgpu_usage_view view;
  int result = vgpu_usage_read_device(pair.usage, 0, pair.limits->epoch, &view);
  return result == 0 ? view.used_bytes : UINT64_MAX;
}

/* How many slots have an owner. */
static inline uint32_t slots_taken(const struct vgpu_book *book) {
  uint32_t taken = 0;
  for (uint32_t i = 0; i < book->slot_count; i++) {
    taken += vgpu_load(&vgpu_slot_at(book, i)->owner) != 0;
  }
  return taken;
}

static inline struct vgpu_usage_slot *own_slot(struct vgpu_book *book) {
  return vgpu_slot_at(book, book->slot_index);
}

#endif
