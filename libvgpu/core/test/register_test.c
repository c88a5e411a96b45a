/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * register_test.c - a process has a slot before it holds anything: once, in each generation, in pages of each version,
 * also while the allocation is frozen; and none where there is no more.
 */
#include <sys/wait.h>

#include "check.h"

/* The slot that says that it is this process', as an outsider reads it; -1: none. */
static int told_slot(struct pair pair) {
  struct vgpu_process self;
  vgpu_process_self(&self);
  for (int i = 0; i < VGPU_SLOT_COUNT; i++) {
    struct vgpu_usage_process process;
    if (vgpu_usage_read_process(pair.usage, (uint32_t)i, pair.limits->epoch, &process) == 1 &&
        process.pid == self.pid && process.pid_namespace == self.pid_namespace &&
        process.start_time == self.start_time) {
      return i;
    }
  }
  return -1;
}

static void test_once(uint32_t version) {
  struct pair pair = make_pair(2, 1000);
  pair.limits->abi_version = version;
  vgpu_usage_repair(pair.usage, 2, version);
  pair.usage_bytes = vgpu_usage_page_bytes(2, version);
  struct vgpu_book *book = open_book(pair);
  CHECK_EQUAL(told_slot(pair), -1);
  CHECK_EQUAL(vgpu_register(book), 0);
  CHECK_EQUAL(told_slot(pair), 0);
  CHECK_EQUAL(page_used(pair), 0);
  uint64_t token = book->token;
  CHECK_EQUAL(vgpu_register(book), 0);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1000), 0);
  CHECK_EQUAL(book->token, token);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), -ENOMEM);
  pid_t child = fork();
  if (child == 0) {
    bool is_new = told_slot(pair) == -1 && vgpu_register(book) == 0 && told_slot(pair) == 1 && page_used(pair) == 1000;
    _exit(is_new ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  CHECK_EQUAL(status, 0);
  close_book(book);
  free_pair(pair);
}

/* The next life of the container knows nobody of the one before, until they say that they are there. */
static void test_epoch(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair);
  CHECK_EQUAL(vgpu_register(book), 0);
  vgpu_limits_raise_epoch(pair.limits);
  CHECK_EQUAL(told_slot(pair), -1);
  CHECK_EQUAL(vgpu_register(book), 0);
  CHECK_EQUAL(told_slot(pair), 0);
  close_book(book);
  free_pair(pair);
}

/* Whether memory may be had is another question. */
static void test_frozen(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair);
  vgpu_limits_freeze(pair.limits, VGPU_FROZEN_SLOTS);
  CHECK_EQUAL(vgpu_register(book), 0);
  CHECK_EQUAL(told_slot(pair), 0);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), -EPROTO);
  pair.usage->magic = 0;
  CHECK_EQUAL(vgpu_register(book), -EPROTO);
  pair.usage->magic = VGPU_USAGE_MAGIC;
  close_book(book);
  free_pair(pair);
}

static void test_full(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair);
  int hold[2];
  CHECK_EQUAL(pipe(hold), 0);
  pid_t children[VGPU_SLOT_COUNT];
  for (int i = 0; i < VGPU_SLOT_COUNT; i++) {
    char byte = 0;
    int ready[2];
    CHECK_EACH(pipe(ready) == 0);
    children[i] = fork();
    if (children[i] == 0) {
      close(hold[1]);
      byte = vgpu_register(book) == 0 ? 'y' : 'n';
      if (write(ready[1], &byte, 1) != 1 || read(hold[0], &byte, 1) != 0) {
        _exit(1);
      }
      _exit(0);
    }
    CHECK_EACH(read(ready[0], &byte, 1) == 1 && byte == 'y');
    close(ready[0]);
    close(ready[1]);
  }
  CHECK_EQUAL(vgpu_register(book), -EAGAIN);
  CHECK_EQUAL(told_slot(pair), -1);
  close(hold[1]);
  for (int i = 0; i < VGPU_SLOT_COUNT; i++) {
    waitpid(children[i], NULL, 0);
  }
  CHECK_EQUAL(vgpu_register(book), 0); /* they are dead */
  close_book(book);
  close(hold[0]);
  free_pair(pair);
}

int main(void) {
  test_once(VGPU_ABI_VERSION);
  test_once(VGPU_ABI_NO_TRAFFIC);
  test_epoch();
  test_frozen();
  test_full();
  return check_end();
}
