/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pools.c - contract in pools.h. One spin lock, held over the driver's answer to one attribute query and the
 * settling: two threads that settle in turn never use an older answer after a newer one.
 */
#include "pools.h"

#include "claim.h"
#include "spin.h"
#include "table.h"

enum { MAX_POOLS = 32, MAX_CHUNK_BYTES = 64 << 20 };

struct pool {
  CUmemoryPool handle;
  struct vgpu_place place; /* where it is charged */
  uint64_t charged_bytes;
};

uint32_t vgpu_pool_count;

static struct pool pools[MAX_POOLS];
static uint32_t lock;
static uint64_t in_flight_bytes; /* atomic; claims whose threads are in the driver */

/* The pool's entry; a new one at `place` when that is given. NULL. */
static struct pool *entry_of(CUmemoryPool handle, const struct vgpu_place *place) {
  for (uint32_t i = 0; i < vgpu_pool_count; i++) {
    if (pools[i].handle == handle) return &pools[i];
  }
  if (!place || vgpu_pool_count == MAX_POOLS) return NULL;
  struct pool *pool = &pools[vgpu_pool_count];
  *pool = (struct pool){.handle = handle, .place = *place};
  __atomic_store_n(&vgpu_pool_count, vgpu_pool_count + 1, __ATOMIC_RELAXED);
  return pool;
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
    if (fits) vgpu_uncount_refusals(pool->place.book, pool->place.index, 1);
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

bool vgpu_pool_settle(CUmemoryPool handle, struct vgpu_claim *claim) {
  uint64_t held;
  bool fits = true;
  vgpu_spin_lock(&lock);
  if (claim) __atomic_sub_fetch(&in_flight_bytes, claim->bytes, __ATOMIC_RELAXED);
  struct pool *pool = entry_of(handle, claim && claim->place.book ? &claim->place : NULL);
  if (pool && reserved_bytes(handle, &held)) {
    if (claim) learn_chunk(claim->device, held, held > pool->charged_bytes + claim->bytes);
    fits = settle(pool, held, claim);
  } else if (claim) {
    claim->place.book = NULL; /* nobody can say what it took: the claim stays charged */
  }
  vgpu_spin_unlock(&lock);
  return fits;
}

__attribute__((noinline, cold)) void vgpu_pools_settle_all(void) {
  uint64_t held;
  vgpu_check_fork();
  vgpu_spin_lock(&lock);
  for (uint32_t i = 0; i < vgpu_pool_count; i++) {
    if (reserved_bytes(pools[i].handle, &held)) settle(&pools[i], held, NULL);
  }
  vgpu_spin_unlock(&lock);
}

__attribute__((noinline, cold)) bool vgpu_pools_make_room(void) {
  __typeof__(&cuMemPoolTrimTo) trim = VGPU_REAL(cuMemPoolTrimTo);
  CUmemoryPool handles[MAX_POOLS];
  vgpu_spin_lock(&lock);
  uint32_t count = vgpu_pool_count;
  for (uint32_t i = 0; i < count; i++)
    handles[i] = pools[i].handle;
  vgpu_spin_unlock(&lock);
  for (uint32_t i = 0; trim && i < count; i++)
    trim(handles[i], 0);
  vgpu_pools_refresh();
  return count > 0;
}

void vgpu_pool_drop(CUmemoryPool handle, bool is_empty) {
  vgpu_spin_lock(&lock);
  struct pool *pool = entry_of(handle, NULL);
  if (pool) {
    if (is_empty) vgpu_release(pool->place.book, pool->place.index, VGPU_KIND_POOL, pool->charged_bytes);
    *pool = pools[vgpu_pool_count - 1];
    __atomic_store_n(&vgpu_pool_count, vgpu_pool_count - 1, __ATOMIC_RELAXED);
  }
  vgpu_spin_unlock(&lock);
}

void vgpu_pools_forget(void) {
  lock = 0;
  in_flight_bytes = 0;
  vgpu_pool_count = 0;
}
