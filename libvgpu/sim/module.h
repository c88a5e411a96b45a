/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * module.h - kernels as launch.c sees them.
 */
#ifndef GPUSIM_MODULE_H
#define GPUSIM_MODULE_H

#include "driver.h"

enum { GS_KERNEL_NAME_BYTES = 200 };

struct gs_kernel {
  struct gs_object object;
  struct gs_module *module;
  uint64_t duration_ns; /* UINT64_MAX: the machine's default */
  int dynamic_shared_bytes, carveout;
  char name[GS_KERNEL_NAME_BYTES];
};

bool gs_kernel_valid(CUfunction kernel);

#endif
