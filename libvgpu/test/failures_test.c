/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * failures_test.c - launches that nobody can measure, on a clock of its own: one at a time, dearer each time, and none is
 * kept waiting longer than the longest wait.
 */
#include "../failures.h"

#include "../core/page.h"
#include "../launches.h"
#include "check.h"

#define START ((uint64_t)1000000000000)

struct vgpu_costs vgpu_launch_costs;

static struct vgpu_pacer pacer;

static void open_pacer(uint32_t share_ppm) {
  static struct vgpu_book book;
  static union {
    struct vgpu_limits_page page;
    uint8_t bytes[VGPU_LIMITS_PAGE_BYTES];
  } limits;
  size_t bytes = vgpu_usage_page_bytes(1, VGPU_ABI_VERSION);
  void *usage = aligned_alloc(VGPU_CACHE_LINE_BYTES, bytes);
  const struct vgpu_compute compute = {VGPU_COMPUTE_HARD, share_ppm, share_ppm};
  memset(usage, 0, bytes);
  vgpu_usage_init(usage, 1);
  CHECK_EQUAL(vgpu_limits_init(&limits.page, (const uint8_t *)"k", 1, 1), 0, "limits page");
  CHECK_EQUAL(vgpu_limits_set_compute(&limits.page, 0, &compute, START), 0, "share");
  CHECK_EQUAL(vgpu_book_open(&book, &limits, sizeof(limits), usage, bytes), 0, "book");
  vgpu_rate_open(&pacer.rate, &book, 0, VGPU_PPM);
}

/* From one turn to the next, in steps of a millisecond. */
static uint64_t gap_after(const struct vgpu_cost *cost, uint64_t *now_ns) {
  const uint64_t step = 1000000;
  uint64_t begun = *now_ns;
  do
    *now_ns += step;
  while (!vgpu_failure_turn(&pacer, cost, *now_ns) && *now_ns - begun < 10 * VGPU_WAIT_MAX_NS);
  return *now_ns - begun;
}

int main(void) {
  struct vgpu_cost *cost = &vgpu_launch_costs.entries[7];
  uint64_t now = START, before = 0, gap = 0;
  open_pacer(10000); /* one percent */
  CHECK(vgpu_failure_turn(&pacer, cost, now), "the first one goes");
  CHECK(!vgpu_failure_turn(&pacer, cost, now), "the second one waits for its turn");
  for (int i = 0; i < 12; i++) {
    vgpu_failure_ns(&pacer, cost);
    before = gap;
    gap = gap_after(cost, &now);
    CHECK(gap >= before, "turn %d comes after %llu ns, the one before after %llu", i, (unsigned long long)gap,
          (unsigned long long)before);
  }
  CHECK_EQUAL(gap, VGPU_WAIT_MAX_NS, "the longest gap");

  vgpu_failures_forget(); /* in a forked child */
  CHECK(vgpu_failure_turn(&pacer, cost, now), "a child has a turn of its own");
  cost->cost_ns = 1000;
  CHECK(vgpu_failure_turn(&pacer, cost, now) && vgpu_failure_turn(&pacer, cost, now), "what is known needs no turn");
  return check_done();
}
