/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * copies.h - the steps of every copying hook: what is copied is counted in the traffic book of the device once the driver
 * has said that it is, or will be; some copies are measured.
 *
 *   vgpu_copy_begin(&copy, direction, ...)       or vgpu_copy_any, vgpu_copy_peer
 *   vgpu_copy_end(&copy, the driver's result)    gives it back
 *
 * A copy into a capturing stream is none. Counting is two atomic adds; nothing else happens to a small copy.
 */
#ifndef VGPU_COPIES_H
#define VGPU_COPIES_H

#include "capture.h"
#include "core/traffic.h"
#include "samples.h"
#include "state.h"

enum { VGPU_COPY_TIMED_BYTES = 1 << 16 /* smaller ones are not measured: they tell of latency, not of bandwidth */ };

/* One copy, on the stack of its thread. */
struct vgpu_copy {
  struct vgpu_usage_traffic *traffic; /* NULL: it is not counted */
  struct vgpu_usage_traffic *other;   /* of the other device; NULL: there is none */
  struct vgpu_timed *timed;           /* it is being measured; NULL: it is not */
  CUstream stream;
  uint64_t bytes;
  uint64_t begun_ns;   /* if it is measured: when the driver was called, */
  uint64_t operations; /* and how many copies it stands for */
  enum vgpu_direction direction;
  bool is_async;
};

/* The book of the device that `on` is on, asked of the driver; 0: of the current device. NULL. */
struct vgpu_usage_traffic *vgpu_copy_traffic_slow(CUdeviceptr on);

/* Begins to measure the copy if it is its turn. */
void vgpu_copy_time(struct vgpu_copy *copy);
void vgpu_copy_timed(struct vgpu_copy *copy, CUresult result);

/* `on`: the address on the device; 0: an array. `stream` is the one that the program's means; of a call without one, the
 * default stream that it runs in. */
static inline void vgpu_copy_begin(struct vgpu_copy *copy, enum vgpu_direction direction, CUdeviceptr on,
                                   uint64_t bytes, CUstream stream, bool is_async) {
  copy->traffic = NULL;
  if (!vgpu_is_limiting() || vgpu_capture_has(stream)) return;
  struct vgpu_device *only = __atomic_load_n(&vgpu_only_device, __ATOMIC_ACQUIRE);
  copy->traffic = __builtin_expect(only != NULL, 1) ? only->traffic : vgpu_copy_traffic_slow(on);
  copy->other = NULL;
  copy->timed = NULL;
  copy->stream = stream;
  copy->bytes = bytes;
  copy->direction = direction;
  copy->is_async = is_async;
  if (__builtin_expect(bytes >= VGPU_COPY_TIMED_BYTES, 0) && copy->traffic) vgpu_copy_time(copy);
}

/* The same in two steps, for copies whose sides are known as numbers: the ordinal of a device, VGPU_CURRENT, or VGPU_ON_HOST.
 * One from host to host is not counted. */
enum { VGPU_CURRENT = -2 };
void vgpu_copy_sides(struct vgpu_copy *copy, int to, int from, uint64_t bytes);
void vgpu_copy_on(struct vgpu_copy *copy, CUstream stream, bool is_async);

/* A copy between any two addresses. */
void vgpu_copy_any(struct vgpu_copy *copy, CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream,
                   bool is_async);

/* A copy between two addresses on devices. */
static inline void vgpu_copy_within(struct vgpu_copy *copy, CUdeviceptr to, CUdeviceptr from, uint64_t bytes,
                                    CUstream stream, bool is_async) {
  if (__builtin_expect(__atomic_load_n(&vgpu_only_device, __ATOMIC_RELAXED) != NULL, 1)) {
    vgpu_copy_begin(copy, VGPU_WITHIN_DEVICE, to, bytes, stream, is_async);
  } else {
    vgpu_copy_any(copy, to, from, bytes, stream, is_async);
  }
}

/* Bytes of one element of an array (hooks_array.c). */
uint64_t vgpu_element_bytes(int format, unsigned int channels);

/* A copy between two contexts. */
void vgpu_copy_peer(struct vgpu_copy *copy, CUcontext to, CUcontext from, uint64_t bytes, CUstream stream,
                    bool is_async);

static inline CUresult vgpu_copy_end(struct vgpu_copy *copy, CUresult result) {
  if (!copy->traffic) return result;
  if (__builtin_expect(result == CUDA_SUCCESS, 1)) {
    vgpu_traffic_copied(copy->traffic, copy->direction, copy->bytes);
    if (__builtin_expect(copy->other != NULL, 0)) vgpu_traffic_copied(copy->other, copy->direction, copy->bytes);
  }
  if (__builtin_expect(copy->timed != NULL, 0)) vgpu_copy_timed(copy, result);
  return result;
}

#endif
