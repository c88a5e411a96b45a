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

static void *use_in_thread(void *data) {
  CUdeviceptr pointer;
  int *failed = data;
  if (cuDevicePrimaryCtxRetain(&(CUcontext){NULL}, 0) != CUDA_SUCCESS) *failed += 1;
  for (int i = 0; i < 10000; i++) {
    if (cuMemAlloc_v2(&pointer, 64 << 10) != CUDA_SUCCESS || cuMemFree_v2(pointer) != CUDA_SUCCESS) *failed += 1;
  }
  return NULL;
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

  /* stderr closed, then a pipe without a reader: a refusal is silent and harmless. */
  int ends[2];
  CHECK_EQUAL(pipe(ends), 0, "pipe");
  close(ends[0]);
  dup2(ends[1], 2);
  for (int i = 0; i < 1000; i++)
    cuMemAlloc_v2(&pointer, 4096 * MIB);
  close(2);
  for (int i = 0; i < 1000; i++)
    cuMemAlloc_v2(&pointer, 4096 * MIB);
  CHECK(1, "still alive");

  pthread_t threads[8];
  int failed[8] = {0}, sum = 0;
  for (int i = 0; i < 8; i++)
    pthread_create(&threads[i], NULL, use_in_thread, &failed[i]);
  for (int i = 0; i < 8; i++)
    pthread_join(threads[i], NULL), sum += failed[i];
  CHECK(sum >= 0, "threads came back");
  return check_done();
}
