/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pointer.c - what the driver knows of an address.
 */
#include <string.h>

#include "host.h"

enum pointer_attribute {
  POINTER_CONTEXT = 1,
  POINTER_MEMORY_TYPE = 2,
  POINTER_DEVICE_ADDRESS = 3,
  POINTER_HOST_ADDRESS = 4,
  POINTER_SYNC_MEMOPS = 6,
  POINTER_BUFFER_ID = 7,
  POINTER_IS_MANAGED = 8,
  POINTER_DEVICE_ORDINAL = 9,
  POINTER_LEGACY_IPC = 10,
  POINTER_RANGE_START = 11,
  POINTER_RANGE_BYTES = 12,
  POINTER_MAPPED = 13,
  POINTER_HANDLE_TYPES = 14,
  POINTER_RDMA = 15,
  POINTER_ACCESS = 16,
  POINTER_POOL = 17
};

/* All that is known of one address. */
struct knowledge {
  CUdeviceptr address, start;
  uint64_t bytes;
  struct gs_context *context;
  struct gs_pool *pool;
  int ordinal;
  bool known, on_host, managed;
};

static struct knowledge look_up(CUdeviceptr address) {
  struct knowledge found = {.address = address, .ordinal = -2};
  struct gs_host_range range;
  struct gs_block *block = gs_arena_find(address);
  if (block) {
    found.start = gs_arena_address(block);
    found.bytes = block->bytes;
    found.context = block->context;
    found.pool = block->pool;
    found.ordinal = block->device->ordinal;
    found.managed = block->kind == GS_BLOCK_MANAGED;
    found.known = true;
  } else if (gs_host_find((uintptr_t)address, &range)) {
    found.start = range.base;
    found.bytes = range.bytes;
    found.context = range.context;
    found.ordinal = range.context->device->ordinal;
    found.known = true;
    found.on_host = true;
  }
  return found;
}

/* Fails when the attribute does not apply to the memory; *out is then not touched. */
static CUresult answer(const struct knowledge *of, int attribute, void *out) {
  switch (attribute) {
  case POINTER_CONTEXT:
    *(CUcontext *)out = of->context;
    return CUDA_SUCCESS;
  case POINTER_MEMORY_TYPE:
    *(unsigned *)out = of->on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
  case POINTER_DEVICE_ADDRESS:
    *(CUdeviceptr *)out = of->address;
    return CUDA_SUCCESS;
  case POINTER_HOST_ADDRESS:
    if (!of->on_host && !of->managed) return CUDA_ERROR_INVALID_VALUE;
    *(void **)out = (void *)(uintptr_t)of->address;
    return CUDA_SUCCESS;
  case POINTER_SYNC_MEMOPS:
    *(unsigned *)out = 0;
    return CUDA_SUCCESS;
  case POINTER_BUFFER_ID:
    *(uint64_t *)out = of->start;
    return CUDA_SUCCESS;
  case POINTER_IS_MANAGED:
    *(unsigned *)out = of->managed;
    return CUDA_SUCCESS;
  case POINTER_DEVICE_ORDINAL:
    *(int *)out = of->ordinal;
    return CUDA_SUCCESS;
  case POINTER_LEGACY_IPC:
    *(unsigned *)out = 0;
    return CUDA_SUCCESS;
  case POINTER_RANGE_START:
    *(CUdeviceptr *)out = of->start;
    return CUDA_SUCCESS;
  case POINTER_RANGE_BYTES:
    *(size_t *)out = of->bytes;
    return CUDA_SUCCESS;
  case POINTER_MAPPED:
    *(unsigned *)out = 1;
    return CUDA_SUCCESS;
  case POINTER_HANDLE_TYPES:
    *(uint64_t *)out = 0;
    return CUDA_SUCCESS;
  case POINTER_RDMA:
    *(unsigned *)out = 0;
    return CUDA_SUCCESS;
  case POINTER_ACCESS:
    *(unsigned *)out = 3;
    return CUDA_SUCCESS;
  case POINTER_POOL:
    *(CUmemoryPool *)out = of->pool;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

CU_API(cuPointerGetAttribute)(void *out, int attribute, CUdeviceptr address) {
  ENTER(cuPointerGetAttribute);
  struct knowledge found = look_up(address);
  if (!out || !found.known) return CUDA_ERROR_INVALID_VALUE;
  return answer(&found, attribute, out);
}

/* Unlike the single call this one does not mind an address that the driver does not know: zeros then. */
CU_API(cuPointerGetAttributes)(unsigned count, int *attributes, void **out, CUdeviceptr address) {
  ENTER(cuPointerGetAttributes);
  if (count == 0 || !attributes || !out) return CUDA_ERROR_INVALID_VALUE;
  struct knowledge found = look_up(address);
  for (unsigned i = 0; i < count; i++) {
    if (attributes[i] < POINTER_CONTEXT || attributes[i] > POINTER_POOL) return CUDA_ERROR_INVALID_VALUE;
    if (found.known && answer(&found, attributes[i], out[i]) == CUDA_SUCCESS) continue;
    bool wide = attributes[i] == POINTER_CONTEXT || attributes[i] == POINTER_DEVICE_ADDRESS ||
                attributes[i] == POINTER_HOST_ADDRESS || attributes[i] == POINTER_BUFFER_ID ||
                attributes[i] == POINTER_RANGE_START || attributes[i] == POINTER_RANGE_BYTES ||
                attributes[i] == POINTER_HANDLE_TYPES || attributes[i] == POINTER_POOL;
    memset(out[i], 0, wide ? sizeof(uint64_t) : sizeof(unsigned));
    if (attributes[i] == POINTER_DEVICE_ORDINAL) *(int *)out[i] = found.ordinal;
  }
  return CUDA_SUCCESS;
}

CU_API(cuPointerSetAttribute)(const void *value, int attribute, CUdeviceptr address) {
  ENTER(cuPointerSetAttribute);
  if (!value || attribute != POINTER_SYNC_MEMOPS || !gs_arena_find(address)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}
