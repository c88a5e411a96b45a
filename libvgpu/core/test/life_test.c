/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * life_test.c - processes of other pid namespaces, which the pid does not tell of: seen alive and dead by their locks.
 * A child stands for one: the namespace in its slot is changed.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "check.h"

enum { LIMIT = 1000 };

static void foreign(struct vgpu_usage_slot *slot) {
  slot->pid_namespace += 1;
}

/* A child of its own on the pages, with `bytes`; waits until it has them. `close_all`: it has closed its files. */
static pid_t start_child(struct pair pair, uint64_t bytes, bool close_all) {
  int ready[2];
  if (pipe(ready) != 0) {
    exit(2);
  }
  pid_t pid = fork();
  if (pid == 0) {
    struct vgpu_book *book = open_book(pair);
    char result = vgpu_reserve(book, 0, DEVICE, bytes) == 0 ? 'y' : 'n';
    foreign(own_slot(book));
    if (close_all) {
      vgpu_life_close(book);
    }
    if (write(ready[1], &result, 1) != 1) {
      _exit(1);
    }
    pause();
    _exit(0);
  }
  char result = 0;
  close(ready[1]);
  CHECK_EQUAL(read(ready[0], &result, 1), 1);
  CHECK_EQUAL(result, 'y');
  close(ready[0]);
  return pid;
}

static void end_child(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
}

static void test_other_namespace(void) {
  struct pair pair = make_pair(1, LIMIT);
  struct vgpu_book *book = open_book(pair);
  pid_t pid = start_child(pair, 900, false);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 101), -ENOMEM);
  CHECK_EQUAL(vgpu_slot_at(book, 0)->life_lock, VGPU_LIFE_LOCKED);
  vgpu_limits_raise_epoch(pair.limits); /* alive, though it does not count any more: its slot is not taken from it */
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, LIMIT), 0);
  CHECK_EQUAL(slots_taken(book), 2);
  vgpu_release(book, 0, DEVICE, LIMIT);
  vgpu_slot_at(book, 0)->epoch = pair.limits->epoch;
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 101), -ENOMEM);
  end_child(pid);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, LIMIT), 0);
  CHECK_EQUAL(slots_taken(book), 1);
  close_book(book);
  free_pair(pair);
}

/* In another time namespace the same process has another start time. */
static void test_other_clock(void) {
  struct pair pair = make_pair(1, LIMIT);
  struct vgpu_book *book = open_book(pair);
  pid_t pid = start_child(pair, 900, false);
  struct vgpu_usage_slot *slot = vgpu_slot_at(book, 0);
  slot->pid_namespace -= 1; /* in ours after all */
  slot->start_time += 10000;
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 101), -ENOMEM);
  end_child(pid);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, LIMIT), 0);
  close_book(book);
  free_pair(pair);
}

/* Without a lock a process of another namespace counts until the epoch is raised. */
static void test_without_lock(void) {
  struct pair pair = make_pair(1, LIMIT);
  struct vgpu_book *book = open_book(pair);
  pid_t pid = start_child(pair, 900, false);
  vgpu_slot_at(book, 0)->life_lock = 0;
  end_child(pid);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 101), -ENOMEM);
  vgpu_limits_raise_epoch(pair.limits);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, LIMIT), 0);
  close_book(book);
  free_pair(pair);
}

/* A process that closes all of its files has closed the driver's, too. */
static void test_closed(void) {
  struct pair pair = make_pair(1, LIMIT);
  struct vgpu_book *book = open_book(pair);
  pid_t pid = start_child(pair, 900, true);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 101), 0);
  end_child(pid);
  close_book(book);
  free_pair(pair);
}

/* A number that is another file's by now is neither locked nor closed. */
static void test_reused_number(void) {
  struct pair pair = make_pair(1, LIMIT);
  struct vgpu_book *book = open_book(pair);
  int number = book->file;
  CHECK(number >= 100);
  CHECK_EQUAL(fcntl(number, F_GETFD), FD_CLOEXEC);
  CHECK_EQUAL(dup2(0, number), number);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), 0);
  CHECK_EQUAL(own_slot(book)->life_lock, 0);
  close_book(book);
  CHECK_EQUAL(fcntl(number, F_GETFD), 0);
  close(number);
  free_pair(pair);
}

/* A forked child has locks of its own: the parent's say nothing about it, and it does not keep the parent's. */
static void test_fork(void) {
  struct pair pair = make_pair(1, LIMIT);
  struct vgpu_book *observer = open_book(pair), *book = open_book(pair);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 100), 0);
  foreign(own_slot(book));
  int ready[2];
  CHECK_EQUAL(pipe(ready), 0);
  pid_t pid = fork();
  if (pid == 0) {
    char result = vgpu_reserve(book, 0, DEVICE, 800) == 0 && vgpu_reserve(book, 0, DEVICE, 101) != 0 ? 'y' : 'n';
    foreign(own_slot(book));
    if (write(ready[1], &result, 1) != 1) {
      _exit(1);
    }
    pause();
    _exit(0);
  }
  char result = 0;
  CHECK_EQUAL(read(ready[0], &result, 1), 1);
  CHECK_EQUAL(result, 'y'); /* the child saw its parent alive */
  CHECK_EQUAL(vgpu_reserve(observer, 0, DEVICE, 101), -ENOMEM);
  close(book->file); /* as if the parent had ended */
  CHECK_EQUAL(vgpu_reserve(observer, 0, DEVICE, 200), 0);
  CHECK_EQUAL(vgpu_reserve(observer, 0, DEVICE, 1), -ENOMEM);
  end_child(pid);
  CHECK_EQUAL(vgpu_reserve(observer, 0, DEVICE, 800), 0);
  close(ready[0]);
  close(ready[1]);
  close_book(book);
  close_book(observer);
  free_pair(pair);
}

/* The slot of an earlier program with our pid, start time and stack (execve without address randomization). */
static void test_earlier_program(void) {
  struct pair pair = make_pair(1, LIMIT);
  struct vgpu_book *before = open_book(pair), *after = open_book(pair);
  CHECK_EQUAL(vgpu_reserve(before, 0, DEVICE, 900), 0);
  CHECK_EQUAL(vgpu_reserve(after, 0, DEVICE, 101), -ENOMEM); /* another book of this program */
  close(before->file);                                       /* as execve does */
  CHECK_EQUAL(vgpu_reserve(after, 0, DEVICE, 101), 0);
  own_slot(after)->life_lock = 0; /* without a lock it is an earlier one in any case */
  CHECK_EQUAL(vgpu_reserve(before, 0, DEVICE, 100), 0);
  close_book(before);
  close_book(after);
  free_pair(pair);
}

int main(void) {
  test_other_namespace();
  test_other_clock();
  test_without_lock();
  test_closed();
  test_reused_number();
  test_fork();
  test_earlier_program();
  return check_end();
}
