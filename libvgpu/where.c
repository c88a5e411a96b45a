/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * where.c - contract in where.h. One word per remembered piece of the address space: its number, the generation, the answer.
 */
#include "where.h"

#include "table.h"

enum {
  PLACES = 256,     /* pieces that are remembered */
  PIECE_SHIFT = 16, /* no smaller piece holds both host and device memory */
  GENERATION_BITS = 16,
  ANSWER_BITS = 7 /* ordinal + 2; 1: on the host; 0: nothing is remembered */
};

static uint64_t places[PLACES]; /* atomic */

static int ask(CUdeviceptr pointer) {
  __typeof__(&cuPointerGetAttribute) get = VGPU_REAL(cuPointerGetAttribute);
  unsigned int type = 0;
  int ordinal = 0;
  if (!get || get(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer) != CUDA_SUCCESS) return VGPU_ON_HOST;
  if (type != CU_MEMORYTYPE_DEVICE) return VGPU_ON_HOST;
  return get(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) == CUDA_SUCCESS && ordinal >= 0 ? ordinal : 0;
}

int vgpu_where(CUdeviceptr pointer) {
  const uint64_t answers = ((uint64_t)1 << ANSWER_BITS) - 1, generations = ((uint64_t)1 << GENERATION_BITS) - 1;
  uint64_t piece = pointer >> PIECE_SHIFT;
  uint64_t generation = __atomic_load_n(&vgpu_where_generation, __ATOMIC_RELAXED) & generations;
  uint64_t key = (piece << GENERATION_BITS | generation) << ANSWER_BITS;
  uint64_t *place = &places[piece * 0x9e3779b97f4a7c15ULL >> 56];
  uint64_t found = __atomic_load_n(place, __ATOMIC_RELAXED);
  if ((found & ~answers) == key && (found & answers) != 0) return (int)(found & answers) - 2;
  int ordinal = ask(pointer);
  if ((uint64_t)(ordinal + 2) <= answers) __atomic_store_n(place, key | (uint64_t)(ordinal + 2), __ATOMIC_RELAXED);
  return ordinal;
}
