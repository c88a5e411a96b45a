/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_sharing.c - GPU time through the driver's interface, in real time and with real processes: streams, others'
 * slices, a full queue, and the death of who works.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static const char ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                          ".visible .entry busy_20us()\n{ ret; }\n.visible .entry busy_1ms()\n{ ret; }\n"
                          ".visible .entry busy_20ms()\n{ ret; }\n.visible .entry busy_10s()\n{ ret; }\n";

static CUfunction kernel(const char *name) {
  CUmodule module;
  CUfunction found;
  CHECK_EQUAL(cuModuleLoadData(&module, ptx), CUDA_SUCCESS);
  CHECK_EQUAL(cuModuleGetFunction(&found, module, name), CUDA_SUCCESS);
  return found;
}

/* 108 multiprocessors take 216 blocks of this size. */
static void launch(CUfunction function, unsigned blocks, CUstream stream) {
  CHECK_EQUAL(cuLaunchKernel(function, blocks, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL), CUDA_SUCCESS);
}

static CUevent record(CUstream stream) {
  CUevent event;
  CHECK_EQUAL(cuEventCreate(&event, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
  return event;
}

static double elapsed_ms(CUevent start, CUevent end) {
  float milliseconds;
  CHECK_EQUAL(cuEventSynchronize(end), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventElapsedTime(&milliseconds, start, end), CUDA_SUCCESS);
  return milliseconds;
}

/* Two streams of half-card kernels finish in the time of one, of whole-card kernels in that of both. */
void test_streams_overlap(void) {
  CUstream streams[2];
  CUevent starts[2];
  CUevent ends[2];
  begin_cuda();
  CUfunction busy = kernel("busy_20ms");
  for (int i = 0; i < 2; i++)
    CHECK_EQUAL(cuStreamCreate(&streams[i], 1), CUDA_SUCCESS);
  for (unsigned blocks = 108; blocks <= 216; blocks += 108) {
    for (int i = 0; i < 2; i++) {
      starts[i] = record(streams[i]);
      launch(busy, blocks, streams[i]);
      launch(busy, blocks, streams[i]);
      ends[i] = record(streams[i]);
    }
    double both = elapsed_ms(starts[0], ends[1]);
    double apart = elapsed_ms(starts[0], starts[1]); /* the calls of this program */
    CHECK(both >= (blocks == 108 ? 40 : 80) && both <= (blocks == 108 ? 40 : 80) + apart + 0.01);
  }
}

/* Events that tell twice what passed. */
void test_events_scaled(void) {
  begin_cuda();
  CUfunction busy = kernel("busy_20ms");
  CUevent start = record(NULL);
  launch(busy, 216, NULL);
  double told = elapsed_ms(start, record(NULL));
  CHECK(told >= 40 && told < 60);
}

/* An event keeps another stream's work back, and the default stream comes after and before all blocking ones. */
void test_streams_wait(void) {
  CUstream first;
  CUstream second;
  CUstream free_one;
  begin_cuda();
  CUfunction busy = kernel("busy_20ms");
  CHECK_EQUAL(cuStreamCreate(&first, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamCreate(&second, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamCreate(&free_one, 1), CUDA_SUCCESS);
  CUevent start = record(first);
  launch(busy, 1, first);
  CUevent middle = record(first);
  CHECK_EQUAL(cuStreamWaitEvent(second, middle, 0), CUDA_SUCCESS);
  launch(busy, 1, second);
  CUevent end = record(second);
  CHECK_EQUAL(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
  CHECK_EQUAL(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
  CHECK(elapsed_ms(middle, end) >= 19.99 && elapsed_ms(start, end) >= 39.99);
  start = record(first);
  launch(busy, 1, first);
  launch(busy, 1, NULL);
  launch(busy, 1, second);
  launch(busy, 1, free_one);
  CUevent free_end = record(free_one);
  end = record(second);
  CHECK(elapsed_ms(start, end) >= 59.99);
  CHECK(elapsed_ms(free_end, end) >= 1); /* was not kept back */
  CHECK_EQUAL(cuStreamQuery(NULL), CUDA_SUCCESS);
}

/* An event of one card keeps a stream of another back; and events of both are told apart. */
void test_streams_of_two_cards(void) {
  CUcontext contexts[2];
  CUfunction busy[2];
  CUevent ends[2];
  CUevent starts[2];
  CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
  for (int i = 0; i < 2; i++) {
    CHECK_EQUAL(cuCtxCreate_v2(&contexts[i], 0, i), CUDA_SUCCESS);
    busy[i] = kernel("busy_20ms");
    starts[i] = record(NULL);
    launch(busy[i], 216, NULL);
    ends[i] = record(NULL);
  }
  CHECK(elapsed_ms(starts[1], ends[1]) >= 19.99 && elapsed_ms(starts[0], ends[0]) >= 19.99);
  CHECK_EQUAL(cuCtxSetCurrent(contexts[0]), CUDA_SUCCESS);
  uint64_t began = now_ns();
  launch(busy[0], 216, NULL);
  CHECK_EQUAL(cuEventRecord(ends[0], NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxSetCurrent(contexts[1]), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamWaitEvent(NULL, ends[0], 0), CUDA_SUCCESS);
  launch(busy[1], 216, NULL);
  CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
  CHECK(now_ns() - began >= 40000000u);
}

/* With more streams than channels some share one; each is told from the others all the same. */
void test_streams_share_channels(void) {
  enum { STREAMS = 70 };
  CUstream streams[STREAMS];
  CUevent start;
  begin_cuda();
  CUfunction busy = kernel("busy_1ms");
  start = record(NULL);
  for (int i = 0; i < STREAMS; i++) {
    CHECK_EQUAL(cuStreamCreate(&streams[i], 1), CUDA_SUCCESS);
    launch(busy, 1, streams[i]);
  }
  for (int i = 0; i < STREAMS; i++)
    CHECK_EQUAL(cuStreamSynchronize(streams[i]), CUDA_SUCCESS);
  CHECK(elapsed_ms(start, record(NULL)) >= 2.99); /* 70 in 31 channels are three deep */
  CHECK_EQUAL(cuStreamQuery(streams[STREAMS - 1]), CUDA_SUCCESS);
  for (int i = 0; i < STREAMS; i++)
    CHECK_EQUAL(cuStreamDestroy_v2(streams[i]), CUDA_SUCCESS);
  for (int i = 0; i < STREAMS; i++)
    CHECK_EQUAL(cuStreamCreate(&streams[i], 0), CUDA_SUCCESS);
  launch(busy, 1, streams[STREAMS - 1]);
  launch(busy, 1, NULL);
  CHECK_EQUAL(cuStreamQuery(streams[0]), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
}

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
  const char *wanted = "\"pid\": %d, \"used_bytes\": 0, \"busy_ns\": %d, \"queued\": 0}";
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

static void work_for_ever(unsigned state) {
  CUstream streams[3];
  CUevent events[3];
  begin_cuda();
  CUfunction busy = kernel("busy_20us");
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
