/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * What a probe is told of the function that it sits on, and how what is known at entry is kept until the return in
 * eight bytes. Package bpf has the same numbers in functions.go; a test compares them.
 */
#ifndef VGPUD_BPF_CALLS_H
#define VGPUD_BPF_CALLS_H

#include "kernel.h"

/* Classes of calls. Those before CLASS_ALLOCATION are copies, by direction. */
enum class {
  CLASS_HOST_TO_DEVICE,
  CLASS_DEVICE_TO_HOST,
  CLASS_DEVICE_TO_DEVICE,
  CLASS_PEER_TO_PEER,
  CLASS_UNTOLD, /* copies between unified addresses: the call does not tell which way */
  CLASS_ALLOCATION,
  CLASS_STALL,
  COUNTED_CLASSES,
  CLASS_CREATE = COUNTED_CLASSES,
  CLASS_RETAIN,
  CLASS_DESTROY,
};

/* Where a call says its bytes. */
enum form {
  FORM_NONE,
  FORM_ARGUMENT,    /* an argument */
  FORM_ARGUMENT_32, /* its lower half: calls of before CUDA 3.2 */
  FORM_PITCH,       /* the product of arguments 2 and 3 */
  FORM_RECTANGLE,   /* CUDA_MEMCPY2D at argument 0; direction too */
  FORM_BOX,         /* CUDA_MEMCPY3D at argument 0; direction too */
  FORM_BOX_PEER,    /* CUDA_MEMCPY3D_PEER */
  FORM_ARRAY,       /* CUDA_ARRAY_DESCRIPTOR at argument 1 */
  FORM_ARRAY_3D,    /* CUDA_ARRAY3D_DESCRIPTOR at argument 1 */
};

/* A probe's cookie: class in bits 0–7, form in 8–15, number of the argument in 16–23, of the file in 24–31. */
#define COOKIE_CLASS(cookie) ((u32)(cookie)&0xff)
#define COOKIE_FORM(cookie) ((u32)(cookie) >> 8 & 0xff)
#define COOKIE_ARGUMENT(cookie) ((u32)(cookie) >> 16 & 0xff)
#define COOKIE_FILE(cookie) ((u32)(cookie) >> 24 & 0xff)

/* A copy under way: bit 63 says which scale, 60–62 its direction; then bytes and the time of its start, both exact
 * enough that nothing is lost. Up to 256 MiB: 28 bits of bytes, 32 bits of time in 64 ns (274 s until it wraps). Larger:
 * 40 bits of bytes, 20 of time in 1.05 ms (18 minutes); such a copy takes many of these. Beyond 1 TiB − 1 bytes are cut. */
#define COPY_BIG (1ull << 63)
#define COPY_DIRECTION_SHIFT 60
#define COPY_SMALL_BYTES 28
#define COPY_SMALL_UNIT 6
#define COPY_BIG_BYTES 40
#define COPY_BIG_UNIT 20

struct copy {
  u32 direction;
  u64 bytes, time_ns;
};

INLINE u64 pack_copy(u32 direction, u64 bytes, u64 now_ns) {
  u64 head = (u64)(direction & 7) << COPY_DIRECTION_SHIFT;
  if (bytes < 1ull << COPY_SMALL_BYTES) {
    return head | (now_ns >> COPY_SMALL_UNIT & 0xffffffffull) << COPY_SMALL_BYTES | bytes;
  }
  if (bytes >= 1ull << COPY_BIG_BYTES) {
    bytes = (1ull << COPY_BIG_BYTES) - 1;
  }
  return COPY_BIG | head | (now_ns >> COPY_BIG_UNIT & 0xfffffull) << COPY_BIG_BYTES | bytes;
}

INLINE void unpack_copy(struct copy *copy, u64 packed, u64 now_ns) {
  copy->direction = packed >> COPY_DIRECTION_SHIFT & 7;
  if ((packed & COPY_BIG) == 0) {
    copy->bytes = packed & ((1ull << COPY_SMALL_BYTES) - 1);
    copy->time_ns = ((now_ns >> COPY_SMALL_UNIT) - (packed >> COPY_SMALL_BYTES) & 0xffffffffull) << COPY_SMALL_UNIT;
    return;
  }
  copy->bytes = packed & ((1ull << COPY_BIG_BYTES) - 1);
  copy->time_ns = ((now_ns >> COPY_BIG_UNIT) - (packed >> COPY_BIG_BYTES) & 0xfffffull) << COPY_BIG_UNIT;
}

/* CUDA_MEMCPY2D, CUDA_MEMCPY3D and the array descriptors of the driver's interface, as far as they are read. */
enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_ARRAY = 3, MEMORY_UNIFIED = 4 };

struct rectangle {
  u64 from_x, from_y;
  u32 from_type, from_pad;
  u64 from_host, from_device, from_array, from_pitch;
  u64 to_x, to_y;
  u32 to_type, to_pad;
  u64 to_host, to_device, to_array, to_pitch;
  u64 width, height;
};

struct box_side {
  u64 x, y, z, level;
  u32 type, pad;
  u64 host, device, array, context, pitch, height;
};

struct box {
  struct box_side from, to;
  u64 width, height, depth;
};

struct array {
  u64 width, height;
  u32 format, channels;
};

struct array_3d {
  u64 width, height, depth;
  u32 format, channels, flags;
};

/* direction_of tells a copy's direction from its two memory types. */
INLINE u32 direction_of(u32 from, u32 to) {
  if (from == MEMORY_UNIFIED || to == MEMORY_UNIFIED) {
    return CLASS_UNTOLD;
  }
  if (from == MEMORY_HOST) {
    return to == MEMORY_HOST ? CLASS_UNTOLD : CLASS_HOST_TO_DEVICE;
  }
  return to == MEMORY_HOST ? CLASS_DEVICE_TO_HOST : CLASS_DEVICE_TO_DEVICE;
}

/* format_bytes is the size of one channel of a CUarray_format; formats in compressed blocks count as 1. */
INLINE u64 format_bytes(u32 format) {
  switch (format) {
  case 0x02: /* unsigned and signed 16 bits, half */
  case 0x09:
  case 0x10:
    return 2;
  case 0x03: /* unsigned and signed 32 bits, float */
  case 0x0a:
  case 0x20:
    return 4;
  default:
    return 1;
  }
}

#endif
