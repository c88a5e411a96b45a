/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * account.c - contract in account.h.
 */
#include "account.h"

#include "rate.h"
#include "slot.h"

enum { EVEN_EVERY_NS = 1000000 }; /* even_ns is written at most so often */

struct vgpu_account vgpu_account_of(uint64_t *spent_ns, uint64_t *even_ns, const struct vgpu_line *line,
                                    uint64_t now_ns) {
  struct vgpu_account account = {
      .spent_ns = spent_ns,
      .even_ns = even_ns,
      .line = line,
      .now_ns = now_ns,
      .line_ns = vgpu_line_at(line, now_ns),
      .burst_ns = vgpu_times_ppm(VGPU_BURST_NS, line->rate_ppm),
  };
  return account;
}

/* What `spent` counts as. */
static uint64_t base_of(const struct vgpu_account *account, uint64_t spent) {
  uint64_t least = account->line_ns > account->burst_ns ? account->line_ns - account->burst_ns : 0;
  if (spent > account->line_ns && spent - account->line_ns > VGPU_DEBT_BELIEVED_NS) {
    return account->line_ns;
  }
  return spent > least ? spent : least;
}

/* How long it takes the line to reach `base`; 0: it has. */
static uint64_t wait_of(const struct vgpu_account *account, uint64_t base) {
  if (base <= account->line_ns) {
    return 0;
  }
  uint64_t wait = (base - account->line_ns) * VGPU_PPM / account->line->rate_ppm + 1;
  return wait > VGPU_WAIT_MIN_NS ? wait : VGPU_WAIT_MIN_NS;
}

uint64_t vgpu_account_debt_ns(const struct vgpu_account *account) {
  uint64_t base = base_of(account, vgpu_load_relaxed(account->spent_ns));
  return base > account->line_ns ? base - account->line_ns : 0;
}

uint64_t vgpu_account_wait_ns(const struct vgpu_account *account) {
  return wait_of(account, base_of(account, vgpu_load_relaxed(account->spent_ns)));
}

static void see_even(const struct vgpu_account *account) {
  uint64_t even = vgpu_load_relaxed(account->even_ns);
  if (even > account->now_ns || account->now_ns - even >= EVEN_EVERY_NS) {
    vgpu_store_relaxed(account->even_ns, account->now_ns);
  }
}

uint64_t vgpu_account_take(const struct vgpu_account *account, uint64_t *amount, uint64_t ahead, bool force) {
  uint64_t spent = vgpu_load_relaxed(account->spent_ns), taken;
  uint64_t base, wait;
  do {
    base = base_of(account, spent);
    wait = wait_of(account, base);
    if (wait != 0 && !force) {
      return wait;
    }
    uint64_t credit = wait == 0 ? account->line_ns - base : 0;
    uint64_t left = credit > *amount ? credit - *amount : 0;
    taken = *amount + (left < ahead ? left : ahead);
  } while (
      !__atomic_compare_exchange_n(account->spent_ns, &spent, base + taken, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
  if (wait == 0) {
    see_even(account);
  }
  *amount = taken;
  return 0;
}

void vgpu_account_book(const struct vgpu_account *account, uint64_t amount, uint64_t elapsed_ns,
                       uint64_t under_way_ns) {
  uint64_t now = account->now_ns, even = vgpu_load_relaxed(account->even_ns);
  uint64_t began = elapsed_ns < now ? now - elapsed_ns : 0, since = even < began ? even : began;
  uint64_t most = vgpu_line_at(account->line, since) + (now - since) + under_way_ns;
  uint64_t spent = vgpu_load_relaxed(account->spent_ns), booked;
  do {
    uint64_t room = most > spent ? most - spent : 0;
    booked = even > now || amount < room ? amount : room; /* a time to come is damage, and bounds nothing */
  } while (!__atomic_compare_exchange_n(account->spent_ns, &spent, spent + booked, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED));
  if (even <= now && since < even) { /* work was under way already when there seemed to be no debt */
    vgpu_store_relaxed(account->even_ns, since);
  }
}
