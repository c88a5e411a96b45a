/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * line.c - contract in line.h. Two copies: the writer fills the one that is not in force, then raises
 * rate_generation, whose low bit says which one is. A copy is valid if the generation is the same before and after it
 * was read: it is next written to after the generation has been raised. A writer that dies in between leaves the copy
 * in force alone.
 */
#include "line.h"

#include "slot.h"

enum { LINE_TRIES = 64 };

static void read_copy(const struct vgpu_limits_device *device, uint32_t generation, struct vgpu_line *line) {
  const struct vgpu_rate *rate = &device->rates[generation & 1];
  uint64_t entitled = vgpu_load(&rate->entitled_ns);
  uint32_t ppm = vgpu_load(&rate->rate_ppm), scale = vgpu_load(&rate->scale_ppm);
  line->since_ns = vgpu_load(&rate->since_ns);
  line->entitled_ns = entitled < VGPU_TIME_MAX ? entitled : VGPU_TIME_MAX;
  line->rate_ppm = ppm != 0 ? ppm : vgpu_load(&device->share_ppm);
  line->rate_ppm = vgpu_bounded(line->rate_ppm, VGPU_SHARE_MIN_PPM, VGPU_RATE_MAX_PPM);
  line->scale_ppm = scale != 0 ? vgpu_bounded(scale, VGPU_SCALE_MIN_PPM, VGPU_SCALE_MAX_PPM) : (uint32_t)VGPU_PPM;
  line->flags = vgpu_load(&rate->flags);
  line->generation = generation;
}

bool vgpu_line_read(const struct vgpu_limits_device *device, struct vgpu_line *line) {
  for (int tries = 0; tries < LINE_TRIES; tries++) {
    read_copy(device, vgpu_load(&device->rate_generation), line);
    if (vgpu_load(&device->rate_generation) == line->generation) {
      return true;
    }
  }
  return false;
}

void vgpu_line_continue(struct vgpu_line *line, uint64_t now_ns) {
  if (!vgpu_line_is_foreign(line, now_ns)) {
    line->entitled_ns = vgpu_line_at(line, now_ns);
  } else if (line->entitled_ns > VGPU_TIME_MAX / 2) {
    line->entitled_ns = 0;
  }
  line->since_ns = now_ns;
}

void vgpu_line_publish(struct vgpu_limits_device *device, const struct vgpu_line *line) {
  uint32_t generation = vgpu_load(&device->rate_generation) + 1;
  struct vgpu_rate *rate = &device->rates[generation & 1];
  vgpu_store(&rate->since_ns, line->since_ns);
  vgpu_store(&rate->entitled_ns, line->entitled_ns);
  vgpu_store(&rate->rate_ppm, line->rate_ppm);
  vgpu_store(&rate->scale_ppm, line->scale_ppm);
  vgpu_store(&rate->flags, line->flags);
  vgpu_store(&device->rate_generation, generation);
}
