/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pool.c - stream-ordered memory. A pool takes memory of the card in steps of 2 MiB, keeps what is freed to it, and
 * at a synchronisation, and at a cuMemFree of its memory, which is one, gives back what it keeps beyond its release
 * threshold (0 by default).
 *
 * Model: space in a pool is a number, not places, so a pool has no fragmentation: a request is served from what
 * it keeps if that suffices, else it grows by what is missing, rounded up. Each piece counts as its size rounded
 * up to 512 bytes. Pools that a program creates work like the default one. Only its own process uses a pool.
 */
#include "capture.h"
#include "node.h"

static const uint64_t GROWTH_BYTES = 2u << 20;
static const uint64_t PIECE_BYTES = 512;

static struct gs_objects pools = {.object_bytes = sizeof(struct gs_pool), .capacity = 4096};

enum pool_attribute {
  POOL_REUSE_FIRST = 1,
  POOL_REUSE_LAST = 3,
  POOL_RELEASE_THRESHOLD = 4,
  POOL_RESERVED = 5,
  POOL_RESERVED_HIGH = 6,
  POOL_USED = 7,
  POOL_USED_HIGH = 8
};

static uint64_t round_up(uint64_t bytes, uint64_t step) {
  return (bytes + step - 1) / step * step;
}

static void reset_policy(struct gs_pool *pool) {
  for (int i = 0; i < 3; i++)
    pool->reuse_policy[i] = 1;
}

void gs_pool_init(struct gs_device *device) {
  device->default_pool.device = device;
  device->default_pool.is_default = true;
  reset_policy(&device->default_pool);
  device->pool = &device->default_pool;
}

static struct gs_pool *valid_pool(struct gs_pool *pool) {
  for (int i = 0; i < gs_driver.device_count; i++)
    if (pool == &gs_driver.devices[i].default_pool) return pool;
  return gs_object_alive(&pools, pool) ? pool : NULL;
}

/* Gives back all above `keep` that is not in use, in whole steps. The caller holds gs_driver.mutex. */
static void trim(struct gs_pool *pool, uint64_t keep) {
  if (pool->reserved_bytes <= keep) return;
  uint64_t floor = round_up(pool->used_bytes > keep ? pool->used_bytes : keep, GROWTH_BYTES);
  if (pool->reserved_bytes <= floor) return;
  gs_memory_give(pool->device->gpu, pool->reserved_bytes - floor);
  pool->reserved_bytes = floor;
}

/* Trims the device's pools: to their thresholds, or to what is in use. The caller holds gs_driver.mutex. */
static void trim_device(struct gs_device *device, bool to_threshold) {
  trim(&device->default_pool, to_threshold ? device->default_pool.release_threshold_bytes : 0);
  for (size_t i = 0; i < pools.used; i++) {
    struct gs_pool *pool = (struct gs_pool *)(void *)(pools.base + pools.object_bytes * i);
    if (pool->object.context && pool->device == device) trim(pool, to_threshold ? pool->release_threshold_bytes : 0);
  }
}

static bool has_pools(struct gs_device *device) {
  return __atomic_load_n(&device->default_pool.reserved_bytes, __ATOMIC_RELAXED) != 0 || pools.used != 0;
}

void gs_pool_trim_device(struct gs_device *device) {
  if (!has_pools(device)) return;
  pthread_mutex_lock(&gs_driver.mutex);
  trim_device(device, true);
  pthread_mutex_unlock(&gs_driver.mutex);
}

void gs_pool_empty_device(struct gs_device *device) {
  if (!has_pools(device)) return;
  pthread_mutex_lock(&gs_driver.mutex);
  trim_device(device, false);
  pthread_mutex_unlock(&gs_driver.mutex);
}

void gs_pool_reset_device(struct gs_device *device) {
  gs_graph_memory_reset_device(device);
  trim_device(device, false);
}

void gs_pool_release(struct gs_pool *pool, uint64_t bytes) {
  __atomic_fetch_sub(&pool->used_bytes, bytes, __ATOMIC_RELAXED);
}

/* Makes room for `bytes` more in the pool. The caller holds gs_driver.mutex. */
static CUresult reserve(struct gs_pool *pool, uint64_t bytes) {
  uint64_t needed = pool->used_bytes + bytes;
  if (needed > pool->reserved_bytes) {
    uint64_t growth = round_up(needed - pool->reserved_bytes, GROWTH_BYTES);
    if (gs_memory_take(pool->device->gpu, growth) < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    pool->reserved_bytes += growth;
    gs_node_touch(pool->device->gpu_index);
  }
  __atomic_fetch_add(&pool->used_bytes, bytes, __ATOMIC_RELAXED);
  if (pool->reserved_bytes > pool->reserved_high_bytes) pool->reserved_high_bytes = pool->reserved_bytes;
  if (pool->used_bytes > pool->used_high_bytes) pool->used_high_bytes = pool->used_bytes;
  return CUDA_SUCCESS;
}

static CUresult allocate(struct gs_context *context, struct gs_pool *pool, CUdeviceptr *out, uint64_t bytes) {
  if (bytes > UINT64_MAX / 4) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t held = round_up(bytes, PIECE_BYTES);
  pthread_mutex_lock(&gs_driver.mutex);
  CUresult result = reserve(pool, held);
  pthread_mutex_unlock(&gs_driver.mutex);
  if (result != CUDA_SUCCESS) return result;
  struct gs_block model = {
      .held_bytes = held, .context = context, .device = pool->device, .pool = pool, .kind = GS_BLOCK_POOL};
  *out = gs_arena_alloc(bytes, &model);
  if (*out) return CUDA_SUCCESS;
  gs_pool_release(pool, held);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/* In a capturing stream: a node that allocates when the graph is launched; its address is known now. */
static CUresult capture_allocation(struct gs_branch *branch, struct gs_device *device, CUdeviceptr *out,
                                   uint64_t bytes) {
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_graph_memory *memory = gs_graph_memory_new(device, bytes);
  pthread_mutex_unlock(&gs_driver.mutex);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = gs_graph_memory_address(memory);
  return gs_capture_add(branch, &(struct gs_action){.type = CU_NODE_MEM_ALLOC, .memory = memory});
}

/* Only what a graph allocates can be freed by one, and once. */
static CUresult capture_free(struct gs_branch *branch, CUdeviceptr pointer) {
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_graph_memory *memory = gs_graph_memory_find(pointer);
  if (memory && gs_graph_frees(gs_capture_graph(branch), memory)) memory = NULL;
  if (memory) gs_graph_memory_hold(memory);
  pthread_mutex_unlock(&gs_driver.mutex);
  if (!memory) return gs_capture_fail(branch, CUDA_ERROR_INVALID_VALUE);
  return gs_capture_add(branch, &(struct gs_action){.type = CU_NODE_MEM_FREE, .memory = memory});
}

CU_API(cuMemAllocAsync)(CUdeviceptr *out, size_t bytes, CUstream stream) {
  ENTER(cuMemAllocAsync);
  NEED_CONTEXT(context);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (!out || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  CAPTURE(context, stream, branch);
  if (branch) return capture_allocation(branch, context->device, out, bytes);
  return allocate(context, context->device->pool, out, bytes);
}

CU_API(cuMemAllocFromPoolAsync)(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  ENTER(cuMemAllocFromPoolAsync);
  NEED_CONTEXT(context);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (!out || bytes == 0 || !valid_pool(pool)) return CUDA_ERROR_INVALID_VALUE;
  CAPTURE(context, stream, branch);
  if (branch) return capture_allocation(branch, pool->device, out, bytes);
  return allocate(context, pool, out, bytes);
}

CU_API(cuMemFreeAsync)(CUdeviceptr pointer, CUstream stream) {
  struct gs_block block;
  CUresult result;
  ENTER(cuMemFreeAsync);
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (pointer == 0) return CUDA_ERROR_INVALID_VALUE;
  CAPTURE(gs_thread.current, stream, branch);
  if (branch) return capture_free(branch, pointer);
  if (gs_graph_memory_free(pointer, &result)) return result;
  if (!gs_arena_free(pointer, 1u << GS_BLOCK_POOL | 1u << GS_BLOCK_DEVICE, &block)) return CUDA_ERROR_INVALID_VALUE;
  if (block.kind == GS_BLOCK_POOL)
    gs_pool_release(block.pool, block.held_bytes);
  else
    gs_memory_give(block.device->gpu, block.held_bytes);
  return CUDA_SUCCESS;
}

CU_API(cuMemPoolTrimTo)(CUmemoryPool pool, size_t keep) {
  ENTER(cuMemPoolTrimTo);
  if (!valid_pool(pool)) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  trim(pool, keep);
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}

CU_API(cuMemPoolGetAttribute)(CUmemoryPool pool, int attribute, void *value) {
  ENTER(cuMemPoolGetAttribute);
  if (!valid_pool(pool) || !value) return CUDA_ERROR_INVALID_VALUE;
  if (attribute >= POOL_REUSE_FIRST && attribute <= POOL_REUSE_LAST) {
    *(int *)value = (int)pool->reuse_policy[attribute - POOL_REUSE_FIRST];
    return CUDA_SUCCESS;
  }
  switch (attribute) {
  case POOL_RELEASE_THRESHOLD:
    *(uint64_t *)value = pool->release_threshold_bytes;
    return CUDA_SUCCESS;
  case POOL_RESERVED:
    *(uint64_t *)value = pool->reserved_bytes;
    return CUDA_SUCCESS;
  case POOL_RESERVED_HIGH:
    *(uint64_t *)value = pool->reserved_high_bytes;
    return CUDA_SUCCESS;
  case POOL_USED:
    *(uint64_t *)value = pool->used_bytes;
    return CUDA_SUCCESS;
  case POOL_USED_HIGH:
    *(uint64_t *)value = pool->used_high_bytes;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

CU_API(cuMemPoolSetAttribute)(CUmemoryPool pool, int attribute, void *value) {
  ENTER(cuMemPoolSetAttribute);
  if (!valid_pool(pool) || !value) return CUDA_ERROR_INVALID_VALUE;
  if (attribute >= POOL_REUSE_FIRST && attribute <= POOL_REUSE_LAST) {
    pool->reuse_policy[attribute - POOL_REUSE_FIRST] = *(int *)value != 0;
    return CUDA_SUCCESS;
  }
  if (attribute == POOL_RELEASE_THRESHOLD) {
    pool->release_threshold_bytes = *(uint64_t *)value;
    return CUDA_SUCCESS;
  }
  if (attribute != POOL_RESERVED_HIGH && attribute != POOL_USED_HIGH) return CUDA_ERROR_INVALID_VALUE;
  if (*(uint64_t *)value != 0) return CUDA_ERROR_INVALID_VALUE; /* a mark can only be reset */
  if (attribute == POOL_RESERVED_HIGH)
    pool->reserved_high_bytes = pool->reserved_bytes;
  else
    pool->used_high_bytes = pool->used_bytes;
  return CUDA_SUCCESS;
}

CU_API(cuDeviceGetDefaultMemPool)(CUmemoryPool *out, CUdevice ordinal) {
  ENTER(cuDeviceGetDefaultMemPool);
  struct gs_device *device = gs_device_of(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = &device->default_pool;
  return CUDA_SUCCESS;
}

CU_API(cuDeviceGetMemPool)(CUmemoryPool *out, CUdevice ordinal) {
  ENTER(cuDeviceGetMemPool);
  struct gs_device *device = gs_device_of(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = device->pool;
  return CUDA_SUCCESS;
}

CU_API(cuDeviceSetMemPool)(CUdevice ordinal, CUmemoryPool pool) {
  ENTER(cuDeviceSetMemPool);
  struct gs_device *device = gs_device_of(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!valid_pool(pool) || pool->device != device) return CUDA_ERROR_INVALID_VALUE;
  device->pool = pool;
  return CUDA_SUCCESS;
}

CU_API(cuMemPoolCreate)(CUmemoryPool *out, const struct cu_pool_properties *properties) {
  ENTER(cuMemPoolCreate);
  if (!out || !properties || properties->allocation_type != 1) return CUDA_ERROR_INVALID_VALUE;
  if (properties->handle_types != 0) return CUDA_ERROR_NOT_SUPPORTED; /* sharing between processes */
  struct gs_device *device = properties->location.type == 1 ? gs_device_of(properties->location.id) : NULL;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_pool *pool = gs_object_new(&pools, (struct gs_context *)&pools);
  if (pool) {
    pool->device = device;
    reset_policy(pool);
    *out = pool;
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Pieces that are still in use stay so until freed; here they are given back with the pool. */
CU_API(cuMemPoolDestroy)(CUmemoryPool pool) {
  ENTER(cuMemPoolDestroy);
  if (!valid_pool(pool) || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  if (pool->device->pool == pool) pool->device->pool = &pool->device->default_pool;
  trim(pool, 0);
  pool->release_threshold_bytes = 0;
  if (pool->used_bytes == 0) gs_object_free(&pools, pool);
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}
