/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pairs.h - two events of the driver around something on a stream, whose distance is asked about later. A pair keeps its
 * events for as long as their context lives, and is worked on by the one thread that took it by compare-and-swap; no
 * lock is held over a driver call.
 *
 * The driver calls made here are those that are harmless for the program: creating, recording and asking events of our
 * own; none while something captures (holds.h). An error means that there is no measurement, and goes nowhere.
 */
#ifndef VGPU_PAIRS_H
#define VGPU_PAIRS_H

#include <stdbool.h>
#include <stdint.h>

#include "include/cuda_api.h"

enum vgpu_pair_state { VGPU_PAIR_FREE, VGPU_PAIR_TAKEN, VGPU_PAIR_UNDER_WAY };

/* Zeroed: free, and without events. */
struct vgpu_pair {
  uint32_t state;    /* atomic; enum vgpu_pair_state */
  CUcontext context; /* that the events belong to; NULL: there are none yet. Atomic */
  CUevent begin, end;
};

/* Takes the pair if it is in state `from`. */
static inline bool vgpu_pair_take(struct vgpu_pair *pair, uint32_t from) {
  return __atomic_load_n(&pair->state, __ATOMIC_RELAXED) == from &&
         __atomic_compare_exchange_n(&pair->state, &from, VGPU_PAIR_TAKEN, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void vgpu_pair_put_back(struct vgpu_pair *pair, uint32_t state) {
  __atomic_store_n(&pair->state, state, __ATOMIC_RELEASE);
}

static inline CUcontext vgpu_pair_context(const struct vgpu_pair *pair) {
  return __atomic_load_n(&pair->context, __ATOMIC_RELAXED);
}

/* Whether a free pair is as good as one can wish (0: of this context; 1: without events; 2: of another context). */
static inline bool vgpu_pair_suits(const struct vgpu_pair *pair, CUcontext context, int wish) {
  CUcontext of = vgpu_pair_context(pair);
  return wish == 0 ? of == context : wish == 1 ? of == NULL : of != context;
}

enum { VGPU_PAIR_WISHES = 3 };

/* Records the first event of a pair that was taken, in the context that is current; makes the events if need be. */
bool vgpu_pair_begin(struct vgpu_pair *pair, CUcontext context, CUstream stream);

/* Records the second one, in the context of the stream. */
bool vgpu_pair_end(const struct vgpu_pair *pair, CUstream stream);

/* Asks about a pair that was taken. CUDA_ERROR_NOT_READY: not yet. */
CUresult vgpu_pair_look(const struct vgpu_pair *pair, float *milliseconds);

/* Forgets the events; the driver is asked to destroy them if it may be. */
void vgpu_pair_drop_events(struct vgpu_pair *pair, bool destroy);

#endif
