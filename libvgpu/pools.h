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

/* Makes the charge of `pool` what the driver says that it holds. `claim`, if any, was reserved for its growth
 * and is used up. False: it has grown by more than the claims in flight, and that passes the limit; it is charged
 * all the same. 32 pools are followed; one more than that keeps its claims for good. */
bool vgpu_pool_settle(CUmemoryPool pool, struct vgpu_claim *claim);

/* Settles every pool that is known. Makes no driver call when there is none. */
void vgpu_pools_settle_all(void);

static inline void vgpu_pools_refresh(void) {
  if (__builtin_expect(__atomic_load_n(&vgpu_pool_count, __ATOMIC_RELAXED) != 0, 0)) vgpu_pools_settle_all();
}

/* Gives back what every known pool keeps unused, and settles. False: there is no pool. */
bool vgpu_pools_make_room(void);

/* The claim is in the book and its thread is about to ask the driver: growth that another thread sees before
 * this one settles may be its. Ended by vgpu_pool_settle. */
void vgpu_pool_in_flight(const struct vgpu_claim *claim);

/* Forgets a pool that was destroyed; its charge is given back if it is empty, else it stays for good. */
void vgpu_pool_drop(CUmemoryPool pool, bool is_empty);

/* In a forked child. */
void vgpu_pools_forget(void);

#endif
