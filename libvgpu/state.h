/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * state.h - this process's view: which books are open, which device of which book a CUDA device is, and what
 * happens when that cannot be told (nothing may be allocated).
 *
 * The view is built by the first hook that needs it, once. Pages beside the library (alloc/<key>/limits and
 * usage) give the limits; without such a directory the environment may give them; without that, everything is
 * passed through. Locks: none is held while the driver is called, except the spin flag of the first call.
 */
#ifndef VGPU_STATE_H
#define VGPU_STATE_H

#include <stdbool.h>

#include "core/pace.h"
#include "core/traffic.h"
#include "include/cuda_api.h"

enum {
  VGPU_MAX_BOOKS = 16, /* allocations of one container */
  VGPU_MAX_PLACES = 4, /* books that hold one device */
  VGPU_DEFAULT_PITCH_ALIGNMENT = 512
};

enum vgpu_mode {
  VGPU_MODE_UNKNOWN, /* no hook was called yet */
  VGPU_MODE_PASS,    /* no limits anywhere: every call is forwarded and nothing is kept */
  VGPU_MODE_LIMIT    /* devices that are in no book have limit 0 */
};

/* Device `index` of one book. */
struct vgpu_place {
  struct vgpu_book *book;
  uint32_t index;
};

/* One device as this process numbers it. Filled once, then only the learnt and charged fields change. */
struct vgpu_device {
  struct vgpu_place places[VGPU_MAX_PLACES];
  uint32_t place_count;      /* 0: not ours, limit 0 */
  uint32_t ready;            /* atomic */
  uint64_t ceiling_bytes;    /* what the environment allows at most; VGPU_NO_LIMIT */
  uint64_t pitch_alignment;  /* atomic; learnt */
  uint64_t pool_chunk_bytes; /* atomic; learnt: pools grow by multiples of this */
  CUdevice ordinal;
  int container_index;                       /* < 0: unknown */
  struct vgpu_usage_traffic *traffic;        /* of the first of `places`, where all is counted; NULL: there is none */
  uint32_t pacer_count;                      /* as many as places; 0: GPU time is not limited */
  struct vgpu_pacer pacers[VGPU_MAX_PLACES]; /* of the books in `places`; what one allows is allowed */
};

/* How much there is, for the program's eyes. */
struct vgpu_view {
  uint64_t limit_bytes; /* VGPU_NO_LIMIT when nothing limits it */
  uint64_t used_bytes;
};

extern uint32_t vgpu_mode_word; /* atomic; enum vgpu_mode */

/* The one device, once it is known that there is only one and it is filled; NULL. Atomic. */
extern struct vgpu_device *vgpu_only_device;

/* On the hooks that programs call most: they and all that they need in the usual case become one straight run of
 * code. What is not usual is marked noinline where it is defined. */
#define VGPU_ONE_RUN __attribute__((flatten))

/* Builds the view. */
enum vgpu_mode vgpu_mode_slow(void);

static inline bool vgpu_is_limiting(void) {
  uint32_t mode = __atomic_load_n(&vgpu_mode_word, __ATOMIC_ACQUIRE);
  return (mode == VGPU_MODE_UNKNOWN ? vgpu_mode_slow() : mode) == VGPU_MODE_LIMIT;
}

/* 1 while this process is the one that built its private tables; 0 in a forked child that has not been here
 * yet. On a page that the kernel wipes at fork; NULL where it cannot. */
extern uint32_t *vgpu_fork_canary;
void vgpu_after_fork(void);
bool vgpu_is_forked_slow(void);

/* Whether this is such a child: its tables are the parent's. */
static inline bool vgpu_is_forked(void) {
  uint32_t *canary = vgpu_fork_canary;
  return canary ? __atomic_load_n(canary, __ATOMIC_RELAXED) != 1 : vgpu_is_forked_slow();
}

/* Empties the tables that a forked child inherited: what they say is the parent's. */
static inline void vgpu_check_fork(void) {
  if (__builtin_expect(vgpu_is_forked(), 0)) vgpu_after_fork();
}

/* The device of ordinal `ordinal`, which the driver knows; NULL with *why set when the driver cannot say. */
struct vgpu_device *vgpu_device_at(CUdevice ordinal, CUresult *why);

/* Whether launches on the device are limited at all now; it may change at any time. */
static inline bool vgpu_device_is_paced(const struct vgpu_device *device) {
  uint32_t count = device->pacer_count;
  if (__builtin_expect(count == 1, 1)) return vgpu_rate_is_limiting(&device->pacers[0].rate);
  bool is_paced = count != 0;
  for (uint32_t i = 0; i < count; i++)
    is_paced &= vgpu_rate_is_limiting(&device->pacers[i].rate);
  return is_paced;
}

/* Where the limits page says whether launches are limited, once it is known that no other word has a say in it (there is one
 * device, in one book, and the environment limits nothing); a word that says no where nothing is limited. NULL. Atomic. */
extern const uint32_t *vgpu_only_compute_mode;

/* Launches that are not limited (watch.h). Counts are lost when threads race. Atomic. */
extern uint32_t vgpu_watch_count;
extern uint32_t vgpu_watch_part; /* of all, as a part of 2^32, are measured */

static inline bool vgpu_watch_is_now(uint32_t count) {
  return count * 0x9e3779b1u < __atomic_load_n(&vgpu_watch_part, __ATOMIC_RELAXED); /* evenly spread */
}

/* Counts a launch. True: it is to be measured. */
static inline bool vgpu_watch_counts(void) {
  uint32_t count = __atomic_load_n(&vgpu_watch_count, __ATOMIC_RELAXED) + 1;
  __atomic_store_n(&vgpu_watch_count, count, __ATOMIC_RELAXED);
  return vgpu_watch_is_now(count);
}

/* Whether a launch is free by one look at that word, and is not to be measured. False: it may be free all the same. */
static inline bool vgpu_launch_is_free(void) {
  const uint32_t *mode = __atomic_load_n(&vgpu_only_compute_mode, __ATOMIC_RELAXED);
  bool is_free = mode && __atomic_load_n(mode, __ATOMIC_RELAXED) == VGPU_COMPUTE_NONE;
  return __builtin_expect(is_free && !vgpu_watch_counts(), 1);
}

struct vgpu_device *vgpu_device_current_slow(CUresult *why);

/* The device that the calling thread's context is on; NULL with the driver's own reason in *why. Makes no
 * driver call when there is only one device. */
static inline struct vgpu_device *vgpu_device_current(CUresult *why) {
  struct vgpu_device *only = __atomic_load_n(&vgpu_only_device, __ATOMIC_ACQUIRE);
  return __builtin_expect(only != NULL, 1) ? only : vgpu_device_current_slow(why);
}

/* Whether there is only one device, so that nobody needs to ask which. */
bool vgpu_has_one_device(void);

/* Fills `device` for a UUID in text, "GPU-..." or "MIG-...", and the container's index of it (< 0: unknown). */
void vgpu_device_find(struct vgpu_device *device, const char *uuid, int container_index);

/* The book as a small number, for the table of blocks, and back. */
struct vgpu_book *vgpu_book_at(uint8_t number);
uint8_t vgpu_book_number(const struct vgpu_book *book);

/* Gives this process a slot in every book, whatever GPU it is about to use. False: no book has one for it. Without books
 * there is nobody to tell. After vgpu_check_fork. */
bool vgpu_register_process(void);

/* What the device's books say together. */
struct vgpu_view vgpu_device_view(const struct vgpu_device *device);

/* 0 and *place set: reserved. -ENOMEM and other negative values: not, and no book in *place. */
int vgpu_device_reserve(const struct vgpu_device *device, enum vgpu_kind kind, uint64_t bytes,
                        struct vgpu_place *place);

/* Counts one refusal of the device: the program was refused in the end. */
void vgpu_device_count_refusal(const struct vgpu_device *device);

#endif
