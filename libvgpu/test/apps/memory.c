/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * memory.c - a client of the driver API that tries one rule of the memory limit, by name:
 *   memory CASE [LIMIT]
 * size: one small function a case, which share everything else
 */
#include <fcntl.h>
#include <unistd.h>

#include "../../include/vgpu_abi.h"
#include "driver.h"

/* Takes memory in ever smaller pieces until not one byte is left: the sum is the limit, to the byte. */
static void test_exact(uint64_t limit) {
  enum { MAX = 4096 };
  static CUdeviceptr pointers[MAX];
  uint64_t sum = 0;
  int count = 0;
  use_device(0);
  CHECK_EQUAL(total_bytes(), limit, "total");
  for (uint64_t piece = 512 * MIB; piece > 0 && count < MAX; piece /= 2) {
    while (count < MAX && cuMemAlloc_v2(&pointers[count], piece) == CUDA_SUCCESS) {
      sum += piece;
      count++;
    }
  }
  CHECK_EQUAL(sum, limit, "everything that could be had");
  CHECK_EQUAL(cuMemAlloc_v2(&pointers[count], 1), CUDA_ERROR_OUT_OF_MEMORY, "the byte beyond");
  CHECK_EQUAL(used_bytes(), limit, "used when full");
  while (count > 0)
    CHECK_EQUAL(cuMemFree_v2(pointers[--count]), 0, "cuMemFree");
  CHECK_EQUAL(used_bytes(), 0, "used when all is freed");
  CHECK_EQUAL(cuMemAlloc_v2(&pointers[0], limit), 0, "the whole limit at once");
  CHECK_EQUAL(cuMemFree_v2(pointers[0]), 0, "cuMemFree");
  CHECK_EQUAL(cuMemAlloc_v2(&pointers[0], limit + 1), CUDA_ERROR_OUT_OF_MEMORY, "one byte more at once");
  CHECK_EQUAL(cuMemAlloc_v2(&pointers[0], UINT64_MAX), CUDA_ERROR_OUT_OF_MEMORY, "all bytes there are");
  CHECK_EQUAL(used_bytes(), 0, "used after refusals");
}

static void test_arguments(void) {
  CUdeviceptr pointer;
  size_t bytes = 0;
  use_device(0);
  CHECK_EQUAL(cuMemAlloc_v2(NULL, 4096), CUDA_ERROR_INVALID_VALUE, "no output");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 0), CUDA_ERROR_INVALID_VALUE, "no bytes");
  CHECK_EQUAL(cuMemFree_v2(0), atoi(getenv("BARE_FREE_NULL")), "cuMemFree(0) as without libvgpu");
  CHECK_EQUAL(cuMemFree_v2(0x7000deadb000), atoi(getenv("BARE_FREE_WILD")), "a wild pointer as without libvgpu");
  CHECK_EQUAL(cuMemGetInfo_v2(NULL, &bytes), atoi(getenv("BARE_INFO_TOTAL")), "cuMemGetInfo(NULL, &total)");
  if (atoi(getenv("BARE_INFO_TOTAL")) == 0) CHECK_EQUAL(bytes, 1000 * MIB, "total alone");
  CHECK_EQUAL(cuMemGetInfo_v2(&bytes, NULL), atoi(getenv("BARE_INFO_FREE")), "cuMemGetInfo(&free, NULL)");
  if (atoi(getenv("BARE_INFO_FREE")) == 0) CHECK_EQUAL(bytes, 1000 * MIB, "free alone");
  CHECK_EQUAL(cuMemGetInfo_v2(NULL, NULL), atoi(getenv("BARE_INFO_NONE")), "cuMemGetInfo(NULL, NULL)");
  CHECK_EQUAL(used_bytes(), 0, "used after all that");
}

/* Prints what the driver answers without libvgpu, for test_arguments. */
static void print_bare(void) {
  size_t bytes;
  use_device(0);
  printf("export BARE_FREE_NULL=%d\n", (int)cuMemFree_v2(0));
  printf("export BARE_FREE_WILD=%d\n", (int)cuMemFree_v2(0x7000deadb000));
  printf("export BARE_INFO_TOTAL=%d\n", (int)cuMemGetInfo_v2(NULL, &bytes));
  printf("export BARE_INFO_FREE=%d\n", (int)cuMemGetInfo_v2(&bytes, NULL));
  printf("export BARE_INFO_NONE=%d\n", (int)cuMemGetInfo_v2(NULL, NULL));
}

static void test_pitch_refused(void) {
  CUdeviceptr pointer;
  size_t pitch;
  use_device(0);
  CHECK_EQUAL(cuMemAllocPitch_v2(&pointer, &pitch, 100, 1000000, 4), CUDA_ERROR_OUT_OF_MEMORY, "512000000 B of 400m");
  CHECK_EQUAL(used_bytes(), 0, "used after the refusal");
}

static void test_pitch_fits(void) {
  CUdeviceptr pointer;
  size_t pitch;
  use_device(0);
  CHECK_EQUAL(cuMemAllocPitch_v2(&pointer, &pitch, 100, 1000000, 4), 0, "512000000 B of 490m");
  CHECK_EQUAL(used_bytes(), 512000000, "pitch times height is charged");
  CHECK_EQUAL(cuMemFree_v2(pointer), 0, "cuMemFree");
  CHECK_EQUAL(used_bytes(), 0, "used after the free");
}

/* The limit is exactly what the block takes. */
static void test_pitch_exact(void) {
  CUdeviceptr pointer;
  size_t pitch = 0;
  use_device(0);
  CHECK_EQUAL(cuMemAllocPitch_v2(&pointer, &pitch, 1000, 1024, 4), 0, "1 MiB of 1 MiB");
  CHECK_EQUAL(used_bytes(), MIB, "all of it");
  CHECK_EQUAL(cuMemFree_v2(pointer), 0, "cuMemFree");
}

static void test_managed(void) {
  CUdeviceptr pointers[3];
  int managed = 0, managed_too = 0, type = 0;
  int attributes[2] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void *values[2] = {&type, &managed_too};
  use_device(0);
  CHECK_EQUAL(cuMemAllocManaged(&pointers[0], 400 * MIB, 1), 0, "first");
  CHECK_EQUAL(cuMemAllocManaged(&pointers[1], 400 * MIB, 1), 0, "second");
  CHECK_EQUAL(cuMemAllocManaged(&pointers[2], 400 * MIB, 1), CUDA_ERROR_OUT_OF_MEMORY, "third");
  CHECK_EQUAL(used_bytes(), 800 * MIB, "managed memory is charged in full");
  CHECK_EQUAL(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointers[0]), 0, "attribute");
  CHECK_EQUAL(cuPointerGetAttributes(2, attributes, values, pointers[0]), 0, "attributes");
  CHECK(managed == 1 && managed_too == 1, "both say managed: %d %d", managed, managed_too);
  CHECK_EQUAL(cuMemFree_v2(pointers[0]), 0, "free");
  CHECK_EQUAL(cuMemFree_v2(pointers[1]), 0, "free");
  CHECK_EQUAL(used_bytes(), 0, "used at the end");
}

/* A steady stream of allocations lives on what the pool holds. */
static void test_pool_steady(CUstream stream, CUmemoryPool pool) {
  CUdeviceptr pointer;
  uint64_t before = used_bytes();
  int failed = 0;
  for (int i = 0; i < 1000; i++) {
    failed += cuMemAllocAsync(&pointer, 64 * MIB, stream) != CUDA_SUCCESS;
    failed += cuMemFreeAsync(pointer, stream) != CUDA_SUCCESS;
  }
  CHECK_EQUAL(failed, 0, "1000 rounds");
  CHECK_EQUAL(cuStreamSynchronize(stream), 0, "synchronise");
  CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), 0, "trim");
  CHECK_EQUAL(used_bytes(), before, "used after the trim");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 900 * MIB), 0, "room for a large block");
  CHECK_EQUAL(cuMemFree_v2(pointer), 0, "free");
}

static void test_pool(void) {
  CUstream stream;
  CUmemoryPool pool;
  CUdeviceptr first, second, pointer;
  use_device(0);
  CHECK_EQUAL(cuStreamCreate(&stream, 0), 0, "stream");
  CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), 0, "pool");
  test_pool_steady(stream, pool);

  /* What the pool holds counts for every call, and is to be had again. */
  CHECK_EQUAL(cuMemAllocAsync(&first, 600 * MIB, stream), 0, "600 MiB");
  CHECK_EQUAL(cuMemAllocAsync(&second, 600 * MIB, stream), CUDA_ERROR_OUT_OF_MEMORY, "600 MiB more");
  CHECK_EQUAL(used_bytes(), 600 * MIB, "used");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 500 * MIB), CUDA_ERROR_OUT_OF_MEMORY, "the plain call counts the pool");
  CHECK_EQUAL(cuMemFreeAsync(first, stream), 0, "free");
  CHECK_EQUAL(cuMemAllocAsync(&second, 700 * MIB, stream), 0, "room is made by waiting for the stream");
  CHECK_EQUAL(cuMemFreeAsync(second, stream), 0, "free");
  CHECK_EQUAL(cuStreamSynchronize(stream), 0, "synchronise");
  CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), 0, "trim");

  /* A plain free of the pool. */
  CHECK_EQUAL(cuMemAllocAsync(&pointer, 256 * MIB, stream), 0, "256 MiB");
  CHECK_EQUAL(cuStreamSynchronize(stream), 0, "synchronise");
  uint64_t before = used_bytes();
  CHECK_EQUAL(before, 256 * MIB, "used");
  CHECK_EQUAL(cuMemFree_v2(pointer), 0, "a pool's pointer by the plain call");
  CHECK_EQUAL(before - used_bytes(), 256 * MIB, "used falls by as much, at once");

  CHECK_EQUAL(cuMemAllocFromPoolAsync(&pointer, 100 * MIB, pool, stream), 0, "from the pool by name");
  CHECK_EQUAL(used_bytes(), 100 * MIB, "used");
  CHECK_EQUAL(cuMemFreeAsync_ptsz(pointer, stream), 0, "free");
  CHECK_EQUAL(cuMemAllocAsync_ptsz(&pointer, 1, stream), 0, "a byte takes a chunk");
  CHECK_EQUAL(cuMemFreeAsync(pointer, stream), 0, "free");
  CHECK_EQUAL(cuStreamSynchronize(stream), 0, "synchronise");
  CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), 0, "trim");
  CHECK_EQUAL(used_bytes(), 0, "used at the end");
}

/* Contexts that end take their memory with them. */
static void test_contexts(void) {
  CUcontext context;
  CUdeviceptr pointer;
  int failed = 0;
  use_device(0);
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 500 * MIB), 0, "500 MiB in the primary context");
  CHECK_EQUAL(cuDevicePrimaryCtxReset_v2(0), 0, "reset");
  use_device(0);
  use_device(0);
  CHECK_EQUAL(used_bytes(), 0, "used after the reset");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 500 * MIB), 0, "500 MiB again");
  CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), 0, "release of one of two");
  CHECK_EQUAL(used_bytes(), 500 * MIB, "still there");
  CHECK_EQUAL(cuDevicePrimaryCtxReset_v2(0), 0, "reset");
  for (int i = 0; i < 20; i++) {
    failed += cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS;
    failed += cuMemAlloc_v2(&pointer, 200 * MIB) != CUDA_SUCCESS;
    failed += cuMemAlloc_v2(&pointer, 200 * MIB) != CUDA_SUCCESS;
    failed += cuCtxDestroy_v2(context) != CUDA_SUCCESS;
  }
  CHECK_EQUAL(failed, 0, "20 contexts with 400 MiB each, not freed");
  CHECK_EQUAL(cuCtxCreate_v2(&context, 0, 0), 0, "create");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 200 * MIB), 0, "200 MiB");
  CHECK_EQUAL(cuCtxAttach(&context, 0), 0, "a second user");
  CHECK_EQUAL(cuCtxDetach(context), 0, "leaves");
  CHECK_EQUAL(used_bytes(), 200 * MIB, "still there");
  CHECK_EQUAL(cuCtxDetach(context), 0, "the first one, too");
  use_device(0);
  CHECK_EQUAL(used_bytes(), 0, "used at the end");
}

/* A driver that refuses leaves the charge as it was (the fault is injected from outside). */
static void test_fault(void) {
  CUdeviceptr pointer;
  size_t pitch;
  use_device(0);
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 300 * MIB), CUDA_ERROR_OUT_OF_MEMORY, "the driver refuses");
  CHECK_EQUAL(used_bytes(), 0, "nothing is charged");
  CHECK_EQUAL(cuMemAllocPitch_v2(&pointer, &pitch, 100, 1000, 4), 999, "the driver fails");
  CHECK_EQUAL(used_bytes(), 0, "nothing is charged");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1000 * MIB), 0, "all of the limit is there");
  CHECK_EQUAL(cuMemFree_v2(pointer), 999, "the driver fails to free");
  CHECK_EQUAL(used_bytes(), 1000 * MIB, "the charge stays");
  CHECK_EQUAL(cuMemFree_v2(pointer), 0, "freed");
  CHECK_EQUAL(used_bytes(), 0, "and given back");
}

/* Nothing at all can be allocated; why is on stderr. */
static void test_nothing(void) {
  CUdeviceptr pointer;
  size_t bytes = 1;
  use_device(0);
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY, "one byte");
  CHECK_EQUAL(cuMemAllocManaged(&pointer, 1, 1), CUDA_ERROR_OUT_OF_MEMORY, "one byte of managed memory");
  CHECK_EQUAL(cuMemAllocAsync(&pointer, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY, "one byte of a pool");
  CHECK_EQUAL(cuDeviceTotalMem_v2(&bytes, 0), 0, "cuDeviceTotalMem");
  CHECK_EQUAL(bytes, 0, "total by cuDeviceTotalMem");
  CHECK_EQUAL(total_bytes(), 0, "total by cuMemGetInfo");
}

/* The limit of device 0 is as said, and holds. */
static void test_limit(uint64_t limit) {
  CUdeviceptr pointer;
  size_t bytes = 0;
  use_device(0);
  CHECK_EQUAL(cuDeviceTotalMem_v2(&bytes, 0), 0, "cuDeviceTotalMem");
  CHECK_EQUAL(bytes, limit, "total by cuDeviceTotalMem");
  CHECK_EQUAL(total_bytes(), limit, "total by cuMemGetInfo");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, limit + 1), CUDA_ERROR_OUT_OF_MEMORY, "one byte more");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, limit / 2), 0, "half");
  CHECK_EQUAL(used_bytes(), limit / 2, "used");
  CHECK_EQUAL(cuMemFree_v2(pointer), 0, "free");
}

/* The operator lowers the limit below what is in use, by writing to the page. */
static void test_lowered(const char *limits_path) {
  CUdeviceptr pointers[2], pointer;
  uint64_t lower = 1000 * MIB;
  size_t free_bytes = 1, total = 0;
  nvmlDevice_t device;
  nvmlMemory_t memory;
  use_device(0);
  CHECK_EQUAL(cuMemAlloc_v2(&pointers[0], 600 * MIB), 0, "600 MiB");
  CHECK_EQUAL(cuMemAlloc_v2(&pointers[1], 500 * MIB), 0, "500 MiB");
  int fd = open(limits_path, O_WRONLY);
  off_t at = offsetof(struct vgpu_limits_page, devices) + offsetof(struct vgpu_limits_device, memory_limit_bytes);
  CHECK_EQUAL(pwrite(fd, &lower, sizeof(lower), at), sizeof(lower), "the limit is lowered to 1000 MiB");
  close(fd);
  CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), 0, "cuMemGetInfo");
  CHECK_EQUAL(total, lower, "total");
  CHECK_EQUAL(free_bytes, 0, "free is 0, never below");
  CHECK_EQUAL(nvmlInit_v2(), 0, "nvmlInit");
  CHECK_EQUAL(nvmlDeviceGetHandleByIndex_v2(0, &device), 0, "handle");
  CHECK_EQUAL(nvmlDeviceGetMemoryInfo(device, &memory), 0, "nvmlDeviceGetMemoryInfo");
  CHECK(memory.total == lower && memory.free == 0 && memory.used == lower, "NVML agrees");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY, "one byte");
  CHECK_EQUAL(cuMemFree_v2(pointers[0]), 0, "free");
  CHECK(cuMemFree_v2(pointers[0]) != 0, "a second free is the driver's error");
  CHECK_EQUAL(used_bytes(), 500 * MIB, "and gives nothing back twice");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 500 * MIB), 0, "room again");
}

/* Frozen by the agent: what is held stays and can be freed, nothing more can be had, until it is thawed. */
static void test_frozen(const char *limits_path) {
  CUdeviceptr pointers[2], pointer;
  uint32_t frozen = VGPU_FROZEN_HEADER;
  off_t at = offsetof(struct vgpu_limits_page, frozen);
  use_device(0);
  CHECK_EQUAL(cuMemAlloc_v2(&pointers[0], 100 * MIB), 0, "100 MiB");
  CHECK_EQUAL(cuMemAlloc_v2(&pointers[1], 100 * MIB), 0, "100 MiB more");
  int fd = open(limits_path, O_WRONLY);
  CHECK_EQUAL(pwrite(fd, &frozen, sizeof(frozen), at), sizeof(frozen), "the page is frozen");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY, "one byte");
  CHECK_EQUAL(cuMemAllocAsync(&pointer, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY, "one byte of a pool");
  CHECK_EQUAL(used_bytes(), 200 * MIB, "what is held");
  CHECK_EQUAL(cuMemFree_v2(pointers[0]), 0, "free");
  CHECK_EQUAL(used_bytes(), 100 * MIB, "what is held still");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY, "one byte all the same");
  frozen = 0;
  CHECK_EQUAL(pwrite(fd, &frozen, sizeof(frozen), at), sizeof(frozen), "it is thawed");
  close(fd);
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 100 * MIB), 0, "100 MiB again");
}

static uint64_t counted_refusals(const char *usage_path) {
  struct vgpu_usage_slot_device books = {.refusals = UINT64_MAX};
  int fd = open(usage_path, O_RDONLY);
  size_t at = vgpu_usage_slot_offset(1, 0) + sizeof(struct vgpu_usage_slot);
  CHECK_EQUAL(pread(fd, &books, sizeof(books), (off_t)at), sizeof(books), "the slot of this process");
  close(fd);
  return books.refusals;
}

/* A request that is refused counts as one refusal, one for which room was made as none. */
static void test_refusals(const char *usage_path) {
  CUdeviceptr pointer, other;
  use_device(0);
  CHECK_EQUAL(cuMemAllocAsync(&pointer, 600 * MIB, NULL), 0, "600 MiB");
  CHECK_EQUAL(cuMemFreeAsync(pointer, NULL), 0, "kept by the pool");
  CHECK_EQUAL(cuMemAllocAsync(&pointer, 700 * MIB, NULL), 0, "room is made");
  CHECK_EQUAL(counted_refusals(usage_path), 0, "nobody was refused");
  CHECK_EQUAL(cuMemAllocAsync(&other, 700 * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY, "700 MiB more");
  CHECK_EQUAL(counted_refusals(usage_path), 1, "one refusal");
  CHECK_EQUAL(cuMemAlloc_v2(&other, 700 * MIB), CUDA_ERROR_OUT_OF_MEMORY, "by the plain call");
  CHECK_EQUAL(counted_refusals(usage_path), 2, "two refusals");
}

/* Stream-ordered calls while the stream captures: nothing that the program did not do, and the capture is whole. */
static void test_capture(void) {
  CUstream stream;
  CUdeviceptr pointer, other;
  CUgraph graph = NULL;
  use_device(0);
  CHECK_EQUAL(cuStreamCreate(&stream, 1), 0, "stream");
  CHECK_EQUAL(cuMemAlloc_v2(&other, 990 * MIB), 0, "nearly all of the limit");
  if (cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS) {
    SKIP("capture: not modelled by this driver");
    return;
  }
  CUresult refused = cuMemAllocAsync(&pointer, 64 * MIB, stream);
  CHECK(refused == CUDA_ERROR_OUT_OF_MEMORY, "refused while it captures: %d", (int)refused);
  CHECK_EQUAL(cuMemFree_v2(other), 0, "free");
  CHECK_EQUAL(cuStreamEndCapture(stream, &graph), 0, "the capture is whole");
}

/* A limit above the card shows the card, and its free memory is never more than is there. */
static void test_above(uint64_t card) {
  size_t free_bytes = 0, bytes = 0;
  use_device(0);
  CHECK_EQUAL(cuDeviceTotalMem_v2(&bytes, 0), 0, "cuDeviceTotalMem");
  CHECK_EQUAL(bytes, card, "total by cuDeviceTotalMem");
  CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &bytes), 0, "cuMemGetInfo");
  CHECK_EQUAL(bytes, card, "total by cuMemGetInfo");
  CHECK(free_bytes <= card, "free");
}

/* Two books for one device: the sum is there, each block in one of them. */
static void test_sum(uint64_t sum, uint64_t largest) {
  CUdeviceptr pointers[3];
  use_device(0);
  CHECK_EQUAL(total_bytes(), sum, "total");
  CHECK_EQUAL(cuMemAlloc_v2(&pointers[0], largest), 0, "the first book");
  CHECK_EQUAL(cuMemAlloc_v2(&pointers[1], sum - largest), 0, "the second book");
  CHECK_EQUAL(used_bytes(), sum, "used");
  CHECK_EQUAL(cuMemAlloc_v2(&pointers[2], 1), CUDA_ERROR_OUT_OF_MEMORY, "one byte more");
  CHECK_EQUAL(cuMemFree_v2(pointers[0]), 0, "free");
  CHECK_EQUAL(cuMemFree_v2(pointers[1]), 0, "free");
  CHECK_EQUAL(used_bytes(), 0, "used at the end");
}

/* Two devices with their own limits, charged to the device that the memory is on. */
static void test_two(uint64_t first, uint64_t second) {
  CUdeviceptr pointer, other;
  use_device(1);
  CHECK_EQUAL(total_bytes(), second, "limit of device 1");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, second), 0, "all of device 1");
  CHECK_EQUAL(cuMemAlloc_v2(&other, 1), CUDA_ERROR_OUT_OF_MEMORY, "one byte more there");
  use_device(0);
  CHECK_EQUAL(total_bytes(), first, "limit of device 0");
  CHECK_EQUAL(used_bytes(), 0, "device 0 is unused");
  CHECK_EQUAL(cuMemAlloc_v2(&other, first), 0, "all of device 0");
  CHECK_EQUAL(cuMemFree_v2(pointer), 0, "a free from another context");
  CHECK_EQUAL(used_bytes(), first, "it was not device 0's");
  use_device(1);
  CHECK_EQUAL(used_bytes(), 0, "it was device 1's");
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "";
  uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
  uint64_t second = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
  if (strcmp(name, "bare") == 0) return print_bare(), 0;
  if (strcmp(name, "exact") == 0) test_exact(first);
  if (strcmp(name, "arguments") == 0) test_arguments();
  if (strcmp(name, "pitch-refused") == 0) test_pitch_refused();
  if (strcmp(name, "pitch-fits") == 0) test_pitch_fits();
  if (strcmp(name, "pitch-exact") == 0) test_pitch_exact();
  if (strcmp(name, "managed") == 0) test_managed();
  if (strcmp(name, "pool") == 0) test_pool();
  if (strcmp(name, "contexts") == 0) test_contexts();
  if (strcmp(name, "fault") == 0) test_fault();
  if (strcmp(name, "nothing") == 0) test_nothing();
  if (strcmp(name, "limit") == 0) test_limit(first);
  if (strcmp(name, "above") == 0) test_above(first);
  if (strcmp(name, "lowered") == 0 && argc > 2) test_lowered(argv[2]);
  if (strcmp(name, "frozen") == 0 && argc > 2) test_frozen(argv[2]);
  if (strcmp(name, "refusals") == 0 && argc > 2) test_refusals(argv[2]);
  if (strcmp(name, "capture") == 0) test_capture();
  if (strcmp(name, "exact-first") == 0) test_sum(first, second);
  if (strcmp(name, "two") == 0) test_two(first, second);
  CHECK(check_passed > 0, "no such case: %s", name);
  return check_done();
}
