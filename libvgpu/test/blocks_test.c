/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * blocks_test.c - the table of blocks: it finds what was put in, grows, keeps classes apart, loses nothing when
 * threads work on it at once, and counts references.
 */
#include "../blocks.h"

#include <pthread.h>

#include "check.h"

enum { MANY = 200000, THREADS = 8, ROUNDS = 100000 };

static uint64_t released_bytes;

static void count_release(const struct vgpu_block *block) {
  released_bytes += block->bytes;
}

static struct vgpu_block block_of(enum vgpu_block_class block_class, uint64_t key, uint64_t bytes) {
  return (struct vgpu_block){.key = key, .bytes = bytes, .references = 1, .block_class = (uint8_t)block_class};
}

static void test_many(void) {
  struct vgpu_block block;
  int missing = 0, wrong = 0;
  for (uint64_t i = 0; i < MANY; i++) {
    struct vgpu_block put = block_of(VGPU_BLOCK_POINTER, 0x7f0000000000 + i * 512, i);
    if (vgpu_block_put(&put) != 0) wrong++;
  }
  for (uint64_t i = 0; i < MANY; i += 2) {
    if (!vgpu_block_take(VGPU_BLOCK_POINTER, 0x7f0000000000 + i * 512, &block)) missing++;
    if (block.bytes != i) wrong++;
  }
  for (uint64_t i = 0; i < MANY; i++) {
    bool found = vgpu_block_take(VGPU_BLOCK_POINTER, 0x7f0000000000 + i * 512, &block);
    if (found != (i % 2 == 1) || (found && block.bytes != i)) wrong++;
  }
  CHECK_EQUAL(missing, 0, "blocks that were lost");
  CHECK_EQUAL(wrong, 0, "blocks that were wrong");
}

static void test_classes(void) {
  struct vgpu_block array = block_of(VGPU_BLOCK_ARRAY, 42, 1), pointer = block_of(VGPU_BLOCK_POINTER, 42, 2), got;
  vgpu_block_put(&array);
  vgpu_block_put(&pointer);
  CHECK(vgpu_block_take(VGPU_BLOCK_ARRAY, 42, &got) && got.bytes == 1, "the array");
  CHECK(!vgpu_block_take(VGPU_BLOCK_ARRAY, 42, &got), "only once");
  CHECK(vgpu_block_take(VGPU_BLOCK_POINTER, 42, &got) && got.bytes == 2, "the pointer of the same number");
  CHECK(!vgpu_block_take(VGPU_BLOCK_POINTER, 0, &got), "NULL is not ours");
  vgpu_block_put(&pointer);
  pointer.bytes = 3;
  vgpu_block_put(&pointer);
  CHECK(vgpu_block_take(VGPU_BLOCK_POINTER, 42, &got) && got.bytes == 3, "a pointer handed out again replaces");
  CHECK(!vgpu_block_take(VGPU_BLOCK_POINTER, 42, &got), "and is there once");
}

static void test_references(void) {
  struct vgpu_block handle = block_of(VGPU_BLOCK_HANDLE, 7, 100), got;
  vgpu_block_put(&handle);
  CHECK(!vgpu_block_add_references(VGPU_BLOCK_HANDLE, 7, 1, &got), "retained");
  CHECK(!vgpu_block_add_references(VGPU_BLOCK_HANDLE, 7, -1, &got), "one of two");
  CHECK(vgpu_block_add_references(VGPU_BLOCK_HANDLE, 7, -1, &got) && got.bytes == 100, "the last one takes it out");
  CHECK(!vgpu_block_add_references(VGPU_BLOCK_HANDLE, 7, -1, &got), "gone");
}

/* A pointer that the driver gives out again while the end of its old context is under way. */
static void test_replaced(void) {
  struct vgpu_block first = block_of(VGPU_BLOCK_POINTER, 4096, 100), second = block_of(VGPU_BLOCK_POINTER, 4096, 7),
                    got;
  CHECK_EQUAL(vgpu_block_put_over(&first, &got), 0, "put");
  CHECK_EQUAL(got.block_class, VGPU_BLOCK_NONE, "nothing was there");
  CHECK_EQUAL(vgpu_block_put_over(&second, &got), 0, "put over it");
  CHECK(got.block_class == VGPU_BLOCK_POINTER && got.bytes == 100, "the first one comes out");
  CHECK(vgpu_block_take(VGPU_BLOCK_POINTER, 4096, &got) && got.bytes == 7, "the second one is there");
}

static void test_contexts(void) {
  struct vgpu_block got;
  for (uint64_t i = 0; i < 10000; i++) {
    struct vgpu_block put = block_of(VGPU_BLOCK_POINTER, 4096 * (i + 1), 1);
    put.context = (CUcontext)(i % 4 + 1);
    vgpu_block_put(&put);
  }
  vgpu_blocks_drop_context((CUcontext)2, count_release);
  CHECK_EQUAL(released_bytes, 2500, "blocks of the context");
  vgpu_blocks_drop_context(NULL, count_release);
  CHECK_EQUAL(released_bytes, 2500, "no context is nobody's");
  int left = 0;
  for (uint64_t i = 0; i < 10000; i++)
    left += vgpu_block_take(VGPU_BLOCK_POINTER, 4096 * (i + 1), &got);
  CHECK_EQUAL(left, 7500, "blocks of the others");
}

static void *work(void *data) {
  uint64_t base = (uint64_t)(uintptr_t)data << 40, wrong = 0;
  struct vgpu_block got;
  for (uint64_t i = 1; i <= ROUNDS; i++) {
    struct vgpu_block put = block_of(VGPU_BLOCK_POINTER, base + i % 1000 * 512, i);
    vgpu_block_put(&put);
    if (!vgpu_block_take(VGPU_BLOCK_POINTER, put.key, &got) || got.bytes != i) wrong++;
  }
  return (void *)wrong;
}

static void test_threads(void) {
  pthread_t threads[THREADS];
  uintptr_t wrong = 0;
  for (uintptr_t i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, work, (void *)(i + 1));
  for (int i = 0; i < THREADS; i++) {
    void *result;
    pthread_join(threads[i], &result);
    wrong += (uintptr_t)result;
  }
  CHECK_EQUAL(wrong, 0, "blocks lost or mixed up by threads");
}

int main(void) {
  test_many();
  test_classes();
  test_references();
  test_replaced();
  test_contexts();
  test_threads();
  vgpu_blocks_forget();
  struct vgpu_block got;
  CHECK(!vgpu_block_take(VGPU_BLOCK_POINTER, 4096, &got), "empty after it was forgotten");
  return check_done();
}
