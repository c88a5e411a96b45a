/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pools.c - pools that a program makes and destroys: pools many | destroyed | current | failed, in 1000 MiB; pools
 * other-device.
 */
#include "driver.h"

static CUmemoryPool new_pool_on(CUdevice device) {
  CUmemPoolProps properties = {.allocation_type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
  CUmemoryPool pool = NULL;
  CHECK_EQUAL(cuMemPoolCreate(&pool, &properties), 0, "create");
  return pool;
}

static CUmemoryPool new_pool(void) {
  return new_pool_on(0);
}

static CUresult use(CUmemoryPool pool, uint64_t bytes) {
  CUdeviceptr pointer;
  CUresult result = cuMemAllocFromPoolAsync(&pointer, bytes, pool, NULL);
  if (result != CUDA_SUCCESS) return result;
  CHECK_EQUAL(cuMemFreeAsync(pointer, NULL), 0, "free");
  CHECK_EQUAL(cuStreamSynchronize(NULL), 0, "synchronize");
  return result;
}

/* More pools than anybody keeps a fixed table for. */
static void test_many(void) {
  enum { POOLS = 200, ROUNDS = 4 };
  CUmemoryPool pools[POOLS];
  for (int i = 0; i < POOLS; i++)
    pools[i] = new_pool();
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < POOLS; i++)
      CHECK_EQUAL(use(pools[i], 600 * MIB), 0, "600 MiB in turn");
  }
  CHECK_EQUAL(used_bytes(), 0, "used");
  for (int i = 0; i < POOLS; i++)
    CHECK_EQUAL(cuMemPoolDestroy(pools[i]), 0, "destroy");
}

/* A pool that is destroyed while a block of it is in use lives until that is freed, and so does its charge. */
static void test_destroyed(void) {
  CUdeviceptr pointer, other;
  for (int round = 0; round < 20; round++) {
    CUmemoryPool pool = new_pool();
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&pointer, 600 * MIB, pool, NULL), 0, "600 MiB");
    CHECK_EQUAL(cuMemPoolDestroy(pool), 0, "destroy");
    CHECK(cuMemPoolDestroy(pool) != 0, "not twice");
    CHECK(cuMemAllocFromPoolAsync(&other, 1, pool, NULL) != 0, "nothing more from it");
    CHECK_EQUAL(used_bytes(), 600 * MIB, "its memory is held");
    CHECK_EQUAL(cuMemAlloc_v2(&other, 401 * MIB), CUDA_ERROR_OUT_OF_MEMORY, "and charged");
    CHECK_EQUAL(cuMemFreeAsync(pointer, NULL), 0, "free");
    CHECK_EQUAL(cuStreamSynchronize(NULL), 0, "synchronize");
    CHECK_EQUAL(used_bytes(), 0, "used at the end");
  }
}

/* A device whose current pool is destroyed goes back to its default one; that one cannot be destroyed. */
static void test_current(void) {
  CUmemoryPool pool = new_pool(), first, current;
  CUdeviceptr pointer;
  CHECK_EQUAL(cuDeviceGetDefaultMemPool(&first, 0), 0, "default pool");
  CHECK_EQUAL(cuDeviceSetMemPool(0, pool), 0, "another pool");
  CHECK_EQUAL(cuMemAllocAsync(&pointer, 100 * MIB, NULL), 0, "100 MiB");
  CHECK_EQUAL(cuMemPoolDestroy(pool), 0, "destroy");
  CHECK_EQUAL(cuDeviceGetMemPool(&current, 0), 0, "current pool");
  CHECK(current == first, "the default one");
  CHECK_EQUAL(cuMemFreeAsync(pointer, NULL), 0, "free");
  CHECK_EQUAL(cuMemAllocAsync(&pointer, 100 * MIB, NULL), 0, "from the default pool");
  CHECK(cuMemPoolDestroy(first) != 0, "the default pool stays");
  CHECK_EQUAL(cuMemFreeAsync(pointer, NULL), 0, "free");
  CHECK_EQUAL(cuStreamSynchronize(NULL), 0, "synchronize");
  CHECK_EQUAL(used_bytes(), 0, "used at the end");
}

static void test_failed(void) {
  CUmemoryPool pool = new_pool();
  CUdeviceptr pointer;
  CHECK_EQUAL(cuMemPoolDestroy(pool), 0, "destroy");
  for (int i = 0; i < 1000; i++) {
    CHECK(cuMemAllocFromPoolAsync(&pointer, MIB, pool, NULL) != 0, "a pool that is gone");
    CHECK(cuMemAllocAsync(&pointer, MIB, (CUstream)0x12345) != 0, "no stream");
  }
  CHECK_EQUAL(used_bytes(), 0, "used at the end");
}

/* Memory of a pool of device 1, which has 100 MiB, that is asked for on a stream of device 0. */
static void test_other_device(void) {
  CUmemoryPool pools[2] = {new_pool_on(1), NULL};
  CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pools[1], 1), 0, "its default pool");
  for (int i = 0; i < 2; i++) {
    CUdeviceptr pointer, other;
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&other, 200 * MIB, pools[i], NULL), CUDA_ERROR_OUT_OF_MEMORY, "200 MiB");
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&pointer, 60 * MIB, pools[i], NULL), 0, "60 MiB");
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&other, 60 * MIB, pools[i], NULL), CUDA_ERROR_OUT_OF_MEMORY, "120 MiB");
    CHECK_EQUAL(used_bytes(), 0, "used on device 0");
    use_device(1);
    CHECK_EQUAL(used_bytes(), 60 * MIB, "used on device 1");
    CHECK_EQUAL(cuMemFreeAsync(pointer, NULL), 0, "free");
    CHECK_EQUAL(cuStreamSynchronize(NULL), 0, "synchronize");
    CHECK_EQUAL(used_bytes(), 0, "used at the end");
    use_device(0);
  }
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "";
  use_device(0);
  if (strcmp(name, "many") == 0) test_many();
  if (strcmp(name, "destroyed") == 0) test_destroyed();
  if (strcmp(name, "current") == 0) test_current();
  if (strcmp(name, "other-device") == 0) test_other_device();
  if (strcmp(name, "failed") == 0) test_failed();
  CHECK(check_passed > 0, "no such case: %s", name);
  return check_done();
}
