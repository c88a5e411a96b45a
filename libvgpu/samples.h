/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * samples.h - operations that are measured for the traffic book alone: copies, and launches whose GPU time is not limited.
 * They have pairs of their own, so that those of limited launches (marks.h) never lack for them.
 */
#ifndef VGPU_SAMPLES_H
#define VGPU_SAMPLES_H

#include "core/traffic.h"
#include "include/cuda_api.h"

enum { VGPU_SAMPLES = 16 /* operations that are measured at the same time */ };

struct vgpu_timed;

/* How many are under way; atomic. */
extern uint32_t vgpu_samples_under_way;

/* Records the first event of a pair on `stream`. NULL: this operation cannot be measured. */
struct vgpu_timed *vgpu_sample_begin(CUstream stream);

/* It went well: the second event; `sample` (without `ns`) is told once the GPU has passed it, as having taken `most_ns` at
 * most. */
void vgpu_sample_end(struct vgpu_timed *timed, CUstream stream, struct vgpu_usage_traffic *traffic,
                     const struct vgpu_sample *sample, uint64_t most_ns);

/* It failed: the pair is free again. */
void vgpu_sample_drop(struct vgpu_timed *timed);

/* Looks at all that are under way. */
void vgpu_samples_harvest(void);

/* What tells the handles of this process from those of others. */
uint64_t vgpu_samples_salt(void);

/* As in marks.h. */
struct vgpu_parked_samples {
  uint32_t under_way, idle;
};
struct vgpu_parked_samples vgpu_samples_park(CUcontext context);
void vgpu_samples_resume(struct vgpu_parked_samples parked);
void vgpu_samples_end_context(struct vgpu_parked_samples parked);
void vgpu_samples_forget(void);

#endif
