/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml.c - NVML shows the same slice as CUDA, in both structs.   nvml LIMIT CARD
 */
#include "driver.h"

static void check_sizes(uint64_t total, uint64_t free_bytes, uint64_t used, uint64_t limit, uint64_t in_use,
                        const char *which) {
  CHECK_EQUAL(total, limit, which);
  CHECK_EQUAL(used, in_use, which);
  CHECK_EQUAL(free_bytes, limit - in_use, which);
}

/* Both structs, wrong versions, guard bytes. */
static void test_structs(nvmlDevice_t device, uint64_t limit, uint64_t in_use) {
  struct {
    nvmlMemory_v2_t memory;
    uint8_t guard[64];
  } second;
  nvmlMemory_t first;
  CHECK_EQUAL(nvmlDeviceGetMemoryInfo(device, &first), 0, "nvmlDeviceGetMemoryInfo");
  check_sizes(first.total, first.free, first.used, limit, in_use, "version 1");
  memset(&second, 0xaa, sizeof(second));
  second.memory.version = 0x02000028;
  CHECK_EQUAL(nvmlDeviceGetMemoryInfo_v2(device, &second.memory), 0, "nvmlDeviceGetMemoryInfo_v2");
  check_sizes(second.memory.total, second.memory.free, second.memory.used, limit, in_use, "version 2");
  CHECK_EQUAL(second.memory.version, 0x02000028, "version unchanged");
  CHECK_EQUAL(second.memory.reserved + second.memory.free + second.memory.used, second.memory.total, "sum");
  int touched = 0;
  for (unsigned i = 0; i < sizeof(second.guard); i++)
    touched += second.guard[i] != 0xaa;
  CHECK_EQUAL(touched, 0, "guard bytes touched");
  memset(&second, 0xaa, sizeof(second));
  second.memory.version = 0x03000028;
  CHECK(nvmlDeviceGetMemoryInfo_v2(device, &second.memory) != 0, "an unknown version is refused");
  CHECK_EQUAL((uint8_t)(second.memory.total & 0xff), 0xaa, "and its struct is left alone");
  second.memory.version = 0;
  CHECK(nvmlDeviceGetMemoryInfo_v2(device, &second.memory) != 0, "version 0 is refused");
  CHECK_EQUAL(nvmlDeviceGetMemoryInfo(device, NULL), 2, "NULL is NVML's invalid argument");
  CHECK_EQUAL(nvmlDeviceGetMemoryInfo_v2(device, NULL), 2, "NULL is NVML's invalid argument");
}

int main(int argc, char **argv) {
  uint64_t limit = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
  CUdeviceptr pointer;
  nvmlDevice_t device;
  CHECK_EQUAL(nvmlInit_v2(), 0, "nvmlInit");
  CHECK_EQUAL(nvmlDeviceGetHandleByIndex_v2(0, &device), 0, "handle");
  test_structs(device, limit, 0);
  use_device(0);
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 500 * MIB), 0, "500 MiB");
  test_structs(device, limit, 500 * MIB);
  CHECK_EQUAL(total_bytes(), limit, "CUDA's total is the same");
  CHECK_EQUAL(used_bytes(), 500 * MIB, "CUDA's used is the same");
  CHECK_EQUAL(cuMemFree_v2(pointer), 0, "free");
  CHECK_EQUAL(nvmlShutdown(), 0, "nvmlShutdown");
  return check_done();
}
