/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_memory.c - device memory, pools, pinned memory, copies.
 */
#define _GNU_SOURCE
#include <string.h>

#include "check.h"

enum { MIB = 1 << 20 };

static size_t free_now(void) {
  size_t free_bytes;
  CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, NULL), CUDA_SUCCESS);
  return free_bytes;
}

void test_memory_to_the_byte(void) {
  CUdeviceptr all;
  CUdeviceptr one;
  size_t free_bytes;
  size_t total;
  begin_cuda();
  CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
  CHECK_EQUAL(total, 1000ll * MIB);
  CHECK_EQUAL(free_bytes, total);
  CHECK_EQUAL(cuMemAlloc_v2(&all, total + 1), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(cuMemAlloc_v2(&all, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(cuMemAlloc_v2(&one, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc_v2(&all, total), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(cuMemAlloc_v2(&all, total - 1), CUDA_SUCCESS);
  CHECK_EQUAL(free_now(), 0);
  CHECK_EQUAL(cuMemFree_v2(one), CUDA_SUCCESS);
  CHECK_EQUAL(free_now(), 1);
  CHECK_EQUAL(cuMemFree_v2(all), CUDA_SUCCESS);
  CHECK_EQUAL(free_now(), total);
  CHECK_EQUAL(status_number("high_water_bytes"), total);
}

void test_bad_pointers(void) {
  CUdeviceptr memory;
  CUdeviceptr base;
  size_t bytes;
  CUdeviceptr none = 0;
  CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 100), CUDA_ERROR_INVALID_CONTEXT);
  CHECK_EQUAL(cuMemGetInfo_v2(&bytes, &bytes), CUDA_ERROR_INVALID_CONTEXT);
  begin_cuda();
  CHECK_EQUAL(cuMemGetInfo_v2(NULL, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc_v2(NULL, 100), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 1000), CUDA_SUCCESS);
  CHECK_EQUAL(memory % 512, 0);
  CHECK_EQUAL(cuMemFree_v2(memory + 8), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuMemFree_v2(0x1234567), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuMemFree_v2(none), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemGetAddressRange_v2(&base, &bytes, memory + 999), CUDA_SUCCESS);
  CHECK(base == memory);
  CHECK_EQUAL(bytes, 1000);
  CHECK_EQUAL(cuMemGetAddressRange_v2(NULL, NULL, memory), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemGetAddressRange_v2(&base, &bytes, memory + 1000), CUDA_ERROR_NOT_FOUND);
  CHECK_EQUAL(cuMemFree_v2(memory), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFree_v2(memory), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuMemGetAddressRange_v2(&base, &bytes, memory), CUDA_ERROR_NOT_FOUND);
}

void test_pitch_and_managed(void) {
  CUdeviceptr memory;
  size_t pitch;
  size_t before;
  int type = 0;
  unsigned managed = 0;
  begin_cuda();
  before = free_now();
  CHECK_EQUAL(cuMemAllocPitch_v2(&memory, &pitch, 1000, 3, 4), CUDA_SUCCESS);
  CHECK_EQUAL(pitch, 1024);
  CHECK_EQUAL(before - free_now(), 3072);
  CHECK_EQUAL(cuMemFree_v2(memory), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAllocPitch_v2(&memory, &pitch, 1000, 3, 5), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuMemAllocPitch_v2(&memory, &pitch, SIZE_MAX, 3, 4), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(cuMemAllocPitch_v2(&memory, &pitch, SIZE_MAX / 2, 3, 4), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(cuMemAllocManaged(&memory, 12345, 1), CUDA_SUCCESS);
  CHECK_EQUAL(before - free_now(), 12345);
  ((char *)(uintptr_t)memory)[12344] = 'x'; /* host code reaches it */
  CHECK_EQUAL(cuPointerGetAttribute(&type, 2, memory + 5), CUDA_SUCCESS);
  CHECK_EQUAL(type, CU_MEMORYTYPE_DEVICE);
  CHECK_EQUAL(cuPointerGetAttribute(&managed, 8, memory), CUDA_SUCCESS);
  CHECK_EQUAL(managed, 1);
  CHECK_EQUAL(cuPointerGetAttribute(&type, 2, (uintptr_t)&type), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuMemFree_v2(memory), CUDA_SUCCESS);
  CHECK_EQUAL(free_now(), before);
}

void test_addresses_without_backing(void) {
  char bytes[16] = "untouched";
  CUdeviceptr memory;
  begin_cuda();
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 1 << 30), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemcpyHtoD_v2(memory, bytes, sizeof bytes), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemcpyDtoH_v2(bytes, memory, sizeof bytes), CUDA_SUCCESS);
  CHECK(strcmp(bytes, "untouched") == 0);
  CHECK_EQUAL(cuMemcpyHtoD_v2(memory + (1 << 30), bytes, 1), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuMemFree_v2(memory), CUDA_SUCCESS);
}

void test_freed_memory_is_zeroed_pages(void) {
  static char page[65536];
  CUdeviceptr first;
  CUdeviceptr second;
  begin_cuda();
  memset(page, 'x', sizeof page);
  CHECK_EQUAL(cuMemAlloc_v2(&first, sizeof page), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemcpyHtoD_v2(first, page, sizeof page), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFree_v2(first), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc_v2(&second, sizeof page), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemcpyDtoH_v2(page, second, sizeof page), CUDA_SUCCESS);
  for (size_t i = 0; i < sizeof page; i++)
    CHECK_EQUAL(page[i], 0);
}

static unsigned long long pool_number(CUmemoryPool pool, int attribute) {
  uint64_t value = 0;
  CHECK_EQUAL(cuMemPoolGetAttribute(pool, attribute, &value), CUDA_SUCCESS);
  return value;
}

enum { THRESHOLD = 4, RESERVED = 5, RESERVED_HIGH = 6, USED = 7, USED_HIGH = 8 };

void test_pool(void) {
  CUdeviceptr first;
  CUdeviceptr second;
  CUmemoryPool pool;
  uint64_t all = UINT64_MAX;
  uint64_t zero = 0;
  size_t before;
  begin_cuda();
  before = free_now();
  CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAllocAsync(&first, 1000, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(before - free_now(), 2 * MIB);
  CHECK_EQUAL(pool_number(pool, RESERVED), 2 * MIB);
  CHECK_EQUAL(pool_number(pool, USED), 1024);
  CHECK_EQUAL(cuMemAllocAsync(&second, 3 * MIB, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(pool_number(pool, RESERVED), 4 * MIB);
  CHECK_EQUAL(cuMemFreeAsync(second, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(pool_number(pool, RESERVED), 4 * MIB); /* kept until a synchronisation */
  CHECK_EQUAL(cuMemAllocAsync(&second, 3 * MIB, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(pool_number(pool, RESERVED), 4 * MIB); /* and used again */
  CHECK_EQUAL(cuMemFreeAsync(second, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
  CHECK_EQUAL(before - free_now(), 2 * MIB);
  CHECK_EQUAL(cuMemAllocAsync(&second, 3 * MIB, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFree_v2(second), CUDA_SUCCESS); /* waits, and so is a synchronisation */
  CHECK_EQUAL(before - free_now(), 2 * MIB);
  CHECK_EQUAL(cuMemPoolSetAttribute(pool, THRESHOLD, &all), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAllocAsync(&second, 3 * MIB, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFree_v2(second), CUDA_SUCCESS);
  CHECK_EQUAL(before - free_now(), 4 * MIB); /* below the threshold it keeps what it has */
  CHECK_EQUAL(cuMemPoolTrimTo(pool, 2 * MIB), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFreeAsync(first, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
  CHECK_EQUAL(before - free_now(), 2 * MIB);
  CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
  CHECK_EQUAL(free_now(), before);
  CHECK_EQUAL(pool_number(pool, RESERVED_HIGH), 4 * MIB);
  CHECK_EQUAL(pool_number(pool, USED_HIGH), 3 * MIB + 1024);
  CHECK_EQUAL(cuMemPoolSetAttribute(pool, RESERVED_HIGH, &zero), CUDA_SUCCESS);
  CHECK_EQUAL(pool_number(pool, RESERVED_HIGH), 0);
  CHECK_EQUAL(cuMemPoolSetAttribute(pool, USED, &zero), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuMemAllocAsync(&first, 2000ll * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(cuMemFreeAsync(first, (CUstream)(uintptr_t)0x1000), CUDA_ERROR_INVALID_HANDLE);
}

/* What a pool keeps but does not use is given up before an allocation is refused. */
void test_pool_gives_way(void) {
  CUdeviceptr memory;
  CUmemoryPool pool;
  uint64_t all = UINT64_MAX;
  begin_cuda();
  CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemPoolSetAttribute(pool, THRESHOLD, &all), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAllocAsync(&memory, 40 * MIB, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFreeAsync(memory, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(free_now(), 24 * MIB);
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 50 * MIB), CUDA_SUCCESS);
  CHECK_EQUAL(free_now(), 14 * MIB);
}

void test_host_memory(void) {
  static char own[8192];
  void *pinned;
  int type = 0;
  begin_cuda();
  size_t before = free_now();
  CHECK_EQUAL(cuMemHostAlloc(&pinned, 100000, 0), CUDA_SUCCESS);
  memset(pinned, 1, 100000);
  CHECK_EQUAL(free_now(), before);
  CHECK_EQUAL(cuPointerGetAttribute(&type, 2, (uintptr_t)pinned + 5), CUDA_SUCCESS);
  CHECK_EQUAL(type, CU_MEMORYTYPE_HOST);
  CHECK_EQUAL(cuMemFree_v2((uintptr_t)pinned), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuMemFreeHost(pinned), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuMemHostRegister_v2(own, sizeof own, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemHostRegister_v2(own + 10, 10, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CHECK_EQUAL(cuMemHostUnregister(own), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemHostUnregister(own), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

void test_copies(void) {
  static unsigned char in[64 * 1024];
  static unsigned char out[64 * 1024];
  CUdeviceptr first;
  CUdeviceptr second;
  begin_cuda();
  for (size_t i = 0; i < sizeof in; i++)
    in[i] = (unsigned char)(i * 7 + i / 256);
  CHECK_EQUAL(cuMemAlloc_v2(&first, sizeof in), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc_v2(&second, sizeof in), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemcpyHtoD_v2(first, in, sizeof in), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemcpyDtoD_v2(second, first, sizeof in), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemcpyDtoH_v2(out, second, sizeof in), CUDA_SUCCESS);
  CHECK(memcmp(in, out, sizeof in) == 0);
  CHECK_EQUAL(cuMemcpyHtoD_v2(first + 1, in, sizeof in), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuMemcpyHtoD_v2(first, NULL, 10), CUDA_ERROR_INVALID_VALUE);
  struct cu_memcpy2d rect = {.src_type = CU_MEMORYTYPE_HOST,
                             .src_host = in,
                             .src_x_bytes = 3,
                             .src_y = 2,
                             .src_pitch = 100,
                             .dst_type = CU_MEMORYTYPE_DEVICE,
                             .dst_device = first,
                             .dst_x_bytes = 5,
                             .dst_y = 1,
                             .dst_pitch = 256,
                             .width_bytes = 50,
                             .height = 20};
  CHECK_EQUAL(cuMemcpy2D_v2(&rect), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemcpyDtoH_v2(out, first, sizeof out), CUDA_SUCCESS);
  for (size_t y = 0; y < 20; y++)
    CHECK(memcmp(out + (y + 1) * 256 + 5, in + (y + 2) * 100 + 3, 50) == 0);
  rect.dst_pitch = 20;
  CHECK_EQUAL(cuMemcpy2D_v2(&rect), CUDA_ERROR_INVALID_VALUE);
  struct cu_memcpy3d box = {.src_type = CU_MEMORYTYPE_DEVICE,
                            .src_device = second,
                            .src_z = 1,
                            .src_pitch = 64,
                            .src_height = 10,
                            .dst_type = CU_MEMORYTYPE_HOST,
                            .dst_host = out,
                            .dst_pitch = 16,
                            .dst_height = 4,
                            .width_bytes = 16,
                            .height = 4,
                            .depth = 3};
  CHECK_EQUAL(cuMemcpy3D_v2(&box), CUDA_SUCCESS);
  for (size_t z = 0; z < 3; z++)
    for (size_t y = 0; y < 4; y++)
      CHECK(memcmp(out + z * 64 + y * 16, in + (z + 1) * 640 + y * 64, 16) == 0);
}

void test_fills(void) {
  unsigned char out[1024];
  CUdeviceptr memory;
  begin_cuda();
  CHECK_EQUAL(cuMemAlloc_v2(&memory, sizeof out), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemsetD8_v2(memory, 0xab, sizeof out), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemsetD32_v2(memory + 4, 0x01020304, 2), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemsetD2D16_v2(memory + 100, 50, 0x5566, 3, 2), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemcpyDtoH_v2(out, memory, sizeof out), CUDA_SUCCESS);
  CHECK(memcmp(out, "\xab\xab\xab\xab\x04\x03\x02\x01\x04\x03\x02\x01\xab", 13) == 0);
  CHECK(memcmp(out + 100, "\x66\x55\x66\x55\x66\x55\xab", 7) == 0);
  CHECK(memcmp(out + 150, "\x66\x55\x66\x55\x66\x55\xab", 7) == 0);
  CHECK_EQUAL(cuMemsetD8_v2(memory, 0, sizeof out + 1), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuMemsetD32_v2(memory + 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
}
