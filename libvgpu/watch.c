/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * watch.c - contract in watch.h.
 */
#include "watch.h"

#include "core/sys.h"

#define LONG_NS ((uint64_t)200000)

enum { APART_PART = 10 /* of 10 ms: those that are measured are as far apart */ };

uint32_t vgpu_watch_count;
uint32_t vgpu_watch_part = UINT32_MAX / VGPU_WATCH_EVERY;

static uint32_t last_count; /* atomic; number of the last one that was measured, */
static uint64_t last_ticks; /* and when; atomic */

/* Whether this launch, number `count`, is the one of so many. */
static bool is_one_of_many(uint32_t *count) {
  const uint32_t *mode = __atomic_load_n(&vgpu_only_compute_mode, __ATOMIC_RELAXED);
  bool is_counted = mode && __atomic_load_n(mode, __ATOMIC_RELAXED) == VGPU_COMPUTE_NONE; /* by vgpu_launch_is_free */
  bool is_it = !is_counted && vgpu_watch_counts();
  *count = __atomic_load_n(&vgpu_watch_count, __ATOMIC_RELAXED);
  return is_it || (is_counted && vgpu_watch_is_now(*count));
}

__attribute__((noinline)) uint32_t vgpu_watch_due(void) {
  uint32_t count;
  if (!vgpu_is_limiting() || !is_one_of_many(&count)) return 0;
  uint64_t now = vgpu_ticks(), last = __atomic_load_n(&last_ticks, __ATOMIC_RELAXED);
  if (last != 0 && now - last < vgpu_ticks_now_and_then() / APART_PART) return 0;
  __atomic_store_n(&last_ticks, now, __ATOMIC_RELAXED);
  uint32_t since = count - __atomic_load_n(&last_count, __ATOMIC_RELAXED);
  return since != 0 ? since : 1;
}

__attribute__((noinline)) void vgpu_watch_begin(struct vgpu_watched *watched, const void *function, bool is_graph,
                                                uint64_t blocks, uint32_t threads, CUstream stream,
                                                uint32_t operations) {
  watched->timed = NULL;
  if (vgpu_capture_has(stream)) return;
  vgpu_check_fork();
  vgpu_register_process(); /* its context may have come through a door that nobody watches */
  struct vgpu_device *only = __atomic_load_n(&vgpu_only_device, __ATOMIC_ACQUIRE);
  struct vgpu_device *device = only ? only : vgpu_launch_device_slow(stream);
  uint64_t key = vgpu_cost_find(&vgpu_launch_costs, function, blocks, threads)->key;
  if (!device || !device->traffic || key == 0) return;
  watched->traffic = device->traffic;
  watched->stream = stream;
  watched->sample = (struct vgpu_sample){.id = vgpu_traffic_id(key, vgpu_samples_salt()),
                                         .kind = is_graph ? VGPU_CLASS_GRAPH : VGPU_CLASS_KERNEL,
                                         .operations = operations};
  watched->timed = vgpu_sample_begin(stream);
  uint32_t count = __atomic_load_n(&vgpu_watch_count, __ATOMIC_RELAXED);
  if (watched->timed) __atomic_store_n(&last_count, count, __ATOMIC_RELAXED);
}

CUresult vgpu_watch_end(struct vgpu_watched *watched, CUresult result) {
  if (!watched->timed) return result;
  if (result == CUDA_SUCCESS) {
    vgpu_sample_end(watched->timed, watched->stream, watched->traffic, &watched->sample, UINT64_MAX);
  } else {
    vgpu_sample_drop(watched->timed);
  }
  return result;
}

void vgpu_watch_took(uint64_t ns) {
  uint32_t every = ns >= LONG_NS ? VGPU_WATCH_EVERY_LONG : VGPU_WATCH_EVERY;
  __atomic_store_n(&vgpu_watch_part, UINT32_MAX / every, __ATOMIC_RELAXED);
}
