/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_sharing.c - GPU time through the driver's interface, in real time and with real processes: others' slices, a
 * full queue, and the death of who works.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu_time.h"

void test_launch_blocks_when_full(void) {
  begin_cuda();
  CUfunction busy = kernel("busy_20ms");
  CUevent start = record(NULL);
  for (int i = 0; i < 1024; i++)
    launch(busy, 216, NULL);
  CUevent now = record(NULL); /* waits until there is room: for the first kernel's end */
  uint64_t cpu = cpu_ns();
  launch(busy, 216, NULL); /* for the second's */
  CHECK(cpu_ns() - cpu < 5000000u);
  CHECK(status_number("busy_ns") >= 40000000u);
  CHECK_EQUAL(cuEventQuery(now), CUDA_ERROR_NOT_READY);
  CHECK_EQUAL(cuEventQuery(start), CUDA_SUCCESS);
}

static int compare(const void *a, const void *b) {
  return (*(const uint64_t *)a > *(const uint64_t *)b) - (*(const uint64_t *)a < *(const uint64_t *)b);
}

/* Waiting for a kernel of 1 ms; the bar is for the waits in which nothing else wanted the processor. */
void test_waits_end_in_time(void) {
  enum { WAITS = 101 };
  uint64_t took[WAITS];
  begin_cuda();
  CUfunction busy = kernel("busy_1ms");
  for (int i = 0; i < WAITS; i++) {
    uint64_t start = now_ns();
    launch(busy, 216, NULL);
    CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
    took[i] = now_ns() - start;
  }
  qsort(took, WAITS, sizeof *took, compare);
  printf("         1 ms of work is waited for in %.2f ms (median)\n", (double)took[WAITS / 2] / 1e6);
  fflush(stdout);
  CHECK(took[0] >= 1000000u);
  CHECK(took[WAITS / 10] < 1500000u);
}

/* Starts a process that has given the card more work than it can do; returns when it has. */
static pid_t start_flood(const char *name, unsigned blocks) {
  int ready[2];
  char byte;
  CHECK(pipe(ready) == 0);
  pid_t child = fork();
  if (child == 0) {
    begin_cuda();
    CUfunction busy = kernel(name);
    for (int i = 0; i < 1000; i++)
      launch(busy, blocks, NULL);
    CHECK(write(ready[1], "r", 1) == 1);
    for (;;)
      launch(busy, blocks, NULL);
  }
  close(ready[1]);
  CHECK(read(ready[0], &byte, 1) == 1);
  close(ready[0]);
  return child;
}

static void end_flood(pid_t child) {
  kill(child, SIGKILL);
  CHECK_EQUAL(wait_for(child), 128 + SIGKILL);
}

/* The rest of a slice of 2 ms that another kernel began, nine slices and 1 ms of one, with ten of the other's between. Said
 * only of calls that the machine did not hold up so long that the queue ran empty between them. */
void test_elapsed_includes_others(void) {
  pid_t other = start_flood("busy_20ms", 216);
  begin_cuda();
  CUfunction busy = kernel("busy_20ms");
  CUfunction first = kernel("busy_1ms");
  double elapsed = 0;
  int tries = 0;
  uint64_t calls = UINT64_MAX;
  while (calls > 500000 && tries++ < 50) {
    uint64_t began = now_ns();
    launch(first, 216, NULL);
    CUevent start = record(NULL);
    launch(busy, 216, NULL);
    CUevent end = record(NULL);
    calls = now_ns() - began;
    elapsed = elapsed_ms(start, end);
  }
  CHECK(elapsed >= 39.99 && elapsed <= 40.01);
  const char *wanted = "\"pid\": %d, \"used_bytes\": 0, \"busy_ns\": %d, \"queued\": 0,";
  char text[200];
  snprintf(text, sizeof text, wanted, (int)getpid(), tries * 21000000);
  CHECK_EQUAL(run("%s/gpusim status --json | grep -q '%s'", sim_directory, text), 0);
  CHECK_EQUAL(run("%s/gpusim status | grep -q 'pid %d holds 0 MiB, ran 0.'", sim_directory, (int)getpid()), 0);
  end_flood(other);
}

/* Half-card kernels of two processes run side by side, whole-card ones at half speed. */
void test_mps_lets_all_run(void) {
  for (unsigned blocks = 108; blocks <= 216; blocks += 108) {
    int ready[2];
    char byte;
    CHECK(pipe(ready) == 0);
    pid_t other = start_flood("busy_20ms", blocks);
    pid_t child = fork();
    if (child == 0) {
      begin_cuda();
      CUfunction busy = kernel("busy_20ms");
      uint64_t began = now_ns();
      CUevent start = record(NULL);
      launch(busy, blocks, NULL);
      CUevent end = record(NULL);
      double calls = (double)(now_ns() - began) / 1e6;
      double elapsed = elapsed_ms(start, end);
      double wanted = blocks == 108 ? 20 : 40;
      CHECK(elapsed >= wanted && elapsed <= wanted + calls + 0.01);
      CHECK(write(ready[1], "r", 1) == 1);
      exit(0);
    }
    CHECK_EQUAL(wait_for(child), 0);
    CHECK(read(ready[0], &byte, 1) == 1);
    end_flood(other);
  }
}

/* The queue of the dead is dropped: nobody waits 10 s for it. */
void test_killed_at_work(void) {
  pid_t other = start_flood("busy_10s", 216);
  begin_cuda();
  CUfunction busy = kernel("busy_20ms");
  launch(busy, 216, NULL);
  end_flood(other);
  uint64_t start = now_ns();
  for (int i = 0; i < 10; i++)
    launch(busy, 216, NULL);
  CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
  CHECK(now_ns() - start < 2000000000u);
  uint64_t busy_ns = status_number("busy_ns");
  usleep(100000);
  CHECK(status_number("busy_ns") == busy_ns); /* it is idle now */
}

enum { COPY_BYTES = 20000 }; /* 20 us where copies take time */

static void work_for_ever(unsigned state) {
  CUstream streams[3];
  CUevent events[3];
  begin_cuda();
  CUfunction busy = kernel("busy_20us");
  CUdeviceptr device;
  void *host;
  CHECK_EQUAL(cuMemAlloc_v2(&device, COPY_BYTES), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemHostAlloc(&host, COPY_BYTES, 0), CUDA_SUCCESS);
  for (int i = 0; i < 3; i++) {
    CHECK_EQUAL(cuStreamCreate(&streams[i], (unsigned)i % 2), CUDA_SUCCESS);
    CHECK_EQUAL(cuEventCreate(&events[i], 0), CUDA_SUCCESS);
  }
  for (;;) {
    int i = rand_r(&state) % 3;
    launch(busy, 20, streams[i]);
    if (rand_r(&state) % 4 == 0) CHECK_EQUAL(cuEventRecord(events[i], streams[i]), CUDA_SUCCESS);
    if (rand_r(&state) % 4 == 0) CHECK_EQUAL(cuStreamWaitEvent(streams[(i + 1) % 3], events[i], 0), CUDA_SUCCESS);
    if (rand_r(&state) % 8 == 0) launch(busy, 20, NULL);
    if (rand_r(&state) % 3 == 0) CHECK_EQUAL(cuMemcpyHtoDAsync_v2(device, host, COPY_BYTES, streams[i]), CUDA_SUCCESS);
    if (rand_r(&state) % 99 == 0) CHECK_EQUAL(cuMemcpyHtoD_v2(device, host, COPY_BYTES), CUDA_SUCCESS);
    if (rand_r(&state) % 50 == 0) CHECK_EQUAL(cuEventSynchronize(events[i]), CUDA_SUCCESS);
  }
}

/* Works until the pipe is closed; then it must have the card to itself. */
static void work_rightly(int until) {
  char byte;
  begin_cuda();
  CUfunction busy = kernel("busy_1ms");
  CUevent start = record(NULL);
  do {
    CHECK_EQUAL(cuEventRecord(start, NULL), CUDA_SUCCESS);
    launch(busy, 216, NULL);
    CUevent end = record(NULL);
    CHECK(elapsed_ms(start, end) >= 0.999);
    CHECK_EQUAL(cuEventDestroy_v2(end), CUDA_SUCCESS);
  } while (read(until, &byte, 1) < 0);
  uint64_t began = now_ns();
  CHECK_EQUAL(cuEventRecord(start, NULL), CUDA_SUCCESS);
  for (int i = 0; i < 20; i++)
    launch(busy, 216, NULL);
  CHECK(elapsed_ms(start, record(NULL)) >= 19.99);
  CHECK(now_ns() - began < 2000000000u);
}

/* 200 processes die at some instruction of their work, four at a time, while one works on whose results are right. */
void test_kills_while_working(void) {
  enum { VICTIMS = 4, KILLS = 200 };
  pid_t victims[VICTIMS] = {0};
  unsigned state = 1;
  int until[2];
  CHECK(pipe2(until, O_NONBLOCK) == 0);
  pid_t survivor = fork();
  if (survivor == 0) {
    close(until[1]);
    work_rightly(until[0]);
    exit(0);
  }
  for (int i = 0; i < KILLS + VICTIMS; i++) {
    int place = i % VICTIMS;
    if (victims[place]) end_flood(victims[place]);
    victims[place] = 0;
    if (i < KILLS && (victims[place] = fork()) == 0) {
      close(until[1]);
      work_for_ever((unsigned)i);
    }
    usleep((useconds_t)rand_r(&state) % 6000);
  }
  close(until[1]);
  CHECK_EQUAL(wait_for(survivor), 0);
}

/* Likewise where copies take time, and everything has its part of the link: in the end the copies are right too. */
void test_kills_while_copying(void) {
  enum { BYTES = 2000000 };
  CUdeviceptr device;
  void *host;
  test_kills_while_working();
  begin_cuda();
  CHECK_EQUAL(cuMemAlloc_v2(&device, BYTES), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemHostAlloc(&host, BYTES, 0), CUDA_SUCCESS);
  launch(kernel("busy_20ms"), 216, NULL);
  CUevent start = record(NULL);
  CHECK_EQUAL(cuMemcpyHtoDAsync_v2(device, host, BYTES, NULL), CUDA_SUCCESS);
  double took = elapsed_ms(start, record(NULL));
  CHECK(took >= 1.999 && took <= 2.001);
}

void test_nvml_utilization(void) {
  struct {
    unsigned pid;
    unsigned long long time_us;
    unsigned sm, memory, encoder, decoder;
  } samples[8];
  nvmlDevice_t device;
  unsigned count = 8;
  CHECK_EQUAL(nvmlInit_v2(), 0);
  CHECK_EQUAL(nvmlDeviceGetHandleByIndex_v2(0, &device), 0);
  CHECK_EQUAL(nvmlDeviceGetProcessUtilization(device, samples, &count, 0), 6);
  pid_t first = start_flood("busy_20ms", 216);
  pid_t second = start_flood("busy_1ms", 216);
  usleep(350000);
  count = 1;
  CHECK_EQUAL(nvmlDeviceGetProcessUtilization(device, samples, &count, 0), 7);
  CHECK_EQUAL(count, 2);
  count = 8;
  CHECK_EQUAL(nvmlDeviceGetProcessUtilization(device, samples, &count, 0), 0);
  CHECK_EQUAL(count, 2);
  CHECK(samples[0].pid == (unsigned)first && samples[1].pid == (unsigned)second);
  CHECK(samples[0].sm >= 48 && samples[0].sm <= 52 && samples[1].sm >= 48 && samples[1].sm <= 52);
  struct timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  unsigned long long now_us = (unsigned long long)wall.tv_sec * 1000000u + (unsigned long long)wall.tv_nsec / 1000u;
  CHECK(samples[0].time_us <= now_us && samples[0].time_us > now_us - 60000000u);
  CHECK_EQUAL(nvmlDeviceGetProcessUtilization(device, samples, &count, now_us + 1000000u), 6);
  end_flood(first);
  end_flood(second);
  usleep(250000);
  count = 8;
  CHECK_EQUAL(nvmlDeviceGetProcessUtilization(device, samples, &count, 0), 6);
}
