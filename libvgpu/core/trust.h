/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * trust.h - the line of the limits page as one process takes it: a line that cannot be is replaced by one of this process's
 * own, and what was lent is given back when nobody has steered for long. Internal to the core.
 */
#ifndef VGPU_TRUST_H
#define VGPU_TRUST_H

#include "rate.h"

static inline const struct vgpu_limits_device *vgpu_rate_limits(const struct vgpu_rate_book *rate) {
  return &rate->book->limits->devices[rate->device];
}

static inline struct vgpu_usage_device *vgpu_rate_usage(const struct vgpu_rate_book *rate) {
  return (struct vgpu_usage_device *)(rate->book->usage + 1) + rate->device;
}

/* The line in force for this process. A line of another clock, or one that has gone down and left this process in debt (no
 * writer does that), is taken to begin when it is first seen, at the share at most. False: the copy may be of two
 * lines; it was changed again and again. */
bool vgpu_trust_line(struct vgpu_rate_book *rate, uint64_t now_ns, struct vgpu_line *line);

/* Looks whether somebody steers: is_stale. */
void vgpu_trust_heartbeat(struct vgpu_rate_book *rate, uint64_t now_ns);

#endif
