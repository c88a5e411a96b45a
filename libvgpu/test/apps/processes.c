/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * processes.c - processes that share a share of a GPU: at the same time, one after the other, killed, forked.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "share.h"

/* A child of a process that has not called the driver yet: launches kernels of `us` for some time; their number. */
static pid_t child_that_launches(int us, double until, volatile double *share, double from) {
  pid_t child = fork();
  if (child != 0) return child;
  use_device(0);
  path_kernel = kernel_of(us);
  while (seconds_now() < from)
    usleep(1000);
  *share = share_of(by_plain, us, until - seconds_now());
  _exit(check_failed != 0);
}

enum { PROCESSES = 3 };
static const int process_us[PROCESSES] = {200, 1000, 4000};

/* Runs them for 3 s; their shares. */
static void run_processes(volatile double *shares) {
  pid_t children[PROCESSES];
  double begun = seconds_now() + 0.5;
  for (int i = 0; i < PROCESSES; i++)
    children[i] = child_that_launches(process_us[i], begun + 3, &shares[i], begun);
  for (int i = 0; i < PROCESSES; i++) {
    int status = 1;
    waitpid(children[i], &status, 0);
    CHECK_EQUAL(status, 0, "a process ends well");
  }
}

/* Processes of one container share its time, whatever the length of their kernels. */
static void test_processes(void) {
  volatile double *shares = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  double all = 0, least = 0;
  for (int tries = 0; tries < 4 && (all <= least_share() || least <= 0.7 * wanted / PROCESSES); tries++) {
    run_processes(shares);
    all = least = 0;
    for (int i = 0; i < PROCESSES; i++) {
      all += shares[i];
      least = i == 0 || shares[i] < least ? shares[i] : least;
    }
  }
  for (int i = 0; i < PROCESSES; i++) {
    CHECK(shares[i] > 0.7 * wanted / PROCESSES && shares[i] < 1.3 * wanted / PROCESSES,
          "the one with kernels of %d us got %.3f, want %.3f", process_us[i], shares[i], wanted / PROCESSES);
  }
  check_share(all, "three processes");
}

/* One process after the other launches once and ends: with a wait, and then without any last call of the driver. */
static void test_once(void) {
  enum { ONCE_US = 20000 };
  double begun = seconds_now();
  int launches = 0;
  for (; seconds_now() - begun < 3; launches++) {
    pid_t child = fork();
    if (child == 0) {
      use_device(0);
      CHECK_EQUAL(launch_on(kernel_of(ONCE_US), NULL), 0, "launch");
      if (launches % 2) cuCtxSynchronize();
      usleep(ONCE_US * 3 / 2);
      exit(check_failed != 0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK_EQUAL(status, 0, "a process ends well");
  }
  double share = launches * ONCE_US / 1e6 / (seconds_now() - begun);
  CHECK(share < wanted * 1.1 + 0.02, "got %.3f of the GPU, want %.3f", share, wanted);
}

/* A process that is killed while it waits holds up nobody. */
static void test_kill(void) {
  volatile double *share = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  double begun = seconds_now(), longest = 0;
  pid_t victims[8];
  for (int i = 0; i < 8; i++)
    victims[i] = child_that_launches(3000, begun + 60, share, begun);
  use_device(0);
  path_kernel = kernel_of(PATH_US);
  usleep(500000);
  for (int i = 0; i < 8; i++) {
    kill(victims[i], SIGKILL);
    waitpid(victims[i], NULL, 0);
    double before = seconds_now();
    CHECK_EQUAL(by_plain(), 0, "launch");
    longest = seconds_now() - before > longest ? seconds_now() - before : longest;
    usleep(20000);
  }
  CHECK(longest < 1, "the longest wait was %.3f s", longest);
  share_of(by_plain, PATH_US, 0.3);
  check_share(good_share_of(by_plain, PATH_US, 1), "alone again");
}

/* A child of a process that has launched. */
static void test_fork(void) {
  volatile double *share = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  use_device(0);
  path_kernel = kernel_of(PATH_US);
  share_of(by_plain, PATH_US, 0.3);
  double begun = seconds_now();
  pid_t child = child_that_launches(PATH_US, begun + 2, share, begun + 0.1);
  int status = 1;
  waitpid(child, &status, 0);
  CHECK_EQUAL(status, 0, "the child ends well");
  check_share(*share, "a forked child");
  check_share(good_share_of(by_plain, PATH_US, 0.5), "its parent afterwards");
}

static const struct test tests[] = {{"processes", test_processes, true},
                                    {"kill", test_kill, true},
                                    {"once", test_once, true},
                                    {"fork", test_fork, true}};

int main(int argc, char **argv) {
  return run_share_case(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
