/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * line.h - the line of struct vgpu_rate: what an allocation is entitled to at any time, read and written without
 * anybody waiting, and every number of it within bounds. Internal to the core.
 */
#ifndef VGPU_LINE_H
#define VGPU_LINE_H

#include <stdbool.h>

#include "../include/vgpu_abi.h"

/* No time or count above this is believed (half a century in ns): sums of a few of them cannot overflow. */
#define VGPU_TIME_MAX ((uint64_t)1 << 60)

#define VGPU_AHEAD_NS ((uint64_t)1000000000) /* a line that begins further ahead of the clock is of another clock */

enum {
  VGPU_SHARE_MIN_PPM = 10000,  /* the least share there is: one percent */
  VGPU_RATE_MAX_PPM = 1050000, /* the largest rate; above the whole only to make up for costs that are too high */
  VGPU_SCALE_MIN_PPM = 100000,
  VGPU_SCALE_MAX_PPM = 10000000
};

/* A copy of the line in force, within bounds. */
struct vgpu_line {
  uint64_t since_ns;
  uint64_t entitled_ns;
  uint32_t rate_ppm;
  uint32_t scale_ppm;
  uint32_t flags;
  uint32_t generation; /* rate_generation when it was read */
};

static inline uint64_t vgpu_smaller(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static inline uint64_t vgpu_larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

static inline uint32_t vgpu_bounded(uint32_t value, uint32_t least, uint32_t most) {
  return value < least ? least : value > most ? most : value;
}

/* A share or ceiling as readers take it. */
static inline uint32_t vgpu_share_bounded(uint32_t share_ppm) {
  return vgpu_bounded(share_ppm, VGPU_SHARE_MIN_PPM, VGPU_PPM);
}

/* value * ppm / VGPU_PPM, rounded down. Without overflow for values up to VGPU_TIME_MAX and ppm up to VGPU_SCALE_MAX_PPM. */
static inline uint64_t vgpu_times_ppm(uint64_t value, uint32_t ppm) {
  return value / VGPU_PPM * ppm + value % VGPU_PPM * ppm / VGPU_PPM;
}

/* What the line entitles to at `now_ns`; before it begins, what it begins with. */
static inline uint64_t vgpu_line_at(const struct vgpu_line *line, uint64_t now_ns) {
  uint64_t elapsed = now_ns > line->since_ns ? now_ns - line->since_ns : 0;
  return line->entitled_ns + vgpu_times_ppm(elapsed < VGPU_TIME_MAX ? elapsed : VGPU_TIME_MAX, line->rate_ppm);
}

/* True if the line cannot be of the clock that says `now_ns` (of another boot, say), or of any. */
static inline bool vgpu_line_is_foreign(const struct vgpu_line *line, uint64_t now_ns) {
  return (line->since_ns > now_ns && line->since_ns - now_ns > VGPU_AHEAD_NS) || line->entitled_ns > VGPU_TIME_MAX / 2;
}

/* Reads the line in force. A device whose rate was never written has its share as rate, from time 0 on. False: it was
 * changed again and again meanwhile; the copy is within bounds, but may be of two lines. */
bool vgpu_line_read(const struct vgpu_limits_device *device, struct vgpu_line *line);

/* Lets the copy begin at `now_ns` with what it has given by then (a foreign one: with what it began with). */
void vgpu_line_continue(struct vgpu_line *line, uint64_t now_ns);

/* Publishes the line. One writer at a time. Whoever waits for GPU time is not woken: the caller's business, by a futex
 * call on rate_generation. */
void vgpu_line_publish(struct vgpu_limits_device *device, const struct vgpu_line *line);

#endif
