/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * limits.h - limits of memory and of GPU time as people write them, and where the environment says them. The same rules
 * hold in the agent; test/testdata/limits.txt and cores.txt are the tables that both are tested with.
 */
#ifndef VGPU_LIMITS_H
#define VGPU_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "include/vgpu_abi.h"

#define VGPU_NO_LIMIT UINT64_MAX

/* Reads a limit: digits with an optional fraction of up to 6 digits, then an optional unit: k m g t or K M G T,
 * the capital ones also with i, B or iB; always powers of two. No unit: whole bytes. Blanks at both ends are
 * allowed. 0: *bytes is set (a fraction of a byte is dropped). -ENOENT: empty, as if it were not set.
 * -EINVAL: anything else, also what does not fit 64 bits. */
int vgpu_parse_limit(const char *text, uint64_t *bytes);

/* Reads a share of a GPU's time: a whole number from 1 to 100; blanks at both ends are allowed. 0: *percent is set. -ENOENT:
 * empty, as if it were not set. -EINVAL: anything else, 0 too. */
int vgpu_parse_percent(const char *text, uint32_t *percent);

/* CUDA_DEVICE_MEMORY_LIMIT and CUDA_DEVICE_SM_LIMIT, and those with _<i>, of this process, by the container's device
 * index. A value that cannot be read counts as 0 bytes, or 1 percent, and is logged. */
struct vgpu_environment {
  bool limited;                           /* any of the variables is set and limits something */
  uint64_t limit_bytes[VGPU_MAX_DEVICES]; /* VGPU_NO_LIMIT: none for this device */
  uint32_t share_ppm[VGPU_MAX_DEVICES];   /* of the GPU's time; VGPU_PPM: all of it */
  bool has_allocation;                    /* VGPUD_ALLOCATION is set: there must be pages */
  const char *shared_cache;               /* CUDA_DEVICE_MEMORY_SHARED_CACHE; NULL: not set */
  const char *visible_devices;            /* CUDA_VISIBLE_DEVICES; NULL: not set */
};

/* `variables` as in environ(7), may be NULL. Texts stay owned by it. */
void vgpu_environment_read(struct vgpu_environment *environment, char *const *variables);

/* The container's index of CUDA device `ordinal` when CUDA_VISIBLE_DEVICES holds plain numbers or is not set;
 * -ENOENT when it cannot be told from the variable. */
int vgpu_container_index(const char *visible_devices, int ordinal);

#endif
