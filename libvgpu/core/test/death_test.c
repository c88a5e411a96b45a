/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * death_test.c - processes that die with bytes, in the middle of a claim or of a registration; every slot taken;
 * pids used again; programs replaced by execve.
 */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"

/* Lets a child run `work` with a book of its own and then wait to be killed. Returns once `work` is done. */
static pid_t start_child(struct pair pair, void (*work)(struct vgpu_book *)) {
  int done[2];
  char byte;
  if (pipe(done) != 0) {
    exit(2);
  }
  pid_t pid = fork();
  if (pid == 0) {
    work(open_book(pair));
    if (write(done[1], "x", 1) != 1) {
      _exit(1);
    }
    pause();
    _exit(0);
  }
  CHECK_EQUAL(read(done[0], &byte, 1), 1);
  close(done[0]);
  close(done[1]);
  return pid;
}

static void end_child(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
}

static void hold_700(struct vgpu_book *book) {
  if (vgpu_reserve(book, 0, DEVICE, 700) != 0) {
    _exit(1);
  }
}

/* What a kill between claim and admission leaves behind. */
static void claim_700(struct vgpu_book *book) {
  vgpu_reserve(book, 0, DEVICE, 0);
  vgpu_slot_device(own_slot(book), 0)->trying_bytes = 700;
}

/* What a kill between admission and the end of the claim leaves behind. */
static void hold_and_claim_700(struct vgpu_book *book) {
  hold_700(book);
  claim_700(book);
}

/* What a kill in the middle of a registration leaves behind. */
static void register_halfway(struct vgpu_book *book) {
  vgpu_reserve(book, 0, DEVICE, 0);
  own_slot(book)->ready = (uint64_t)77 << VGPU_PID_BITS | 12345;
}

/* What a kill in the middle of a reap leaves behind. */
static void folded_halfway(struct vgpu_book *book) {
  hold_700(book);
  own_slot(book)->folded = book->token;
}

static void test_death(void (*work)(struct vgpu_book *), bool reaped) {
  struct pair pair = make_pair(1, 1000);
  pid_t pid = start_child(pair, work);
  struct vgpu_book *book = open_book(pair);
  end_child(pid);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1000), 0);
  CHECK_EQUAL(page_used(pair), 1000);
  CHECK_EQUAL(slots_taken(book), reaped ? 1 : 2);
  close_book(book);
  free_pair(pair);
}

/* The same with a survivor that is registered already, so that it is short of room first. */
static void test_death_seen_by_survivor(void (*work)(struct vgpu_book *)) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 100), 0);
  pid_t pid = start_child(pair, work);
  end_child(pid);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 900), 0);
  CHECK_EQUAL(slots_taken(book), 1);
  close_book(book);
  free_pair(pair);
}

/* A process that lives keeps its bytes, stopped or not; a claim of a stopped one is not waited for for ever. */
static void test_stopped(void) {
  struct pair pair = make_pair(1, 1000);
  pid_t holder = start_child(pair, hold_700), claimer = start_child(pair, claim_700);
  struct vgpu_book *book = open_book(pair);
  struct timespec from, to;
  kill(holder, SIGSTOP);
  kill(claimer, SIGSTOP);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 400), -ENOMEM);
  clock_gettime(CLOCK_MONOTONIC, &from);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 300), -ENOMEM);
  clock_gettime(CLOCK_MONOTONIC, &to);
  CHECK(to.tv_sec - from.tv_sec < 10);
  end_child(claimer);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 300), 0);
  end_child(holder);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 700), 0);
  close_book(book);
  free_pair(pair);
}

/* A zombie holds nothing: its device memory went when its files were closed. */
static void test_zombie(void) {
  struct pair pair = make_pair(1, 1000);
  pid_t pid = start_child(pair, hold_700);
  struct vgpu_book *book = open_book(pair);
  siginfo_t info;
  kill(pid, SIGKILL);
  CHECK_EQUAL(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1000), 0);
  waitpid(pid, NULL, 0);
  close_book(book);
  free_pair(pair);
}

/* A query sees that a process died, without taking a slot. */
static void test_query_after_death(void) {
  struct pair pair = make_pair(1, 1000);
  pid_t pid = start_child(pair, hold_700);
  struct vgpu_book *book = open_book(pair);
  CHECK_EQUAL(vgpu_used_bytes(book, 0), 700);
  end_child(pid);
  uint64_t used = 700;
  for (int i = 0; i < 2000 && used != 0; i++) {
    used = vgpu_used_bytes(book, 0);
    usleep(500);
  }
  CHECK_EQUAL(used, 0);
  CHECK_EQUAL(slots_taken(book), 0);
  close_book(book);
  free_pair(pair);
}

/* The pid lives, the process that registered under it does not. */
static void test_pid_reuse(void) {
  struct pair pair = make_pair(1, 1000);
  pid_t pid = start_child(pair, hold_700);
  struct vgpu_book *book = open_book(pair);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 400), -ENOMEM);
  vgpu_slot_at(book, 0)->start_time--;
  vgpu_slot_at(book, 0)->life_lock = 0;
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 400), 0);
  end_child(pid);
  close_book(book);
  free_pair(pair);
}

/* Dead processes' counters move to the totals, exactly once. */
static void test_folding(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_usage_view view;
  struct vgpu_book *book = open_book(pair);
  for (int i = 0; i < 5; i++) {
    end_child(start_child(pair, hold_700));
    CHECK_EQUAL(vgpu_usage_read_device(pair.usage, 0, 1, &view), 0);
    CHECK_EQUAL(view.allocations, 2 * i + 1);
    CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1000), 0);
    vgpu_release(book, 0, DEVICE, 1000);
    CHECK_EQUAL(vgpu_usage_read_device(pair.usage, 0, 1, &view), 0);
    CHECK_EQUAL(view.allocations, 2 * i + 2);
    CHECK_EQUAL(view.frees, i + 1);
  }
  close_book(book);
  free_pair(pair);
}

/* Every slot taken: by living processes, by dead ones, by ones that never got ready. */
static void test_exhaustion(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair), *other = open_book(pair);
  CHECK_EQUAL(vgpu_reserve(other, 0, DEVICE, 1), 0);
  struct vgpu_usage_slot living = *own_slot(other); /* our parent stands for all of them */
  living.start_time = living.start_stack = living.life_lock = 0;
  for (uint32_t i = 1; i < book->slot_count; i++) {
    struct vgpu_usage_slot *slot = vgpu_slot_at(book, i);
    *slot = living;
    slot->owner = slot->ready = ((uint64_t)(2 * i + 1) << VGPU_PID_BITS) | (uint64_t)getppid();
  }
  pair.usage->slot_high_water = book->slot_count;
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), -EAGAIN);
  CHECK_EQUAL(vgpu_used_bytes(book, 0), 1);
  CHECK_EQUAL(vgpu_reserve(other, 0, DEVICE, 1), 0); /* who has a slot goes on */
  vgpu_slot_at(book, 200)->start_time = 1;           /* one of them turns out dead */
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), 0);
  CHECK_EQUAL(book->slot_index, 200);
  close_book(book);
  close_book(other);
  free_pair(pair);
}

/* A claimer that was killed before it was ready gives its slot back when slots run out. */
static void test_unready(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair), *other = open_book(pair);
  CHECK_EQUAL(vgpu_reserve(other, 0, DEVICE, 1), 0);
  pid_t pid = fork();
  if (pid == 0) {
    _exit(0);
  }
  waitpid(pid, NULL, 0);
  for (uint32_t i = 1; i < book->slot_count; i++) {
    vgpu_slot_at(book, i)->owner = ((uint64_t)(2 * i + 1) << VGPU_PID_BITS) | (uint64_t)(i == 9 ? pid : getppid());
  }
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), 0);
  CHECK_EQUAL(book->slot_index, 9);
  close_book(book);
  close_book(other);
  free_pair(pair);
}

/* Processes that come and go one after the other leave no trail of slots that every sum has to walk. */
static void test_sequence(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair);
  for (int i = 0; i < 40; i++) {
    end_child(start_child(pair, hold_700));
  }
  CHECK(pair.usage->slot_high_water <= 2);
  close_book(book);
  free_pair(pair);
}

/* execve: same pid, same start, another program; the bytes of the first went with it. */
static void test_execve(const char *program) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair);
  int ready[2], done[2];
  char byte;
  if (pipe(ready) != 0 || pipe(done) != 0) {
    exit(2);
  }
  pid_t pid = fork();
  if (pid == 0) {
    dup2(done[0], 0);
    dup2(ready[1], 1);
    hold_700(open_book(pair));
    execl(program, program, "wait", NULL);
    _exit(1);
  }
  CHECK_EQUAL(read(ready[0], &byte, 1), 1); /* the new program runs */
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1000), 0);
  end_child(pid);
  close_book(book);
  free_pair(pair);
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "wait") == 0) {
    ssize_t result = write(1, "x", 1);
    return (int)result + pause();
  }
  test_death(hold_700, true);
  test_death(claim_700, true);
  test_death(hold_and_claim_700, true);
  test_death(folded_halfway, true);
  test_death(register_halfway, false);
  test_death_seen_by_survivor(hold_700);
  test_death_seen_by_survivor(claim_700);
  test_death_seen_by_survivor(hold_and_claim_700);
  test_death_seen_by_survivor(folded_halfway);
  test_stopped();
  test_zombie();
  test_query_after_death();
  test_pid_reuse();
  test_folding();
  test_exhaustion();
  test_unready();
  test_sequence();
  test_execve("/proc/self/exe");
  return check_end();
}
