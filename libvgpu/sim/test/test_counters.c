/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_counters.c - what NVML shows of traffic, clocks and the link, and `gpusim set` while a card is used. The link gives
 * 1 GB/s, DRAM 20 GB/s, and nobody's traffic is 20 MB/s.
 */
#define _GNU_SOURCE
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpu_time.h"

enum { MB = 1000000, TX = 0, RX = 1, SM = 1, MEMORY = 2, NOT_SUPPORTED = 3 };

struct rates {
  unsigned gpu, memory;
};

struct process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

struct metric {
  unsigned id;
  int result;
  double value;
  const char *short_name, *long_name, *unit;
};

struct metrics {
  unsigned version, count;
  void *first, *second;
  struct metric metrics[477]; /* as bindings of newer headers have it */
};

static nvmlDevice_t begin_nvml(void) {
  nvmlDevice_t device;
  CHECK_EQUAL(nvmlInit_v2(), 0);
  CHECK_EQUAL(nvmlDeviceGetHandleByIndex_v2(0, &device), 0);
  return device;
}

static void change(const char *pairs) {
  CHECK_EQUAL(run("%s/gpusim set %s", sim_directory, pairs), 0);
}

static void rest_ms(long ms) {
  const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * MB};
  nanosleep(&pause, NULL);
}

/* Gives the card copies to it for five seconds, and a kernel that takes half of DRAM meanwhile. */
static void make_traffic(void) {
  CUdeviceptr device;
  CUstream stream;
  CUmodule module;
  CUfunction function;
  void *host;
  begin_cuda();
  CHECK_EQUAL(cuMemAlloc_v2(&device, 100 * MB), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemHostAlloc(&host, 100 * MB, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamCreate(&stream, 1), CUDA_SUCCESS);
  for (int i = 0; i < 50; i++)
    CHECK_EQUAL(cuMemcpyHtoDAsync_v2(device, host, 100 * MB, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuModuleLoadData(&module, ".version 7.0\n.target sm_80\n.visible .entry busy_5s_dram50()\n{ ret; }\n"),
              0);
  CHECK_EQUAL(cuModuleGetFunction(&function, module, "busy_5s_dram50"), CUDA_SUCCESS);
  launch(function, 54, NULL); /* a quarter of the card */
}

static unsigned throughput(nvmlDevice_t device, int counter) {
  unsigned value;
  CHECK_EQUAL(nvmlDeviceGetPcieThroughput(device, counter, &value), 0);
  return value;
}

static void check_part(double got, double wanted, double off) {
  if (got < wanted - off || got > wanted + off) fprintf(stderr, "%f, not %f\n", got, wanted);
  CHECK(got >= wanted - off && got <= wanted + off);
}

void test_nvml_traffic(void) {
  struct rates rates;
  unsigned value;
  nvmlDevice_t device = begin_nvml();
  CHECK_EQUAL(throughput(device, RX), 20000); /* nobody's */
  CHECK_EQUAL(nvmlDeviceGetPcieThroughput(device, 2, &value), 2);
  CHECK_EQUAL(nvmlDeviceGetPcieThroughput(device, RX, NULL), 2);
  make_traffic();
  rest_ms(50);
  uint64_t start = now_ns();
  CHECK_EQUAL(throughput(device, RX), 1020000);
  CHECK(now_ns() - start >= 20u * MB);
  CHECK_EQUAL(throughput(device, TX), 20000);
  rest_ms(200);
  CHECK_EQUAL(nvmlDeviceGetUtilizationRates(device, &rates), 0);
  CHECK_EQUAL(rates.gpu, 100);
  CHECK_EQUAL(rates.memory, 100);
  change("pcie_rx_permille=500");
  rest_ms(40);
  CHECK_EQUAL(throughput(device, RX), 520000);
  change("link_generation=3 link_width=8 pcie_rx_permille=1000");
  rest_ms(40);
  CHECK_EQUAL(throughput(device, RX), 270000);
  change("counter_noise_permille=100");
  unsigned least = UINT32_MAX;
  unsigned most = 0;
  for (int i = 0; i < 10; i++) {
    value = throughput(device, RX);
    least = value < least ? value : least;
    most = value > most ? value : most;
  }
  CHECK(least < most && least >= 243000 && most <= 297000);
}

/* The counters come late: what was copied before they were asked first is shown when the lag has passed. */
void test_nvml_traffic_lags(void) {
  nvmlDevice_t device = begin_nvml();
  make_traffic();
  rest_ms(50);
  CHECK_EQUAL(throughput(device, RX), 20000);
  rest_ms(1050);
  CHECK_EQUAL(throughput(device, RX), 1020000);
}

void test_nvml_link_and_clocks(void) {
  unsigned value;
  unsigned long long reasons;
  nvmlDevice_t device = begin_nvml();
  CHECK_EQUAL(nvmlDeviceGetClockInfo(device, SM, &value), 0);
  CHECK_EQUAL(value, 210);
  CHECK_EQUAL(nvmlDeviceGetCurrentClocksThrottleReasons(device, &reasons), 0);
  CHECK_EQUAL(reasons, 1);
  make_traffic();
  rest_ms(250);
  CHECK_EQUAL(nvmlDeviceGetClockInfo(device, SM, &value), 0);
  CHECK_EQUAL(value, 1410);
  change("clock_permille=800 memory_clock_permille=900 throttle=0x24 link_generation=3 link_width=4 compute_mode=3");
  CHECK_EQUAL(nvmlDeviceGetClockInfo(device, SM, &value), 0);
  CHECK_EQUAL(value, 1128);
  CHECK_EQUAL(nvmlDeviceGetClockInfo(device, MEMORY, &value), 0);
  CHECK_EQUAL(value, 1433);
  CHECK_EQUAL(nvmlDeviceGetMaxClockInfo(device, SM, &value), 0);
  CHECK_EQUAL(value, 1410);
  CHECK_EQUAL(nvmlDeviceGetMaxClockInfo(device, MEMORY, &value), 0);
  CHECK_EQUAL(value, 1593);
  CHECK_EQUAL(nvmlDeviceGetCurrentClocksEventReasons(device, &reasons), 0);
  CHECK_EQUAL(reasons, 0x24);
  CHECK_EQUAL(nvmlDeviceGetCurrPcieLinkGeneration(device, &value), 0);
  CHECK_EQUAL(value, 3);
  CHECK_EQUAL(nvmlDeviceGetMaxPcieLinkGeneration(device, &value), 0);
  CHECK_EQUAL(value, 4);
  CHECK_EQUAL(nvmlDeviceGetPcieSpeed(device, &value), 0);
  CHECK_EQUAL(value, 8000);
  CHECK_EQUAL(nvmlDeviceGetCurrPcieLinkWidth(device, &value), 0);
  CHECK_EQUAL(value, 4);
  CHECK_EQUAL(nvmlDeviceGetMaxPcieLinkWidth(device, &value), 0);
  CHECK_EQUAL(value, 16);
  CHECK_EQUAL(nvmlDeviceGetComputeMode(device, &value), 0);
  CHECK_EQUAL(value, 3);
  change("link_generation=0 link_width=0 throttle=0 clock_permille=1000");
  CHECK_EQUAL(nvmlDeviceGetCurrPcieLinkGeneration(device, &value), 0);
  CHECK_EQUAL(value, 4);
}

/* Changes hold for one card or all, from now on, all or none. */
void test_tool_set(void) {
  CUcontext second;
  begin_cuda();
  CUfunction here = kernel("busy_20ms");
  launch(here, 216, NULL); /* so that what is measured is there when it begins */
  CUevent start = record(NULL);
  launch(here, 216, NULL);
  CUevent end = record(NULL);
  change("--gpu 1 clock_permille=500");
  check_part(elapsed_ms(start, end), 20, 0.001);
  CHECK_EQUAL(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxSetCurrent(second), CUDA_SUCCESS);
  CUfunction there = kernel("busy_20ms");
  launch(there, 216, NULL);
  start = record(NULL);
  launch(there, 216, NULL);
  check_part(elapsed_ms(start, record(NULL)), 40, 0.001);
  change("gpu.1.clock_permille=1000 kernel_jitter_permille=0");
  launch(there, 216, NULL);
  start = record(NULL);
  launch(there, 216, NULL);
  check_part(elapsed_ms(start, record(NULL)), 20, 0.001);
  CHECK_EQUAL(run("%s/gpusim set clock_permille=500 memory=1GiB 2>/dev/null", sim_directory), 2);
  CHECK_EQUAL(run("%s/gpusim set clock_permille=1001 2>/dev/null", sim_directory), 2);
  CHECK_EQUAL(run("%s/gpusim set --gpu 2 clock_permille=500 2>/dev/null", sim_directory), 2);
  CHECK_EQUAL(run("%s/gpusim set nvml_sample_ms=20 2>/dev/null", sim_directory), 2);
  CHECK_EQUAL(run("%s/gpusim set --gpu 1 sharing=mps 2>/dev/null", sim_directory), 2);
  CHECK_EQUAL(run("%s/gpusim set 2>/dev/null", sim_directory), 2);
  launch(there, 216, NULL);
  start = record(NULL);
  launch(there, 216, NULL);
  check_part(elapsed_ms(start, record(NULL)), 20, 0.001);
}

void test_nvml_mps(void) {
  struct process clients[4];
  unsigned count = 4;
  nvmlDevice_t device = begin_nvml();
  make_traffic();
  CHECK_EQUAL(nvmlDeviceGetMPSComputeRunningProcesses_v3(device, &count, clients), 0);
  CHECK_EQUAL(count, 0);
  change("sharing=mps");
  count = 4;
  CHECK_EQUAL(nvmlDeviceGetMPSComputeRunningProcesses_v3(device, &count, clients), 0);
  CHECK_EQUAL(count, 1);
  CHECK_EQUAL(clients[0].pid, getpid());
  count = 4;
  CHECK_EQUAL(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, clients), 0);
  CHECK_EQUAL(count, 1);
}

void test_gpm(void) {
  static struct metrics wanted;
  unsigned support[2] = {1, 7};
  void *samples[2];
  nvmlDevice_t device = begin_nvml();
  CHECK_EQUAL(nvmlGpmQueryDeviceSupport(device, support), 0);
  CHECK_EQUAL(support[1], 1);
  support[0] = 2;
  CHECK_EQUAL(nvmlGpmQueryDeviceSupport(device, support), 25);
  CHECK_EQUAL(nvmlGpmSampleAlloc(NULL), 2);
  CHECK_EQUAL(nvmlGpmSampleAlloc(&samples[0]), 0);
  CHECK_EQUAL(nvmlGpmSampleAlloc(&samples[1]), 0);
  wanted.version = 1;
  wanted.count = 8;
  wanted.first = samples[0];
  wanted.second = samples[1];
  CHECK_EQUAL(nvmlGpmMetricsGet(&wanted), 2); /* nothing in them */
  static const unsigned ids[] = {1, 2, 3, 10, 20, 21, 60, 476};
  for (int i = 0; i < 8; i++)
    wanted.metrics[i].id = ids[i];
  wanted.metrics[8].result = -5; /* is not asked for, so is left alone */
  make_traffic();
  rest_ms(150);
  CHECK_EQUAL(nvmlGpmSampleGet(device, samples[0]), 0);
  rest_ms(300);
  CHECK_EQUAL(nvmlGpmSampleGet(device, samples[1]), 0);
  CHECK_EQUAL(nvmlGpmMetricsGet(&wanted), 0);
  static const double values[] = {100, 20.45, 20.45, 55, 20 / 1.048576, 1020 / 1.048576};
  static const double off[] = {0, 0.1, 0.1, 0.001, 0.001, 0.001};
  for (int i = 0; i < 6; i++) {
    CHECK_EQUAL(wanted.metrics[i].result, 0);
    check_part(wanted.metrics[i].value, values[i], off[i]);
  }
  CHECK_EQUAL(wanted.metrics[6].result, NOT_SUPPORTED);
  CHECK_EQUAL(wanted.metrics[7].result, NOT_SUPPORTED);
  CHECK_EQUAL(wanted.metrics[8].result, -5);
  CHECK(strcmp(wanted.metrics[3].unit, "%") == 0);

  change("dram_floor_permille=20");
  CHECK_EQUAL(nvmlGpmMetricsGet(&wanted), 0);
  check_part(wanted.metrics[3].value, 57, 0.001);
  change("gpm_missing=10,21");
  CHECK_EQUAL(nvmlGpmMetricsGet(&wanted), 0);
  CHECK_EQUAL(wanted.metrics[3].result, NOT_SUPPORTED);
  CHECK_EQUAL(wanted.metrics[4].result, 0);
  CHECK_EQUAL(wanted.metrics[5].result, NOT_SUPPORTED);
  wanted.second = wanted.first;
  CHECK_EQUAL(nvmlGpmMetricsGet(&wanted), 0);
  CHECK_EQUAL(wanted.metrics[0].result, 21);
  wanted.first = samples[1];
  CHECK_EQUAL(nvmlGpmMetricsGet(&wanted), 2); /* the wrong way round */
  wanted.version = 2;
  CHECK_EQUAL(nvmlGpmMetricsGet(&wanted), 25);
  change("gpm=0");
  CHECK_EQUAL(nvmlGpmSampleGet(device, samples[0]), NOT_SUPPORTED);
  CHECK_EQUAL(nvmlGpmSampleFree(samples[0]), 0);
  CHECK_EQUAL(nvmlGpmSampleFree(NULL), 2);
}

/* Cards before Hopper have none, unless they are told so. */
void test_gpm_is_of_hopper(void) {
  unsigned support[2] = {1, 7};
  void *sample;
  nvmlDevice_t device = begin_nvml();
  CHECK_EQUAL(nvmlGpmQueryDeviceSupport(device, support), 0);
  CHECK_EQUAL(support[1], 0);
  CHECK_EQUAL(nvmlGpmSampleAlloc(&sample), 0);
  CHECK_EQUAL(nvmlGpmSampleGet(device, sample), NOT_SUPPORTED);
  change("gpm=1");
  CHECK_EQUAL(nvmlGpmSampleGet(device, sample), 0);
}

/* Counters that fail or hang are injected faults like those of any call. */
void test_counters_fail(void) {
  unsigned value;
  nvmlDevice_t device = begin_nvml();
  CHECK_EQUAL(run("%s/gpusim fault set --call nvmlDeviceGetPcieThroughput --result 3 --count 1", sim_directory), 0);
  CHECK_EQUAL(nvmlDeviceGetPcieThroughput(device, RX, &value), NOT_SUPPORTED);
  CHECK_EQUAL(nvmlDeviceGetPcieThroughput(device, RX, &value), 0);
  CHECK_EQUAL(run("%s/gpusim fault set --call 'nvmlGpm*' --result 0 --delay 300", sim_directory), 0);
  uint64_t start = now_ns();
  unsigned support[2] = {1, 7};
  CHECK_EQUAL(nvmlGpmQueryDeviceSupport(device, support), 0);
  CHECK(now_ns() - start >= 300u * MB);
}
