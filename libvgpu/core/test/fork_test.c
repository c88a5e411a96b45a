/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * fork_test.c - children of a process that has a slot: by fork and by raw clone, with and without a canary, and
 * while another thread of the parent is inside the lock.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "check.h"

static pid_t raw_clone(void) {
  return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

/* What must hold in a child whose parent holds 600 of 1000. Its exit code is the number of the first thing that
 * does not. */
static int child_of_600(struct pair pair, struct vgpu_book *book) {
  uint32_t parent_slot = book->slot_index;
  vgpu_release(book, 0, DEVICE, 600); /* the parent's memory is not ours to give back */
  if (page_used(pair) != 600 || vgpu_used_bytes(book, 0) != 600) {
    return 1;
  }
  if (vgpu_reserve(book, 0, DEVICE, 401) != -ENOMEM) {
    return 2;
  }
  if (vgpu_reserve(book, 0, DEVICE, 400) != 0 || page_used(pair) != 1000) {
    return 3;
  }
  if (book->slot_index == parent_slot || slots_taken(book) != 2) {
    return 4;
  }
  vgpu_release(book, 0, DEVICE, 1000); /* at most what we hold */
  return page_used(pair) == 600 ? 0 : 5;
}

static int exit_code(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

static void test_child(pid_t (*make)(void), bool canary, bool locked) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair);
  uint32_t *word = book->fork_canary;
  book->fork_canary = canary ? word : NULL;
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 600), 0);
  if (locked) { /* as if another thread were inside */
    book->lock = (uint32_t)getpid();
  }
  pid_t pid = make();
  if (pid == 0) {
    _exit(child_of_600(pair, book));
  }
  book->lock = 0;
  CHECK_EQUAL(exit_code(pid), 0);
  CHECK_EQUAL(page_used(pair), 600);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 400), 0);
  CHECK_EQUAL(slots_taken(book), 2); /* the child's slot is empty: nobody needed to look at it */
  book->fork_canary = word;
  close_book(book);
  free_pair(pair);
}

/* A parent that never used its book, and one that is in the middle of registering. */
static void test_before_registration(bool locked) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair);
  book->lock = locked ? (uint32_t)getpid() : 0;
  pid_t pid = fork();
  if (pid == 0) {
    _exit(vgpu_reserve(book, 0, DEVICE, 1000) == 0 && page_used(pair) == 1000 ? 0 : 1);
  }
  book->lock = 0;
  CHECK_EQUAL(exit_code(pid), 0);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1000), 0); /* the child is dead */
  close_book(book);
  free_pair(pair);
}

/* A family: each generation takes its own slot and its own bytes. */
static void test_generations(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 100), 0);
  pid_t pid = fork();
  for (int depth = 1; pid == 0; depth++) {
    if (vgpu_reserve(book, 0, DEVICE, 100) != 0 || page_used(pair) != 100 * (uint64_t)(depth + 1)) {
      _exit(1);
    }
    if (depth == 9) {
      _exit(vgpu_reserve(book, 0, DEVICE, 1) == -ENOMEM ? 0 : 2);
    }
    pid = fork();
    if (pid != 0) {
      _exit(exit_code(pid));
    }
  }
  CHECK_EQUAL(exit_code(pid), 0);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 900), 0);
  CHECK_EQUAL(slots_taken(book), 1);
  close_book(book);
  free_pair(pair);
}

int main(void) {
  for (int canary = 0; canary < 2; canary++) {
    for (int locked = 0; locked < 2; locked++) {
      test_child(fork, canary != 0, locked != 0);
      test_child(raw_clone, canary != 0, locked != 0);
    }
  }
  test_before_registration(false);
  test_before_registration(true);
  test_generations();
  return check_end();
}
