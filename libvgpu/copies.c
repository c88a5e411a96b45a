/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * copies.c - contract in copies.h.
 *
 * Which copies are measured: of each class one in 16, and one at least each 10 ms. A copy without a stream is measured by
 * the events around it or by the clock around its call, whichever is less: the events leave out what the stream had to do
 * before, the clock what comes after, until the thread runs again and the second event is recorded.
 */
#include "copies.h"

#include "claim.h"
#include "clock.h"
#include "core/sys.h"
#include "table.h"
#include "where.h"

enum { CLASSES = 64, EVERY = 16 };

/* What this process copied of one class since the last one that was measured. Races lose counts. */
static struct class {
  uint64_t id;
  uint64_t pending;
  uint64_t measured_ticks;
} classes[CLASSES];

static struct vgpu_usage_traffic *traffic_of(CUdevice ordinal) {
  CUresult why;
  struct vgpu_device *device = vgpu_device_at(ordinal, &why);
  return device ? device->traffic : NULL;
}

__attribute__((noinline)) struct vgpu_usage_traffic *vgpu_copy_traffic_slow(CUdeviceptr on) {
  CUresult why;
  int ordinal = on && !vgpu_has_one_device() ? vgpu_where(on) : VGPU_ON_HOST;
  if (ordinal != VGPU_ON_HOST) return traffic_of(ordinal);
  struct vgpu_device *device = vgpu_device_current_slow(&why);
  return device ? device->traffic : NULL;
}

static struct class *class_of(uint64_t id) {
  struct class *class = &classes[id % CLASSES];
  if (__atomic_load_n(&class->id, __ATOMIC_RELAXED) != id) {
    __atomic_store_n(&class->id, id, __ATOMIC_RELAXED);
    __atomic_store_n(&class->pending, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&class->measured_ticks, 0, __ATOMIC_RELAXED);
  }
  return class;
}

__attribute__((noinline)) void vgpu_copy_time(struct vgpu_copy *copy) {
  struct class *class = class_of(vgpu_traffic_copy_id(copy->direction, copy->is_async, copy->bytes));
  uint64_t now = vgpu_ticks(), since = now - __atomic_load_n(&class->measured_ticks, __ATOMIC_RELAXED);
  copy->operations = __atomic_load_n(&class->pending, __ATOMIC_RELAXED) + 1;
  if (copy->operations >= EVERY || since >= vgpu_ticks_now_and_then()) copy->timed = vgpu_sample_begin(copy->stream);
  __atomic_store_n(&class->pending, copy->timed ? 0 : copy->operations, __ATOMIC_RELAXED);
  if (!copy->timed) return;
  __atomic_store_n(&class->measured_ticks, now, __ATOMIC_RELAXED);
  if (!copy->is_async) copy->begun_ns = vgpu_now_ns();
}

static enum vgpu_class_kind kind_of(enum vgpu_direction direction) {
  return direction == VGPU_HOST_TO_DEVICE   ? VGPU_CLASS_HOST_TO_DEVICE
         : direction == VGPU_DEVICE_TO_HOST ? VGPU_CLASS_DEVICE_TO_HOST
                                            : VGPU_CLASS_DEVICE_COPY;
}

__attribute__((noinline)) void vgpu_copy_timed(struct vgpu_copy *copy, CUresult result) {
  if (result != CUDA_SUCCESS) {
    vgpu_sample_drop(copy->timed);
    return;
  }
  uint64_t most_ns = copy->is_async ? UINT64_MAX : vgpu_now_ns() - copy->begun_ns;
  const struct vgpu_sample sample = {.id = vgpu_traffic_copy_id(copy->direction, copy->is_async, copy->bytes),
                                     .kind = kind_of(copy->direction),
                                     .operations = copy->operations,
                                     .bytes = copy->bytes};
  vgpu_sample_end(copy->timed, copy->stream, copy->traffic, &sample, most_ns);
}

static struct vgpu_usage_traffic *traffic_at(int side) {
  struct vgpu_device *only = __atomic_load_n(&vgpu_only_device, __ATOMIC_ACQUIRE);
  return only ? only->traffic : side >= 0 ? traffic_of(side) : vgpu_copy_traffic_slow(0);
}

void vgpu_copy_sides(struct vgpu_copy *copy, int to, int from, uint64_t bytes) {
  *copy = (struct vgpu_copy){.bytes = bytes, .direction = VGPU_WITHIN_DEVICE};
  if (to == VGPU_ON_HOST && from == VGPU_ON_HOST) return;
  if (from == VGPU_ON_HOST) {
    copy->direction = VGPU_HOST_TO_DEVICE;
  } else if (to == VGPU_ON_HOST) {
    copy->direction = VGPU_DEVICE_TO_HOST;
  } else if (to != from && to >= 0 && from >= 0) {
    copy->direction = VGPU_BETWEEN_DEVICES;
    copy->other = traffic_at(from);
  }
  copy->traffic = traffic_at(to == VGPU_ON_HOST ? from : to);
  if (copy->traffic) return; /* a device that is not ours counts nothing */
  copy->traffic = copy->other;
  copy->other = NULL;
}

void vgpu_copy_on(struct vgpu_copy *copy, CUstream stream, bool is_async) {
  copy->stream = stream;
  copy->is_async = is_async;
  if (vgpu_capture_has(stream)) copy->traffic = NULL;
  if (copy->bytes >= VGPU_COPY_TIMED_BYTES && copy->traffic) vgpu_copy_time(copy);
}

void vgpu_copy_any(struct vgpu_copy *copy, CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream,
                   bool is_async) {
  copy->traffic = NULL;
  if (!vgpu_is_limiting()) return;
  vgpu_copy_sides(copy, vgpu_where(to), vgpu_where(from), bytes);
  vgpu_copy_on(copy, stream, is_async);
}

/* The device of a context; VGPU_CURRENT: unknown. */
static int ordinal_of(CUcontext context) {
  __typeof__(&cuCtxPushCurrent_v2) push = VGPU_REAL(cuCtxPushCurrent_v2);
  __typeof__(&cuCtxGetDevice) get = VGPU_REAL(cuCtxGetDevice);
  CUdevice ordinal;
  if (!context || !push || !get || !VGPU_REAL(cuCtxPopCurrent_v2) || push(context) != CUDA_SUCCESS) return VGPU_CURRENT;
  if (get(&ordinal) != CUDA_SUCCESS) ordinal = VGPU_CURRENT;
  vgpu_pop_context();
  return ordinal;
}

void vgpu_copy_peer(struct vgpu_copy *copy, CUcontext to, CUcontext from, uint64_t bytes, CUstream stream,
                    bool is_async) {
  copy->traffic = NULL;
  if (!vgpu_is_limiting()) return;
  bool is_one = vgpu_has_one_device();
  vgpu_copy_sides(copy, is_one ? VGPU_CURRENT : ordinal_of(to), is_one ? VGPU_CURRENT : ordinal_of(from), bytes);
  vgpu_copy_on(copy, stream, is_async);
}
