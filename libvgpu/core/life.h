/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * life.h - the lock by which processes of other pid namespaces see that this one lives. Internal to the core.
 *
 * Where pids say nothing (sandboxes and containers within the container), a process that registers takes a write lock
 * of its own open file description (fcntl F_OFD_SETLK) on one byte of the usage file, VGPU_LIFE_BYTE of its token, and
 * says so in its slot. The kernel drops the lock with the descriptor: when the process ends, or is replaced by execve.
 * Device memory goes the same way, with the driver's own descriptors: a program that closes all of its descriptors has
 * closed the driver's too, and a forked child that inherits them keeps both.
 */
#ifndef VGPU_LIFE_H
#define VGPU_LIFE_H

#include "quota.h"

#define VGPU_LIFE_BYTE(token) ((token) & (UINT64_MAX >> 1))

/* Takes the lock of `token`. False: there is no file, or it cannot be locked. Inside the slot's lock. */
bool vgpu_life_take(struct vgpu_book *book, uint64_t token);

/* Gives the lock of `token` up; 0: none. */
void vgpu_life_drop(struct vgpu_book *book, uint64_t token);

/* Whether the process that registered as `token` and noted a lock lives; VGPU_LOOK_UNKNOWN when that cannot be told. */
enum vgpu_look vgpu_life_look(struct vgpu_book *book, uint64_t token);

/* Closes the file. */
void vgpu_life_close(struct vgpu_book *book);

#endif
