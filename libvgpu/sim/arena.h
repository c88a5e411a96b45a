/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * arena.h - addresses of simulated device memory. One reservation of address space is cut
 * into classes of block sizes (powers of two); pages appear when touched, so an 80 GB card costs nothing. Books
 * of who may have how much are not kept here.
 */
#ifndef GPUSIM_ARENA_H
#define GPUSIM_ARENA_H

#include <stdbool.h>
#include <stdint.h>

struct gs_context;
struct gs_device;
struct gs_pool;

enum gs_block_kind { GS_BLOCK_DEVICE, GS_BLOCK_MANAGED, GS_BLOCK_POOL, GS_BLOCK_GRAPH };

struct gs_block {
  uint64_t bytes;             /* what the program asked for; 0: free */
  uint64_t held_bytes;        /* what it takes of the card */
  struct gs_context *context; /* NULL: a graph's */
  struct gs_device *device;
  struct gs_block *previous, *next; /* of the same context; `next` also links free blocks */
  struct gs_pool *pool;
  uint32_t kind;  /* enum gs_block_kind */
  uint32_t flags; /* bit 31: pages may have been touched; the rest is the caller's */
};
#define GS_BLOCK_TOUCHED 0x80000000u

/* Reserves the address space for cards of `memory_bytes` in all. accessible: pages can be read and written. */
bool gs_arena_init(uint64_t memory_bytes, bool accessible);

/* Gives the address of a new block of `bytes` > 0, filled in from `model` and linked into its context; 0: no
 * addresses left. */
uint64_t gs_arena_alloc(uint64_t bytes, const struct gs_block *model);
uint64_t gs_arena_address(const struct gs_block *block);

/* The living block that `address` lies in, or NULL. */
struct gs_block *gs_arena_find(uint64_t address);

/* Takes the living block that begins at `address` and is of a kind in `kinds` (bit mask), copies it to `taken`
 * and frees it. False: there is none. */
bool gs_arena_free(uint64_t address, uint32_t kinds, struct gs_block *taken);

/* Marks the pages of whatever block holds the address as written to. */
void gs_arena_touch(uint64_t address);

/* Whether the address lies in the reservation at all. */
bool gs_arena_covers(uint64_t address);

/* False: addresses only, nothing to read or write behind them. */
bool gs_arena_accessible(void);

#endif
