/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * book_test.c - the memory book in one process: to the byte, live limits, epochs, tampering. Two books of one
 * process stand for two processes where nobody has to die.
 */
#include <errno.h>

#include "check.h"

static void test_to_the_byte(void) {
  struct pair pair = make_pair(2, 1000);
  struct vgpu_book *book = open_book(pair);
  CHECK_EQUAL(vgpu_used_bytes(book, 0), 0);
  CHECK_EQUAL(slots_taken(book), 0); /* a query takes no slot */
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1001), -ENOMEM);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, UINT64_MAX), -ENOMEM);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 600), 0);
  CHECK_EQUAL(vgpu_reserve(book, 0, MANAGED, 399), 0);
  CHECK_EQUAL(vgpu_reserve(book, 0, POOL, 2), -ENOMEM);
  CHECK_EQUAL(vgpu_reserve(book, 0, POOL, 1), 0);
  CHECK_EQUAL(vgpu_reserve(book, 0, POOL, 0), 0);
  CHECK_EQUAL(vgpu_used_bytes(book, 0), 1000);
  CHECK_EQUAL(page_used(pair), 1000);
  CHECK_EQUAL(vgpu_limit_bytes(book, 0), 1000);
  CHECK_EQUAL(vgpu_used_bytes(book, 1), 0); /* the other device is another book */
  CHECK_EQUAL(vgpu_reserve(book, 1, DEVICE, 1000), 0);
  vgpu_release(book, 0, DEVICE, 600);
  vgpu_cancel(book, 0, MANAGED, 399);
  CHECK_EQUAL(vgpu_used_bytes(book, 0), 1);
  vgpu_release(book, 0, DEVICE, 600); /* never below zero */
  vgpu_release(book, 0, POOL, UINT64_MAX);
  CHECK_EQUAL(vgpu_used_bytes(book, 0), 0);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1000), 0);
  close_book(book);
  CHECK_EQUAL(page_used(pair), 0);
  free_pair(pair);
}

static void test_arguments(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair);
  CHECK_EQUAL(vgpu_reserve(book, 1, DEVICE, 1), -EINVAL);
  CHECK_EQUAL(vgpu_reserve(book, UINT32_MAX, DEVICE, 1), -EINVAL);
  CHECK_EQUAL(vgpu_reserve(book, 0, (enum vgpu_kind)VGPU_KIND_COUNT, 1), -EINVAL);
  CHECK_EQUAL(vgpu_reserve(book, 0, (enum vgpu_kind) - 1, 1), -EINVAL);
  vgpu_release(book, 7, DEVICE, 1);
  vgpu_charge(book, 7, DEVICE, 1);
  vgpu_cancel(book, 0, (enum vgpu_kind)99, 1);
  CHECK_EQUAL(vgpu_limit_bytes(book, 9), 0);
  CHECK_EQUAL(vgpu_used_bytes(book, 9), 0);
  CHECK_EQUAL(slots_taken(book), 0);
  vgpu_release(book, 0, DEVICE, 5); /* before anything was reserved */
  CHECK_EQUAL(vgpu_used_bytes(book, 0), 0);
  close_book(book);
  free_pair(pair);
}

static void test_counters(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair);
  struct vgpu_usage_view view;
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 10), 0);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 10), 0);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1000), -ENOMEM);
  vgpu_count_refusal(book, 0);
  vgpu_release(book, 0, DEVICE, 10);
  vgpu_cancel(book, 0, DEVICE, 10);
  vgpu_charge(book, 0, DEVICE, 10);
  for (int i = 0; i < 2; i++) { /* in the slot, then folded into the totals */
    CHECK_EQUAL(vgpu_usage_read_device(pair.usage, 0, 1, &view), 0);
    CHECK_EQUAL(view.allocations, 3);
    CHECK_EQUAL(view.frees, 1);
    CHECK_EQUAL(view.refusals, 1);
    vgpu_book_close(book);
  }
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 10), 0);
  CHECK_EQUAL(vgpu_usage_read_device(pair.usage, 0, 1, &view), 0);
  CHECK_EQUAL(view.allocations, 4);
  close_book(book);
  free_pair(pair);
}

static void test_charge(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair), *other = open_book(pair);
  vgpu_charge(book, 0, DEVICE, 1500); /* what the driver took is true, limit or not */
  CHECK_EQUAL(vgpu_used_bytes(other, 0), 1500);
  CHECK_EQUAL(vgpu_reserve(other, 0, DEVICE, 1), -ENOMEM);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 0), -ENOMEM);
  vgpu_release(book, 0, DEVICE, 600);
  CHECK_EQUAL(vgpu_reserve(other, 0, DEVICE, 100), 0);
  vgpu_charge(book, 0, DEVICE, UINT64_MAX); /* never wraps */
  CHECK_EQUAL(vgpu_used_bytes(book, 0), VGPU_BYTES_MAX + 100);
  CHECK_EQUAL(vgpu_reserve(other, 0, DEVICE, 1), -ENOMEM);
  close_book(book);
  close_book(other);
  free_pair(pair);
}

static void test_limit_changes(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 800), 0);
  vgpu_limits_set_memory(pair.limits, 0, 500);
  CHECK_EQUAL(vgpu_limit_bytes(book, 0), 500);
  CHECK_EQUAL(vgpu_used_bytes(book, 0), 800); /* stays true */
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), -ENOMEM);
  vgpu_release(book, 0, DEVICE, 300);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), -ENOMEM);
  vgpu_release(book, 0, DEVICE, 1);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), 0);
  vgpu_limits_set_memory(pair.limits, 0, 0);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), -ENOMEM);
  vgpu_limits_set_memory(pair.limits, 0, UINT64_MAX);
  CHECK_EQUAL(vgpu_limit_bytes(book, 0), VGPU_BYTES_MAX);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, UINT64_MAX), -ENOMEM);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, VGPU_BYTES_MAX - 500), 0);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), -ENOMEM);
  close_book(book);
  free_pair(pair);
}

/* A process that lives through an epoch raise counts again from its next request on, with all that it holds. */
static void test_epoch(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *old = open_book(pair), *fresh = open_book(pair);
  struct vgpu_usage_view view;
  CHECK_EQUAL(vgpu_reserve(old, 0, DEVICE, 700), 0);
  uint64_t token = old->token;
  vgpu_limits_raise_epoch(pair.limits);
  CHECK_EQUAL(vgpu_used_bytes(fresh, 0), 0);
  CHECK_EQUAL(vgpu_used_bytes(old, 0), 700);
  CHECK_EQUAL(page_used(pair), 0);
  CHECK_EQUAL(vgpu_reserve(fresh, 0, DEVICE, 600), 0);
  CHECK_EQUAL(vgpu_reserve(old, 0, DEVICE, 1), -ENOMEM);
  CHECK_EQUAL(vgpu_used_bytes(fresh, 0), 1300);
  CHECK_EQUAL(page_used(pair), 1300);
  CHECK(old->token != token);
  CHECK_EQUAL(slots_taken(old), 2);
  vgpu_limits_raise_epoch(pair.limits);
  vgpu_release(old, 0, DEVICE, 300); /* known to itself, although its slot is of yesterday */
  CHECK_EQUAL(vgpu_reserve(old, 0, DEVICE, 600), 0);
  CHECK_EQUAL(page_used(pair), 1000);
  CHECK_EQUAL(vgpu_usage_read_device(pair.usage, 0, pair.limits->epoch, &view), 0);
  CHECK_EQUAL(view.allocations, 3);
  close_book(old);
  close_book(fresh);
  free_pair(pair);
}

/* Slots of an older epoch whose processes cannot be seen are taken back. */
static void test_epoch_reap(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *old = open_book(pair), *fresh = open_book(pair);
  CHECK_EQUAL(vgpu_reserve(old, 0, DEVICE, 700), 0);
  own_slot(old)->pid_namespace++;
  own_slot(old)->life_lock = 0;
  CHECK_EQUAL(vgpu_reserve(fresh, 0, DEVICE, 400), -ENOMEM); /* may be alive */
  close_book(fresh);
  fresh = open_book(pair);
  vgpu_limits_raise_epoch(pair.limits);
  CHECK_EQUAL(vgpu_reserve(fresh, 0, DEVICE, 400), 0);
  CHECK_EQUAL(fresh->slot_index, 0);
  CHECK_EQUAL(slots_taken(fresh), 1);
  CHECK_EQUAL(vgpu_reserve(old, 0, DEVICE, 1), -ENOMEM); /* it lives: takes another slot */
  CHECK_EQUAL(old->slot_index, 1);
  CHECK_EQUAL(page_used(pair), 1100);
  close_book(old);
  close_book(fresh);
  free_pair(pair);
}

static void test_tampering(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair), *other = open_book(pair);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 700), 0);
  CHECK_EQUAL(vgpu_reserve(other, 0, DEVICE, 100), 0);
  struct vgpu_usage_slot_device *books = vgpu_slot_device(own_slot(book), 0);

  books->charged_bytes[DEVICE] = 0; /* lowered: not for ourselves, and not for long */
  CHECK_EQUAL(vgpu_used_bytes(book, 0), 800);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 201), -ENOMEM);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), 0);
  CHECK_EQUAL(vgpu_used_bytes(other, 0), 801);
  vgpu_release(book, 0, DEVICE, 1);

  books->charged_bytes[VGPU_KIND_COUNT - 1] = UINT64_MAX; /* raised: refused, never wrapped */
  CHECK_EQUAL(vgpu_reserve(other, 0, DEVICE, 1), -ENOMEM);
  CHECK(vgpu_used_bytes(other, 0) > 1000);
  books->charged_bytes[VGPU_KIND_COUNT - 1] = 0;

  pair.usage->slot_high_water = 0; /* lowered: we count ourselves in any case */
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 301), -ENOMEM);
  pair.usage->slot_high_water = UINT32_MAX;
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 201), -ENOMEM);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 200), 0);
  vgpu_release(book, 0, DEVICE, 200);

  memset(pair.usage, 0, pair.usage_bytes); /* wiped: nothing more until it is put right, then all counts again */
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), -EPROTO);
  CHECK_EQUAL(vgpu_used_bytes(book, 0), 1000);
  vgpu_charge(book, 0, DEVICE, 5);
  vgpu_release(book, 0, DEVICE, 105);
  vgpu_usage_repair(pair.usage, 1, VGPU_ABI_VERSION);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), 0);
  CHECK_EQUAL(vgpu_reserve(other, 0, DEVICE, 1), 0);
  CHECK_EQUAL(page_used(pair), 702);
  CHECK_EQUAL(vgpu_reserve(other, 0, DEVICE, 299), -ENOMEM);

  uint64_t token = book->token; /* our slot given to another */
  own_slot(book)->owner = own_slot(book)->ready = token ^ ((uint64_t)1 << 63);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 1), 0); /* no such registration: it has no lock */
  CHECK(book->token != token);
  close_book(book);
  close_book(other);
  free_pair(pair);
}

/* Without a canary the pid says whether we are the one that registered. */
static void test_no_canary(void) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_book *book = open_book(pair);
  uint32_t *canary = book->fork_canary;
  book->fork_canary = NULL;
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 600), 0);
  CHECK_EQUAL(vgpu_reserve(book, 0, DEVICE, 600), -ENOMEM);
  vgpu_release(book, 0, DEVICE, 600);
  CHECK_EQUAL(vgpu_used_bytes(book, 0), 0);
  book->fork_canary = canary;
  close_book(book);
  free_pair(pair);
}

int main(void) {
  test_to_the_byte();
  test_arguments();
  test_counters();
  test_charge();
  test_limit_changes();
  test_epoch();
  test_epoch_reap();
  test_tampering();
  test_no_canary();
  return check_end();
}
