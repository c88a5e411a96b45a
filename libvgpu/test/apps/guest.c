/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * guest.c - libvgpu in a program changes nothing of it: no signals, umask, environment, errno, descriptors or
 * threads, nothing on stdout, no exit, even when it refuses and when its pages are gone.
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"

extern char **environ;

struct picture {
  struct sigaction actions[NSIG];
  sigset_t blocked;
  mode_t mask;
  char **environment;
  size_t environment_count;
  int descriptors;
  int threads;
};

static int count_entries(const char *path) {
  DIR *directory = opendir(path);
  int count = 0;
  while (directory && readdir(directory))
    count++;
  if (directory) closedir(directory);
  return count;
}

static void take(struct picture *picture) {
  memset(picture, 0, sizeof(*picture));
  for (int i = 1; i < NSIG; i++)
    sigaction(i, NULL, &picture->actions[i]);
  sigprocmask(SIG_SETMASK, NULL, &picture->blocked);
  picture->mask = umask(0);
  umask(picture->mask);
  picture->environment = environ;
  while (environ[picture->environment_count])
    picture->environment_count++;
  picture->descriptors = count_entries("/proc/self/fd");
  picture->threads = count_entries("/proc/self/task");
}

static void compare(const struct picture *before, const struct picture *after) {
  int changed = 0;
  for (int i = 1; i < NSIG; i++)
    changed += before->actions[i].sa_handler != after->actions[i].sa_handler;
  CHECK_EQUAL(changed, 0, "signal handlers that changed");
  CHECK(memcmp(&before->blocked, &after->blocked, sizeof(before->blocked)) == 0, "blocked signals");
  CHECK_EQUAL(before->mask, after->mask, "umask");
  CHECK(before->environment == after->environment, "the environment itself");
  CHECK_EQUAL(before->environment_count, after->environment_count, "variables");
  CHECK_EQUAL(before->descriptors, after->descriptors, "open descriptors");
  CHECK_EQUAL(before->threads, after->threads, "threads");
}

enum { THREADS = 8, ROUNDS = 10000, THREAD_BYTES = 64 << 10 };

struct worker {
  CUcontext context;
  CUdeviceptr kept; /* the last round's block */
  int calls;        /* that succeeded */
  int errno_changes;
};

/* Allocates and frees, and keeps the last block. */
static void *use_in_thread(void *data) {
  struct worker *worker = data;
  worker->calls += cuCtxSetCurrent(worker->context) == CUDA_SUCCESS;
  errno = 4242;
  for (int i = 0; i < ROUNDS; i++) {
    worker->calls += cuMemAlloc_v2(&worker->kept, THREAD_BYTES) == CUDA_SUCCESS;
    if (i < ROUNDS - 1) worker->calls += cuMemFree_v2(worker->kept) == CUDA_SUCCESS;
    worker->errno_changes += errno != 4242;
  }
  return NULL;
}

/* Threads do not disturb each other: every call succeeds, no block is lost or given to two, the sum is exact. */
static void test_threads(CUcontext context) {
  pthread_t threads[THREADS];
  struct worker workers[THREADS];
  uint64_t before = used_bytes();
  int calls = 0, errno_changes = 0, twice = 0;
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (struct worker){.context = context};
    CHECK_EQUAL(pthread_create(&threads[i], NULL, use_in_thread, &workers[i]), 0, "a thread");
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    calls += workers[i].calls;
    errno_changes += workers[i].errno_changes;
    for (int j = 0; j < i; j++)
      twice += workers[i].kept == workers[j].kept;
  }
  CHECK_EQUAL(calls, THREADS * 2 * ROUNDS, "calls that succeeded");
  CHECK_EQUAL(errno_changes, 0, "errno in the threads");
  CHECK_EQUAL(twice, 0, "blocks that two threads hold");
  CHECK_EQUAL(used_bytes() - before, THREADS * THREAD_BYTES, "what they kept");
  for (int i = 0; i < THREADS; i++)
    CHECK_EQUAL(cuMemFree_v2(workers[i].kept), 0, "a free in another thread");
  CHECK_EQUAL(used_bytes(), before, "all given back");
}

/* A refusal with stderr closed, or a pipe without a reader, is silent and harmless. */
static void test_no_stderr(void) {
  CUdeviceptr pointer;
  int ends[2], refused = 0;
  CHECK_EQUAL(pipe(ends), 0, "pipe");
  close(ends[0]);
  dup2(ends[1], 2);
  for (int i = 0; i < 1000; i++)
    refused += cuMemAlloc_v2(&pointer, 4096 * MIB) == CUDA_ERROR_OUT_OF_MEMORY;
  close(2);
  for (int i = 0; i < 1000; i++)
    refused += cuMemAlloc_v2(&pointer, 4096 * MIB) == CUDA_ERROR_OUT_OF_MEMORY;
  CHECK_EQUAL(refused, 2000, "refusals without a stderr");
}

int main(void) {
  struct picture before, after;
  CUdeviceptr pointer;
  size_t free_bytes, total;
  CUcontext context = NULL;
  CHECK_EQUAL(cuInit(0), 0, "cuInit");
  CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), 0, "context");
  CHECK_EQUAL(cuCtxSetCurrent(context), 0, "current");
  take(&before);
  errno = 4242;
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, MIB), 0, "alloc");
  CHECK_EQUAL(errno, 4242, "errno after the first call");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 4096 * MIB), CUDA_ERROR_OUT_OF_MEMORY, "refusal");
  CHECK_EQUAL(errno, 4242, "errno after a refusal");
  CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), 0, "query");
  CHECK_EQUAL(cuMemFree_v2(0x7000deadb000) != 0, 1, "wild free");
  CHECK_EQUAL(errno, 4242, "errno after all that");
  take(&after);
  compare(&before, &after);
  test_no_stderr();
  test_threads(context);
  return check_done();
}
