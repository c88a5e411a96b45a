/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * claim.h - the four steps of every allocating hook: claim in the book, call the driver, then keep or drop the
 * claim; and those of every freeing one: take the block, call the driver, then settle by its result.
 */
#ifndef VGPU_CLAIM_H
#define VGPU_CLAIM_H

#include "blocks.h"

struct vgpu_claim {
  struct vgpu_place place; /* book NULL: nothing is limited, nothing is kept */
  struct vgpu_device *device;
  enum vgpu_kind kind;
  uint64_t bytes;
};

/* Reserves `bytes` on the current device. CUDA_SUCCESS: go on to the driver. Else the driver's own code for the
 * refusal: out of memory over the limit, or what it says to a thread without a context. */
CUresult vgpu_claim_begin(struct vgpu_claim *claim, enum vgpu_kind kind, uint64_t bytes);

/* The same on a given device; NULL: `why`. */
CUresult vgpu_claim_on(struct vgpu_claim *claim, struct vgpu_device *device, CUresult why, enum vgpu_kind kind,
                       uint64_t bytes);

/* Out of memory, with a line on stderr now and then. */
CUresult vgpu_refuse(const struct vgpu_claim *claim, uint64_t bytes);

/* Makes the claim as large as what the driver took: false when that is more and does not fit the limit (the
 * claim is unchanged then, and the caller gives the memory back). */
bool vgpu_claim_resize(struct vgpu_claim *claim, uint64_t bytes);

/* Gives the claim up; nothing was taken. */
void vgpu_claim_drop(struct vgpu_claim *claim);

/* Keeps the claim under this key, to die with `context` (NULL: with no context). False: the table cannot grow;
 * the claim stands, the caller gives the memory back and drops it. */
bool vgpu_claim_keep(struct vgpu_claim *claim, enum vgpu_block_class block_class, uint64_t key, CUcontext context);

/* The calling thread's context; NULL when the driver has none. */
CUcontext vgpu_current_context(void);

/* Makes the context of a stream current if it is another one than the current. False: it need not be, or cannot. */
bool vgpu_push_context_of(CUstream stream);
void vgpu_pop_context(void);

/* Gives back the charge of a block that is gone. */
void vgpu_block_release(const struct vgpu_block *block);

/* A block that the driver is about to be asked to free; false when it is not ours. */
bool vgpu_free_begin(enum vgpu_block_class block_class, uint64_t key, struct vgpu_block *block);

/* Settles by the driver's own result, which is returned. */
CUresult vgpu_free_end(bool is_ours, const struct vgpu_block *block, CUresult result);

#endif
