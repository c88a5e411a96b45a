/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_nvml.c - NVML beside libcuda: both tell the same.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

enum { MIB = 1 << 20 };

struct memory {
  unsigned long long total, free, used;
};

struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

struct process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

static nvmlDevice_t begin_nvml(unsigned index) {
  nvmlDevice_t device;
  CHECK_EQUAL(nvmlInit_v2(), 0);
  CHECK_EQUAL(nvmlDeviceGetHandleByIndex_v2(index, &device), 0);
  return device;
}

void test_nvml_memory(void) {
  struct memory memory;
  struct memory_v2 second = {.version = (unsigned)sizeof second | 2u << 24};
  CUdeviceptr pointer;
  nvmlDevice_t device;
  nvmlDevice_t same;
  char uuid[96];
  unsigned count;
  CHECK_EQUAL(nvmlDeviceGetCount_v2(&count), 1); /* uninitialised */
  device = begin_nvml(0);
  CHECK_EQUAL(nvmlDeviceGetCount_v2(&count), 0);
  CHECK_EQUAL(count, 2);
  begin_cuda();
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 5 * MIB), CUDA_SUCCESS);
  CHECK_EQUAL(nvmlDeviceGetMemoryInfo(device, &memory), 0);
  CHECK_EQUAL(memory.total, 2048ll * MIB);
  CHECK_EQUAL(memory.used, 105 * MIB);
  CHECK_EQUAL(memory.free, 1943ll * MIB);
  CHECK_EQUAL(nvmlDeviceGetMemoryInfo_v2(device, &second), 0);
  CHECK_EQUAL(second.reserved, 100 * MIB);
  CHECK_EQUAL(second.used, 5 * MIB);
  CHECK_EQUAL(second.free, 1943ll * MIB);
  second.version = 0;
  CHECK_EQUAL(nvmlDeviceGetMemoryInfo_v2(device, &second), 25);
  CHECK_EQUAL(nvmlDeviceGetUUID(device, uuid, sizeof uuid), 0);
  CHECK_EQUAL(nvmlDeviceGetUUID(device, uuid, 10), 7);
  CHECK_EQUAL(nvmlDeviceGetHandleByUUID(uuid, &same), 0);
  CHECK(device == same);
  CHECK_EQUAL(nvmlDeviceGetHandleByUUID("GPU-nonsense", &same), 6);
  CHECK_EQUAL(nvmlDeviceGetMemoryInfo((nvmlDevice_t)(uintptr_t)&memory, &memory), 2);
  CHECK_EQUAL(nvmlDeviceGetMemoryInfo(device, NULL), 2);
  CHECK_EQUAL(nvmlShutdown(), 0);
  CHECK_EQUAL(nvmlDeviceGetMemoryInfo(device, &memory), 1);
  CHECK_EQUAL(nvmlShutdown(), 1);
  CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS); /* the driver is not bothered */
}

void test_nvml_processes(void) {
  struct process list[8];
  unsigned count = 8;
  int ready[2];
  char byte;
  nvmlDevice_t device = begin_nvml(0);
  CHECK_EQUAL(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list), 0);
  CHECK_EQUAL(count, 0);
  CHECK(pipe(ready) == 0);
  pid_t child = fork();
  if (child == 0) {
    CUdeviceptr pointer;
    begin_cuda();
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 3 * MIB), CUDA_SUCCESS);
    CHECK(write(ready[1], "r", 1) == 1);
    pause();
  }
  CHECK(read(ready[0], &byte, 1) == 1);
  count = 0;
  CHECK_EQUAL(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL), 7);
  CHECK_EQUAL(count, 1);
  CHECK_EQUAL(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list), 0);
  CHECK_EQUAL(list[0].pid, child);
  CHECK_EQUAL(list[0].used_bytes, 3 * MIB);
  kill(child, SIGKILL);
  CHECK_EQUAL(wait_for(child), 128 + SIGKILL);
  CHECK_EQUAL(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list), 0);
  CHECK_EQUAL(count, 0);
}

/* A context is enough to be listed, and who has none any more is not, whatever it did. */
void test_nvml_contexts(void) {
  struct process list[8];
  unsigned count = 8;
  CUcontext first, second;
  nvmlDevice_t device = begin_nvml(0);
  CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
  CHECK_EQUAL(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list), 0);
  CHECK_EQUAL(count, 0);
  CHECK_EQUAL(cuCtxCreate_v2(&first, 0, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuDevicePrimaryCtxRetain(&second, 0), CUDA_SUCCESS);
  for (int left = 2; left > 0; left--) {
    count = 8;
    CHECK_EQUAL(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list), 0);
    CHECK_EQUAL(count, 1);
    CHECK(list[0].pid == (unsigned)getpid() && list[0].used_bytes == 0);
    if (left == 2) CHECK_EQUAL(cuCtxDestroy_v2(first), CUDA_SUCCESS);
  }
  CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  CHECK_EQUAL(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list), 0);
  CHECK_EQUAL(count, 0);
}

/* Pids are the caller's: a process in a pid namespace is seen from outside by its outer number, and does not see
 * those outside. */
void test_nvml_pid_namespaces(void) {
  struct process list[8];
  unsigned count = 8;
  int ready[2];
  char byte;
  CUdeviceptr pointer;
  CHECK(pipe(ready) == 0);
  pid_t outside = fork();
  if (outside == 0) {
    begin_cuda();
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 3 * MIB), CUDA_SUCCESS);
    CHECK(write(ready[1], "r", 1) == 1);
    pause();
  }
  CHECK(read(ready[0], &byte, 1) == 1);
  if (unshare(CLONE_NEWPID) != 0) skip_without("root", "needs a pid namespace");
  pid_t inside = fork();
  if (inside == 0) {
    CHECK_EQUAL(getpid(), 1);
    begin_cuda();
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 5 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(nvmlDeviceGetComputeRunningProcesses_v3(begin_nvml(0), &count, list), 0);
    CHECK_EQUAL(count, 1);
    CHECK_EQUAL(list[0].pid, 1);
    CHECK_EQUAL(list[0].used_bytes, 5 * MIB);
    CHECK(write(ready[1], "r", 1) == 1);
    pause();
  }
  CHECK(read(ready[0], &byte, 1) == 1);
  CHECK_EQUAL(nvmlDeviceGetComputeRunningProcesses_v3(begin_nvml(0), &count, list), 0);
  CHECK_EQUAL(count, 2);
  CHECK(list[0].pid == (unsigned)outside && list[1].pid == (unsigned)inside);
  CHECK_EQUAL(list[1].used_bytes, 5 * MIB);
}

void test_nvml_faults(void) {
  struct memory memory;
  nvmlDevice_t first = begin_nvml(0);
  nvmlDevice_t second = begin_nvml(1);
  CHECK_EQUAL(run("%s/gpusim fault set --call 'nvmlDeviceGet*' --result 15 --gpu 1", sim_directory), 0);
  CHECK_EQUAL(nvmlDeviceGetMemoryInfo(first, &memory), 0);
  CHECK_EQUAL(nvmlDeviceGetMemoryInfo(second, &memory), 15);
  CHECK_EQUAL(nvmlDeviceGetHandleByIndex_v2(1, &second), 15);
  CHECK_EQUAL(run("%s/gpusim fault clear", sim_directory), 0);
  CHECK_EQUAL(nvmlDeviceGetMemoryInfo(second, &memory), 0);
}

void test_nvml_events(void) {
  struct {
    nvmlDevice_t device;
    unsigned long long type, data;
    unsigned instances[2];
  } event;
  void *set;
  nvmlDevice_t device = begin_nvml(1);
  CHECK_EQUAL(nvmlEventSetCreate(&set), 0);
  CHECK_EQUAL(run("%s/gpusim xid --gpu 1 31", sim_directory), 0); /* before anybody registered */
  CHECK_EQUAL(nvmlDeviceRegisterEvents(device, 8, set), 0);
  uint64_t start = now_ns();
  CHECK_EQUAL(nvmlEventSetWait_v2(set, &event, 50), 10);
  CHECK(now_ns() - start >= 50000000u);
  CHECK_EQUAL(run("%s/gpusim xid --gpu 0 13", sim_directory), 0); /* not registered */
  CHECK_EQUAL(run("%s/gpusim xid --gpu 1 79", sim_directory), 0);
  CHECK_EQUAL(nvmlEventSetWait_v2(set, &event, 5000), 0);
  CHECK(event.device == device);
  CHECK_EQUAL(event.data, 79);
  CHECK_EQUAL(nvmlEventSetWait_v2(set, &event, 0), 10);
}
