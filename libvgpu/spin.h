/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * spin.h - locks of the threads of one process, held for a few instructions. Over a driver call only in two places, both
 * a query that changes nothing and calls nobody back: pools.c asks what a pool holds, so that an older answer is never
 * used after a newer one; blocks.c asks for a block's context, so that the block is not freed meanwhile.
 */
#ifndef VGPU_SPIN_H
#define VGPU_SPIN_H

#include "core/sys.h"

static inline void vgpu_spin_lock(uint32_t *lock) {
  enum { SPINS_BEFORE_YIELD = 64 };
  for (unsigned spins = 0; __atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE); spins++) {
    while (__atomic_load_n(lock, __ATOMIC_RELAXED)) {
      if (spins++ < SPINS_BEFORE_YIELD) {
        vgpu_cpu_relax();
      } else {
        vgpu_sys_sched_yield();
      }
    }
  }
}

static inline void vgpu_spin_unlock(uint32_t *lock) {
  __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
}

#endif
