/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * watch.h - launches whose GPU time is not limited, in a container that has pages: one in some is measured, for the traffic
 * book alone. (Where it is limited, what is measured to be paid for is told to the book, too.)
 *
 * One in VGPU_WATCH_EVERY, spread so that no rhythm of the program is in step with it; one in VGPU_WATCH_EVERY_LONG while launches are
 * long ones, to which two events are nothing; and one in a millisecond at most.
 */
#ifndef VGPU_WATCH_H
#define VGPU_WATCH_H

#include "launches.h"
#include "samples.h"

enum { VGPU_WATCH_EVERY = 64, VGPU_WATCH_EVERY_LONG = 4 };

/* One launch that may be measured, on the stack of its thread. */
struct vgpu_watched {
  struct vgpu_timed *timed; /* NULL: it is not */
  struct vgpu_usage_traffic *traffic;
  struct vgpu_sample sample;
  CUstream stream;
};

/* 0: the launch, which is not limited, is not to be measured; else: it is, and for how many it stands. */
uint32_t vgpu_watch_due(void);

/* `function` is a function or an executable graph. */
void vgpu_watch_begin(struct vgpu_watched *watched, const void *function, bool is_graph, uint64_t blocks,
                      uint32_t threads, CUstream stream, uint32_t operations);
CUresult vgpu_watch_end(struct vgpu_watched *watched, CUresult result);

/* One took so long: how often it is done from now on. */
void vgpu_watch_took(uint64_t ns);

#endif
