/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * hooks_pool.c - stream-ordered memory. An allocation claims the most that its pool can grow by, asks the
 * driver, and then the pool's charge becomes what the driver says the pool holds. When there is no room, what
 * pools keep unused is given back first, then what the stream's finished work gives back; never while anything captures.
 * Memory of a captured allocation is the graph's: the pool does not grow, and nothing stays charged.
 */
#include "capture.h"
#include "claim.h"
#include "pools.h"
#include "table.h"

/* The driver's entry points for one kind of default stream: plain or _ptsz. */
struct stream_calls {
  __typeof__(&cuStreamSynchronize) synchronize;
  __typeof__(&cuMemFreeAsync) free_async;
};

static uint64_t grown_bytes(const struct vgpu_device *device, uint64_t bytes) {
  uint64_t chunk = __atomic_load_n(&device->pool_chunk_bytes, __ATOMIC_RELAXED);
  return bytes > UINT64_MAX - chunk ? UINT64_MAX : (bytes + chunk - 1) / chunk * chunk;
}

/* The device that the stream's context is on: the pool that serves it is that device's. */
static struct vgpu_device *device_of_stream(CUstream stream, CUresult *why) {
  CUcontext context = NULL;
  __typeof__(&cuStreamGetCtx) get = VGPU_REAL(cuStreamGetCtx);
  __typeof__(&cuCtxPushCurrent_v2) push = VGPU_REAL(cuCtxPushCurrent_v2);
  __typeof__(&cuCtxPopCurrent_v2) pop = VGPU_REAL(cuCtxPopCurrent_v2);
  bool is_own = (uintptr_t)stream > 2; /* the lowest values are the default streams */
  if (!is_own || vgpu_has_one_device() || !get || !push || !pop || get(stream, &context) != CUDA_SUCCESS ||
      push(context) != CUDA_SUCCESS) {
    return vgpu_device_current(why);
  }
  struct vgpu_device *device = vgpu_device_current(why);
  pop(&context);
  return device;
}

/* Takes back what `pool` keeps unused; with `synchronize`, first waits for the stream's work. */
static void make_room(CUmemoryPool pool, CUstream stream, const struct stream_calls *synchronize) {
  __typeof__(&cuMemPoolTrimTo) trim = VGPU_REAL(cuMemPoolTrimTo);
  bool is_capturing = __atomic_load_n(&vgpu_capture_count, __ATOMIC_RELAXED) != 0;
  if (synchronize && synchronize->synchronize && !is_capturing) synchronize->synchronize(stream);
  if (trim) trim(pool, 0);
  vgpu_pool_settle(pool, NULL, CUDA_SUCCESS);
}

/* Whether what the pool holds and does not use would serve the request. */
static bool has_unused(CUmemoryPool pool, uint64_t bytes) {
  uint64_t held = 0, used = 0;
  __typeof__(&cuMemPoolGetAttribute) get = VGPU_REAL(cuMemPoolGetAttribute);
  return get && get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &held) == CUDA_SUCCESS &&
         get(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) == CUDA_SUCCESS && held > used && held - used >= bytes;
}

/* Claims the pool's growth, making room for it step by step. The last step claims nothing and lets the pool serve
 * from what it holds; should it grow all the same (it may be in pieces), that is undone at once. */
static CUresult claim_growth(struct vgpu_claim *claim, struct vgpu_device *device, uint64_t bytes, CUmemoryPool pool,
                             CUstream stream, const struct stream_calls *calls) {
  uint64_t most = grown_bytes(device, bytes);
  claim->device = device;
  claim->kind = VGPU_KIND_POOL;
  claim->bytes = most;
  if (vgpu_device_reserve(device, VGPU_KIND_POOL, most, &claim->place) == 0) return CUDA_SUCCESS;
  vgpu_pools_make_room();
  if (vgpu_device_reserve(device, VGPU_KIND_POOL, most, &claim->place) == 0) return CUDA_SUCCESS;
  make_room(pool, stream, calls);
  if (vgpu_device_reserve(device, VGPU_KIND_POOL, most, &claim->place) == 0) return CUDA_SUCCESS;
  claim->bytes = 0;
  bool may_serve = has_unused(pool, bytes);
  if (may_serve && vgpu_device_reserve(device, VGPU_KIND_POOL, 0, &claim->place) == 0) return CUDA_SUCCESS;
  return vgpu_refuse(claim, most);
}

/* The pool that serves the request, and the claim for its growth. */
static CUresult begin(struct vgpu_claim *claim, CUmemoryPool *pool, size_t bytes, CUstream stream,
                      const struct stream_calls *calls) {
  CUresult why = CUDA_SUCCESS;
  claim->place.book = NULL;
  if (!vgpu_is_limiting()) return CUDA_SUCCESS;
  vgpu_check_fork();
  if (*pool && vgpu_pool_is_gone(*pool)) return CUDA_ERROR_INVALID_VALUE;
  struct vgpu_device *device = *pool ? vgpu_pool_device(*pool) : NULL;
  if (!device) device = device_of_stream(stream, &why);
  if (!device) return why;
  __typeof__(&cuDeviceGetMemPool) get = VGPU_REAL(cuDeviceGetMemPool);
  if (!*pool) why = get ? get(pool, device->ordinal) : CUDA_ERROR_NOT_INITIALIZED;
  if (why != CUDA_SUCCESS) return why;
  CUresult refused = claim_growth(claim, device, bytes, *pool, stream, calls);
  if (refused == CUDA_SUCCESS) vgpu_pool_in_flight(claim);
  return refused;
}

/* Settles after the driver's answer. Growth past the limit is undone, and so is what cannot be kept account of. */
static CUresult end(struct vgpu_claim *claim, CUmemoryPool pool, CUresult result, const CUdeviceptr *pointer,
                    CUstream stream, const struct stream_calls *calls) {
  if (!claim->place.book) return result;
  bool fits = vgpu_pool_settle(pool, claim, result);
  if (result != CUDA_SUCCESS || !calls->free_async) return result;
  if (fits && vgpu_claim_keep(claim, VGPU_BLOCK_POINTER, *pointer, NULL)) return result;
  calls->free_async(*pointer, stream);
  vgpu_claim_drop(claim);
  make_room(pool, stream, NULL);
  vgpu_device_count_refusal(claim->device);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

static struct stream_calls plain_calls(void) {
  return (struct stream_calls){VGPU_REAL(cuStreamSynchronize), VGPU_REAL(cuMemFreeAsync)};
}

static struct stream_calls per_thread_calls(void) {
  return (struct stream_calls){VGPU_REAL(cuStreamSynchronize_ptsz), VGPU_REAL(cuMemFreeAsync_ptsz)};
}

/* Whether a captured allocation would fit now. The driver is not asked about anything. */
static CUresult look_captured(size_t bytes) {
  CUresult why = CUDA_SUCCESS;
  vgpu_check_fork();
  struct vgpu_device *device = vgpu_device_current(&why);
  if (!device) return why;
  struct vgpu_claim claim = {.device = device, .kind = VGPU_KIND_POOL, .bytes = grown_bytes(device, bytes)};
  if (vgpu_device_reserve(device, claim.kind, claim.bytes, &claim.place) != 0) return vgpu_refuse(&claim, claim.bytes);
  vgpu_claim_drop(&claim);
  return CUDA_SUCCESS;
}

/* `stream` is what the program said, `meant` the stream that it means. */
static CUresult allocate(__typeof__(&cuMemAllocAsync) real, CUdeviceptr *pointer, size_t bytes, CUstream stream,
                         CUstream meant, const struct stream_calls *calls) {
  struct vgpu_claim claim;
  CUmemoryPool pool = NULL;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!pointer || bytes == 0) return real(pointer, bytes, stream);
  bool is_captured = vgpu_capture_has(meant);
  CUresult refused = is_captured ? look_captured(bytes) : begin(&claim, &pool, bytes, stream, calls);
  if (refused != CUDA_SUCCESS) return refused;
  if (is_captured) return real(pointer, bytes, stream);
  return end(&claim, pool, real(pointer, bytes, stream), pointer, stream, calls);
}

static CUresult allocate_from(__typeof__(&cuMemAllocFromPoolAsync) real, CUdeviceptr *pointer, size_t bytes,
                              CUmemoryPool pool, CUstream stream, CUstream meant, const struct stream_calls *calls) {
  struct vgpu_claim claim;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!pointer || bytes == 0 || !pool) return real(pointer, bytes, pool, stream);
  bool is_captured = vgpu_capture_has(meant);
  CUresult refused = is_captured ? look_captured(bytes) : begin(&claim, &pool, bytes, stream, calls);
  if (refused != CUDA_SUCCESS) return refused;
  if (is_captured) return real(pointer, bytes, pool, stream);
  return end(&claim, pool, real(pointer, bytes, pool, stream), pointer, stream, calls);
}

static CUresult free_in_stream(__typeof__(&cuMemFreeAsync) real, CUdeviceptr pointer, CUstream stream, CUstream meant) {
  struct vgpu_block block;
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  bool is_ours = vgpu_free_begin(VGPU_BLOCK_POINTER, pointer, &block);
  CUresult result = vgpu_free_end(is_ours, &block, real(pointer, stream));
  if (!vgpu_capture_has(meant)) vgpu_pools_refresh();
  return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
  struct stream_calls calls = plain_calls();
  return allocate(VGPU_REAL(cuMemAllocAsync), pointer, bytes, stream, stream, &calls);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
  struct stream_calls calls = per_thread_calls();
  return allocate(VGPU_REAL(cuMemAllocAsync_ptsz), pointer, bytes, stream, vgpu_stream_per_thread(stream), &calls);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
  struct stream_calls calls = plain_calls();
  return allocate_from(VGPU_REAL(cuMemAllocFromPoolAsync), pointer, bytes, pool, stream, stream, &calls);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
  struct stream_calls calls = per_thread_calls();
  return allocate_from(VGPU_REAL(cuMemAllocFromPoolAsync_ptsz), pointer, bytes, pool, stream,
                       vgpu_stream_per_thread(stream), &calls);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  return free_in_stream(VGPU_REAL(cuMemFreeAsync), pointer, stream, stream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
  return free_in_stream(VGPU_REAL(cuMemFreeAsync_ptsz), pointer, stream, vgpu_stream_per_thread(stream));
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
  __typeof__(&cuMemPoolCreate) real = VGPU_REAL(cuMemPoolCreate);
  CUresult result = real ? real(pool, properties) : CUDA_ERROR_NOT_INITIALIZED, why;
  if (result != CUDA_SUCCESS || !properties || !vgpu_is_limiting()) return result;
  vgpu_check_fork();
  bool is_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  struct vgpu_device *device = is_device ? vgpu_device_at(properties->location.id, &why) : NULL;
  if (device) vgpu_pool_note(*pool, device);
  return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t min_bytes_to_keep) {
  __typeof__(&cuMemPoolTrimTo) real = VGPU_REAL(cuMemPoolTrimTo);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  CUresult result = real(pool, min_bytes_to_keep);
  vgpu_pools_refresh();
  return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  __typeof__(&cuMemPoolDestroy) real = VGPU_REAL(cuMemPoolDestroy);
  if (!real) return CUDA_ERROR_NOT_INITIALIZED;
  if (!vgpu_is_limiting()) return real(pool);
  vgpu_check_fork();
  if (vgpu_pool_is_gone(pool)) return CUDA_ERROR_INVALID_VALUE;
  if (vgpu_pool_leave(pool)) return CUDA_SUCCESS;
  CUresult result = real(pool);
  if (result == CUDA_SUCCESS) vgpu_pool_drop(pool);
  return result;
}
