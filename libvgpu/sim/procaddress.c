/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * procaddress.c - cuGetProcAddress of both interfaces. The answers are those of the real driver for every
 * name, version and flag (procaddress.def); they are the addresses of exported symbols, and need no cuInit.
 */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

struct variant {
  const char *name;
  int flags; /* 0 legacy default stream, 2 per-thread default stream */
  int version;
  void *symbol;
};
#include "procaddress_table.h"

enum { FLAG_LEGACY = 1, FLAG_PER_THREAD = 2, STATUS_FOUND = 0, STATUS_UNKNOWN = 1, STATUS_TOO_OLD = 2 };

static int compare_names(const void *key, const void *element) {
  return strcmp(key, ((const struct variant *)element)->name);
}

/* Finds the newest variant not newer than `version`. The table is sorted by name, flags, version. */
static int look_up(const char *name, int version, int flags, void **symbol) {
  const size_t count = sizeof variants / sizeof *variants;
  const struct variant *found = bsearch(name, variants, count, sizeof *variants, compare_names);
  *symbol = NULL;
  if (!found) return STATUS_UNKNOWN;
  while (found > variants && strcmp(found[-1].name, name) == 0)
    found--;
  const struct variant *end = variants + count;
  const struct variant *per_thread = found;
  while (per_thread < end && per_thread->flags != FLAG_PER_THREAD && strcmp(per_thread->name, name) == 0)
    per_thread++;
  bool distinct = per_thread < end && strcmp(per_thread->name, name) == 0;
  const struct variant *at = (flags & FLAG_PER_THREAD) && distinct ? per_thread : found;
  int wanted = at->flags;
  for (; at < end && strcmp(at->name, name) == 0 && at->flags == wanted && at->version <= version; at++)
    *symbol = at->symbol;
  return *symbol ? STATUS_FOUND : STATUS_TOO_OLD;
}

/* Version below 12000: errors are the result. */
CU_API(cuGetProcAddress)(const char *name, void **symbol, int version, uint64_t flags) {
  ENTER_ANY(cuGetProcAddress);
  if (!name || !symbol || flags > (FLAG_LEGACY | FLAG_PER_THREAD)) return CUDA_ERROR_INVALID_VALUE;
  return look_up(name, version, (int)flags, symbol) == STATUS_FOUND ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* From 12000: not finding is no error if the caller asked for the status. */
CU_API(cuGetProcAddress_v2)(const char *name, void **symbol, int version, uint64_t flags, int *status) {
  ENTER_ANY(cuGetProcAddress_v2);
  if (!name || !symbol || flags > (FLAG_LEGACY | FLAG_PER_THREAD)) return CUDA_ERROR_INVALID_VALUE;
  int found = look_up(name, version, (int)flags, symbol);
  if (status) *status = found;
  return CUDA_SUCCESS;
}
