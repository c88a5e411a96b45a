/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pools.h - the books follow what each stream-ordered pool of this process holds from the card, as the driver
 * reports it, not what was asked of the pool: memory given back to a pool is kept by it and used again.
 */
#ifndef VGPU_POOLS_H
#define VGPU_POOLS_H

#include "state.h"

#define VGPU_POOL_CHUNK_BYTES ((uint64_t)2 << 20) /* pools grow by multiples of this, until seen otherwise */

struct vgpu_claim;

/* How many pools have been charged for; atomic. */
extern uint32_t vgpu_pool_count;

/* Makes the charge of `pool` what the driver says that it holds. `claim`, if any, was reserved for its growth by a call
 * that ended in `result`, and is used up; where nobody can say what the call took, it stands, and the caller keeps it
 * with the block. False: the pool has grown by more than the claims in flight, and that passes the limit; it is
 * charged all the same. */
bool vgpu_pool_settle(CUmemoryPool pool, struct vgpu_claim *claim, CUresult result);

/* Settles every pool that is known. Makes no driver call when there is none. */
void vgpu_pools_settle_all(void);

static inline void vgpu_pools_refresh(void) {
  if (__builtin_expect(__atomic_load_n(&vgpu_pool_count, __ATOMIC_RELAXED) != 0, 0)) vgpu_pools_settle_all();
}

/* Gives back what every known pool keeps unused, and settles. False: there is no pool, or something captures. */
bool vgpu_pools_make_room(void);

/* The claim is in the book and its thread is about to ask the driver: growth that another thread sees before
 * this one settles may be its. Ended by vgpu_pool_settle. */
void vgpu_pool_in_flight(const struct vgpu_claim *claim);

/* Notes which device a new pool is on. */
void vgpu_pool_note(CUmemoryPool pool, struct vgpu_device *device);

/* The device that a pool is on, which may be another than the stream's; NULL: the stream's will do. */
struct vgpu_device *vgpu_pool_device(CUmemoryPool pool);

/* The program destroys a pool. While blocks of it are in use, or their frees are under way, the driver would keep it
 * out of sight until they end; so the driver is asked only when the pool is empty, by the settling of pools, and its
 * charge ends then. True: the pool is gone for the program. False: ask the driver now. */
bool vgpu_pool_leave(CUmemoryPool pool);

/* Whether the program has destroyed the pool, and the driver has not yet. */
bool vgpu_pool_is_gone(CUmemoryPool pool);

/* Forgets a pool that the driver has destroyed, and gives its charge back. */
void vgpu_pool_drop(CUmemoryPool pool);

/* In a forked child. */
void vgpu_pools_forget(void);

#endif
