/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * clock.h - the time that the rates in the limits page are in: CLOCK_MONOTONIC of the node's first time namespace.
 */
#ifndef VGPU_CLOCK_H
#define VGPU_CLOCK_H

#include <stdint.h>

/* Nanoseconds. Through the vDSO, so no system call where the kernel has one (every usual machine). */
uint64_t vgpu_now_ns(void);

/* In a forked child, which may be in another time namespace. */
void vgpu_clock_forget(void);

#endif
