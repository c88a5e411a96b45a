/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * blocks.h - what this process was charged for: a table from a pointer or handle to the bytes, the book and the
 * context. Private to the process, mapped by ourselves, striped so that threads seldom meet.
 *
 * What is not in the table is not ours and is always forwarded. A block is taken out before the driver is asked
 * to free it, and put back when the driver refuses, so that a pointer that the driver hands out again at once is
 * never confused with the old one.
 */
#ifndef VGPU_BLOCKS_H
#define VGPU_BLOCKS_H

#include <stdbool.h>

#include "state.h"

enum vgpu_block_class {
  VGPU_BLOCK_NONE,
  VGPU_BLOCK_POINTER,
  VGPU_BLOCK_ARRAY,
  VGPU_BLOCK_MIPMAP,
  VGPU_BLOCK_HANDLE, /* physical memory; references counts the handle and its mappings */
  VGPU_BLOCK_MAPPING /* an address range; link is the handle behind it; charged nothing */
};

struct vgpu_block {
  uint64_t key; /* pointer or handle */
  uint64_t bytes;
  union {
    CUcontext context; /* dies with it; NULL: not known yet, or with none */
    uint64_t link;
  };
  uint32_t references;
  uint8_t block_class; /* enum vgpu_block_class */
  uint8_t kind;        /* enum vgpu_kind */
  uint8_t book;
  uint8_t index; /* device in the book */
};

/* 0, or -ENOMEM when the table cannot grow. Replaces a block of the same class and key. */
int vgpu_block_put(const struct vgpu_block *block);

/* The same, with what it replaced in *old; class VGPU_BLOCK_NONE: nothing. */
int vgpu_block_put_over(const struct vgpu_block *block, struct vgpu_block *old);

/* Takes a block out. */
bool vgpu_block_take(enum vgpu_block_class block_class, uint64_t key, struct vgpu_block *block);

/* Adds to the references of a block. When they reach 0 it is taken out and *block is it: true. */
bool vgpu_block_add_references(enum vgpu_block_class block_class, uint64_t key, int32_t add, struct vgpu_block *block);

/* Asks `context_of` for the context of each pointer whose context is not known yet. */
void vgpu_blocks_learn_contexts(CUcontext (*context_of)(uint64_t pointer));

/* Calls `release` for each block of `context`, which is gone, and takes them out. */
void vgpu_blocks_drop_context(CUcontext context, void (*release)(const struct vgpu_block *block));

/* In a forked child: empties the table without a look at its locks. */
void vgpu_blocks_forget(void);

#endif
