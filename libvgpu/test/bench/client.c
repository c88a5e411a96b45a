/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * client.c - times one driver call, in this process: client CALL ROUNDS. One line a round: nanoseconds of CPU time
 * per call; for the calls that time each launch, a quantile of the round's launches by the clock. Found by link-time
 * binding, as most programs find the driver.
 */
#include <sched.h>
#include <stdbool.h>
#include <unistd.h>

#include "../apps/gpu_time.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

static CUfunction kernel;
static CUgraphExec graph;

static void alloc_free(int count) {
  CUdeviceptr pointer;
  for (int i = 0; i < count; i++) {
    if (cuMemAlloc_v2(&pointer, 1 << 20) != CUDA_SUCCESS || cuMemFree_v2(pointer) != CUDA_SUCCESS) exit(3);
  }
}

/* Each process holds a little, so that those beside it have something to add up. */
static void query(int count) {
  static CUdeviceptr held;
  size_t free_bytes, total;
  if (!held && cuMemAlloc_v2(&held, 1 << 20) != CUDA_SUCCESS) exit(3);
  for (int i = 0; i < count; i++) {
    if (cuMemGetInfo_v2(&free_bytes, &total) != CUDA_SUCCESS) exit(3);
  }
}

static void launch(int count) {
  for (int i = 0; i < count; i++) {
    if (cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != CUDA_SUCCESS) exit(3);
  }
}

/* Of one cache line: the copy itself is next to nothing. */
static void copy(int count) {
  static CUdeviceptr device;
  static char host[64];
  if (!device && cuMemAlloc_v2(&device, 1 << 20) != CUDA_SUCCESS) exit(3);
  for (int i = 0; i < count; i++) {
    if (cuMemcpyHtoDAsync_v2(device, host, sizeof(host), NULL) != CUDA_SUCCESS) exit(3);
  }
}

static void unhooked(int count) {
  CUcontext context;
  for (int i = 0; i < count; i++) {
    if (cuCtxGetCurrent(&context) != CUDA_SUCCESS) exit(3);
  }
}

static void pool(int count) {
  CUdeviceptr pointer;
  for (int i = 0; i < count; i++) {
    if (cuMemAllocAsync(&pointer, 1 << 20, NULL) != CUDA_SUCCESS) exit(3);
    if (cuMemFreeAsync(pointer, NULL) != CUDA_SUCCESS) exit(3);
  }
}

static void refuse(int count) {
  CUdeviceptr pointer;
  for (int i = 0; i < count; i++) {
    if (cuMemAlloc_v2(&pointer, (size_t)1 << 40) != CUDA_ERROR_OUT_OF_MEMORY) exit(3);
  }
}

static void launch_graph(int count) {
  for (int i = 0; i < count; i++) {
    if (cuGraphLaunch(graph, NULL) != CUDA_SUCCESS) exit(3);
  }
}

struct call {
  const char *name;
  void (*run)(int count);
  int count; /* calls of one round */
};

static const struct call calls[] = {
    {"alloc_free", alloc_free, 20000}, {"query", query, 20000}, {"launch", launch, 500},  {"graph", launch_graph, 500},
    {"unhooked", unhooked, 200000},    {"pool", pool, 20000},   {"refuse", refuse, 5000}, {"copy", copy, 5000}};

static double cpu_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static uint64_t ticks(void) {
#if defined(__x86_64__)
  unsigned processor;
  return __rdtscp(&processor);
#else
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
#endif
}

static double ns_per_tick(void) {
  double begun = seconds_now();
  uint64_t first = ticks();
  usleep(20000);
  return (seconds_now() - begun) * 1e9 / (double)(ticks() - first);
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Prints the quantile `q` of each round of launches (or copies), by the clock. On the driver that logs its calls: of those with
 * which nothing else was called, or of the others. */
static void time_each(void (*call)(int count), int rounds, double q, bool others) {
  enum { LAUNCHES = 500 };
  static double times[LAUNCHES];
  const uint64_t *driver_calls = dlsym(RTLD_DEFAULT, "fake_calls");
  double scale = ns_per_tick();
  call(2000); /* the estimate is steady */
  while (rounds-- > 0) {
    int count = 0;
    cuCtxSynchronize();
    usleep(2000); /* credit comes back */
    for (int i = 0; i < LAUNCHES; i++) {
      uint64_t before = driver_calls ? *driver_calls : 0, begun = ticks();
      call(1);
      uint64_t ended = ticks();
      bool is_other = driver_calls && *driver_calls - before != 1;
      if (is_other == others) times[count++] = (double)(ended - begun) * scale;
    }
    qsort(times, (size_t)count, sizeof(double), compare);
    if (count > 0) printf("%.2f\n", times[(int)(q * (count - 1))]);
  }
}

/* Prints how late launches that wait for GPU time go, the median of each round. They are due at equal distances, as their
 * costs are equal; lateness does not add up, since it is credit. */
static void time_wakes(int rounds) {
  enum { LAUNCHES = 100 };
  double at[LAUNCHES], late[LAUNCHES];
  for (int i = 0; i < 200; i++)
    launch(1);
  while (rounds-- > 0) {
    for (int i = 0; i < LAUNCHES; i++) {
      launch(1);
      at[i] = seconds_now() * 1e9;
    }
    double period = (at[LAUNCHES - 1] - at[0]) / (LAUNCHES - 1), least = 0;
    for (int i = 0; i < LAUNCHES; i++) {
      late[i] = at[i] - at[0] - i * period;
      least = late[i] < least ? late[i] : least;
    }
    qsort(late, LAUNCHES, sizeof(double), compare);
    printf("%.2f\n", late[LAUNCHES / 2] - least);
  }
}

/* Prints the CPU time of one long wait, in ns for each ms of waiting. */
static void time_waits(int rounds) {
  launch(1);
  cuCtxSynchronize();
  while (rounds-- > 0) {
    double begun = seconds_now(), cpu = cpu_ns();
    launch(1);
    printf("%.2f\n", (cpu_ns() - cpu) / ((seconds_now() - begun) * 1e3));
    cuCtxSynchronize();
  }
}

static void load_graph(void) {
  CUstream stream;
  CUgraph captured;
  if (cuStreamCreate(&stream, 1) != CUDA_SUCCESS || cuStreamBeginCapture_v2(stream, 2) != CUDA_SUCCESS) exit(4);
  for (int i = 0; i < 10; i++)
    launch_on(kernel, stream);
  if (cuStreamEndCapture(stream, &captured) != CUDA_SUCCESS) exit(4);
  if (cuGraphInstantiateWithFlags(&graph, captured, 0) != CUDA_SUCCESS) exit(4);
}

static void time_rounds(const struct call *call, int rounds) {
  if (call->run == launch_graph) load_graph();
  call->run(call->count / 10);
  while (rounds-- > 0) {
    cuCtxSynchronize();
    double before = cpu_ns();
    call->run(call->count);
    printf("%.2f\n", (cpu_ns() - before) / call->count);
  }
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  const char *name = argv[1];
  int rounds = atoi(argv[2]);
  use_device(0);
  bool is_wake = strcmp(name, "wake") == 0, is_wait = strcmp(name, "wait") == 0;
  kernel = kernel_named(is_wake ? "bench_150us" : is_wait ? "bench_100000us" : "bench_0us");
  if (is_wake) return time_wakes(rounds), 0;
  if (is_wait) return time_waits(rounds), 0;
  if (strcmp(name, "launch_p50") == 0) return time_each(launch, rounds, 0.5, false), 0;
  if (strcmp(name, "launch_p99") == 0) return time_each(launch, rounds, 0.99, false), 0;
  if (strcmp(name, "launch_measured") == 0) return time_each(launch, rounds, 0.5, true), 0;
  if (strcmp(name, "copy_p50") == 0) return time_each(copy, rounds, 0.5, false), 0;
  if (strcmp(name, "copy_p99") == 0) return time_each(copy, rounds, 0.99, false), 0;
  for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
    if (strcmp(calls[i].name, name) == 0) return time_rounds(&calls[i], rounds), 0;
  }
  return 2;
}
