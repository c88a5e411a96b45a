/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * traffic.h - the traffic book of a device: how much was copied each way, how long the program waited for the GPU, and how
 * long samples of its operations took. Kept for whoever looks for contention; nothing is limited by it.
 *
 * Writers are all threads of all processes of the container, by single atomic operations: nobody waits for anybody, and
 * who is killed anywhere leaves nothing behind that the next one, or a reader, could not do without. Counts are exact
 * but for a call whose process was killed in the middle.
 *
 * Which classes are kept: those that take the most time ("space saving", in the unbiased form: what is not kept adds its
 * time to the least of those that are, and takes its place as often as its part in that). Scores age, so that classes of
 * processes that are gone make room.
 *
 * No CUDA, no libc, no clock, no system call.
 */
#ifndef VGPU_TRAFFIC_H
#define VGPU_TRAFFIC_H

#include "quota.h"

/* The book of `device`; NULL: the pages have none. */
struct vgpu_usage_traffic *vgpu_traffic_of(const struct vgpu_book *book, uint32_t device);

/* One copy of `bytes` went well. */
static inline void vgpu_traffic_copied(struct vgpu_usage_traffic *traffic, enum vgpu_direction direction,
                                       uint64_t bytes) {
  struct vgpu_count *count = &traffic->copies[direction];
  __atomic_fetch_add(&count->amount, bytes, __ATOMIC_RELAXED);
  __atomic_fetch_add(&count->calls, 1, __ATOMIC_RELAXED);
}

/* A call that waits for the GPU took `ns`. */
static inline void vgpu_traffic_stalled(struct vgpu_usage_traffic *traffic, uint64_t ns) {
  __atomic_fetch_add(&traffic->stalls.amount, ns, __ATOMIC_RELAXED);
  __atomic_fetch_add(&traffic->stalls.calls, 1, __ATOMIC_RELAXED);
}

/* One operation that was measured. */
struct vgpu_sample {
  uint64_t id; /* of its class; not 0 */
  enum vgpu_class_kind kind;
  uint64_t operations; /* of the class that it stands for, itself included */
  uint64_t bytes;      /* that it copied */
  uint64_t ns;         /* that it took */
};

void vgpu_traffic_sample(struct vgpu_usage_traffic *traffic, const struct vgpu_sample *sample, uint64_t now_ns);

/* The id of copies of about `bytes` (an eighth of an octave) one way: the same in every process. */
uint64_t vgpu_traffic_copy_id(enum vgpu_direction direction, bool is_async, uint64_t bytes);

/* The id of what a process, told by `salt`, knows under `key`. */
uint64_t vgpu_traffic_id(uint64_t key, uint64_t salt);

/* One class as a reader may believe it. */
struct vgpu_class_view {
  uint64_t id;
  uint64_t samples;
  uint64_t operations;
  uint64_t bytes;
  uint64_t time_ns;
  uint32_t kind;
  uint32_t recent_count;
  uint64_t recent_ns[VGPU_CLASS_RECENT]; /* oldest first */
};

struct vgpu_traffic_view {
  uint64_t calls[VGPU_DIRECTION_COUNT];
  uint64_t bytes[VGPU_DIRECTION_COUNT];
  uint64_t stalls;
  uint64_t stalled_ns;
  uint32_t class_count;
  struct vgpu_class_view classes[VGPU_CLASS_COUNT];
};

/* Reads a private copy of a traffic book, whatever its bytes are: every figure is within bounds (counts to 2^60, times to
 * VGPU_TIME_MAX), and classes that are being replaced, are of an unknown kind or twice there are left out. */
void vgpu_traffic_read(const struct vgpu_usage_traffic *traffic, struct vgpu_traffic_view *view);

#endif
