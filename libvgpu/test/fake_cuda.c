/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * fake_cuda.c - a driver that only counts, for what the simulated GPU does not model: physical memory with
 * mappings, arrays, a pool that grows in large chunks, the 32-bit calls, and functions that are missing
 * (cuMemAllocManaged, everything _ptsz). One device of 16 GiB; fake_held_bytes and fake_high_bytes tell what is
 * held, and the most that ever was.
 */
#include "../include/cuda_api.h"

enum { MAX_ITEMS = 4096, POOL_CHUNK = 32 << 20, PITCH = 1024 };

#define EXPORT __attribute__((visibility("default")))

EXPORT uint64_t fake_held_bytes, fake_high_bytes;

struct item {
  uint64_t bytes;
  int handles, mappings;
};

static struct item items[MAX_ITEMS];
static uint64_t pool_reserved, pool_used;
static char primary_context;

static void hold(int64_t bytes) {
  fake_held_bytes += (uint64_t)bytes;
  if (fake_held_bytes > fake_high_bytes) fake_high_bytes = fake_held_bytes;
}

static uint64_t take(uint64_t bytes) {
  for (uint64_t i = 1; i < MAX_ITEMS; i++) {
    if (items[i].handles || items[i].mappings) continue;
    items[i] = (struct item){bytes, 1, 0};
    hold((int64_t)bytes);
    return i << 16;
  }
  return 0;
}

static struct item *item_at(uint64_t key) {
  uint64_t i = key >> 16;
  return i > 0 && i < MAX_ITEMS && (items[i].handles || items[i].mappings) ? &items[i] : NULL;
}

static CUresult drop(uint64_t key) {
  struct item *item = item_at(key);
  if (!item || item->handles == 0) return CUDA_ERROR_INVALID_VALUE;
  if (--item->handles == 0 && item->mappings == 0) hold(-(int64_t)item->bytes);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuInit(unsigned int flags) {
  (void)flags;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
  *version = 11000;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  *uuid = (CUuuid){{(uint8_t)device}};
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = (CUcontext)&primary_context;
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  *total_bytes = (size_t)16 << 30;
  *free_bytes = *total_bytes - fake_held_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  *bytes = (size_t)(16 + device) << 30;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
  *pointer = take(bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
  return drop(pointer);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes) {
  *pointer = (CUdeviceptr_v1)take(bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr_v1 pointer) {
  return drop(pointer);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width_bytes, size_t height,
                            unsigned int element_bytes) {
  (void)element_bytes;
  *pitch = (width_bytes + PITCH - 1) / PITCH * PITCH;
  *pointer = take(*pitch * height);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
  if (flags || properties->location.id != 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = take(bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return drop(handle);
}

/* Here an address is its handle, with the index of the mapping in the low bits. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
  struct item *item = item_at((uintptr_t)address);
  if (!item) return CUDA_ERROR_INVALID_VALUE;
  item->handles++;
  *handle = (uintptr_t)address & ~0xffffULL;
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  struct item *item = item_at(handle);
  if (!item || item->bytes != bytes || offset || flags || pointer == 0) return CUDA_ERROR_INVALID_VALUE;
  item->mappings++;
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
  /* The client maps item i at i * bytes, so that ranges can be unmapped together. */
  uint64_t first = pointer / (50 << 20), count = bytes / (50 << 20);
  for (uint64_t i = first; i < first + count; i++) {
    if (i >= MAX_ITEMS || items[i].mappings == 0) return CUDA_ERROR_INVALID_VALUE;
    if (--items[i].mappings == 0 && items[i].handles == 0) hold(-(int64_t)items[i].bytes);
  }
  return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor) {
  uint64_t bytes = descriptor->width * descriptor->height * descriptor->channels * 4;
  *array = (CUarray)take(bytes);
  return CUDA_SUCCESS;
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
  uint64_t bytes = descriptor->width * descriptor->height * descriptor->depth * descriptor->channels * 4;
  *array = (CUarray)take(descriptor->flags & 0x40 ? 0 : bytes);
  return CUDA_SUCCESS;
}

CUresult cuArrayDestroy(CUarray array) {
  return drop((uintptr_t)array);
}

/* What the driver took is padded to 64 KiB, and it says so. */
CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                unsigned int levels) {
  uint64_t bytes = 0;
  for (unsigned int i = 0; i < levels; i++) {
    uint64_t width = descriptor->width >> i, height = descriptor->height >> i;
    bytes += (width ? width : 1) * (height ? height : 1) * descriptor->channels * 4;
  }
  *array = (CUmipmappedArray)take((bytes + 0xffff) & ~0xffffULL);
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUmipmappedArray array,
                                               CUdevice device) {
  struct item *item = item_at((uintptr_t)array);
  if (!item || device != 0) return CUDA_ERROR_INVALID_VALUE;
  requirements->size = item->bytes;
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  return drop((uintptr_t)array);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
  *pool = (CUmemoryPool)(&pool_reserved + device);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
  if (pool != (CUmemoryPool)&pool_reserved) return CUDA_ERROR_INVALID_VALUE;
  *(uint64_t *)value = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pool_reserved : pool_used;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t min_bytes_to_keep) {
  uint64_t keep = pool_used > min_bytes_to_keep ? pool_used : min_bytes_to_keep;
  keep = (keep + POOL_CHUNK - 1) / POOL_CHUNK * POOL_CHUNK;
  if (pool != (CUmemoryPool)&pool_reserved) return CUDA_ERROR_INVALID_VALUE;
  if (keep < pool_reserved) {
    hold((int64_t)(keep - pool_reserved));
    pool_reserved = keep;
  }
  return CUDA_SUCCESS;
}

/* A pool's pointer tells its bytes. */
CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
  (void)stream;
  pool_used += bytes;
  if (pool_used > pool_reserved) {
    uint64_t reserved = (pool_used + POOL_CHUNK - 1) / POOL_CHUNK * POOL_CHUNK;
    hold((int64_t)(reserved - pool_reserved));
    pool_reserved = reserved;
  }
  *pointer = 1ULL << 60 | bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  (void)stream;
  pool_used -= pointer & ~(1ULL << 60);
  return CUDA_SUCCESS;
}
