/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * names.h - which functions are collectives, by their names, and which thread is in the middle of a group of them.
 * A collective spins on its GPU until its peers on other GPUs run, so the launches of a group must not be torn apart:
 * they are charged, and only the first one of a group may be kept waiting.
 */
#ifndef VGPU_NAMES_H
#define VGPU_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "include/cuda_api.h"

/* Whether a function of this name is a collective: those of NCCL and RCCL, whatever C++ made of their names. */
bool vgpu_name_is_collective(const char *name);

/* The driver gave out this function (or kernel) under `name`. */
void vgpu_name_seen(const void *function, const char *name);

/* The driver gave out a kernel: a handle that can be launched like a function, but not be asked about like one. */
void vgpu_kernel_seen(CUkernel kernel);

/* The driver gave out `function` for `kernel`. */
void vgpu_name_copied(const void *function, const void *kernel);

/* Whether a function is a collective. Asks the driver where it can be asked. */
bool vgpu_is_collective(CUfunction function);

/* How many threads are in a group; atomic. */
extern uint32_t vgpu_group_count;

/* Whether a collective that the calling thread launches on device `ordinal` is the first one of a group: the thread's
 * last launch was no collective, or its group was on this device before. */
bool vgpu_group_is_first(int ordinal);

/* The calling thread launches a collective on device `ordinal`. */
void vgpu_group_enter(int ordinal);

/* The calling thread launches something else. */
void vgpu_group_leave(void);

/* In a forked child. */
void vgpu_names_forget(void);

#endif
