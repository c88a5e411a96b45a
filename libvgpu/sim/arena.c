/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * arena.c - addresses by size class. Class c has blocks of 2^(c + 9) bytes, 512 at least, in its own stretch of the
 * reservation, and one description per block in an array beside it, so that an address leads to its block by
 * shifts alone. Freed blocks are used again last in, first out; their pages go back to the system if touched.
 */
#define _GNU_SOURCE
#include "arena.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "driver.h"

enum { SMALLEST_SHIFT = 9, CLASSES = 32, HUGE_PAGE_SHIFT = 21 };
static const uint64_t LONGEST_STRETCH = 1ull << 41;

struct class {
  struct gs_block *blocks;
  struct gs_block *free_list;
  uint64_t used; /* blocks ever handed out */
};

static struct {
  pthread_mutex_t mutex;
  uint64_t base;
  uint32_t stretch_shift; /* log2 of a class' stretch */
  bool accessible;
  struct class classes[CLASSES];
} arena = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static uint32_t class_of(uint64_t bytes) {
  if (bytes <= 1u << SMALLEST_SHIFT) return 0;
  return (uint32_t)(64 - __builtin_clzll(bytes - 1)) - SMALLEST_SHIFT;
}

static uint64_t block_count(uint32_t class) {
  return 1ull << (arena.stretch_shift - SMALLEST_SHIFT - class);
}

bool gs_arena_init(uint64_t memory_bytes, bool accessible) {
  uint64_t stretch = 1ull << 32;
  while (stretch < 2 * memory_bytes && stretch < LONGEST_STRETCH)
    stretch <<= 1;
  int access = accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
  void *base = mmap(NULL, stretch * CLASSES, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return false;
  (void)madvise(base, stretch * CLASSES, MADV_DONTDUMP);
  (void)madvise(base, stretch * (HUGE_PAGE_SHIFT - SMALLEST_SHIFT), MADV_NOHUGEPAGE);
  arena.base = (uint64_t)(uintptr_t)base;
  arena.stretch_shift = (uint32_t)__builtin_ctzll(stretch);
  arena.accessible = accessible;
  return true;
}

static uint64_t address_of(uint32_t class, const struct gs_block *block) {
  uint64_t number = (uint64_t)(block - arena.classes[class].blocks);
  return arena.base + ((uint64_t) class << arena.stretch_shift) + (number << (class + SMALLEST_SHIFT));
}

uint64_t gs_arena_address(const struct gs_block *block) {
  for (uint32_t class = 0; class < CLASSES; class ++) {
    struct gs_block *blocks = arena.classes[class].blocks;
    if (blocks && block >= blocks && block < blocks + block_count(class)) return address_of(class, block);
  }
  return 0;
}

static bool map_descriptions(uint32_t class) {
  void *blocks = mmap(NULL, block_count(class) * sizeof(struct gs_block), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (blocks == MAP_FAILED) return false;
  (void)madvise(blocks, block_count(class) * sizeof(struct gs_block), MADV_DONTDUMP);
  arena.classes[class].blocks = blocks;
  return true;
}

static void link_block(struct gs_block *block) {
  struct gs_context *context = block->context;
  block->previous = NULL;
  block->next = NULL;
  if (!context) return;
  block->next = context->blocks;
  if (block->next) block->next->previous = block;
  context->blocks = block;
}

static void unlink_block(struct gs_block *block) {
  if (block->previous)
    block->previous->next = block->next;
  else if (block->context)
    block->context->blocks = block->next;
  if (block->next) block->next->previous = block->previous;
}

uint64_t gs_arena_alloc(uint64_t bytes, const struct gs_block *model) {
  struct gs_block *block = NULL;
  if (bytes == 0 || bytes > 1ull << arena.stretch_shift) return 0;
  uint32_t number = class_of(bytes);
  struct class *class = &arena.classes[number];
  if (number >= CLASSES || number + SMALLEST_SHIFT > arena.stretch_shift) return 0;
  pthread_mutex_lock(&arena.mutex);
  if (class->blocks || map_descriptions(number)) {
    block = class->free_list;
    if (block)
      class->free_list = block->next;
    else if (class->used < block_count(number))
      block = &class->blocks[class->used++];
  }
  if (block) {
    *block = *model;
    block->bytes = bytes;
    link_block(block);
  }
  pthread_mutex_unlock(&arena.mutex);
  return block ? address_of(number, block) : 0;
}

/* The block whose place `address` lies in, alive or not; NULL outside. */
static struct gs_block *place_of(uint64_t address, uint64_t *inside) {
  uint64_t offset = address - arena.base;
  if (arena.base == 0 || offset >> arena.stretch_shift >= CLASSES) return NULL;
  uint32_t number = (uint32_t)(offset >> arena.stretch_shift);
  struct gs_block *blocks = __atomic_load_n(&arena.classes[number].blocks, __ATOMIC_ACQUIRE);
  offset &= (1ull << arena.stretch_shift) - 1;
  *inside = offset & ((1ull << (number + SMALLEST_SHIFT)) - 1);
  return blocks ? &blocks[offset >> (number + SMALLEST_SHIFT)] : NULL;
}

struct gs_block *gs_arena_find(uint64_t address) {
  uint64_t inside = 0;
  struct gs_block *block = place_of(address, &inside);
  return block && inside < __atomic_load_n(&block->bytes, __ATOMIC_ACQUIRE) ? block : NULL;
}

void gs_arena_touch(uint64_t address) {
  struct gs_block *block = gs_arena_find(address);
  if (block && !(block->flags & GS_BLOCK_TOUCHED)) block->flags |= GS_BLOCK_TOUCHED;
}

bool gs_arena_covers(uint64_t address) {
  return arena.base && address - arena.base < (uint64_t)CLASSES << arena.stretch_shift;
}

bool gs_arena_accessible(void) {
  return arena.accessible;
}

bool gs_arena_free(uint64_t address, uint32_t kinds, struct gs_block *taken) {
  uint64_t inside = 0;
  struct gs_block *block = place_of(address, &inside);
  if (!block || inside != 0) return false;
  struct class *class = &arena.classes[(address - arena.base) >> arena.stretch_shift];
  pthread_mutex_lock(&arena.mutex);
  bool found = block->bytes != 0 && (kinds >> block->kind & 1);
  if (found) {
    *taken = *block;
    unlink_block(block);
    __atomic_store_n(&block->bytes, 0, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&arena.mutex);
  if (!found) return false;
  if (taken->flags & GS_BLOCK_TOUCHED) (void)madvise((void *)(uintptr_t)address, taken->bytes, MADV_DONTNEED);
  pthread_mutex_lock(&arena.mutex);
  block->next = class->free_list;
  class->free_list = block;
  pthread_mutex_unlock(&arena.mutex);
  return true;
}
