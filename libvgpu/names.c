/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * names.c - contract in names.h. Collectives are few; what finds no room in these tables is treated as any other kernel.
 */
#include "names.h"

#include "spin.h"
#include "table.h"
#include "text.h"

enum { COLLECTIVES = 512, THREADS = 64, KERNEL_WORDS = 1024 };

uint32_t vgpu_group_count;

static const void *collectives[COLLECTIVES]; /* inside the lock */
static uint32_t collective_count;            /* atomic */

/* One bit for each kernel seen, by a hash of its handle. Another handle may have the same: then it is not asked about. */
static uint64_t kernel_bits[KERNEL_WORDS]; /* atomic */

/* A thread whose last launch was a collective. */
static struct {
  uintptr_t thread; /* 0: free */
  uint64_t devices; /* bit by ordinal: those of the group so far */
} groups[THREADS];

static uint32_t lock;

bool vgpu_name_is_collective(const char *name) {
  if (vgpu_text_starts(name, "nccl") || vgpu_text_starts(name, "rccl")) return true;
  for (; *name; name++) {
    if (vgpu_text_starts(name, "ncclKernel") || vgpu_text_starts(name, "ncclDevKernel")) return true;
  }
  return false;
}

/* Inside the lock. */
static uint32_t index_of(const void *function) {
  uint32_t i = 0;
  while (i < collective_count && collectives[i] != function)
    i++;
  return i;
}

static void set_collective(const void *function, bool is_collective) {
  if (!function || (!is_collective && __atomic_load_n(&collective_count, __ATOMIC_RELAXED) == 0)) return;
  vgpu_spin_lock(&lock);
  uint32_t at = index_of(function), count = collective_count;
  if (is_collective && at == count && count < COLLECTIVES) {
    collectives[at] = function;
    __atomic_store_n(&collective_count, count + 1, __ATOMIC_RELAXED);
  } else if (!is_collective && at < count) {
    collectives[at] = collectives[count - 1];
    __atomic_store_n(&collective_count, count - 1, __ATOMIC_RELAXED);
  }
  vgpu_spin_unlock(&lock);
}

static bool is_known(const void *function) {
  if (__atomic_load_n(&collective_count, __ATOMIC_RELAXED) == 0) return false;
  vgpu_spin_lock(&lock);
  bool known = index_of(function) < collective_count;
  vgpu_spin_unlock(&lock);
  return known;
}

void vgpu_name_seen(const void *function, const char *name) {
  set_collective(function, vgpu_name_is_collective(name));
}

void vgpu_name_copied(const void *function, const void *kernel) {
  set_collective(function, is_known(kernel));
}

static uint64_t *kernel_word(const void *handle, uint64_t *bit) {
  uint64_t hash = (uint64_t)(uintptr_t)handle * 0x9e3779b97f4a7c15ULL >> 48;
  *bit = (uint64_t)1 << hash % 64;
  return &kernel_bits[hash / 64];
}

void vgpu_kernel_seen(CUkernel kernel) {
  uint64_t bit, *word = kernel_word(kernel, &bit);
  __atomic_fetch_or(word, bit, __ATOMIC_RELAXED);
}

bool vgpu_is_collective(CUfunction function) {
  const char *name = NULL;
  uint64_t bit;
  if (is_known(function)) return true;
  if (__atomic_load_n(kernel_word(function, &bit), __ATOMIC_RELAXED) & bit) return false;
  __typeof__(&cuFuncGetName) get = VGPU_REAL(cuFuncGetName);
  return get && get(&name, function) == CUDA_SUCCESS && name && vgpu_name_is_collective(name);
}

/* The calling thread's entry, THREADS: none. Inside the lock. */
static int entry_of(uintptr_t thread) {
  int i = 0;
  while (i < THREADS && groups[i].thread != thread)
    i++;
  return i;
}

static uint64_t bit_of(int ordinal) {
  return (uint64_t)1 << (ordinal & 63);
}

bool vgpu_group_is_first(int ordinal) {
  vgpu_spin_lock(&lock);
  int at = entry_of((uintptr_t)__builtin_thread_pointer());
  bool is_first = at == THREADS || (groups[at].devices & bit_of(ordinal)) != 0;
  vgpu_spin_unlock(&lock);
  return is_first;
}

void vgpu_group_enter(int ordinal) {
  uint64_t bit = bit_of(ordinal);
  uintptr_t self = (uintptr_t)__builtin_thread_pointer();
  vgpu_spin_lock(&lock);
  int at = entry_of(self);
  bool is_first = at == THREADS || (groups[at].devices & bit) != 0;
  if (at == THREADS && (at = entry_of(0)) < THREADS) {
    groups[at].thread = self;
    __atomic_add_fetch(&vgpu_group_count, 1, __ATOMIC_RELAXED);
  }
  if (at < THREADS) groups[at].devices = is_first ? bit : groups[at].devices | bit;
  vgpu_spin_unlock(&lock);
}

void vgpu_group_leave(void) {
  vgpu_spin_lock(&lock);
  int at = entry_of((uintptr_t)__builtin_thread_pointer());
  if (at < THREADS) {
    groups[at].thread = 0;
    __atomic_sub_fetch(&vgpu_group_count, 1, __ATOMIC_RELAXED);
  }
  vgpu_spin_unlock(&lock);
}

void vgpu_names_forget(void) {
  lock = 0;
  for (int i = 0; vgpu_group_count && i < THREADS; i++)
    groups[i].thread = 0;
  vgpu_group_count = 0;
}
