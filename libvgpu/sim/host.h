/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * host.h - host memory that the driver knows: pinned allocations and registered ranges.
 */
#ifndef GPUSIM_HOST_H
#define GPUSIM_HOST_H

#include "driver.h"

struct gs_host_range {
  uintptr_t base;
  size_t bytes;
  struct gs_context *context;
  unsigned flags;
  bool allocated; /* else registered */
};

/* Copies the range that `address` lies in. False: the driver does not know this memory. */
bool gs_host_find(uintptr_t address, struct gs_host_range *found);

/* Frees and forgets what was allocated or registered in the context. */
void gs_host_release_context(struct gs_context *context);

#endif
