/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * where.h - on which side an address is, for calls that do not say. The driver knows; it is asked once for each 64 KiB, and
 * again after this process has taken or given back device memory, since addresses come back.
 */
#ifndef VGPU_WHERE_H
#define VGPU_WHERE_H

#include "include/cuda_api.h"

enum { VGPU_ON_HOST = -1 };

/* The ordinal of the device that `pointer` is on, or VGPU_ON_HOST: registered with the driver or not. Managed memory is on the
 * device that it was made for, wherever its pages are. */
int vgpu_where(CUdeviceptr pointer);

/* What is known is of another time. */
extern uint32_t vgpu_where_generation; /* atomic */
static inline void vgpu_where_changed(void) {
  uint32_t generation = __atomic_load_n(&vgpu_where_generation, __ATOMIC_RELAXED);
  __atomic_store_n(&vgpu_where_generation, generation + 1, __ATOMIC_RELAXED); /* a race still changes it */
}

#endif
