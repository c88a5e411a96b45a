/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * table.c - the expansion of hooks.def.
 */
#include "table.h"

#include <stdbool.h>

#include "log.h"
#include "modules.h"
#include "text.h"

enum { REQUIRED, OPTIONAL, INDEX_SIZE = 512 };

void *vgpu_real_slots[VGPU_NAME_COUNT];

static const char *const names[VGPU_NAME_COUNT] = {
#define HOOK(name, need) [VGPU_NAME_##name] = #name,
#define CALL(name) [VGPU_NAME_##name] = #name,
#include "hooks.def"
};

static void *const hooks[VGPU_HOOK_COUNT] = {
#define HOOK(name, need) [VGPU_NAME_##name] = (void *)&name,
#include "hooks.def"
};

static const uint8_t needs[VGPU_HOOK_COUNT] = {
#define HOOK(name, need) [VGPU_NAME_##name] = need,
#include "hooks.def"
};

/* Hash of a hook's name → its index + 1; filled on the first look-up, by every thread alike. */
static uint8_t name_index[INDEX_SIZE];
static int name_index_ready;
_Static_assert(VGPU_HOOK_COUNT < INDEX_SIZE / 2 && VGPU_HOOK_COUNT < UINT8_MAX, "sparse, and of bytes");

static unsigned name_hash(const char *name) {
  uint32_t hash = 5381;
  for (; *name; name++)
    hash = hash * 33 + (uint8_t)*name;
  return (hash ^ hash >> 11) % INDEX_SIZE;
}

/* Threads that race here write the same bytes in the same order. */
static void name_index_fill(void) {
  for (unsigned i = 0; i < VGPU_HOOK_COUNT; i++) {
    unsigned at = name_hash(names[i]);
    for (;; at = (at + 1) % INDEX_SIZE) {
      unsigned held = __atomic_load_n(&name_index[at], __ATOMIC_RELAXED);
      if (held == 0 || held == i + 1) break;
    }
    __atomic_store_n(&name_index[at], (uint8_t)(i + 1), __ATOMIC_RELAXED);
  }
  __atomic_store_n(&name_index_ready, 1, __ATOMIC_RELEASE);
}

int vgpu_hook_by_name(const char *name) {
  if (!vgpu_text_starts(name, "cu") && !vgpu_text_starts(name, "nvml")) return -1;
  if (!__atomic_load_n(&name_index_ready, __ATOMIC_ACQUIRE)) name_index_fill();
  for (unsigned at = name_hash(name);; at = (at + 1) % INDEX_SIZE) {
    unsigned held = __atomic_load_n(&name_index[at], __ATOMIC_RELAXED);
    if (held == 0) return -1;
    if (vgpu_text_equal(names[held - 1], name)) return (int)held - 1;
  }
}

void *vgpu_hook_function(int index) {
  return hooks[index];
}

static enum vgpu_library library_of(const char *name) {
  return name[0] == 'c' ? VGPU_LIBRARY_CUDA : VGPU_LIBRARY_NVML;
}

/* Fills the slots of one driver, if it is loaded. Where another libvgpu stands behind us, its hooks are what we call
 * for what the driver has: limits of nested slices chain, and each can only lower. Only modules behind us are asked, so
 * that no ring can form. */
static void fill(enum vgpu_library library) {
  void *found[VGPU_NAME_COUNT], *behind[VGPU_HOOK_COUNT];
  const char *lacks = NULL;
  bool is_loaded = false;
  static uint64_t next;
  vgpu_find_symbols(library, names, found, VGPU_NAME_COUNT);
  vgpu_find_symbols(VGPU_LIBRARY_VGPU, names, behind, VGPU_HOOK_COUNT);
  for (unsigned i = 0; i < VGPU_HOOK_COUNT; i++) {
    if (found[i] && behind[i]) found[i] = behind[i];
  }
  for (unsigned i = 0; i < VGPU_NAME_COUNT; i++) {
    if (found[i]) {
      is_loaded = true;
      __atomic_store_n(&vgpu_real_slots[i], found[i], __ATOMIC_RELAXED);
    } else if (i < VGPU_HOOK_COUNT && needs[i] == REQUIRED && library_of(names[i]) == library) {
      lacks = names[i];
    }
  }
  if (is_loaded && lacks && vgpu_log_is_due(&next)) vgpu_log("this driver has no %s: is it an NVIDIA driver?", lacks);
}

__attribute__((noinline, cold)) void *vgpu_real_resolve(enum vgpu_name name) {
  fill(library_of(names[name]));
  return __atomic_load_n(&vgpu_real_slots[name], __ATOMIC_RELAXED);
}

void *vgpu_hook_by_address(const void *address, const char *symbol) {
  for (unsigned i = 0; i < VGPU_HOOK_COUNT; i++) {
    if (vgpu_real_slots[i] == address && vgpu_text_starts(names[i], symbol)) return hooks[i];
  }
  return NULL;
}

void *vgpu_hook_for_answer(int index, void *address) {
  if (!address || address == hooks[index]) return address;
  void *known = __atomic_load_n(&vgpu_real_slots[index], __ATOMIC_RELAXED);
  if (address == known) return hooks[index];
  enum vgpu_library library = library_of(names[index]);
  if (!vgpu_is_in_driver(library, address) && !vgpu_is_in_libvgpu(address)) return address;
  for (unsigned i = 0; known && i < VGPU_NAME_COUNT; i++) {
    if (library_of(names[i]) == library) __atomic_store_n(&vgpu_real_slots[i], NULL, __ATOMIC_RELAXED);
  }
  fill(library);
  return hooks[index];
}

int vgpu_is_driver_code(const void *address) {
  return vgpu_is_in_driver(VGPU_LIBRARY_CUDA, address) || vgpu_is_in_driver(VGPU_LIBRARY_NVML, address);
}
