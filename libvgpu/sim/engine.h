/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * engine.h - simulated GPU time. Each process has one queue of work per GPU; the GPU serves all queues that
 * have work by turns so fine that each gets an equal part (processor sharing), as time-slicing does over
 * times that are long against a slice. Nothing runs: progress is worked out when somebody looks.
 */
#ifndef GPUSIM_ENGINE_H
#define GPUSIM_ENGINE_H

#include "region.h"

/* Adds `ns` of work to this process' queue. Answers a mark: that work is done when gs_engine_done says so. If
 * `finish_ns` is given, it gets the monotonic time at which that will be if nothing else is enqueued. */
uint64_t gs_engine_enqueue(struct gs_gpu *gpu, uint64_t ns, uint64_t *finish_ns);

/* Mark of all work enqueued so far by this process. */
uint64_t gs_engine_mark(struct gs_gpu *gpu);

bool gs_engine_done(struct gs_gpu *gpu, uint64_t mark);

/* Sleeps until the mark is reached. */
void gs_engine_wait(struct gs_gpu *gpu, uint64_t mark);

/* GPU time used in the last `window` full buckets, in parts per thousand of that time; of one client, or of
 * all if `slot` is negative. */
uint32_t gs_engine_utilization(struct gs_gpu *gpu, int slot, uint32_t window);

/* For books.c; the caller holds the GPU's lock. */
bool gs_engine_busy(struct gs_gpu *gpu, uint32_t slot);
void gs_engine_drop(struct gs_gpu *gpu, uint32_t slot);
void gs_engine_repair(struct gs_gpu *gpu);

#endif
