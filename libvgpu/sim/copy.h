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

/* A copy between two ranges that were found good. */
struct gs_transfer {
  uint64_t target, source, bytes;
  enum gs_side to, from;
};

/* copy_rect.c: whether such a copy is possible, and carrying it out: its time goes into the stream, and the mark of that
 * (engine.h) to `mark` if it is not NULL. */
CUresult gs_copy_check(const struct cu_memcpy3d *copy);
CUresult gs_copy_run(struct gs_context *context, CUstream stream, const struct cu_memcpy3d *copy, uint64_t *mark);

/* set.c: likewise for fills. */
CUresult gs_fill_check(const struct cu_memset_node *fill);
CUresult gs_fill_run(struct gs_context *context, CUstream stream, const struct cu_memset_node *fill);

/* Moves the bytes. */
void gs_move(const struct gs_transfer *transfer);

/* copy_time.c: puts the time of a copy into the stream and answers the mark of it; counts what passes the link where that
 * takes no time. Likewise for a fill of so many bytes. */
uint64_t gs_copy_spend(struct gs_context *context, CUstream stream, const struct gs_transfer *transfer);
void gs_fill_spend(struct gs_context *context, CUstream stream, uint64_t bytes);

#endif
