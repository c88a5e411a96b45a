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

/* A sample's time is one of the wall clock, worked out anew each time: so much it may differ for the same sample. */
enum { SAME_SAMPLE_US = 1000 };

/* The wall clock at a monotonic time. */
static unsigned long long wall_us(uint64_t monotonic_ns) {
  struct timespec wall;
  uint64_t now_ns = gs_now_ns();
  clock_gettime(CLOCK_REALTIME, &wall);
  uint64_t wall_ns = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec;
  return (wall_ns - now_ns + monotonic_ns) / 1000;
}

/* One sample per process that used the card in the last sample period to be seen, if the period ended after
 * `since_us`. With too little room: how many there are. */
NV_API(nvmlDeviceGetProcessUtilization)
(nvmlDevice_t device, struct nv_process_sample *samples, unsigned *count, unsigned long long since_us) {
  struct nv_user users[GS_CUDA_SLOTS];
  struct nv_process_sample found[GS_CUDA_SLOTS];
  unsigned number = 0;
  NV_ENTER_DEVICE(nvmlDeviceGetProcessUtilization, device);
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned present = nv_find_users(device->gpu, users, GS_CUDA_SLOTS);
  for (unsigned i = 0; i < present; i++) {
    struct gs_sample sample = gs_engine_sample(device->gpu, (int)users[i].slot);
    unsigned long long time_us = sample.busy_ns ? wall_us(sample.end_ns) : 0;
    if (sample.busy_ns == 0 || time_us <= since_us + SAME_SAMPLE_US) continue;
    found[number++] = (struct nv_process_sample){
        .pid = users[i].pid, .time_us = time_us, .sm = sample.percent, .memory = sample.memory_percent};
  }
  unsigned room = *count;
  *count = number;
  if (number == 0) return NVML_ERROR_NOT_FOUND;
  if (!samples || room < number) return NVML_ERROR_INSUFFICIENT_SIZE;
  memcpy(samples, found, number * sizeof *samples);
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
