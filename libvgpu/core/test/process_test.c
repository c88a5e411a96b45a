/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * process_test.c - identity and liveness: stat texts as programs may forge them, living, dead, reused and unknown
 * processes.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "../process.h"
#include "check.h"

#define TAIL " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 8 18 4711 20 21 22 23 24 815 26 27"

static void test_parse(void) {
  static const struct {
    const char *text;
    bool complete;
    uint64_t pid;
    char state;
  } cases[] = {
      {"42 (plain)" TAIL, true, 42, 'S'},
      {"42 (a) Z 1 (b)" TAIL, true, 42, 'S'},
      {"42 ()" TAIL, true, 42, 'S'},
      {"42 ())))" TAIL, true, 42, 'S'},
      {"42 (line\nbreak 7)" TAIL, true, 42, 'S'},
      {"42 (no end", false, 0, 0},
      {"42 (short) S 1 2 3", false, 0, 0},
      {"42 (x)", false, 0, 0},
      {"", false, 0, 0},
      {")", false, 0, 0},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    struct vgpu_process_stat stat;
    bool complete = vgpu_process_parse_stat(cases[i].text, strlen(cases[i].text), &stat);
    CHECK_EQUAL(complete, cases[i].complete);
    if (complete) {
      CHECK_EQUAL(stat.pid, cases[i].pid);
      CHECK_EQUAL(stat.state, cases[i].state);
      CHECK_EQUAL(stat.num_threads, 8);
      CHECK_EQUAL(stat.start_time, 4711);
      CHECK_EQUAL(stat.start_stack, 815);
    }
  }
}

/* Every prefix of a text is either refused or right. */
static void test_parse_prefixes(void) {
  static const char text[] = "42 (name)" TAIL " 99 100";
  for (uint64_t length = 0; length < sizeof(text); length++) {
    char *copy = malloc(length + 1);
    memcpy(copy, text, length);
    struct vgpu_process_stat stat;
    if (vgpu_process_parse_stat(copy, length, &stat)) {
      CHECK_EQUAL(stat.start_time, 4711);
    }
    free(copy);
  }
}

/* Identity of a child, as it would write it into its slot. */
static struct vgpu_process child_identity(pid_t pid) {
  struct vgpu_process self, child;
  char path[64], text[1024];
  vgpu_process_self(&self);
  snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  FILE *file = fopen(path, "r");
  size_t length = file != NULL ? fread(text, 1, sizeof(text), file) : 0;
  struct vgpu_process_stat stat = {0};
  CHECK(vgpu_process_parse_stat(text, length, &stat));
  if (file != NULL) {
    fclose(file);
  }
  child = self;
  child.pid = (uint32_t)pid;
  child.start_time = stat.start_time;
  child.start_stack = stat.start_stack;
  return child;
}

static void test_self(void) {
  struct vgpu_process self;
  vgpu_process_self(&self);
  CHECK_EQUAL(self.pid, getpid());
  CHECK(self.start_time != 0);
  CHECK(self.start_stack != 0);
  CHECK(self.pid_namespace != 0);
  CHECK(self.proc_is_ours != 0);
  CHECK_EQUAL(vgpu_process_look(&self, &self), VGPU_LOOK_SELF);

  /* The program before execve, and an earlier process with our pid. */
  struct vgpu_process before = self;
  before.start_stack += 16;
  CHECK_EQUAL(vgpu_process_look(&self, &before), VGPU_LOOK_DEAD);
  before = self;
  before.start_time--;
  CHECK_EQUAL(vgpu_process_look(&self, &before), VGPU_LOOK_DEAD);
  /* What is unknown is no difference. */
  before.start_time = before.start_stack = 0;
  CHECK_EQUAL(vgpu_process_look(&self, &before), VGPU_LOOK_SELF);
}

static void test_child(void) {
  struct vgpu_process self;
  vgpu_process_self(&self);
  pid_t pid = fork();
  if (pid == 0) {
    pause();
    _exit(0);
  }
  struct vgpu_process child = child_identity(pid);
  CHECK_EQUAL(vgpu_process_look(&self, &child), VGPU_LOOK_ALIVE);

  struct vgpu_process other = child;
  other.start_time--; /* the pid was used again */
  CHECK_EQUAL(vgpu_process_look(&self, &other), VGPU_LOOK_OTHER);
  other = child;
  other.start_stack += 16; /* execve */
  CHECK_EQUAL(vgpu_process_look(&self, &other), VGPU_LOOK_DEAD);

  kill(pid, SIGSTOP);
  CHECK_EQUAL(vgpu_process_look(&self, &child), VGPU_LOOK_ALIVE);
  kill(pid, SIGKILL);
  siginfo_t info;
  CHECK_EQUAL(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
  CHECK_EQUAL(vgpu_process_look(&self, &child), VGPU_LOOK_DEAD); /* a zombie */
  waitpid(pid, NULL, 0);
  CHECK_EQUAL(vgpu_process_look(&self, &child), VGPU_LOOK_DEAD);

  /* Without a look at /proc only a pid that is not there is dead. */
  self.proc_is_ours = 0;
  CHECK_EQUAL(vgpu_process_look(&self, &child), VGPU_LOOK_DEAD);
  other = self;
  other.pid = (uint32_t)getppid();
  CHECK_EQUAL(vgpu_process_look(&self, &other), VGPU_LOOK_UNKNOWN);

  /* Another namespace's pids mean nothing here. */
  child.pid_namespace++;
  CHECK_EQUAL(vgpu_process_look(&self, &child), VGPU_LOOK_UNKNOWN);
}

static void *pause_forever(void *unused) {
  pause();
  return unused;
}

/* A process whose first thread has ended lives on in its others. */
static void test_leader_gone(void) {
  struct vgpu_process self;
  vgpu_process_self(&self);
  pid_t pid = fork();
  if (pid == 0) {
    pthread_t thread;
    pthread_create(&thread, NULL, pause_forever, NULL);
    pthread_exit(NULL);
  }
  struct vgpu_process child = child_identity(pid);
  struct vgpu_process_stat stat = {0};
  for (int i = 0; i < 1000 && stat.state != 'Z'; i++) {
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    size_t length = file != NULL ? fread(text, 1, sizeof(text), file) : 0;
    if (file != NULL) {
      fclose(file);
    }
    vgpu_process_parse_stat(text, length, &stat);
    usleep(1000);
  }
  CHECK_EQUAL(stat.state, 'Z');
  CHECK_EQUAL(vgpu_process_look(&self, &child), VGPU_LOOK_ALIVE);
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  CHECK_EQUAL(vgpu_process_look(&self, &child), VGPU_LOOK_DEAD);
}

int main(void) {
  test_parse();
  test_parse_prefixes();
  test_self();
  test_child();
  test_leader_gone();
  return check_end();
}
