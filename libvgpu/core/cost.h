/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * cost.h - what a launch costs in GPU time, learnt from launches that were measured. One table per process; the key is the
 * function (or the executable graph) with the rounded logarithms of the numbers of blocks and of threads.
 *
 * Measuring is by the clock of the GPU between two marks on the stream, so it includes what other contexts ran in
 * between. While the process is known to be alone, estimates follow the mean; else they follow the lower envelope
 * (they fall fast and rise slowly), which is steady whatever the neighbours do. What bias is left is the agent's to
 * find: it compares what was charged with what was used, and publishes the quotient (vgpu_rate.scale_ppm).
 *
 * Thread-safe by single atomic words; a race between two learners loses one sample. No CUDA, no libc, no clock.
 */
#ifndef VGPU_COST_H
#define VGPU_COST_H

#include <stdbool.h>
#include <stdint.h>

enum {
  VGPU_COST_ENTRIES = 4096, /* a power of two */
  VGPU_COST_PROBES = 8,     /* then the entry of last resort is shared by what finds no room */
  VGPU_COST_FRESH = 4,      /* a key is unsettled until so many were measured: each launch is, and is paid exactly; */
  VGPU_COST_EVERY = 16,     /* then one of so many (spread, so that no rhythm of the program is in step with it), */
  VGPU_COST_EVERY_STEADY = 64, /* or of so many, once the estimate is steady; */
  VGPU_COST_LONG_AGO = 4096    /* and each one, until so many in a row were short */
};
#define VGPU_COST_LONG_NS ((uint64_t)200000)   /* launches from here on are measured each time, and corrected exactly */
#define VGPU_COST_GUESS_NS ((uint64_t)1000000) /* what is charged for a launch that can neither be known nor measured */
#define VGPU_COST_SPIN_NS ((uint64_t)50000000) /* most that is charged for a collective before it is measured */

/* One key. Atomic words; writers: all threads of the process. */
struct vgpu_cost {
  uint64_t key;          /* 0: free */
  uint64_t cost_ns;      /* estimate; 0: not known yet */
  uint64_t deviation_ns; /* mean absolute deviation of the samples */
  uint64_t usual_ns;     /* slow mean of the estimate: what launches of the key were charged of late, on average */
  uint32_t launches;     /* since the process began; wraps; counts are lost when threads race */
  uint32_t first;        /* 1: the first launch of this key has been let go, and is not measured yet */
  uint32_t flags;        /* enum vgpu_cost_flags */
  uint32_t guesses;      /* launches that were charged by guess before the cost was known */
  uint32_t long_launch;  /* value of `launches` at the last one that was long */
  uint32_t peak_us;      /* the largest of the last samples: rises at once, falls by a sixteenth with each sample */
  uint32_t era;          /* raised when the content came into doubt */
  uint16_t samples;      /* stops at UINT16_MAX; 0 again when the content is in doubt */
  uint16_t above;        /* samples in a row that were more than twice the estimate */
};

enum vgpu_cost_flags {
  VGPU_COST_NAMED = 1,      /* the caller has looked at the function's name */
  VGPU_COST_COLLECTIVE = 2, /* a collective: may spin until its peers run, so it must not be kept waiting */
  VGPU_COST_STEADY = 4,     /* the samples differ little */
  VGPU_COST_LONG = 8,       /* measure each launch: long ones are, or were of late, among them */
  VGPU_COST_UNSETTLED = 16, /* little is known, or it is in doubt */
  VGPU_COST_WIDE = 32,      /* the samples differ much */
  VGPU_COST_UNCLEAN = 64    /* the caller has thrown one first sample away; it does so once */
};

_Static_assert(sizeof(struct vgpu_cost) == 64, "one cache line each");

struct vgpu_costs {
  struct vgpu_cost entries[VGPU_COST_ENTRIES];
  struct vgpu_cost last_resort;
};

/* The entry of a function (a driver's handle) or graph. Never NULL. */
struct vgpu_cost *vgpu_cost_find(struct vgpu_costs *costs, const void *function, uint64_t blocks, uint32_t threads);

enum vgpu_cost_step {
  VGPU_COST_CHARGE, /* the cost is known: charge it */
  VGPU_COST_SAMPLE, /* known; measure this launch too if that can be done */
  VGPU_COST_SETTLE, /* little is known: charge vgpu_cost_price, measure this launch, and put its charge right by that */
  VGPU_COST_FIRST,  /* not known: the same, at a guess, if vgpu_cost_claim says so just before it is launched */
  VGPU_COST_BUSY    /* not known, and its first launch has not been measured yet: wait for that */
};

/* True if launch number `launches` is one to measure, for a key that is known and short. */
static inline bool vgpu_cost_is_due(uint32_t launches, uint32_t flags) {
  uint32_t spread = launches * 0x9e3779b1u; /* the golden section: evenly spread over any number of launches */
  return spread < (flags & VGPU_COST_STEADY ? UINT32_MAX / VGPU_COST_EVERY_STEADY : UINT32_MAX / VGPU_COST_EVERY);
}

/* What to do about the next launch of the key; counts it, except for FIRST and BUSY. */
enum vgpu_cost_step vgpu_cost_next(struct vgpu_cost *cost);

/* This launch is the first one: it is let go now. Counts it. False: another one is, or the cost has become known. (Who
 * leaves before, by longjmp out of a wait, say, has claimed nothing.) */
bool vgpu_cost_claim(struct vgpu_cost *cost);

/* What a launch of a known key is charged whose measurement settles that: the estimate, or the largest of the last samples
 * if that is more, so that what has been launched and not measured is no more than what has been charged. (For a
 * collective VGPU_COST_SPIN_NS at most: the most of its samples may be waiting.) */
uint64_t vgpu_cost_price(const struct vgpu_cost *cost);

/* What to charge for a launch that cannot wait to be known: the estimate if there is one, else a guess, which is put right
 * when the cost is known. */
uint64_t vgpu_cost_guess(struct vgpu_cost *cost);

/* The first launch could not be measured after all: the next one may try. */
void vgpu_cost_give_up(struct vgpu_cost *cost);

/* A measured launch took `elapsed_ns`. Returns by how much the entry's charges for it were too low (> 0) or too high, given
 * `charged_ns` (0: the caller knows what was charged, and settles it): all of it when that is 0 (for a key that is known,
 * while not alone, and for collectives, no more than the new estimate), and what was guessed meanwhile; an exact
 * correction for long ones while alone; else 0. An elapsed time that no clock measures (negative, more than a day)
 * teaches nothing: a first launch is charged by guess. */
int64_t vgpu_cost_learn(struct vgpu_cost *cost, uint64_t elapsed_ns, uint64_t charged_ns, bool alone);

/* For how long a collective spun until its peers came, as far as can be told: what it took beyond `own_ns`, which was
 * charged for it. Nothing for others. Collectives follow the lower envelope also while alone. */
uint64_t vgpu_cost_spun(const struct vgpu_cost *cost, uint64_t elapsed_ns, uint64_t own_ns);

/* A launch was measured that is to teach nothing, because nobody learns the scale any more that belongs to the estimate.
 * The estimate goes to its slow mean, and stays there: the scale is one of that, and not of where the estimate happened
 * to be when the agent was last there. Nothing happens to a key that is not known. */
void vgpu_cost_hold(struct vgpu_cost *cost);

/* The key's content changed (a graph was updated): keep the estimate, but the key is unsettled. */
void vgpu_cost_doubt(struct vgpu_cost *cost);

/* A launch of a content that is gone was measured: what was learnt of late may be of that one. */
void vgpu_cost_unsettle(struct vgpu_cost *cost);

/* The key is gone (a graph was destroyed), and the handle may be another's by now: as if it had never been seen. */
void vgpu_cost_forget(struct vgpu_cost *cost);

#endif
