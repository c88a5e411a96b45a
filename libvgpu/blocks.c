/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * blocks.c - an open-addressed table with linear probing in each stripe; contract in blocks.h.
 */
#include "blocks.h"

#include <errno.h>

#include "core/sys.h"
#include "spin.h"
#include "where.h"

enum { STRIPE_COUNT = 64, FIRST_CAPACITY = 128 };

struct stripe {
  uint32_t lock;
  uint32_t count;
  uint64_t capacity; /* a power of two, or 0 */
  struct vgpu_block *blocks;
} __attribute__((aligned(VGPU_CACHE_LINE_BYTES)));

uint32_t vgpu_where_generation; /* here, since what addresses are changes here */

static struct stripe stripes[STRIPE_COUNT];

/* Drivers align their pointers, so the low bits say little: multiply and use the high ones. */
static uint64_t hash_of(uint64_t key) {
  return key * 0x9e3779b97f4a7c15ULL;
}

static struct stripe *stripe_of(uint64_t hash) {
  return &stripes[hash >> 58];
}

static uint64_t home_of(const struct stripe *stripe, uint64_t hash) {
  return (hash >> 20) & (stripe->capacity - 1);
}

/* The place of the block, or the empty place where it belongs. The stripe has room. */
static struct vgpu_block *probe(const struct stripe *stripe, uint8_t block_class, uint64_t key) {
  for (uint64_t at = home_of(stripe, hash_of(key));; at = (at + 1) & (stripe->capacity - 1)) {
    struct vgpu_block *block = &stripe->blocks[at];
    if (block->block_class == VGPU_BLOCK_NONE || (block->key == key && block->block_class == block_class)) return block;
  }
}

__attribute__((noinline, cold)) static int grow(struct stripe *stripe) {
  struct stripe larger = *stripe;
  larger.capacity = stripe->capacity ? stripe->capacity * 2 : FIRST_CAPACITY;
  size_t bytes = larger.capacity * sizeof(struct vgpu_block);
  larger.blocks =
      vgpu_sys_mmap(NULL, bytes, VGPU_PROT_READ | VGPU_PROT_WRITE, VGPU_MAP_PRIVATE | VGPU_MAP_ANONYMOUS, -1, 0);
  if ((uintptr_t)larger.blocks >= (uintptr_t)-4095) return -ENOMEM;
  for (uint64_t i = 0; i < stripe->capacity; i++) {
    struct vgpu_block *block = &stripe->blocks[i];
    if (block->block_class != VGPU_BLOCK_NONE) *probe(&larger, block->block_class, block->key) = *block;
  }
  if (stripe->blocks) vgpu_sys_munmap(stripe->blocks, stripe->capacity * sizeof(struct vgpu_block));
  stripe->capacity = larger.capacity;
  stripe->blocks = larger.blocks;
  return 0;
}

/* Empties a place and moves later blocks of the same run forward, so that no search stops too early. */
static void erase(struct stripe *stripe, struct vgpu_block *block) {
  uint64_t mask = stripe->capacity - 1, hole = (uint64_t)(block - stripe->blocks);
  for (uint64_t at = (hole + 1) & mask; stripe->blocks[at].block_class != VGPU_BLOCK_NONE; at = (at + 1) & mask) {
    uint64_t home = home_of(stripe, hash_of(stripe->blocks[at].key));
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    stripe->blocks[hole] = stripe->blocks[at];
    hole = at;
  }
  stripe->blocks[hole].block_class = VGPU_BLOCK_NONE;
  stripe->count--;
  vgpu_where_changed();
}

int vgpu_block_put(const struct vgpu_block *block) {
  struct vgpu_block old;
  return vgpu_block_put_over(block, &old);
}

int vgpu_block_put_over(const struct vgpu_block *block, struct vgpu_block *old) {
  struct stripe *stripe = stripe_of(hash_of(block->key));
  int result = 0;
  old->block_class = VGPU_BLOCK_NONE;
  vgpu_where_changed();
  vgpu_spin_lock(&stripe->lock);
  if (stripe->count * 2 >= stripe->capacity) result = grow(stripe);
  if (stripe->count + 1 < stripe->capacity) {
    struct vgpu_block *place = probe(stripe, block->block_class, block->key);
    stripe->count += place->block_class == VGPU_BLOCK_NONE;
    *old = *place;
    *place = *block;
    result = 0; /* fuller than it should be, if it could not grow */
  }
  vgpu_spin_unlock(&stripe->lock);
  return result;
}

bool vgpu_block_take(enum vgpu_block_class block_class, uint64_t key, struct vgpu_block *block) {
  return vgpu_block_add_references(block_class, key, INT32_MIN, block);
}

bool vgpu_block_add_references(enum vgpu_block_class block_class, uint64_t key, int32_t add, struct vgpu_block *block) {
  struct stripe *stripe = stripe_of(hash_of(key));
  bool is_last = false;
  vgpu_spin_lock(&stripe->lock);
  if (stripe->capacity) {
    struct vgpu_block *place = probe(stripe, (uint8_t)block_class, key);
    if (place->block_class != VGPU_BLOCK_NONE) {
      int64_t references = (int64_t)place->references + add;
      is_last = references <= 0;
      place->references = is_last ? 0 : (uint32_t)references;
      *block = *place;
      if (is_last) erase(stripe, place);
    }
  }
  vgpu_spin_unlock(&stripe->lock);
  return is_last;
}

void vgpu_blocks_learn_contexts(CUcontext (*context_of)(uint64_t pointer)) {
  for (unsigned i = 0; i < STRIPE_COUNT; i++) {
    struct stripe *stripe = &stripes[i];
    vgpu_spin_lock(&stripe->lock);
    for (uint64_t at = 0; at < stripe->capacity; at++) {
      struct vgpu_block *block = &stripe->blocks[at];
      if (block->block_class == VGPU_BLOCK_POINTER && !block->context) block->context = context_of(block->key);
    }
    vgpu_spin_unlock(&stripe->lock);
  }
}

void vgpu_blocks_drop_context(CUcontext context, void (*release)(const struct vgpu_block *block)) {
  for (unsigned i = 0; context && i < STRIPE_COUNT; i++) {
    struct stripe *stripe = &stripes[i];
    vgpu_spin_lock(&stripe->lock);
    for (uint64_t at = 0; at < stripe->capacity;) {
      struct vgpu_block block = stripe->blocks[at];
      bool is_its =
          block.block_class != VGPU_BLOCK_NONE && block.block_class < VGPU_BLOCK_HANDLE && block.context == context;
      if (is_its) {
        erase(stripe, &stripe->blocks[at]); /* may move another block here: look again */
        release(&block);
      } else {
        at++;
      }
    }
    vgpu_spin_unlock(&stripe->lock);
  }
}

void vgpu_blocks_forget(void) {
  for (unsigned i = 0; i < STRIPE_COUNT; i++) {
    struct stripe *stripe = &stripes[i];
    if (stripe->blocks) vgpu_sys_munmap(stripe->blocks, stripe->capacity * sizeof(struct vgpu_block));
    *stripe = (struct stripe){.lock = 0};
  }
}
