/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * page_test.c - both pages: made, checked, read, repaired; wrong ones refused.
 */
#include <errno.h>

#include "check.h"

/* Offsets of version 3 as numbers, those of version 2 among them: a change of any needs a new version. */
static void test_layout(void) {
  CHECK_EQUAL(vgpu_usage_slot_offset(1, 0), 320);
  CHECK_EQUAL(vgpu_usage_slot_offset(1, 1) - vgpu_usage_slot_offset(1, 0), 320);
  CHECK_EQUAL(vgpu_usage_slot_offset(16, 0), 64 + 16 * 256);
  CHECK_EQUAL(vgpu_usage_slot_offset(16, 1) - vgpu_usage_slot_offset(16, 0), 64 + 16 * 256);
  CHECK_EQUAL(vgpu_usage_page_bytes(1, VGPU_ABI_NO_TRAFFIC), 86016);
  CHECK_EQUAL(vgpu_usage_page_bytes(16, VGPU_ABI_NO_TRAFFIC), 1073152);
  CHECK_EQUAL(vgpu_usage_traffic_offset(1, 0), 86016);
  CHECK_EQUAL(vgpu_usage_traffic_offset(16, 15), 1073152 + 15 * 5120);
  CHECK_EQUAL(vgpu_usage_page_bytes(1, VGPU_ABI_VERSION), 94208);
  CHECK_EQUAL(vgpu_usage_page_bytes(16, VGPU_ABI_VERSION), 1155072);
  CHECK_EQUAL(offsetof(struct vgpu_limits_page, frozen), 64);
  CHECK_EQUAL(offsetof(struct vgpu_usage_slot, start_stack), 40);
  CHECK_EQUAL(offsetof(struct vgpu_usage_slot_device, allocations), 72);
}

static void test_limits(void) {
  struct pair pair = make_pair(2, 5);
  struct vgpu_limits_view view;
  CHECK_EQUAL(vgpu_limits_check(pair.limits, 4096), 0);
  CHECK_EQUAL(vgpu_limits_check(pair.limits, 4095), -EINVAL);
  CHECK_EQUAL(vgpu_limits_read(pair.limits, 1, &view), 0);
  CHECK(strcmp((const char *)view.uuid, "GPU-1") == 0);
  CHECK_EQUAL(view.memory_limit_bytes, 5);
  CHECK_EQUAL(view.slice_count, 1);
  CHECK_EQUAL(vgpu_limits_read(pair.limits, 2, &view), -EINVAL);
  CHECK_EQUAL(vgpu_limits_set_memory(pair.limits, 1, 7), 0);
  CHECK_EQUAL(vgpu_limits_set_memory(pair.limits, 2, 7), -EINVAL);
  CHECK_EQUAL(vgpu_limits_read(pair.limits, 1, &view), 0);
  CHECK_EQUAL(view.memory_limit_bytes, 7);
  CHECK_EQUAL(vgpu_limits_raise_epoch(pair.limits), 2);
  CHECK_EQUAL(pair.limits->epoch, 2);

  /* A writer that died in the middle: readers do not believe the group, the next writer takes over. */
  pair.limits->devices[0].generation |= 1;
  CHECK_EQUAL(vgpu_limits_read(pair.limits, 0, &view), -EAGAIN);
  CHECK_EQUAL(vgpu_limits_set_memory(pair.limits, 0, 9), 0);
  CHECK_EQUAL(vgpu_limits_read(pair.limits, 0, &view), 0);

  pair.limits->device_count = 17;
  CHECK_EQUAL(vgpu_limits_check(pair.limits, 4096), -EPROTO);
  CHECK_EQUAL(vgpu_limits_read(pair.limits, 16, &view), -EINVAL);
  pair.limits->device_count = 0;
  CHECK_EQUAL(vgpu_limits_check(pair.limits, 4096), -EPROTO);
  pair.limits->device_count = 2;
  pair.limits->abi_version = 4;
  CHECK_EQUAL(vgpu_limits_check(pair.limits, 4096), -ENOTSUP);
  pair.limits->magic = 0;
  CHECK_EQUAL(vgpu_limits_check(pair.limits, 4096), -EPROTO);
  CHECK_EQUAL(vgpu_limits_init(pair.limits, (const uint8_t *)"k", 1, 0), -EINVAL);
  CHECK_EQUAL(vgpu_limits_init(pair.limits, (const uint8_t *)"k", 1, 17), -EINVAL);
  free_pair(pair);
}

/* Text that fills its field is cut, so that it always ends in a NUL. */
static void test_text(void) {
  struct pair pair = make_pair(1, 5);
  struct vgpu_limits_view view;
  uint8_t text[100];
  memset(text, 'x', sizeof(text));
  CHECK_EQUAL(vgpu_limits_write(pair.limits, 0, text, sizeof(text), 1, 1), 0);
  CHECK_EQUAL(vgpu_limits_read(pair.limits, 0, &view), 0);
  CHECK_EQUAL(strlen((const char *)view.uuid), VGPU_UUID_BYTES - 1);
  memset(pair.limits->devices[0].uuid, 'y', VGPU_UUID_BYTES);
  CHECK_EQUAL(vgpu_limits_read(pair.limits, 0, &view), 0);
  CHECK_EQUAL(strlen((const char *)view.uuid), VGPU_UUID_BYTES - 1);
  free_pair(pair);
}

static void test_usage_header(void) {
  struct pair pair = make_pair(2, 5);
  size_t bytes = pair.usage_bytes;
  CHECK_EQUAL(vgpu_usage_check(pair.usage, bytes, 2, VGPU_ABI_VERSION), 0);
  CHECK_EQUAL(vgpu_usage_check(pair.usage, bytes - 1, 2, VGPU_ABI_VERSION), -EINVAL);
  CHECK_EQUAL(vgpu_usage_check(pair.usage, bytes, 0, VGPU_ABI_VERSION), -EINVAL);
  CHECK_EQUAL(vgpu_usage_check(pair.usage, bytes, 1, VGPU_ABI_VERSION), -EINVAL);
  CHECK_EQUAL(vgpu_usage_check(pair.usage, bytes, 17, VGPU_ABI_VERSION), -EINVAL);
  /* Each field of the header by itself, then put right again. */
  uint32_t *words = (uint32_t *)pair.usage;
  for (int i = 0; i <= 6; i++) {
    uint32_t old = words[i];
    words[i] = 0xfffffff0;
    int want = i == 2 ? -ENOTSUP : -EPROTO;
    CHECK_EQUAL(vgpu_usage_check(pair.usage, bytes, 2, VGPU_ABI_VERSION), want);
    vgpu_usage_repair(pair.usage, 2, VGPU_ABI_VERSION);
    CHECK_EQUAL(vgpu_usage_check(pair.usage, bytes, 2, VGPU_ABI_VERSION), 0);
    CHECK_EQUAL(words[i], i == 6 ? VGPU_SLOT_COUNT : old);
  }
  free_pair(pair);
}

/* Repair leaves the high-water mark alone where it holds, and never hides a taken slot. */
static void test_usage_repair(void) {
  struct pair pair = make_pair(1, 5);
  struct vgpu_book *book = open_book(pair);
  vgpu_slot_at(book, 3)->owner = 77;
  pair.usage->slot_high_water = 4;
  vgpu_usage_repair(pair.usage, 1, VGPU_ABI_VERSION);
  CHECK_EQUAL(pair.usage->slot_high_water, 4);
  pair.usage->slot_high_water = 3;
  vgpu_usage_repair(pair.usage, 1, VGPU_ABI_VERSION);
  CHECK_EQUAL(pair.usage->slot_high_water, VGPU_SLOT_COUNT);
  close_book(book);
  free_pair(pair);
}

static void test_book_open(void) {
  struct pair pair = make_pair(1, 5);
  static struct vgpu_book book;
  CHECK_EQUAL(vgpu_book_open(&book, pair.limits, 4096, pair.usage, pair.usage_bytes), 0);
  CHECK_EQUAL(vgpu_book_open(&book, pair.limits, 12, pair.usage, pair.usage_bytes), -EINVAL);
  CHECK_EQUAL(vgpu_book_open(&book, pair.limits, 4096, pair.usage, 12), -EINVAL);
  pair.usage->abi_version = 9;
  CHECK_EQUAL(vgpu_book_open(&book, pair.limits, 4096, pair.usage, pair.usage_bytes), -EPROTO);
  free_pair(pair);
}

/* Words that no honest process writes are refused as a whole, never summed. */
static void test_absurd_words(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair);
  struct vgpu_usage_view view;
  struct vgpu_usage_process process;
  CHECK_EQUAL(vgpu_reserve(book, 0, VGPU_KIND_DEVICE, 1000), 0);
  struct vgpu_usage_slot_device *books = vgpu_slot_device(own_slot(book), 0);
  uint64_t *words[] = {&books->charged_bytes[0], &books->charged_bytes[7], &books->allocations, &books->frees,
                       &books->refusals};
  for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
    uint64_t old = *words[i];
    *words[i] = UINT64_MAX - 5;
    CHECK_EQUAL(vgpu_usage_read_device(pair.usage, 0, 1, &view), -EBADMSG);
    *words[i] = old;
    CHECK_EQUAL(vgpu_usage_read_device(pair.usage, 0, 1, &view), 0);
  }
  CHECK_EQUAL(view.used_bytes, 1000);
  CHECK_EQUAL(vgpu_usage_read_process(pair.usage, 0, 1, &process), 1);
  CHECK_EQUAL(process.pid, getpid());
  CHECK_EQUAL(vgpu_usage_read_process(pair.usage, 0, 2, &process), 0);
  own_slot(book)->owner = own_slot(book)->ready = (uint64_t)1 << 40;
  CHECK_EQUAL(vgpu_usage_read_process(pair.usage, 0, 1, &process), -EBADMSG);
  close_book(book);
  free_pair(pair);
}

int main(void) {
  test_layout();
  test_limits();
  test_text();
  test_usage_header();
  test_usage_repair();
  test_book_open();
  test_absurd_words();
  return check_end();
}
