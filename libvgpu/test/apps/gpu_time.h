/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * gpu_time.h - what the clients about GPU time share: kernels of a stated duration, the clock, and the share that a loop
 * of launches got. They run on the simulated GPU and on test/fake_gpu.c alike.
 */
#ifndef VGPU_TEST_GPU_TIME_H
#define VGPU_TEST_GPU_TIME_H

#include <dlfcn.h>
#include <time.h>

#include "driver.h"

static inline double seconds_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* CPU time of this process. */
static inline double cpu_seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Where this process has mapped the page of this name ("limits", "usage") of its first allocation; its path goes to `path`, of
 * 512 bytes. NULL: nowhere. */
static inline void *find_page(const char *name, char *path, size_t *bytes) {
  char line[768];
  void *found = NULL;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && !found && fgets(line, sizeof(line), maps)) {
    unsigned long from, to;
    line[strcspn(line, "\n")] = 0;
    char *file = strchr(line, '/'), *last = strrchr(line, '/');
    if (!last || strcmp(last + 1, name) != 0 || sscanf(line, "%lx-%lx", &from, &to) != 2) continue;
    snprintf(path, 512, "%s", file);
    *bytes = to - from;
    found = (void *)from;
  }
  if (maps) fclose(maps);
  return found;
}

/* A kernel of this name in the current context. A name ends in its duration, "_250us" on the simulated GPU and "_250" on the
 * counting one: "..._250" with "us" behind it is read by both. */
static inline CUfunction kernel_named(const char *name) {
  char image[256];
  CUmodule module;
  CUfunction function = NULL;
  snprintf(image, sizeof(image), ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry %s()\n{ ret; }\n",
           name);
  CHECK_EQUAL(cuModuleLoadData(&module, strdup(image)), 0, "load a module");
  CHECK_EQUAL(cuModuleGetFunction(&function, module, name), 0, name);
  return function;
}

static inline CUfunction kernel_of(int us) {
  char name[64];
  snprintf(name, sizeof(name), "busy_%dus", us);
  return kernel_named(name);
}

static inline CUresult launch_on(CUfunction function, CUstream stream) {
  return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
}

#endif
