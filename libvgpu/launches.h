/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * launches.h - the steps of every launching hook: buy GPU time, wait while there is none, launch, measure.
 *
 *   device = vgpu_launch_device(stream)            NULL: nothing limits this launch, just call the driver
 *   vgpu_launch_begin(&launch, device, ...)
 *   vgpu_launch_end(&launch, the driver's result)  gives it back
 *
 * The usual launch (its cost is known, credit is at hand) makes no driver call, no system call and no store into shared
 * memory. A thread that waits holds no lock and sleeps in the kernel; signals are handled meanwhile.
 */
#ifndef VGPU_LAUNCHES_H
#define VGPU_LAUNCHES_H

#include "capture.h"
#include "marks.h"
#include "names.h"
#include "state.h"

/* What this process knows of the costs of its launches. */
extern struct vgpu_costs vgpu_launch_costs;

/* One launch, on the stack of its thread. */
struct vgpu_launch {
  struct vgpu_pacer *pacer; /* who was charged; NULL: nobody */
  struct vgpu_mark *mark;   /* it is being measured; NULL: it is not */
  struct vgpu_ticket ticket;
  CUstream stream;
  uint64_t called_ns; /* when the driver was called, if it is being measured */
  uint64_t extra_ns;  /* what was charged beside the ticket */
  bool is_graph;      /* of one that is being measured */
};

/* The device that `stream` is on, asked of the driver: graphs and kernels of libraries run in the context of the stream,
 * whatever the current one is. NULL: the driver cannot say. */
struct vgpu_device *vgpu_launch_device_slow(CUstream stream);

/* The device of a launch on `stream`. NULL: it is not limited, or it only goes into a capture, or there is no context and
 * the driver says so. */
static inline struct vgpu_device *vgpu_launch_device(CUstream stream) {
  if (!vgpu_is_limiting()) return NULL;
  vgpu_check_fork();
  if (vgpu_capture_has(stream)) return NULL;
  struct vgpu_device *only = __atomic_load_n(&vgpu_only_device, __ATOMIC_ACQUIRE);
  struct vgpu_device *device = __builtin_expect(only != NULL, 1) ? only : vgpu_launch_device_slow(stream);
  return device && vgpu_device_is_paced(device) ? device : NULL;
}

/* Buys GPU time, waiting as long as it takes. `named`: whose name tells whether it is a collective; NULL for a graph. */
void vgpu_launch_admit(struct vgpu_launch *launch, struct vgpu_device *device, struct vgpu_cost *cost,
                       CUfunction named);

/* Begins to measure a launch whose ticket says so, if that can be done. */
void vgpu_launch_mark(struct vgpu_launch *launch, CUstream stream);

/* What else there is to do for a launch that was admitted: groups of collectives, and measuring. `named` as above. */
void vgpu_launch_prepare(struct vgpu_launch *launch, const struct vgpu_device *device, const struct vgpu_cost *cost,
                         CUfunction named, CUstream stream);

/* `function` is a function or an executable graph. */
static inline void vgpu_launch_begin(struct vgpu_launch *launch, struct vgpu_device *device, CUfunction named,
                                     const void *function, uint64_t blocks, uint32_t threads, CUstream stream) {
  struct vgpu_cost *cost = vgpu_cost_find(&vgpu_launch_costs, function, blocks, threads);
  launch->mark = NULL;
  launch->extra_ns = 0;
  launch->ticket.blind = false;
  launch->pacer = &device->pacers[0];
  if (__builtin_expect(!vgpu_pace_quick(launch->pacer, cost, &launch->ticket), 0)) {
    vgpu_launch_admit(launch, device, cost, named);
  }
  uint32_t is_collective = __atomic_load_n(&cost->flags, __ATOMIC_RELAXED) & VGPU_COST_COLLECTIVE;
  uint32_t in_group = __atomic_load_n(&vgpu_group_count, __ATOMIC_RELAXED);
  if (__builtin_expect(launch->ticket.sample | is_collective | in_group, 0)) {
    vgpu_launch_prepare(launch, device, cost, named, stream);
  }
}

void vgpu_launch_settle(struct vgpu_launch *launch, CUresult result);

static inline CUresult vgpu_launch_end(struct vgpu_launch *launch, CUresult result) {
  bool is_usual = !launch->mark && !launch->ticket.first && result == CUDA_SUCCESS;
  if (__builtin_expect(!is_usual, 0)) vgpu_launch_settle(launch, result);
  return result;
}

/* The graph was changed, or is gone. */
void vgpu_launch_doubt(CUgraphExec graph);
void vgpu_launch_forget(CUgraphExec graph);

/* In a forked child: what was learnt of functions and graphs is the parent's. */
void vgpu_launches_forget(void);

#endif
