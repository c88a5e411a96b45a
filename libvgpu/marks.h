/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * marks.h - how long launches take on the GPU: two events of the driver around a launch, on its own stream, looked at
 * later. Nobody ever waits for one.
 *
 * The driver calls made here are those that are harmless for the program: creating, recording and asking events of
 * our own. While a stream captures, even those could spoil the capture, so none is made (vgpu_marks_hold): a capture that
 * is held open for long excepted, from which on the driver is told that they are to spoil nothing. An error means that
 * there is no measurement, and goes nowhere.
 */
#ifndef VGPU_MARKS_H
#define VGPU_MARKS_H

#include <stdbool.h>

#include "core/pace.h"
#include "include/cuda_api.h"

struct vgpu_mark;

/* How many launches are being measured; atomic. */
extern uint32_t vgpu_marks_under_way;

/* Records the first event of a pair on `stream`. NULL: this launch cannot be measured. */
struct vgpu_mark *vgpu_mark_begin(CUstream stream);

/* The launch went well: records the second event; the ticket's cost is learnt once the GPU has passed it, at the latest when
 * the program exits. `called_ns`: how long the driver's call took, for a first launch, else 0. False: it could not be
 * recorded, and the caller settles the ticket. */
bool vgpu_mark_end(struct vgpu_mark *mark, CUstream stream, struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket,
                   uint64_t called_ns);

/* The launch failed: the pair is free again. */
void vgpu_mark_drop(struct vgpu_mark *mark);

/* Looks at pairs that are under way, at a few or at all, and lets their costs be learnt. Returns how many were done. */
unsigned vgpu_marks_harvest(bool all);

/* Whether as many launches are being measured as can be at a time. */
bool vgpu_marks_are_exhausted(void);

/* Whether none may be made or asked about now. */
bool vgpu_marks_are_held(void);

/* From the return of the first until the second, no driver call is made here, for 200 ms at least, and in no
 * way that spoils a capture afterwards. Holds nest, over threads too. */
void vgpu_marks_hold(void);
void vgpu_marks_release(void);

/* The context is about to end, and its events with it. */
void vgpu_marks_forget_context(CUcontext context);

/* In a forked child. */
void vgpu_marks_forget(void);

#endif
