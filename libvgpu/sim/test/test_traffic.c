/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_traffic.c - copies that take time and kernels that take of memory and link, through the driver's interface. The link
 * of these cards gives 1 GB/s: a MB takes a ms. What events tell is exact; what the host's clock tells is at least that.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "api_graph.h"
#include "gpu_time.h"

enum { MB = 1000000 };
static const double EXACT_MS = 0.0005;

static CUdeviceptr device_memory(size_t bytes) {
  CUdeviceptr pointer;
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, bytes), CUDA_SUCCESS);
  return pointer;
}

static void *pinned_memory(size_t bytes) {
  void *pointer;
  CHECK_EQUAL(cuMemHostAlloc(&pointer, bytes, 0), CUDA_SUCCESS);
  return pointer;
}

static CUfunction kernel_named(const char *name) {
  char text[512];
  CUmodule module;
  CUfunction found;
  snprintf(text, sizeof text, ".version 7.0\n.target sm_80\n.visible .entry %s()\n{ ret; }\n", name);
  CHECK_EQUAL(cuModuleLoadData(&module, text), CUDA_SUCCESS);
  CHECK_EQUAL(cuModuleGetFunction(&found, module, name), CUDA_SUCCESS);
  return found;
}

static void check_ms(double got, double wanted) {
  if (got < wanted - EXACT_MS || got > wanted + EXACT_MS) fprintf(stderr, "%.4f ms, not %.4f\n", got, wanted);
  CHECK(got >= wanted - EXACT_MS && got <= wanted + EXACT_MS);
}

/* Marks a time that comes when what is given to the stream next is surely there. */
static CUevent record_later(CUstream stream) {
  launch(kernel_named("busy_100ms_dram0"), 1, stream);
  return record(stream);
}

void test_copies_move_bytes(void) {
  enum { BYTES = 3 * MB };
  begin_cuda();
  CUdeviceptr device = device_memory(2 * BYTES);
  char *host = pinned_memory(2 * BYTES);
  CUstream stream = new_stream(1);
  for (int i = 0; i < BYTES; i++)
    host[i] = (char)(i % 97);
  CHECK_EQUAL(cuMemcpyHtoDAsync_v2(device, host, BYTES, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemcpyDtoDAsync_v2(device + BYTES, device, BYTES, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemcpyDtoH_v2(host + BYTES, device + BYTES, BYTES), CUDA_SUCCESS);
  CHECK(memcmp(host, host + BYTES, BYTES) == 0);
}

void test_copies_take_time(void) {
  begin_cuda();
  CUdeviceptr device = device_memory(20 * MB);
  char *host = pinned_memory(20 * MB);
  CUstream stream = new_stream(1);
  uint64_t start = now_ns();
  CHECK_EQUAL(cuMemcpyHtoD_v2(device, host, 20 * MB), CUDA_SUCCESS);
  CHECK(now_ns() - start >= 20u * MB);
  start = now_ns();
  CHECK_EQUAL(cuMemcpyDtoH_v2(host + 10 * MB, device, 10 * MB), CUDA_SUCCESS);
  CHECK(now_ns() - start >= 10u * MB);
  CHECK_EQUAL(status_number("rx_bytes"), 20 * MB);
  CHECK_EQUAL(status_number("tx_bytes"), 10 * MB);
  CHECK_EQUAL(status_number("rx"), 20 * MB); /* ns */
  CHECK_EQUAL(status_number("tx"), 10 * MB);

  CUevent marks[6];
  marks[0] = record_later(stream);
  CHECK_EQUAL(cuMemcpyHtoDAsync_v2(device, host, 20 * MB, stream), CUDA_SUCCESS);
  marks[1] = record(stream);
  CHECK_EQUAL(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  CHECK_EQUAL(cuMemcpyDtoHAsync_v2(host, device, 5 * MB, stream), CUDA_SUCCESS);
  marks[2] = record(stream);
  CHECK_EQUAL(cuMemcpyDtoDAsync_v2(device + 10 * MB, device, 10 * MB, stream), CUDA_SUCCESS); /* 10 GB/s, both ways */
  marks[3] = record(stream);
  CHECK_EQUAL(cuMemsetD8Async(device, 1, 20 * MB, stream), CUDA_SUCCESS);
  marks[4] = record(stream);
  const struct cu_memcpy2d box = {.src_type = CU_MEMORYTYPE_HOST,
                                  .src_host = host,
                                  .src_pitch = 2000,
                                  .dst_type = CU_MEMORYTYPE_DEVICE,
                                  .dst_device = device,
                                  .dst_pitch = 1000,
                                  .width_bytes = 1000,
                                  .height = 3000};
  start = now_ns();
  CHECK_EQUAL(cuMemcpy2D_v2(&box), CUDA_SUCCESS); /* waits for all before it */
  CHECK(now_ns() - start >= 3u * MB);
  CHECK_EQUAL(cuStreamQuery(stream), CUDA_SUCCESS);
  static const double wanted[] = {20, 5, 2, 2};
  for (int i = 0; i < 4; i++)
    check_ms(elapsed_ms(marks[i], marks[i + 1]), wanted[i]);
  CHECK_EQUAL(status_number("rx_bytes"), 43 * MB);
  CHECK_EQUAL(status_number("device"), 4 * MB);
  CHECK_EQUAL(status_number("dram_bytes"), (43 + 15 + 20 + 20) * MB);
}

void test_copies_of_graphs(void) {
  CUgraph graph;
  CUgraphNode node;
  CUgraphExec executable;
  CUcontext context = begin_cuda();
  CUdeviceptr device = device_memory(4 * MB);
  CUstream stream = new_stream(1);
  const struct cu_memcpy3d copy = {.src_type = CU_MEMORYTYPE_HOST,
                                   .src_host = pinned_memory(4 * MB),
                                   .dst_type = CU_MEMORYTYPE_DEVICE,
                                   .dst_device = device,
                                   .width_bytes = 4 * MB,
                                   .height = 1,
                                   .depth = 1};
  CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, context), CUDA_SUCCESS);
  CHECK_EQUAL(cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  CUevent start = record_later(stream);
  for (int i = 0; i < 3; i++)
    CHECK_EQUAL(cuGraphLaunch(executable, stream), CUDA_SUCCESS);
  check_ms(elapsed_ms(start, record(stream)), 12);
  CHECK_EQUAL(status_number("rx_bytes"), 12 * MB);
}

void test_pageable_and_latency(void) {
  begin_cuda();
  CUdeviceptr device = device_memory(4 * MB);
  CUstream stream = new_stream(1);
  char *pageable = calloc(1, 4 * MB);
  char *pinned = pinned_memory(4 * MB);
  CUevent marks[4];
  marks[0] = record_later(stream);
  CHECK_EQUAL(cuMemcpyHtoDAsync_v2(device, pinned, 4 * MB, stream), CUDA_SUCCESS);
  marks[1] = record(stream);
  CHECK_EQUAL(cuMemcpyHtoDAsync_v2(device, pageable, 4 * MB, stream), CUDA_SUCCESS);
  marks[2] = record(stream);
  CHECK_EQUAL(cuMemHostRegister_v2(pageable, 4 * MB, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemcpyDtoHAsync_v2(pageable, device, 4 * MB, stream), CUDA_SUCCESS);
  marks[3] = record(stream);
  check_ms(elapsed_ms(marks[0], marks[1]), 4 + 0.01);
  check_ms(elapsed_ms(marks[1], marks[2]), 10 + 0.01);
  check_ms(elapsed_ms(marks[2], marks[3]), 4 + 0.01);
}

/* Copies of another process, all the while: a child that copies for 2 s, and its end. */
static pid_t start_copying(void) {
  int ready[2];
  char byte;
  CHECK(pipe(ready) == 0);
  pid_t child = fork();
  if (child == 0) {
    begin_cuda();
    CUdeviceptr device = device_memory(100 * MB);
    char *host = pinned_memory(100 * MB);
    CUstream stream = new_stream(1);
    for (int i = 0; i < 20; i++)
      CHECK_EQUAL(cuMemcpyHtoDAsync_v2(device, host, 100 * MB, stream), CUDA_SUCCESS);
    CHECK(write(ready[1], "r", 1) == 1);
    pause();
  }
  close(ready[1]);
  CHECK(read(ready[0], &byte, 1) == 1);
  close(ready[0]);
  return child;
}

void test_copies_of_two_processes(void) {
  pid_t child = start_copying();
  begin_cuda();
  CUdeviceptr device = device_memory(30 * MB);
  char *host = pinned_memory(30 * MB);
  CUstream stream = new_stream(1);
  CUevent start = record_later(stream);
  CHECK_EQUAL(cuMemcpyHtoDAsync_v2(device, host, 30 * MB, stream), CUDA_SUCCESS);
  check_ms(elapsed_ms(start, record(stream)), 60);
  start = record_later(stream);
  CHECK_EQUAL(cuMemcpyDtoHAsync_v2(host, device, 30 * MB, stream), CUDA_SUCCESS);
  check_ms(elapsed_ms(start, record(stream)), 30);
  start = record_later(stream);
  CHECK_EQUAL(cuMemcpyHtoDAsync_v2(device, host, 30 * MB, stream), CUDA_SUCCESS);
  CUevent end = record(stream);
  kill(child, SIGKILL); /* gives the link back */
  CHECK_EQUAL(wait_for(child), 128 + SIGKILL);
  CHECK(elapsed_ms(start, end) < 59);
}

/* What a kernel's name says, told from what it moves. Its grid is small, so that it gets all that it wants. */
void test_kernel_names(void) {
  static const struct {
    const char *name;
    double ms, dram_mb, rx_mb, tx_mb;
  } cases[] = {{"busy_2ms_dram60", 2, 24, 0, 0},  {"dram60_bound90_busy_1ms_rx30", 1, 0, 0.3, 0},
               {"a_dram100_3ms", 3, 60, 0, 0},    {"busy_2ms_l2", 2, 0, 0, 0},
               {"busy_2ms_cache50", 2, 0, 0, 0},  {"busy_1ms_dram0", 1, 0, 0, 0},
               {"busy_1ms", 1, 2, 0, 0},          {"_Z15busy_1ms_tx50Pf", 1, 2, 0, 0.5},
               {"busy_1ms_dramatic", 1, 2, 0, 0}, {"busy_1ms_l2x_dram200", 1, 20, 0, 0}};
  begin_cuda();
  double dram = 0, rx = 0, tx = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    CUfunction function = kernel_named(cases[i].name);
    CUevent start = record_later(NULL);
    launch(function, 1, NULL);
    check_ms(elapsed_ms(start, record(NULL)), cases[i].ms);
    if (cases[i].rx_mb > 0) dram += 2; /* the machine's default: "dram60" at the beginning is no part */
    dram += cases[i].dram_mb;
    rx += cases[i].rx_mb;
    tx += cases[i].tx_mb;
    CHECK_EQUAL(status_number("dram_bytes"), (long long)(dram * MB + 0.5));
    CHECK_EQUAL(status_number("rx_bytes"), (long long)(rx * MB + 0.5));
    CHECK_EQUAL(status_number("tx_bytes"), (long long)(tx * MB + 0.5));
  }
}

/* Two processes' kernels that overlap want 120 % of DRAM: both take a fifth longer. With time slices they never meet. */
static double beside_another(const char *name) {
  int ready[2];
  char byte;
  CHECK(pipe(ready) == 0);
  pid_t child = fork();
  if (child == 0) {
    begin_cuda();
    launch(kernel_named("busy_2s_dram60"), 20, NULL);
    CHECK(write(ready[1], "r", 1) == 1);
    pause();
  }
  CHECK(read(ready[0], &byte, 1) == 1);
  begin_cuda();
  CUfunction function = kernel_named(name);
  CUevent start = record_later(NULL);
  launch(function, 20, NULL);
  double took = elapsed_ms(start, record(NULL));
  kill(child, SIGKILL);
  CHECK_EQUAL(wait_for(child), 128 + SIGKILL);
  return took;
}

void test_mps_shares_dram(void) {
  check_ms(beside_another("busy_20ms_dram60"), 24);
}

void test_slices_do_not_share_dram(void) {
  CHECK(beside_another("busy_1ms_dram60") < 1.001); /* less than a slice */
}

/* A copy between cards passes both links, and takes the time of one. */
void test_copies_between_cards(void) {
  CUcontext second;
  CUcontext first = begin_cuda();
  CUdeviceptr here = device_memory(4 * MB);
  CHECK_EQUAL(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxSetCurrent(second), CUDA_SUCCESS);
  CUdeviceptr there = device_memory(4 * MB);
  CHECK_EQUAL(cuCtxSetCurrent(first), CUDA_SUCCESS);
  CUstream stream = new_stream(1);
  CUevent start = record_later(stream);
  CHECK_EQUAL(cuMemcpyPeerAsync(there, second, here, first, 4 * MB, stream), CUDA_SUCCESS);
  check_ms(elapsed_ms(start, record(stream)), 4);
  CHECK_EQUAL(status_number("tx_bytes"), 4 * MB);
  CHECK_EQUAL(status_number("rx_bytes"), 0);
  CHECK_EQUAL(run("%s/gpusim status --json | grep -q '\"index\": 1.*\"rx_bytes\": 4000000'", sim_directory), 0);
}
