/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_processes.c - several processes on one card: limits of the card hold at every instant, the dead give back, and
 * nobody waits for them.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../region.h"
#include "check.h"

enum { MIB = 1 << 20 };

static void pause_ms(long milliseconds) {
  const struct timespec pause = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};
  nanosleep(&pause, NULL);
}

void test_after_fork(void) {
  int count;
  CUcontext current;
  begin_cuda();
  pid_t child = fork();
  if (child == 0) {
    CHECK_EQUAL(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_EQUAL(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_EQUAL(cuCtxGetCurrent(&current), CUDA_ERROR_NOT_INITIALIZED);
    exit(0);
  }
  CHECK_EQUAL(wait_for(child), 0);
  CHECK_EQUAL(cuDeviceGetCount(&count), CUDA_SUCCESS);
}

/* Eight processes ask at once for 300 MiB of 1000: three get it. */
void test_processes_share_a_card(void) {
  int got[2];
  int done[2];
  int successes = 0;
  char byte;
  CHECK(pipe(got) == 0 && pipe(done) == 0);
  for (int i = 0; i < 8; i++) {
    if (fork() != 0) continue;
    CUdeviceptr memory;
    close(done[1]);
    begin_cuda();
    byte = cuMemAlloc_v2(&memory, 300 * MIB) == CUDA_SUCCESS ? 'y' : 'n';
    CHECK(write(got[1], &byte, 1) == 1);
    exit(read(done[0], &byte, 1) == 0 ? 0 : 1);
  }
  for (int i = 0; i < 8; i++) {
    CHECK(read(got[0], &byte, 1) == 1);
    successes += byte == 'y';
  }
  CHECK_EQUAL(successes, 3);
  CHECK_EQUAL(status_number("used_bytes"), 900 * MIB);
  close(done[1]);
  while (wait(NULL) > 0) {
  }
  CHECK_EQUAL(status_number("used_bytes"), 0);
  CHECK_EQUAL(status_number("high_water_bytes"), 900 * MIB);
}

/* Forks a process that holds `bytes`, and returns when it does. */
static pid_t start_holder(size_t bytes) {
  int ready[2];
  char byte;
  CHECK(pipe(ready) == 0);
  pid_t child = fork();
  if (child == 0) {
    CUdeviceptr memory;
    begin_cuda();
    CHECK_EQUAL(cuMemAlloc_v2(&memory, bytes), CUDA_SUCCESS);
    CHECK(write(ready[1], "r", 1) == 1);
    pause();
    exit(1);
  }
  close(ready[1]);
  CHECK(read(ready[0], &byte, 1) == 1);
  close(ready[0]);
  return child;
}

void test_killed_process_gives_back(void) {
  CUdeviceptr memory;
  size_t free_bytes;
  pid_t first = start_holder(500 * MIB);
  pid_t second = start_holder(400 * MIB);
  begin_cuda();
  CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(free_bytes, 124 * MIB);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 200 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
  kill(first, SIGKILL);
  CHECK_EQUAL(wait_for(first), 128 + SIGKILL);
  CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(free_bytes, 624 * MIB);
  kill(second, SIGKILL);
  CHECK_EQUAL(wait_for(second), 128 + SIGKILL);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 1010 * MIB), CUDA_SUCCESS); /* not in the mark with the dead one's */
  CHECK_EQUAL(status_number("high_water_bytes"), 1010 * MIB);
}

/* A process that becomes another program has lost its memory on the card. */
void test_exec_gives_back(void) {
  pid_t child = fork();
  if (child == 0) {
    CUdeviceptr memory;
    begin_cuda();
    CHECK_EQUAL(cuMemAlloc_v2(&memory, 500 * MIB), CUDA_SUCCESS);
    execlp("sleep", "sleep", "100", (char *)NULL);
    exit(1);
  }
  CHECK_EQUAL(run("%s/gpusim wait --timeout 20", sim_directory), 0);
  uint64_t deadline = now_ns() + 20000000000u;
  while (status_number("cuMemAlloc_v2") == 0 && now_ns() < deadline)
    pause_ms(5);
  CHECK_EQUAL(run("%s/gpusim wait --timeout 20", sim_directory), 0);
  CHECK_EQUAL(status_number("used_bytes"), 0);
  kill(child, SIGKILL);
}

static void *allocate_for_ever(void *seed) {
  unsigned state = (unsigned)(uintptr_t)seed;
  CUcontext context;
  CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
  for (;;) {
    CUdeviceptr memory;
    size_t bytes = 1 + (size_t)rand_r(&state) % (20 * MIB);
    if (cuMemAlloc_v2(&memory, bytes) == CUDA_SUCCESS) CHECK_EQUAL(cuMemFree_v2(memory), CUDA_SUCCESS);
  }
  return NULL;
}

/* 150 processes of two threads each die at some instruction of their allocating; never more than four at once. */
void test_kills_at_random_instructions(void) {
  enum { VICTIMS = 4, KILLS = 150 };
  pid_t victims[VICTIMS] = {0};
  unsigned state = 1;
  for (int i = 0; i < KILLS; i++) {
    int place = i % VICTIMS;
    if (victims[place]) {
      kill(victims[place], SIGKILL);
      CHECK_EQUAL(wait_for(victims[place]), 128 + SIGKILL);
    }
    victims[place] = fork();
    if (victims[place] == 0) {
      pthread_t thread;
      CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
      CHECK_EQUAL(pthread_create(&thread, NULL, allocate_for_ever, (void *)(uintptr_t)(2 * i + 1)), 0);
      allocate_for_ever((void *)(uintptr_t)(2 * i + 2));
    }
    usleep((useconds_t)rand_r(&state) % 3000);
  }
  for (int i = 0; i < VICTIMS; i++) {
    kill(victims[i], SIGKILL);
    CHECK_EQUAL(wait_for(victims[i]), 128 + SIGKILL);
  }
  CUdeviceptr memory;
  size_t free_bytes;
  begin_cuda();
  CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(free_bytes, 64 * MIB);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 64 * MIB), CUDA_SUCCESS);
  CHECK(status_number("high_water_bytes") <= 64 * MIB);
}

static void *race(void *unused) {
  CUcontext context;
  unsigned long refused = 0;
  (void)unused;
  CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
  for (int i = 0; i < 3000; i++) {
    CUdeviceptr memory;
    CUresult result = cuMemAlloc_v2(&memory, 10 * MIB + 1);
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    if (result == CUDA_SUCCESS)
      CHECK_EQUAL(cuMemFree_v2(memory), CUDA_SUCCESS);
    else
      refused++;
  }
  return (void *)refused;
}

/* Four processes of four threads want 16 times 10 MiB of 64: six may have it at any instant. */
void test_threads_race(void) {
  enum { PROCESSES = 4, THREADS = 4 };
  pid_t children[PROCESSES];
  for (int i = 0; i < PROCESSES; i++) {
    children[i] = fork();
    if (children[i] != 0) continue;
    pthread_t threads[THREADS];
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    for (int j = 0; j < THREADS; j++)
      CHECK_EQUAL(pthread_create(&threads[j], NULL, race, NULL), 0);
    for (int j = 0; j < THREADS; j++)
      CHECK_EQUAL(pthread_join(threads[j], NULL), 0);
    exit(0);
  }
  for (int i = 0; i < PROCESSES; i++)
    CHECK_EQUAL(wait_for(children[i]), 0);
  CHECK_EQUAL(status_number("used_bytes"), 0);
  CHECK(status_number("high_water_bytes") % (10 * MIB + 1) == 0);
  CHECK(status_number("high_water_bytes") <= 64 * MIB);
  CHECK_EQUAL(status_number("cuInit"), PROCESSES); /* the counts of the gone are kept */
}

/* Maps the region for a look behind the curtain; only in a child, whose exit takes the descriptor along. */
static struct gs_region *map_region(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s/region", getenv("GPUSIM_DIR"));
  int fd = open(path, O_RDWR);
  CHECK(fd >= 0);
  void *region = mmap(NULL, sizeof(struct gs_region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(region != MAP_FAILED);
  return region;
}

/* Every slot belongs to somebody dead, who holds memory: the next to come finds room all the same. */
void test_slots_are_used_again(void) {
  pid_t child = fork();
  if (child == 0) {
    struct gs_region *region = map_region();
    for (int i = 0; i < GS_CUDA_SLOTS + GS_WATCH_SLOTS; i++)
      region->clients[i].state = GS_SLOT_READY;
    for (int i = 0; i < GS_CUDA_SLOTS; i++)
      region->gpus[0].held_bytes[i] = MIB;
    for (int i = 0; i < GS_CUDA_SLOTS; i++)
      region->clients[i].calls[0] = 1;
    region->gpus[0].used_bytes = 1024ll * MIB;
    region->slot_high[GS_KIND_CUDA] = GS_CUDA_SLOTS;
    region->slot_high[GS_KIND_WATCH] = GS_WATCH_SLOTS;
    _exit(0);
  }
  CHECK_EQUAL(wait_for(child), 0);
  CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
  CHECK_EQUAL(nvmlInit_v2(), 0);
  CHECK_EQUAL(status_number("used_bytes"), 0);
  CHECK_EQUAL(status_number("cuArray3DCreate"), GS_CUDA_SLOTS); /* function 0: the counts of the dead are kept */
}

/* The lock is held by somebody who died in the middle of an update. */
void test_lock_of_the_dead(void) {
  CUdeviceptr memory;
  size_t free_bytes;
  pid_t child = fork();
  if (child == 0) {
    begin_cuda();
    CHECK_EQUAL(cuMemAlloc_v2(&memory, 7 * MIB), CUDA_SUCCESS);
    struct gs_region *region = map_region();
    region->gpus[0].lock = 1 | (region->clients[0].generation & 0xfffff) << 11;
    region->gpus[0].used_bytes = 3;
    _exit(0);
  }
  CHECK_EQUAL(wait_for(child), 0);
  uint64_t start = now_ns();
  begin_cuda();
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 5 * MIB), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(free_bytes, (80ll << 30) - 5 * MIB);
  CHECK(now_ns() - start < 5000000000u);
}

void test_faults(void) {
  CUdeviceptr memory;
  CUcontext other;
  begin_cuda();
  CHECK_EQUAL(run("%s/gpusim fault set --call cuMemAlloc_v2 --result 2 --count 2 --after 1", sim_directory), 0);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 10), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 10), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 10), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 10), CUDA_SUCCESS);
  CHECK_EQUAL(run("%s/gpusim fault clear", sim_directory), 0);
  CHECK_EQUAL(run("%s/gpusim fault set --call 'cuMemAlloc*' --result 999 --gpu 1", sim_directory), 0);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 10), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxCreate_v2(&other, 0, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 10), CUDA_ERROR_UNKNOWN);
  CHECK_EQUAL(run("%s/gpusim fault clear --call 'cuMemAlloc*'", sim_directory), 0);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 10), CUDA_SUCCESS);
  CHECK_EQUAL(run("%s/gpusim fault set --call cuMemFree_v2 --result 0 --delay 100 --count 1", sim_directory), 0);
  uint64_t start = now_ns();
  CHECK_EQUAL(cuMemFree_v2(memory), CUDA_SUCCESS);
  CHECK(now_ns() - start >= 100000000u);
  CHECK_EQUAL(
      run("%s/gpusim fault set --call cuCtxSynchronize --result 700 --pid %d", sim_directory, (int)getpid() + 1), 0);
  CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
  CHECK_EQUAL(run("%s/gpusim fault set --call cuNoSuchCall --result 1 2>/dev/null", sim_directory), 2);
}

void test_tool_wait_and_reset(void) {
  CHECK_EQUAL(run("%s/gpusim wait --timeout 0", sim_directory), 0);
  CHECK_EQUAL(run("%s/gpusim wait --clients 1 --timeout 0 2>/dev/null", sim_directory), 1);
  pid_t holder = start_holder(100 * MIB);
  CHECK_EQUAL(run("%s/gpusim wait --clients 1 --timeout 20", sim_directory), 0);
  CHECK_EQUAL(run("%s/gpusim wait --timeout 0 2>/dev/null", sim_directory), 1);
  CHECK_EQUAL(status_number("pid"), holder);
  kill(holder, SIGKILL);
  CHECK_EQUAL(wait_for(holder), 128 + SIGKILL);
  CHECK_EQUAL(status_number("high_water_bytes"), 100 * MIB);
  CHECK_EQUAL(run("%s/gpusim reset-high-water", sim_directory), 0);
  CHECK_EQUAL(status_number("high_water_bytes"), 0);
}
