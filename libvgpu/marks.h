/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * marks.h - how long launches take on the GPU: two events of the driver around a launch, on its own stream, looked at
 * later (pairs.h). Nobody ever waits for one.
 */
#ifndef VGPU_MARKS_H
#define VGPU_MARKS_H

#include <stdbool.h>

#include "core/pace.h"
#include "include/cuda_api.h"
#include "samples.h"

struct vgpu_mark;

/* How many launches are being measured; atomic. */
extern uint32_t vgpu_marks_under_way;

/* Records the first event of a pair on `stream`. NULL: this launch cannot be measured. */
struct vgpu_mark *vgpu_mark_begin(CUstream stream);

/* A launch that was measured as far as its second event. */
struct vgpu_marked {
  struct vgpu_pacer *pacer;
  struct vgpu_ticket ticket;
  uint64_t launched_ns; /* before the driver's call */
  uint64_t called_ns;   /* how long the call took, for a first launch, else 0 */
  uint64_t extra_ns;    /* what was charged beside the ticket; given back when the launch is measured */
  bool is_graph;
};

/* The launch went well: records the second event; the ticket's cost is learnt once the GPU has passed it, at the latest when
 * the program exits. False: it could not be recorded, and the caller settles the ticket. */
bool vgpu_mark_end(struct vgpu_mark *mark, CUstream stream, const struct vgpu_marked *marked);

/* The launch failed: the pair is free again. */
void vgpu_mark_drop(struct vgpu_mark *mark);

/* Looks at pairs that are under way, at a few or at all, and lets their costs be learnt. Returns how many were done. */
unsigned vgpu_marks_harvest(bool all);

/* Whether as many launches are being measured as can be at a time. */
bool vgpu_marks_are_exhausted(void);

/* Has what is measured paid for, and told, when the program exits. */
void vgpu_marks_register_exit(void);

/* Pairs of one context, bit by pair, and what samples.h has of it. */
struct vgpu_parked {
  uint64_t under_way, idle;
  struct vgpu_parked_samples samples;
};

/* The context may be about to end, and its events with it: until one of the other two is called, nobody touches them. */
struct vgpu_parked vgpu_marks_park(CUcontext context);

/* It has not ended. */
void vgpu_marks_resume(struct vgpu_parked parked);

/* It has ended. The launches that were not measured yet are paid for by the clock: from the first of them until now. */
void vgpu_marks_end_context(struct vgpu_parked parked);

/* In a forked child. */
void vgpu_marks_forget(void);

#endif
