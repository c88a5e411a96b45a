/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pools.c - contract in pools.h. One spin lock, held over the driver's answer to one attribute query and the
 * settling: two threads that settle in turn never use an older answer after a newer one.
 */
#include "pools.h"

#include "capture.h"
#include "claim.h"
#include "spin.h"
#include "table.h"

enum { FIRST_CAPACITY = 64, MAX_CHUNK_BYTES = 64 << 20 };

struct pool {
  CUmemoryPool handle;
  struct vgpu_place place;    /* where it is charged; book NULL: nothing was charged yet */
  struct vgpu_device *device; /* that it is on; NULL: not told */
  uint64_t charged_bytes;
  bool is_leaving; /* the program has destroyed it */
};

uint32_t vgpu_pool_count;

static struct pool *pools; /* mapped by ourselves */
static uint32_t capacity;
static uint32_t leaving_count; /* atomic */
static uint32_t lock;
static uint64_t in_flight_bytes; /* atomic; claims whose threads are in the driver */

static bool grow(void) {
  uint32_t larger = capacity ? capacity * 2 : FIRST_CAPACITY;
  struct pool *mapping = vgpu_sys_mmap(NULL, larger * sizeof(*pools), VGPU_PROT_READ | VGPU_PROT_WRITE,
                                       VGPU_MAP_PRIVATE | VGPU_MAP_ANONYMOUS, -1, 0);
  if ((uintptr_t)mapping >= (uintptr_t)-4095) return false;
  for (uint32_t i = 0; i < vgpu_pool_count; i++)
    mapping[i] = pools[i];
  if (pools) vgpu_sys_munmap(pools, capacity * sizeof(*pools));
  pools = mapping;
  capacity = larger;
  return true;
}

/* The pool's entry; a new one at `place` when that is given. NULL. */
static struct pool *entry_of(CUmemoryPool handle, const struct vgpu_place *place) {
  for (uint32_t i = 0; i < vgpu_pool_count; i++) {
    if (pools[i].handle == handle) return &pools[i];
  }
  if (!place || (vgpu_pool_count == capacity && !grow())) return NULL;
  struct pool *pool = &pools[vgpu_pool_count];
  *pool = (struct pool){.handle = handle, .place = *place};
  __atomic_store_n(&vgpu_pool_count, vgpu_pool_count + 1, __ATOMIC_RELAXED);
  return pool;
}

/* The pool is gone, and with it all that it held. */
static void remove_entry(struct pool *pool) {
  if (pool->place.book) vgpu_release(pool->place.book, pool->place.index, VGPU_KIND_POOL, pool->charged_bytes);
  if (pool->is_leaving) __atomic_sub_fetch(&leaving_count, 1, __ATOMIC_RELAXED);
  *pool = pools[vgpu_pool_count - 1];
  __atomic_store_n(&vgpu_pool_count, vgpu_pool_count - 1, __ATOMIC_RELAXED);
}

static bool reserved_bytes(CUmemoryPool handle, uint64_t *bytes) {
  __typeof__(&cuMemPoolGetAttribute) get = VGPU_REAL(cuMemPoolGetAttribute);
  return get && get(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

/* The pool's charge becomes `held`. The claim's bytes are in the book already. */
static bool settle(struct pool *pool, uint64_t held, struct vgpu_claim *claim) {
  uint64_t before = pool->charged_bytes;
  uint64_t growth = held > before ? held - before : 0;
  bool fits = true;
  pool->charged_bytes = held;
  if (held < before) vgpu_release(pool->place.book, pool->place.index, VGPU_KIND_POOL, before - held);
  if (claim && claim->place.book == pool->place.book && claim->place.index == pool->place.index) {
    uint64_t used = growth < claim->bytes ? growth : claim->bytes;
    vgpu_claim_resize(claim, used);
    claim->place.book = NULL; /* its bytes are the pool's now */
    growth -= used;
  }
  if (growth > 0 && vgpu_reserve(pool->place.book, pool->place.index, VGPU_KIND_POOL, growth) != 0) {
    vgpu_charge(pool->place.book, pool->place.index, VGPU_KIND_POOL, growth);
    fits = growth <= __atomic_load_n(&in_flight_bytes, __ATOMIC_RELAXED); /* theirs: they give it back */
  }
  if (claim) vgpu_claim_drop(claim);
  return fits;
}

/* What a pool holds is a multiple of its chunk: raised when it grew by more than was claimed. */
static void learn_chunk(struct vgpu_device *device, uint64_t held, bool is_too_small) {
  uint64_t chunk = held & (0 - held);
  if (chunk < VGPU_POOL_CHUNK_BYTES || chunk > MAX_CHUNK_BYTES) chunk = VGPU_POOL_CHUNK_BYTES;
  if (is_too_small || chunk < device->pool_chunk_bytes) {
    __atomic_store_n(&device->pool_chunk_bytes, chunk, __ATOMIC_RELAXED);
  }
}

void vgpu_pool_in_flight(const struct vgpu_claim *claim) {
  __atomic_add_fetch(&in_flight_bytes, claim->bytes, __ATOMIC_RELAXED);
}

bool vgpu_pool_settle(CUmemoryPool handle, struct vgpu_claim *claim, CUresult result) {
  uint64_t held;
  bool fits = true;
  vgpu_spin_lock(&lock);
  if (claim) __atomic_sub_fetch(&in_flight_bytes, claim->bytes, __ATOMIC_RELAXED);
  struct pool *pool = entry_of(handle, NULL);
  bool is_new = !pool && claim && result == CUDA_SUCCESS;
  bool is_told = (pool || is_new) && reserved_bytes(handle, &held);
  if (is_told && is_new) pool = entry_of(handle, &claim->place);
  if (is_told && pool && claim && !pool->place.book) pool->place = claim->place;
  if (is_told && pool && pool->place.book) {
    if (claim) learn_chunk(claim->device, held, held > pool->charged_bytes + claim->bytes);
    fits = settle(pool, held, claim);
  } else if (claim && result != CUDA_SUCCESS) {
    vgpu_claim_drop(claim);
  }
  vgpu_spin_unlock(&lock);
  return fits;
}

/* Gives back what a pool that the program has destroyed keeps. True when the driver has nothing of it any more. */
static bool finish_leaving(struct pool *pool) {
  __typeof__(&cuMemPoolTrimTo) trim = VGPU_REAL(cuMemPoolTrimTo);
  __typeof__(&cuMemPoolDestroy) destroy = VGPU_REAL(cuMemPoolDestroy);
  uint64_t held = 1;
  if (!trim || !destroy || trim(pool->handle, 0) != CUDA_SUCCESS || !reserved_bytes(pool->handle, &held)) return false;
  settle(pool, held, NULL);
  return held == 0 && destroy(pool->handle) == CUDA_SUCCESS;
}

__attribute__((noinline, cold)) void vgpu_pools_settle_all(void) {
  uint64_t held;
  vgpu_check_fork();
  vgpu_spin_lock(&lock);
  for (uint32_t i = vgpu_pool_count; i-- > 0;) {
    struct pool *pool = &pools[i];
    if (pool->is_leaving) {
      if (finish_leaving(pool)) remove_entry(pool);
    } else if (pool->place.book && reserved_bytes(pool->handle, &held)) {
      settle(pool, held, NULL);
    }
  }
  vgpu_spin_unlock(&lock);
}

/* Handle number `i`; NULL past the last one. */
static CUmemoryPool handle_at(uint32_t i) {
  vgpu_spin_lock(&lock);
  CUmemoryPool handle = i < vgpu_pool_count ? pools[i].handle : NULL;
  vgpu_spin_unlock(&lock);
  return handle;
}

__attribute__((noinline, cold)) bool vgpu_pools_make_room(void) {
  __typeof__(&cuMemPoolTrimTo) trim = VGPU_REAL(cuMemPoolTrimTo);
  CUmemoryPool handle;
  uint32_t count = 0;
  if (__atomic_load_n(&vgpu_capture_count, __ATOMIC_RELAXED) != 0) return false; /* it might spoil the capture */
  for (; trim && (handle = handle_at(count)); count++)
    trim(handle, 0);
  vgpu_pools_refresh();
  return count > 0;
}

/* Whether the program may destroy the pool, and no device uses it as its current one afterwards. */
static bool retire(CUmemoryPool handle) {
  __typeof__(&cuDeviceGetCount) count = VGPU_REAL(cuDeviceGetCount);
  __typeof__(&cuDeviceGetDefaultMemPool) get_default = VGPU_REAL(cuDeviceGetDefaultMemPool);
  __typeof__(&cuDeviceGetMemPool) get_current = VGPU_REAL(cuDeviceGetMemPool);
  __typeof__(&cuDeviceSetMemPool) set_current = VGPU_REAL(cuDeviceSetMemPool);
  __typeof__(&cuMemPoolSetAttribute) set = VGPU_REAL(cuMemPoolSetAttribute);
  CUmemoryPool first, current;
  uint64_t threshold = 0;
  int total = 0;
  if (!count || !get_default || !get_current || !set_current || !set || count(&total) != CUDA_SUCCESS) return false;
  for (int i = 0; i < total; i++) {
    if (get_default(&first, i) != CUDA_SUCCESS || first == handle) return false;
  }
  for (int i = 0; i < total; i++) {
    bool is_current = get_current(&current, i) == CUDA_SUCCESS && current == handle;
    if (is_current && (get_default(&first, i) != CUDA_SUCCESS || set_current(i, first) != CUDA_SUCCESS)) return false;
  }
  return set(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS;
}

bool vgpu_pool_leave(CUmemoryPool handle) {
  uint64_t held = 0;
  vgpu_spin_lock(&lock);
  struct pool *pool = entry_of(handle, NULL);
  bool is_leaving =
      pool && pool->place.book && !pool->is_leaving && reserved_bytes(handle, &held) && held > 0 && retire(handle);
  if (is_leaving) {
    pool->is_leaving = true;
    __atomic_add_fetch(&leaving_count, 1, __ATOMIC_RELAXED);
  }
  vgpu_spin_unlock(&lock);
  if (is_leaving) vgpu_pools_refresh();
  return is_leaving;
}

void vgpu_pool_note(CUmemoryPool handle, struct vgpu_device *device) {
  static const struct vgpu_place nowhere;
  vgpu_spin_lock(&lock);
  struct pool *pool = entry_of(handle, &nowhere);
  if (pool) pool->device = device;
  vgpu_spin_unlock(&lock);
}

/* The device whose default pool it is; NULL. */
static struct vgpu_device *device_of_default(CUmemoryPool handle) {
  __typeof__(&cuDeviceGetCount) count = VGPU_REAL(cuDeviceGetCount);
  __typeof__(&cuDeviceGetDefaultMemPool) get = VGPU_REAL(cuDeviceGetDefaultMemPool);
  CUmemoryPool pool;
  CUresult why;
  int total = 0;
  if (!count || !get || count(&total) != CUDA_SUCCESS) return NULL;
  for (int i = 0; i < total; i++) {
    if (get(&pool, i) == CUDA_SUCCESS && pool == handle) return vgpu_device_at(i, &why);
  }
  return NULL;
}

struct vgpu_device *vgpu_pool_device(CUmemoryPool handle) {
  if (vgpu_has_one_device()) return NULL;
  vgpu_spin_lock(&lock);
  const struct pool *pool = entry_of(handle, NULL);
  struct vgpu_device *device = pool ? pool->device : NULL;
  vgpu_spin_unlock(&lock);
  return device ? device : device_of_default(handle);
}

bool vgpu_pool_is_gone(CUmemoryPool handle) {
  if (__atomic_load_n(&leaving_count, __ATOMIC_RELAXED) == 0) return false;
  vgpu_spin_lock(&lock);
  const struct pool *pool = entry_of(handle, NULL);
  bool is_gone = pool && pool->is_leaving;
  vgpu_spin_unlock(&lock);
  return is_gone;
}

void vgpu_pool_drop(CUmemoryPool handle) {
  vgpu_spin_lock(&lock);
  struct pool *pool = entry_of(handle, NULL);
  if (pool) remove_entry(pool);
  vgpu_spin_unlock(&lock);
}

void vgpu_pools_forget(void) {
  lock = 0;
  in_flight_bytes = 0;
  vgpu_pool_count = 0;
  leaving_count = 0;
  pools = NULL; /* another thread of the parent may have been about to replace it */
  capacity = 0;
}
