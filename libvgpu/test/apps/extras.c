/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * extras.c - what is tried on the counting driver (test/fake_cuda.c): extras CASE, with a limit from outside.
 */
#include <dlfcn.h>

#include "driver.h"

extern uint64_t fake_held_bytes, fake_high_bytes;

enum { CHUNK = 50 }; /* MiB of one handle, as the counting driver's addresses expect */

static void check_same(const char *when) {
  CHECK_EQUAL(used_bytes(), fake_held_bytes, when);
}

static void test_vmm(void) {
  enum { WANTED = 20, FIT = 10 };
  CUmemGenericAllocationHandle handles[WANTED], again;
  CUmemAllocationProp properties = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  uint64_t bytes = CHUNK * MIB;
  for (int i = 0; i < WANTED; i++) {
    CUresult result = cuMemCreate(&handles[i], bytes, &properties, 0);
    CHECK_EQUAL(result, i < FIT ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, "create");
    if (result != CUDA_SUCCESS) continue;
    CHECK_EQUAL(cuMemMap((handles[i] >> 16) * bytes, bytes, 0, handles[i], 0), 0, "map");
  }
  check_same("all mapped");
  uint64_t first = (handles[0] >> 16) * bytes;
  CHECK_EQUAL(cuMemUnmap(first, bytes), 0, "unmap only");
  CHECK_EQUAL(cuMemRelease(handles[1]), 0, "release only");
  CHECK_EQUAL(used_bytes(), FIT * bytes, "half steps free nothing");
  CHECK_EQUAL(cuMemRelease(handles[0]), 0, "the other half");
  CHECK_EQUAL(used_bytes(), (FIT - 1) * bytes, "one is gone");
  CHECK_EQUAL(cuMemUnmap(first + bytes, bytes), 0, "the other half");
  CHECK_EQUAL(used_bytes(), (FIT - 2) * bytes, "two are gone");
  CHECK_EQUAL(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)handles[2]), 0, "retain");
  CHECK_EQUAL(cuMemRelease(handles[2]), 0, "release");
  CHECK_EQUAL(cuMemUnmap(first + 2 * bytes, 8 * bytes), 0, "one range over all that are left");
  CHECK_EQUAL(used_bytes(), (FIT - 2) * bytes, "handles still hold");
  check_same("the driver agrees");
  CHECK_EQUAL(cuMemRelease(again), 0, "the retained one");
  for (int i = 3; i < FIT; i++)
    CHECK_EQUAL(cuMemRelease(handles[i]), 0, "release");
  CHECK_EQUAL(used_bytes(), 0, "used at the end");
  CHECK(cuMemRelease(handles[0]) != 0, "a release too much is the driver's error");
  CHECK_EQUAL(used_bytes(), 0, "and changes nothing");
}

static void test_arrays(void) {
  CUDA_ARRAY_DESCRIPTOR flat = {8192, 8192, 0x20, 4};
  CUDA_ARRAY3D_DESCRIPTOR cube = {512, 512, 512, 0x20, 1, 0}, levels = {4096, 4096, 0, 0x20, 4, 0}, sparse = cube;
  CUarray first, second;
  CUmipmappedArray mipmap;
  CHECK_EQUAL(cuArrayCreate_v2(&first, &flat), 0, "1 GiB");
  CHECK_EQUAL(used_bytes(), 1073741824, "charged in full");
  CHECK_EQUAL(cuArrayCreate_v2(&second, &flat), CUDA_ERROR_OUT_OF_MEMORY, "1 GiB more of 1536 MiB");
  CHECK_EQUAL(cuArrayDestroy(first), 0, "destroy");
  CHECK_EQUAL(cuArray3DCreate_v2(&first, &cube), 0, "3D");
  CHECK_EQUAL(used_bytes(), 536870912, "charged in full");
  CHECK_EQUAL(cuMipmappedArrayCreate(&mipmap, &levels, 13), 0, "mipmaps");
  check_same("with the driver's padding");
  sparse.flags = 0x40;
  CHECK_EQUAL(cuArray3DCreate_v2(&second, &sparse), 0, "sparse");
  check_same("a sparse array takes nothing");
  CHECK_EQUAL(cuArrayDestroy(first), 0, "destroy");
  CHECK_EQUAL(cuArrayDestroy(second), 0, "destroy");
  CHECK_EQUAL(cuMipmappedArrayDestroy(mipmap), 0, "destroy");
  CHECK_EQUAL(used_bytes(), 0, "used at the end");
  CHECK(fake_high_bytes <= 1536 * MIB, "never more than the limit");
}

/* Pools that grow by 32 MiB: the charge is what they hold, and what passes the limit is undone. */
static void test_chunks(void) {
  CUdeviceptr pointers[64], pointer;
  int count = 0;
  CHECK_EQUAL(cuMemAllocAsync(&pointers[0], 1, NULL), 0, "one byte");
  CHECK_EQUAL(used_bytes(), 32 * MIB, "takes a chunk");
  CHECK_EQUAL(cuMemFreeAsync(pointers[0], NULL), 0, "free");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 100 * MIB), 0, "what the pool keeps unused makes room");
  CHECK_EQUAL(cuMemFree_v2(pointer), 0, "free");
  while (count < 64 && cuMemAllocAsync(&pointers[count], 16 * MIB, NULL) == CUDA_SUCCESS)
    count++;
  CHECK_EQUAL(count, 6, "pieces of 16 MiB in three chunks of a limit of 100 MiB");
  check_same("full");
  while (count > 0)
    CHECK_EQUAL(cuMemFreeAsync(pointers[--count], NULL), 0, "free");
  CHECK_EQUAL(cuMemPoolTrimTo(NULL, 0), CUDA_ERROR_INVALID_VALUE, "the driver's error");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 100 * MIB), 0, "all of the limit");
  CHECK_EQUAL(cuMemFree_v2(pointer), 0, "free");
  CHECK(fake_high_bytes <= 100 * MIB, "never more than the limit: %llu", (unsigned long long)fake_high_bytes);
}

/* The first API's calls, and a driver whose pitch is larger than the usual one. */
static void test_old(void) {
  CUdeviceptr_v1 pointer;
  CUdeviceptr pitched;
  size_t pitch;
  CHECK_EQUAL(cuMemAlloc(&pointer, 60 << 20), 0, "60 MiB");
  CHECK_EQUAL(used_bytes(), 60 * MIB, "used");
  CHECK_EQUAL(cuMemAlloc(&(CUdeviceptr_v1){0}, 60 << 20), CUDA_ERROR_OUT_OF_MEMORY, "60 MiB more");
  CHECK_EQUAL(cuMemFree(pointer), 0, "free");
  CHECK_EQUAL(cuMemAllocPitch_v2(&pitched, &pitch, 100, 60000, 4), 0, "rows of 1024 bytes");
  CHECK_EQUAL(used_bytes(), 60000 * 1024, "used");
  CHECK_EQUAL(cuMemFree_v2(pitched), 0, "free");
  CHECK_EQUAL(cuMemAllocPitch_v2(&pitched, &pitch, 100, 110000, 4), CUDA_ERROR_OUT_OF_MEMORY, "the learnt pitch");
  CHECK_EQUAL(used_bytes(), 0, "used at the end");
  CHECK(fake_high_bytes <= 100 * MIB, "never more than the limit");
}

/* What this driver lacks stays lacking, by every door. */
static void test_missing(void) {
  CHECK(dlsym(RTLD_DEFAULT, "cuMemAllocManaged") == NULL, "by RTLD_DEFAULT");
  CHECK(dlsym(RTLD_NEXT, "cuMemAllocManaged") == NULL, "by RTLD_NEXT");
  CHECK(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAllocManaged") == NULL, "by handle");
  CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != NULL, "what it has is there");
  CHECK_EQUAL(used_bytes(), 0, "used");
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "";
  if (strcmp(name, "vmm") == 0) test_vmm();
  if (strcmp(name, "arrays") == 0) test_arrays();
  if (strcmp(name, "chunks") == 0) test_chunks();
  if (strcmp(name, "old") == 0) test_old();
  if (strcmp(name, "missing") == 0) test_missing();
  CHECK(check_passed > 0, "no such case: %s", name);
  return check_done();
}
