/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * quota.h - the memory book of one allocation, as one process of the container sees it.
 *
 * Reserve before the driver is asked, release after the driver has freed. The sum over all live processes
 * never exceeds the limit at any instant, and a process that dies at any instruction gives its bytes back:
 * its slot stops counting once somebody sees that it is gone, nobody waits for it.
 *
 * No CUDA, no libc, no allocation. Shared memory that is read and written here is also written by the other
 * processes of the container at any time, and may be written by a hostile one: every index and size that is
 * read from it is bounded before use.
 */
#ifndef VGPU_QUOTA_H
#define VGPU_QUOTA_H

#include "../include/vgpu_abi.h"
#include "process.h"

/* No size above this is believed or admitted (1 PiB; no card has it): sums of such words cannot overflow. */
#define VGPU_BYTES_MAX ((uint64_t)1 << 50)

/* This process's private view; zeroed by the caller, never in shared memory. After a fork the child has a
 * copy and takes a slot of its own at its first call. */
struct vgpu_book {
  const struct vgpu_limits_page *limits;    /* read-only mapping; the agent writes it at any time */
  struct vgpu_usage_page *usage;            /* shared mapping; every process of the container writes it */
  uint32_t *fork_canary;                    /* on a page that the kernel wipes in a forked child (MADV_WIPEONFORK);
                                            set to 1 here when this process registers; NULL: ask the kernel for
                                            the pid each time. The caller sets it after vgpu_book_open */
  uint64_t ceiling_bytes[VGPU_MAX_DEVICES]; /* of this process alone, beside the page's limit. Lowered by the caller
                                               after vgpu_book_open, before the first request */
  int32_t file;            /* descriptor of the usage file, -1: none; set by vgpu_book_use_file, see life.h */
  uint32_t file_pid;       /* who opened it */
  uint64_t file_namespace; /* and in which pid namespace */
  uint64_t file_id[2];     /* device and inode, to know it again */
  uint32_t is_locked;      /* our registration has its lock there */
  uint32_t device_count;   /* validated copy */
  uint32_t slot_count;     /* validated copy */
  bool has_traffic;        /* the usage page has traffic books */
  uint32_t lock;           /* atomic; pid of the process whose thread is inside, 0: nobody. The words
                                            below are written inside only */
  uint32_t slot_index;
  uint64_t token;        /* atomic; our slot's owner value, 0: no slot yet */
  uint64_t looked_ticks; /* when vgpu_used_bytes last looked for dead processes; atomic */
  struct vgpu_process self;
  uint64_t private_total[VGPU_MAX_DEVICES];                  /* atomic; what this process holds, whatever the */
  uint64_t private_bytes[VGPU_MAX_DEVICES][VGPU_KIND_COUNT]; /* usage page says; its slot is written from these */
};

/* Validates both mappings (magic, version, sizes, counts) and fills `book`. Maps and allocates nothing.
 * 0, or -EPROTO: not our page, or a version that this code does not know; -EINVAL: size does not fit. */
int vgpu_book_open(struct vgpu_book *book, const void *limits, size_t limits_bytes, void *usage, size_t usage_bytes);

/* Hands over a descriptor of the usage file, opened for reading and writing by this process: through it, processes of
 * other pid namespaces see whether this one lives (life.h). For books whose usage page is a file, after
 * vgpu_book_open. It belongs to the book then. */
void vgpu_book_use_file(struct vgpu_book *book, int fd);

/* Makes an empty usage page of this version in zeroed memory of vgpu_usage_page_bytes. */
void vgpu_usage_init(void *usage, uint32_t device_count);

/* Takes a slot for this process, with nothing in it, unless it has one: before it uses the GPU in any way, so that
 * whoever sees it there finds it in the page. 0 (also while the allocation is frozen: the page then says who it is);
 * -EAGAIN: every slot is taken by a live process, or the process' other threads do not come out of the book; -EPROTO: the
 * usage page was tampered with. Thread-safe; no system call if it has a slot. */
int vgpu_register(struct vgpu_book *book);

/* Asks for `bytes` more of `device`. 0: reserved. -ENOMEM: over the limit.
 * -EPROTO: the usage page was tampered with, or the allocation is frozen because it was; -EAGAIN: every slot is
 * taken by a live process; -EINVAL: no such device or kind. Nothing is reserved unless 0 is returned. Thread-safe;
 * no syscall unless this is the first call of the process, the epoch changed, or the request does not fit. Waits at
 * most about a second, and only while others ask for the same last bytes at the same time. Not for signal handlers. */
int vgpu_reserve(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes);

/* Gives back bytes that were reserved and not used (driver refused, or took less): not counted as a free. */
void vgpu_cancel(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes);

/* Gives back bytes after the driver freed them. Never below zero. */
void vgpu_release(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes);

/* Books what the driver took although nothing was reserved for it (it cannot be undone): may pass the limit,
 * so that the next request is refused and the overuse is visible. */
void vgpu_charge(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes);

/* Counts one refusal: the program was refused in the end. vgpu_reserve counts none, since its caller may make room and
 * ask again. */
void vgpu_count_refusal(struct vgpu_book *book, uint32_t device);

/* The caller holds no device memory any more and uses the book no more: gives up its slot. A process that
 * just ends need not call it. */
void vgpu_book_close(struct vgpu_book *book);

/* True while vgpu_reserve refuses because the usage page was damaged: says why a request was refused. */
bool vgpu_is_tampered(const struct vgpu_book *book);

/* The limit in force and what all live processes hold, in bytes. Neither takes a slot. Used may pass the limit
 * (limit lowered, vgpu_charge); on a usage page that was tampered with it is at least the limit. Bytes of a
 * process that died are seen gone within about 10 ms. */
uint64_t vgpu_limit_bytes(const struct vgpu_book *book, uint32_t device);
uint64_t vgpu_used_bytes(struct vgpu_book *book, uint32_t device);

#endif
