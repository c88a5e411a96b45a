/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_device.c - devices, their visibility, contexts.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

void test_devices_and_attributes(void) {
  char text[64];
  size_t bytes;
  int count;
  int value;
  CUdevice device;
  CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
  CHECK_EQUAL(cuDeviceGetCount(&count), CUDA_SUCCESS);
  CHECK_EQUAL(count, 2);
  CHECK_EQUAL(cuDeviceGet(&device, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
  CHECK_EQUAL(cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
  CHECK_EQUAL(cuDeviceGetName(text, sizeof text, 0), CUDA_SUCCESS);
  CHECK(strcmp(text, "NVIDIA H100 80GB HBM3") == 0);
  CHECK_EQUAL(cuDeviceTotalMem_v2(&bytes, 1), CUDA_SUCCESS);
  CHECK_EQUAL(bytes, 23ll << 30); /* less what the driver keeps */
  CHECK_EQUAL(cuDeviceGetAttribute(&value, 75, 0), CUDA_SUCCESS);
  CHECK_EQUAL(value, 9);
  CHECK_EQUAL(cuDeviceGetAttribute(&value, 16, 0), CUDA_SUCCESS);
  CHECK_EQUAL(value, 132);
  CHECK_EQUAL(cuDeviceGetAttribute(&value, 0, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuDeviceGetAttribute(NULL, 1, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuDeviceGetAttribute(&value, 1, 7), CUDA_ERROR_INVALID_DEVICE);
  for (int attribute = 1; attribute < 120; attribute++) {
    value = -7;
    CHECK_EQUAL(cuDeviceGetAttribute(&value, attribute, 0), CUDA_SUCCESS);
    CHECK(value >= 0);
  }
  CHECK_EQUAL(cuDeviceGetPCIBusId(text, sizeof text, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuDeviceGetByPCIBusId(&device, text), CUDA_SUCCESS);
  CHECK_EQUAL(device, 1);
}

/* Answers the last byte of the UUIDs seen, as a decimal number of its own: "012", "" none, "!" no cuInit. */
static void seen_with(const char *list, const char *wanted) {
  if (list)
    setenv("CUDA_VISIBLE_DEVICES", list, 1);
  else
    unsetenv("CUDA_VISIBLE_DEVICES");
  pid_t child = fork();
  if (child == 0) {
    char seen[16] = "";
    CUuuid uuid;
    int count = 0;
    CUresult result = cuInit(0);
    if (result == CUDA_ERROR_NO_DEVICE)
      strcpy(seen, "!");
    else
      CHECK_EQUAL(result, CUDA_SUCCESS);
    if (result == CUDA_SUCCESS) CHECK_EQUAL(cuDeviceGetCount(&count), CUDA_SUCCESS);
    for (int i = 0; i < count; i++) {
      CHECK_EQUAL(cuDeviceGetUuid_v2(&uuid, i), CUDA_SUCCESS);
      snprintf(seen + i, sizeof seen - (size_t)i, "%d", uuid.bytes[15]);
    }
    if (strcmp(seen, wanted) != 0) fprintf(stderr, "CUDA_VISIBLE_DEVICES=%s shows %s\n", list ? list : "(unset)", seen);
    exit(strcmp(seen, wanted) == 0 ? 0 : 1);
  }
  CHECK_EQUAL(wait_for(child), 0);
}

void test_visible_devices(void) {
  seen_with(NULL, "012");
  seen_with("0", "0");
  seen_with("2,0", "20");
  seen_with("1,7,2", "1"); /* up to the first invalid one */
  seen_with("", "!");
  seen_with("-1", "!");
  seen_with("0,-1,1", "0");
  seen_with("x", "!");
  seen_with("GPU-bbbb", "2");
  seen_with("GPU-BBBB", "2");
  seen_with("GPU-aaaa", "!"); /* not unique */
  seen_with("GPU-aaaa1,GPU-aaaa0", "10");
  seen_with("GPU-bbbb0000-0000-4000-8000-000000000002,0", "20");
  seen_with("1,1", "1");
}

void test_no_directory_no_device(void) {
  int version = -1;
  setenv("GPUSIM_DIR", "/nonexistent/cards", 1);
  CHECK_EQUAL(cuInit(0), CUDA_ERROR_NO_DEVICE);
  CHECK_EQUAL(cuDeviceGetCount(&version), CUDA_ERROR_NOT_INITIALIZED);
  CHECK_EQUAL(cuDriverGetVersion(&version), CUDA_SUCCESS);
  CHECK_EQUAL(version, 0);
  CHECK_EQUAL(nvmlInit_v2(), 9);
}

void test_bad_config_is_refused(void) {
  static const char *const bad[] = {"--memory 80G",
                                    "--memory -1",
                                    "--gpus 17",
                                    "--set nonsense=1",
                                    "--set model=RIVA128",
                                    "--set uuid.0=GPU-12",
                                    "--set pitch_alignment=100",
                                    "--set memory",
                                    "--set sharing=fair",
                                    "--set timeslice_us=0",
                                    "--set kernel_jitter_permille=901",
                                    "--set event_scale_permille=10001",
                                    "--set nvml_sample_ms=100 --set nvml_lag_ms=1401",
                                    "--set nvml_missing_percent=101",
                                    "--frobnicate"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    CHECK(run("GPUSIM_DIR=$GPUSIM_DIR/x %s/gpusim init %s 2>/dev/null", sim_directory, bad[i]) != 0);
  CHECK_EQUAL(run("%s/gpusim --help | grep -q reset-high-water", sim_directory), 0);
  CHECK_EQUAL(run("%s/gpusim frobnicate 2>/dev/null", sim_directory), 2);
}

void test_tool_speaks_to_people(void) {
  const char *tool = sim_directory;
  CHECK_EQUAL(run("%s/gpusim init --set model=L4 | grep -q '^GPU 0  NVIDIA L4  '", tool), 0);
  CHECK_EQUAL(run("%s/gpusim status | grep -q 'total 23034 MiB, '", tool), 0);
  CHECK_EQUAL(run("%s/gpusim init --help | grep -q reset-high-water", tool), 0);
  CHECK_EQUAL(run("%s/gpusim fault set --call cuMemAlloc --result 2 2>&1 | grep -q cuMemAlloc_v2", tool), 0);
  CHECK_EQUAL(run("test -z \"$(%s/gpusim fault set --call cuMemAlloc_v2 --result 2 2>&1)\"", tool), 0);
  CHECK_EQUAL(run("%s/gpusim init --set model=L5 2>&1 | grep -q 'L40S, L4, T4'", tool), 0);
  CHECK_EQUAL(run("test \"$(%s/gpusim status 2>&1 | wc -l)\" = 1", tool), 0);
}

static long long held(void) {
  return (long long)status_number("used_bytes");
}

void test_primary_context(void) {
  CUcontext first;
  CUcontext second;
  CUdeviceptr memory;
  CUdevice device;
  unsigned flags;
  int active;
  CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
  CHECK_EQUAL(cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
  CHECK_EQUAL(active, 0);
  CHECK_EQUAL(held(), 0);
  CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
  CHECK_EQUAL(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
  CHECK_EQUAL(cuDevicePrimaryCtxRetain(&first, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuDevicePrimaryCtxRetain(&second, 0), CUDA_SUCCESS);
  CHECK(first == second);
  CHECK_EQUAL(held(), 300ll << 20);
  CHECK_EQUAL(cuCtxSetCurrent(first), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 1000), CUDA_SUCCESS);
  CHECK_EQUAL(held(), (300ll << 20) + 1000);
  CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  CHECK_EQUAL(held(), (300ll << 20) + 1000);
  CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  CHECK_EQUAL(held(), 0);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 1000), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK_EQUAL(cuDevicePrimaryCtxRetain(&second, 0), CUDA_SUCCESS);
  CHECK(first == second);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 1000), CUDA_SUCCESS);
  CHECK_EQUAL(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
  CHECK_EQUAL(held(), 0);
}

void test_created_contexts(void) {
  CUcontext first;
  CUcontext second;
  CUcontext current;
  CUdeviceptr memory;
  CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  CHECK(current == NULL);
  CHECK_EQUAL(cuCtxCreate_v2(&first, 0, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 5000), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxCreate_v3(&second, NULL, 0, 0, 0), CUDA_SUCCESS);
  CHECK_EQUAL(held(), (20ll << 20) + 5000);
  CHECK_EQUAL(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  CHECK(current == second);
  CHECK_EQUAL(cuCtxPopCurrent_v2(&current), CUDA_SUCCESS);
  CHECK(current == second);
  CHECK_EQUAL(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  CHECK(current == first);
  CHECK_EQUAL(cuCtxDestroy_v2(first), CUDA_SUCCESS);
  CHECK_EQUAL(held(), 10ll << 20); /* its memory went with it */
  CHECK_EQUAL(cuMemFree_v2(memory), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuCtxDestroy_v2(first), CUDA_ERROR_INVALID_CONTEXT);
  CHECK_EQUAL(cuCtxDestroy_v2((CUcontext)(uintptr_t)0x1234), CUDA_ERROR_INVALID_CONTEXT);
  CHECK_EQUAL(cuCtxPopCurrent_v2(&current), CUDA_ERROR_INVALID_CONTEXT);
  CHECK_EQUAL(cuCtxPushCurrent_v2(second), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxDestroy_v2(second), CUDA_SUCCESS);
  CHECK_EQUAL(held(), 0);
}

void test_context_overhead_may_not_fit(void) {
  CUcontext context;
  CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
  for (int i = 0; i < 3; i++)
    CHECK_EQUAL(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(held(), 900ll << 20);
}

/* Cards are there for those who can open their nodes, and who uses a card holds its node. In a mount namespace with
 * a /dev of its own, where nodes of the null device stand for the cards'. */
void test_device_nodes(void) {
  char target[64];
  char path[64];
  nvmlDevice_t device;
  int count = 0;
  unsigned cards = 0;
  int holds = 0;
  if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0) skip_without("root", "needs a mount namespace");
  CHECK_EQUAL(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
  CHECK_EQUAL(mount("none", "/dev", "tmpfs", 0, NULL), 0);
  if (mknod("/dev/nvidia1", S_IFCHR | 0666, makedev(1, 3)) != 0) skip_without("root", "needs to make device nodes");
  CHECK_EQUAL(nvmlInit_v2(), 0);
  CHECK_EQUAL(nvmlDeviceGetCount_v2(&cards), 0);
  CHECK_EQUAL(cards, 1);
  CHECK_EQUAL(nvmlDeviceGetHandleByIndex_v2(0, &device), 0);
  begin_cuda();
  CHECK_EQUAL(cuDeviceGetCount(&count), CUDA_SUCCESS);
  CHECK_EQUAL(count, 1);
  for (int fd = 0; fd < 64; fd++) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0) continue;
    target[length] = 0;
    holds += strcmp(target, "/dev/nvidia1") == 0;
  }
  CHECK(holds > 0);
}
