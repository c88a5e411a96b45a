/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * trust.c - contract in trust.h. A line that is broken entitles to what it did when it last made sense; where that leaves a
 * process in debt, to a second of debt, so that nobody hangs for what a damaged word says, and new processes, which
 * have nothing to compare with, do not begin without debt each.
 */
#include "trust.h"

#include "slot.h"

/* The most that was bought by anybody, as far as one can tell. */
static uint64_t most_spent(const struct vgpu_rate_book *rate) {
  return vgpu_larger(vgpu_load_relaxed(&vgpu_rate_usage(rate)->spent_ns), vgpu_load_relaxed(&rate->own_spent_ns));
}

static bool is_debt(uint64_t spent, uint64_t line_ns, uint64_t slack) {
  return spent > line_ns && spent - line_ns > slack && spent - line_ns <= VGPU_DEBT_BELIEVED_NS;
}

/* True if the line cannot be: of another clock, or it has gone down, and this process into debt with it, as no writer lets
 * it. */
static bool is_broken(struct vgpu_rate_book *rate, const struct vgpu_line *line, uint64_t now_ns, uint64_t slack) {
  uint64_t line_ns = vgpu_line_at(line, now_ns), seen = vgpu_load_relaxed(&rate->line_seen_ns);
  bool down = seen > line_ns && seen - line_ns > slack && is_debt(most_spent(rate), line_ns, slack);
  if (vgpu_line_is_foreign(line, now_ns) || down) {
    return true;
  }
  vgpu_store_relaxed(&rate->line_seen_ns, line_ns);
  return false;
}

/* Lets a line that cannot be begin where this process first sees it, with a second of debt at most, and nothing lent.
 * The generation is written last: who sees it sees words that go with it. */
static void anchor(struct vgpu_rate_book *rate, struct vgpu_line *line, uint64_t now_ns, uint64_t slack) {
  uint32_t generation = line->generation | (uint32_t)1 << 31;
  if (vgpu_load(&rate->anchor_generation) != generation) {
    uint64_t entitled = line->entitled_ns <= VGPU_TIME_MAX / 2 ? line->entitled_ns : 0, spent = most_spent(rate);
    entitled = vgpu_larger(entitled, vgpu_load_relaxed(&rate->line_seen_ns));
    entitled = is_debt(spent, entitled, slack) ? spent - slack : entitled;
    vgpu_store(&rate->anchor_ns, now_ns);
    vgpu_store(&rate->anchor_entitled_ns, entitled);
    vgpu_store(&rate->anchor_generation, generation);
  }
  line->since_ns = vgpu_load(&rate->anchor_ns);
  line->entitled_ns = vgpu_load(&rate->anchor_entitled_ns);
}

bool vgpu_trust_line(struct vgpu_rate_book *rate, uint64_t now_ns, struct vgpu_line *line) {
  const struct vgpu_limits_device *limits = vgpu_rate_limits(rate);
  uint32_t share = vgpu_share_bounded(vgpu_load_relaxed(&limits->share_ppm));
  bool whole = vgpu_line_read(limits, line);
  uint32_t least = line->rate_ppm < share ? line->rate_ppm : share;
  uint64_t slack = vgpu_times_ppm(VGPU_AHEAD_NS, least);
  if (vgpu_load(&rate->anchor_generation) == (line->generation | (uint32_t)1 << 31) ||
      (whole && is_broken(rate, line, now_ns, slack))) {
    anchor(rate, line, now_ns, slack);
    line->rate_ppm = least;
    vgpu_store_relaxed(&rate->line_seen_ns, vgpu_line_at(line, now_ns));
  }
  uint64_t over = vgpu_load_relaxed(&rate->heartbeat_seen_ns) + VGPU_STALE_NS + VGPU_LOAN_NS;
  bool lent = vgpu_load_relaxed(&limits->compute_mode) == VGPU_COMPUTE_ELASTIC && line->rate_ppm > share;
  if (lent && vgpu_load_relaxed(&rate->is_stale) && now_ns > over && now_ns > line->since_ns) {
    vgpu_line_continue(line, over > line->since_ns ? over : line->since_ns);
    line->rate_ppm = share;
  }
  return whole;
}

void vgpu_trust_heartbeat(struct vgpu_rate_book *rate, uint64_t now_ns) {
  uint32_t heartbeat = vgpu_load_relaxed(&rate->book->limits->heartbeat);
  if (!vgpu_load_relaxed(&rate->is_seen) || heartbeat != vgpu_load_relaxed(&rate->heartbeat)) {
    vgpu_store_relaxed(&rate->heartbeat, heartbeat);
    vgpu_store_relaxed(&rate->heartbeat_seen_ns, now_ns);
    vgpu_store_relaxed(&rate->is_seen, 1u);
  }
  uint64_t seen = vgpu_load_relaxed(&rate->heartbeat_seen_ns);
  bool stale = heartbeat == 0 || (now_ns > seen && now_ns - seen > VGPU_STALE_NS);
  vgpu_store_relaxed(&rate->is_stale, stale ? 1u : 0u);
}
