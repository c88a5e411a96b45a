/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pages.h - finding and mapping the limits and usage pages of this container, or making them when a slice comes
 * from the environment alone. Called once per process; what is mapped stays mapped.
 */
#ifndef VGPU_PAGES_H
#define VGPU_PAGES_H

#include "limits.h"
#include "state.h"

struct vgpu_pages {
  struct vgpu_book books[VGPU_MAX_BOOKS];
  struct vgpu_book barred; /* of vgpu_pages_barred; limits NULL: not made yet */
  uint32_t *canaries;      /* VGPU_MAX_BOOKS for the books, then of the process's own tables and of `barred`; NULL */
  uint32_t count;          /* 0: limit 0 for everything */
  bool is_standalone;      /* devices are the container's indexes, not UUIDs */
};

/* Maps a page that the kernel wipes in a forked child; returns the word for the caller's own tables, or NULL
 * where the kernel cannot (before 4.14). */
uint32_t *vgpu_pages_canary(struct vgpu_pages *pages);

/* Opens every alloc/<key> beside the library. 0: all of them are open, or one of them is not right, is logged,
 * and none counts (limit 0). -ENOENT: there is no directory alloc, and was none when the library was loaded. */
int vgpu_pages_open(struct vgpu_pages *pages);

/* A book for GPUs that are in no page: nothing can be allocated, and launches get the least share there is. Private to
 * this process and its forked children. NULL: there is no memory for it. */
struct vgpu_book *vgpu_pages_barred(struct vgpu_pages *pages);

/* Makes one pair of pages from the environment: shared with forked children, or with every process that names
 * the same file in CUDA_DEVICE_MEMORY_SHARED_CACHE. A file that cannot be used is logged: limit 0. */
void vgpu_pages_standalone(struct vgpu_pages *pages, const struct vgpu_environment *environment);

#endif
