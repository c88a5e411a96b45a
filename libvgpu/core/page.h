/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * page.h - making, checking and reading the two pages of vgpu_abi.h. No libc, no allocation, no system call.
 *
 * Works on mappings and on private copies alike. Readers believe nothing: what they return is bounded, whatever
 * the bytes are. Functions return 0 or a negative errno: -EINVAL size or argument, -EPROTO not such a page,
 * -ENOTSUP a version that this code does not know, -EBADMSG contents that no honest writer leaves behind,
 * -EAGAIN a group that is being written.
 */
#ifndef VGPU_PAGE_H
#define VGPU_PAGE_H

#include "quota.h"

/* Makes a limits page for `device_count` devices, all with limit 0, in zeroed memory of
 * VGPU_LIMITS_PAGE_BYTES. The key is cut to VGPU_KEY_BYTES - 1. */
int vgpu_limits_init(struct vgpu_limits_page *page, const uint8_t *key, size_t key_bytes, uint32_t device_count);

/* Writes one device as a whole, under its generation. One writer at a time per page: the caller's business. */
int vgpu_limits_write(struct vgpu_limits_page *page, uint32_t device, const uint8_t *uuid, size_t uuid_bytes,
                      uint32_t slice_count, uint64_t memory_limit_bytes);

/* Changes one memory limit, at once for all readers, under the device's generation. One writer at a time. */
int vgpu_limits_set_memory(struct vgpu_limits_page *page, uint32_t device, uint64_t memory_limit_bytes);

/* What is granted of a device's GPU time. */
struct vgpu_compute {
  uint32_t mode; /* enum vgpu_compute_mode */
  uint32_t share_ppm;
  uint32_t ceiling_ppm;
};

/* Changes what is granted of a device's GPU time, under the device's generation, and lets its rate be the share from
 * `now_ns` on, whatever it was. One writer at a time, also of the rate. */
int vgpu_limits_set_compute(struct vgpu_limits_page *page, uint32_t device, const struct vgpu_compute *compute,
                            uint64_t now_ns);

/* Changes the heartbeat: somebody steers. */
void vgpu_limits_beat(struct vgpu_limits_page *page);

/* Raises the epoch: every process slot of an older one is dead. Then thaws the page: what a frozen one no longer
 * knew of was held by those processes. Returns the new epoch. */
uint32_t vgpu_limits_raise_epoch(struct vgpu_limits_page *page);

/* Freezes the page for `why` (enum vgpu_frozen): nothing more may be allocated in this epoch. */
void vgpu_limits_freeze(struct vgpu_limits_page *page, uint32_t why);

/* Checks that `bytes` at `page` are a limits page of this version, or of an older one that is still read. */
int vgpu_limits_check(const void *page, size_t bytes);

/* One device of the limits page, as a consistent copy. */
struct vgpu_limits_view {
  uint8_t uuid[VGPU_UUID_BYTES]; /* always ends in a NUL */
  uint32_t slice_count;
  uint64_t memory_limit_bytes;
  struct vgpu_compute compute; /* within its bounds; all zero for VGPU_COMPUTE_NONE */
};

/* Reads one device of a checked limits page. -EAGAIN if it is being written all the time. */
int vgpu_limits_read(const struct vgpu_limits_page *page, uint32_t device, struct vgpu_limits_view *view);

/* Checks that `bytes` at `page` are a usage page for `device_count` devices of `version`, that of the limits page. */
int vgpu_usage_check(const void *page, size_t bytes, uint32_t device_count, uint32_t version);

/* Puts the header of a usage page of `version` back where it does not hold, and leaves the rest to the processes. */
void vgpu_usage_repair(void *page, uint32_t device_count, uint32_t version);

/* One registered process on a usage page. */
struct vgpu_usage_process {
  uint64_t start_time;
  uint64_t pid_namespace;
  uint32_t pid;
  uint32_t index; /* of its slot */
};

/* Sums of one process on one device, or of all on one device. */
struct vgpu_usage_view {
  uint64_t charged_bytes[VGPU_KIND_COUNT];
  uint64_t used_bytes; /* sum of charged_bytes */
  uint64_t allocations;
  uint64_t frees;
  uint64_t refusals;
};

/* Reads slot `index` of a checked usage page (a private copy: it may not change meanwhile, and slot_high_water was
 * read last). 1: a registered process of `epoch`, filled; 0: none; -EBADMSG. */
int vgpu_usage_read_process(const struct vgpu_usage_page *page, uint32_t index, uint32_t epoch,
                            struct vgpu_usage_process *process);

/* Reads one device of the slot, whatever its epoch. */
int vgpu_usage_read_slot(const struct vgpu_usage_page *page, uint32_t index, uint32_t device,
                         struct vgpu_usage_view *view);

/* The compute book of one device, every word within its bounds. */
struct vgpu_compute_view {
  uint64_t spent_ns;
  uint64_t charged_ns;
  uint64_t wanted_ns;
  uint64_t waited_ns;
  uint64_t throttled_ns;
  uint64_t degraded_ns;
  uint64_t launches;
};

/* Reads the compute book of one device, whatever its bytes are: a word that no process writes is read as the largest
 * that one may write. */
void vgpu_usage_read_compute(const struct vgpu_usage_page *page, uint32_t device, struct vgpu_compute_view *view);

/* Sums one device over all registered processes of `epoch`; counters include processes that are gone.
 * -EBADMSG if a word or a sum is beyond belief. */
int vgpu_usage_read_device(const struct vgpu_usage_page *page, uint32_t device, uint32_t epoch,
                           struct vgpu_usage_view *view);

#endif
