/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * host.c - pinned and registered host memory. It takes nothing of a card; a device reaches it at its own address.
 */
#define _GNU_SOURCE
#include "host.h"
#include "capture.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct {
  pthread_mutex_t mutex;
  struct gs_host_range *ranges; /* in no order */
  size_t count, room;
} host = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Index of the range that holds `address`, or count. The caller holds the mutex. */
static size_t find(uintptr_t address) {
  size_t i = 0;
  while (i < host.count && address - host.ranges[i].base >= host.ranges[i].bytes)
    i++;
  return i;
}

static bool add(const struct gs_host_range *range) {
  if (host.count == host.room) {
    size_t room = host.room ? 2 * host.room : 64;
    void *grown = realloc(host.ranges, room * sizeof *host.ranges);
    if (!grown) return false;
    host.ranges = grown;
    host.room = room;
  }
  host.ranges[host.count++] = *range;
  return true;
}

static void take_out(size_t index) {
  struct gs_host_range range = host.ranges[index];
  host.ranges[index] = host.ranges[--host.count];
  if (range.allocated) munmap((void *)range.base, range.bytes);
}

bool gs_host_find(uintptr_t address, struct gs_host_range *found) {
  if (__atomic_load_n(&host.count, __ATOMIC_RELAXED) == 0) return false;
  pthread_mutex_lock(&host.mutex);
  size_t index = find(address);
  bool known = index < host.count;
  if (known) *found = host.ranges[index];
  pthread_mutex_unlock(&host.mutex);
  return known;
}

void gs_host_release_context(struct gs_context *context) {
  pthread_mutex_lock(&host.mutex);
  for (size_t i = host.count; i-- > 0;)
    if (host.ranges[i].context == context) take_out(i);
  pthread_mutex_unlock(&host.mutex);
}

static CUresult allocate(void **out, size_t bytes, unsigned flags) {
  NEED_CONTEXT(context);
  if (!out || bytes == 0 || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  NOT_CAPTURED(gs_capture_unsafe());
  void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  struct gs_host_range range = {(uintptr_t)base, bytes, context, flags, true};
  pthread_mutex_lock(&host.mutex);
  bool added = add(&range);
  pthread_mutex_unlock(&host.mutex);
  if (!added) munmap(base, bytes);
  if (added) *out = base;
  return added ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API(cuMemHostAlloc)(void **out, size_t bytes, unsigned flags) {
  ENTER(cuMemHostAlloc);
  return allocate(out, bytes, flags);
}

CU_API(cuMemAllocHost_v2)(void **out, size_t bytes) {
  ENTER(cuMemAllocHost_v2);
  return allocate(out, bytes, 0);
}

CU_API(cuMemAllocHost)(void **out, unsigned bytes) {
  ENTER(cuMemAllocHost);
  return allocate(out, bytes, 0);
}

CU_API(cuMemFreeHost)(void *pointer) {
  ENTER(cuMemFreeHost);
  NOT_CAPTURED(gs_capture_unsafe());
  pthread_mutex_lock(&host.mutex);
  size_t index = find((uintptr_t)pointer);
  bool good = index < host.count && host.ranges[index].base == (uintptr_t)pointer && host.ranges[index].allocated;
  if (good) take_out(index);
  pthread_mutex_unlock(&host.mutex);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API(cuMemHostRegister_v2)(void *pointer, size_t bytes, unsigned flags) {
  ENTER(cuMemHostRegister_v2);
  NEED_CONTEXT(context);
  if (!pointer || bytes == 0 || flags > 15) return CUDA_ERROR_INVALID_VALUE;
  NOT_CAPTURED(gs_capture_unsafe());
  struct gs_host_range range = {(uintptr_t)pointer, bytes, context, flags, false};
  pthread_mutex_lock(&host.mutex);
  CUresult result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (find(range.base) == host.count && find(range.base + bytes - 1) == host.count)
    result = add(&range) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_unlock(&host.mutex);
  return result;
}
CU_ALIAS(cuMemHostRegister, cuMemHostRegister_v2)

CU_API(cuMemHostUnregister)(void *pointer) {
  ENTER(cuMemHostUnregister);
  NOT_CAPTURED(gs_capture_unsafe());
  pthread_mutex_lock(&host.mutex);
  size_t index = find((uintptr_t)pointer);
  bool good = index < host.count && host.ranges[index].base == (uintptr_t)pointer && !host.ranges[index].allocated;
  if (good) take_out(index);
  pthread_mutex_unlock(&host.mutex);
  return good ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CU_API(cuMemHostGetDevicePointer_v2)(CUdeviceptr *out, void *pointer, unsigned flags) {
  struct gs_host_range range;
  ENTER(cuMemHostGetDevicePointer_v2);
  if (!out || flags || !gs_host_find((uintptr_t)pointer, &range)) return CUDA_ERROR_INVALID_VALUE;
  *out = (uintptr_t)pointer;
  return CUDA_SUCCESS;
}

CU_API(cuMemHostGetFlags)(unsigned *flags, void *pointer) {
  struct gs_host_range range;
  ENTER(cuMemHostGetFlags);
  if (!flags || !gs_host_find((uintptr_t)pointer, &range) || !range.allocated) return CUDA_ERROR_INVALID_VALUE;
  *flags = range.flags | 2; /* every pinned page is mapped for devices */
  return CUDA_SUCCESS;
}
