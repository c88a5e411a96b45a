/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml_utilization.c - NVML: how busy each process keeps a card, and what it is called.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nvml_types.h"

enum { SAMPLE_BUCKETS = 10 }; /* one sample per process: its last second */

/* One sample per process whose time is later than `since_us`. With too little room: how many there are. */
NV_API(nvmlDeviceGetProcessUtilization)
(nvmlDevice_t device, struct nv_process_sample *samples, unsigned *count, unsigned long long since_us) {
  struct nv_user users[GS_CUDA_SLOTS];
  struct timespec now;
  NV_ENTER_DEVICE(nvmlDeviceGetProcessUtilization, device);
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  clock_gettime(CLOCK_REALTIME, &now);
  unsigned long long now_us = (unsigned long long)now.tv_sec * 1000000u + (unsigned long long)now.tv_nsec / 1000u;
  unsigned found = since_us < now_us ? nv_find_users(device->gpu, users, GS_CUDA_SLOTS) : 0;
  unsigned room = *count;
  *count = found;
  if (found == 0) return NVML_ERROR_NOT_FOUND;
  if (!samples || room < found) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < found; i++) {
    unsigned busy = (gs_engine_utilization(device->gpu, (int)users[i].slot, SAMPLE_BUCKETS) + 5) / 10;
    samples[i] = (struct nv_process_sample){.pid = users[i].pid, .time_us = now_us, .sm = busy, .memory = busy / 2};
  }
  return NVML_SUCCESS;
}

NV_API(nvmlSystemGetProcessName)(unsigned pid, char *out, unsigned bytes) {
  char path[64];
  char name[1024] = "";
  NV_ENTER(nvmlSystemGetProcessName);
  if (!out || bytes == 0) return NVML_ERROR_INVALID_ARGUMENT;
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NVML_ERROR_NOT_FOUND;
  ssize_t got = read(fd, name, sizeof name - 1);
  close(fd);
  if (got <= 0) return NVML_ERROR_NOT_FOUND;
  name[got] = 0; /* the first argument ends at its own NUL */
  snprintf(out, bytes, "%s", name);
  return NVML_SUCCESS;
}
