/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * copy.h - what the copying calls share: which kind of memory an address range is, and moving its bytes.
 */
#ifndef GPUSIM_COPY_H
#define GPUSIM_COPY_H

#include "capture.h"

enum gs_side { GS_SIDE_BAD, GS_SIDE_HOST, GS_SIDE_DEVICE };

/* Where `bytes` from `address` on lie. Device addresses must be inside one living allocation: else BAD. */
enum gs_side gs_side_of(uint64_t address, uint64_t bytes);

/* Waits for all work of this process on the card, as a call without a stream does. */
void gs_wait_all(struct gs_context *context);

/* Whether a copy can begin in this stream. */
#define NEED_STREAM(stream) \
  if (!gs_stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE

/* copy_rect.c: whether such a copy is possible, and carrying it out. */
CUresult gs_copy_check(const struct cu_memcpy3d *copy);
CUresult gs_copy_run(struct gs_context *context, const struct cu_memcpy3d *copy);

/* set.c: likewise for fills. */
CUresult gs_fill_check(const struct cu_memset_node *fill);
CUresult gs_fill_run(const struct cu_memset_node *fill);

/* Moves bytes and counts what passes the bus. Both ranges were found good. */
void gs_move(struct gs_context *context, uint64_t target, enum gs_side target_side, uint64_t source,
             enum gs_side source_side, uint64_t bytes);

#endif
