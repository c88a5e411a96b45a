/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * table.h - hooks.def as C: one typed slot per driver function that is hooked or called, and the look-up from a
 * name or a driver's address to a hook.
 *
 * Slots are filled when the first one is needed (the driver may be opened late and locally), and emptied when a
 * door sees that the driver was loaded again elsewhere. An empty slot after that means: this driver has no such
 * function.
 */
#ifndef VGPU_TABLE_H
#define VGPU_TABLE_H

#include "include/cuda_api.h"
#include "include/nvml_api.h"

enum vgpu_name {
#define HOOK(name, need) VGPU_NAME_##name,
#include "hooks.def"
  VGPU_HOOK_COUNT,
  VGPU_BEFORE_CALLS = VGPU_HOOK_COUNT - 1,
#define CALL(name) VGPU_NAME_##name,
#include "hooks.def"
  VGPU_NAME_COUNT
};

/* The driver's own functions, or those of another libvgpu behind us; atomic, read through vgpu_real. */
extern void *vgpu_real_slots[VGPU_NAME_COUNT];

/* Fills the slots and gives that of `name`; NULL when the driver is not there or lacks it. */
void *vgpu_real_resolve(enum vgpu_name name);

static inline void *vgpu_real_address(enum vgpu_name name) {
  void *address = __atomic_load_n(&vgpu_real_slots[name], __ATOMIC_RELAXED);
  return __builtin_expect(address != NULL, 1) ? address : vgpu_real_resolve(name);
}

/* The driver's own function `name`, with its type; NULL when it has none. */
#define VGPU_REAL(name) ((__typeof__(&name))vgpu_real_address(VGPU_NAME_##name))

/* The same if it has been looked for; NULL may also mean that it has not. */
#define VGPU_KNOWN(name) ((__typeof__(&name))__atomic_load_n(&vgpu_real_slots[VGPU_NAME_##name], __ATOMIC_RELAXED))

/* Index of the hook of exactly this name; -1: not hooked. */
int vgpu_hook_by_name(const char *name);

/* The hook whose driver function is at `address` and whose name begins with `symbol`; NULL: not hooked. */
void *vgpu_hook_by_address(const void *address, const char *symbol);

/* The hook itself. */
void *vgpu_hook_function(int index);

/* What a program gets that asked for hook `index` and was answered with `address` by the loader: the hook when
 * that is a driver's function, else the answer unchanged. Notes a driver that was loaded anew. */
void *vgpu_hook_for_answer(int index, void *address);

/* Whether `address` is code of the driver itself, which is always given its own functions. */
int vgpu_is_driver_code(const void *address);

#endif
