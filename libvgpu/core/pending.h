/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pending.h - launches that are under way, of all processes of a container. Internal to the core; the rest of pending.c is
 * declared in rate.h.
 */
#ifndef VGPU_PENDING_H
#define VGPU_PENDING_H

#include "rate.h"

/* This process's slot, if it has one; NULL. */
struct vgpu_usage_slot_device *vgpu_rate_slot(const struct vgpu_rate_book *rate);

/* What all processes of the container were charged for launches that are not known to be done, by estimate. */
uint64_t vgpu_rate_all_under_way(const struct vgpu_rate_book *rate);

#endif
