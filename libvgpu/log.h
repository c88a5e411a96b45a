/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * log.h - lines on stderr, made without libc. Silent unless something was refused or is wrong; never blocks,
 * never raises SIGPIPE, never touches errno.
 */
#ifndef VGPU_LOG_H
#define VGPU_LOG_H

#include <stdint.h>

/* Writes one line, "vgpud: " first. Knows %s (text), %lu (uint64_t) and %d (a negative errno or a small int). */
__attribute__((format(gnu_printf, 1, 2))) void vgpu_log(const char *format, ...);

/* True at most about once in ten seconds for one `next`, which starts as 0; no system call. */
int vgpu_log_is_due(uint64_t *next);

#endif
