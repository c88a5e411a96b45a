/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * graph_memory.c - memory that nodes of graphs allocate and free. An address is given when the node is made. Bytes are taken of
 * the card when a graph is uploaded or launched: in steps of 2 MiB, as many as are in use at one time; they stay with the
 * device's graphs, also after these have been destroyed, until cuDeviceGraphMemTrim gives back what is not in use.
 *
 * Model: as for pools, space is a number, not places. What a launch's nodes do to memory is done at the launch.
 */
#include <stdlib.h>

#include "graph.h"
#include "node.h"

static const uint64_t GROWTH_BYTES = 2u << 20;
static const uint64_t PIECE_BYTES = 512;

enum memory_attribute { USED = 0, USED_HIGH = 1, RESERVED = 2, RESERVED_HIGH = 3 };

struct gs_graph_memory {
  struct gs_graph_memory *next;
  struct gs_device *device;
  CUdeviceptr address;
  uint64_t bytes, held_bytes;
  size_t holders; /* nodes */
  bool allocated;
};

static struct gs_graph_memory *memories; /* all of the process; gs_driver.mutex */

/* What graphs hold of each device; gs_driver.mutex. */
static struct { uint64_t used_bytes, used_high_bytes, reserved_bytes, reserved_high_bytes; } books[GS_MAX_GPUS];

static uint64_t round_up(uint64_t bytes, uint64_t step) {
  return (bytes + step - 1) / step * step;
}

struct gs_graph_memory *gs_graph_memory_new(struct gs_device *device, uint64_t bytes) {
  if (bytes > UINT64_MAX / 4) return NULL;
  struct gs_graph_memory *memory = calloc(1, sizeof *memory);
  const struct gs_block model = {.device = device, .kind = GS_BLOCK_GRAPH};
  if (memory) memory->address = gs_arena_alloc(bytes, &model);
  if (!memory || !memory->address) {
    free(memory);
    return NULL;
  }
  memory->device = device;
  memory->bytes = bytes;
  memory->held_bytes = round_up(bytes, PIECE_BYTES);
  memory->holders = 1;
  memory->next = memories;
  memories = memory;
  return memory;
}

struct gs_graph_memory *gs_graph_memory_find(CUdeviceptr address) {
  struct gs_graph_memory *memory = memories;
  while (memory && memory->address != address)
    memory = memory->next;
  return memory;
}

CUdeviceptr gs_graph_memory_address(const struct gs_graph_memory *memory) {
  return memory->address;
}

uint64_t gs_graph_memory_bytes(const struct gs_graph_memory *memory) {
  return memory->bytes;
}

struct gs_device *gs_graph_memory_device(const struct gs_graph_memory *memory) {
  return memory->device;
}

void gs_graph_memory_hold(struct gs_graph_memory *memory) {
  memory->holders++;
}

/* An address that is still allocated outlives its graphs. */
static void forget(struct gs_graph_memory *memory) {
  struct gs_block taken;
  struct gs_graph_memory **link = &memories;
  if (memory->holders > 0 || memory->allocated) return;
  while (*link != memory)
    link = &(*link)->next;
  *link = memory->next;
  (void)gs_arena_free(memory->address, 1u << GS_BLOCK_GRAPH, &taken);
  free(memory);
}

void gs_graph_memory_drop(struct gs_graph_memory *memory) {
  memory->holders--;
  forget(memory);
}

static CUresult grow(struct gs_device *device, uint64_t needed) {
  int i = device->ordinal;
  if (needed <= books[i].reserved_bytes) return CUDA_SUCCESS;
  uint64_t growth = round_up(needed - books[i].reserved_bytes, GROWTH_BYTES);
  if (gs_memory_take(device->gpu, growth) < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  gs_node_touch(device->gpu_index);
  books[i].reserved_bytes += growth;
  if (books[i].reserved_bytes > books[i].reserved_high_bytes) books[i].reserved_high_bytes = books[i].reserved_bytes;
  return CUDA_SUCCESS;
}

static void set_allocated(struct gs_graph_memory *memory, bool allocated) {
  int i = memory->device->ordinal;
  memory->allocated = allocated;
  if (allocated)
    books[i].used_bytes += memory->held_bytes;
  else
    books[i].used_bytes -= memory->held_bytes;
  if (books[i].used_bytes > books[i].used_high_bytes) books[i].used_high_bytes = books[i].used_bytes;
}

/* Frees what the nodes would allocate again; false: that is allocated, and not to be freed. */
static bool free_before(struct gs_node *const *order, size_t count, bool free_first) {
  for (size_t i = 0; i < count; i++) {
    if (order[i]->action.type != CU_NODE_MEM_ALLOC || !order[i]->action.memory->allocated) continue;
    if (!free_first) return false;
    set_allocated(order[i]->action.memory, false);
  }
  return true;
}

CUresult gs_graph_memory_reserve(struct gs_node *const *order, size_t count, bool launching, bool free_first) {
  int64_t used[GS_MAX_GPUS] = {0};
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&gs_driver.mutex);
  if (launching && !free_before(order, count, free_first)) result = CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
    const struct gs_action *action = &order[i]->action;
    if (action->type != CU_NODE_MEM_ALLOC && action->type != CU_NODE_MEM_FREE) continue;
    struct gs_device *device = action->memory->device;
    int64_t held = (int64_t)action->memory->held_bytes;
    used[device->ordinal] += action->type == CU_NODE_MEM_ALLOC ? held : -held;
    int64_t needed = (int64_t)books[device->ordinal].used_bytes + used[device->ordinal];
    if (needed > 0) result = grow(device, (uint64_t)needed);
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

CUresult gs_graph_memory_allocate(struct gs_graph_memory *memory) {
  pthread_mutex_lock(&gs_driver.mutex);
  CUresult result = memory->allocated ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS)
    result = grow(memory->device, books[memory->device->ordinal].used_bytes + memory->held_bytes);
  if (result == CUDA_SUCCESS) set_allocated(memory, true);
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

/* The caller holds gs_driver.mutex. */
static CUresult release(struct gs_graph_memory *memory) {
  if (!memory->allocated) return CUDA_ERROR_INVALID_VALUE;
  set_allocated(memory, false);
  forget(memory);
  return CUDA_SUCCESS;
}

CUresult gs_graph_memory_release(struct gs_graph_memory *memory) {
  pthread_mutex_lock(&gs_driver.mutex);
  CUresult result = release(memory);
  pthread_mutex_unlock(&gs_driver.mutex);
  return result;
}

bool gs_graph_memory_free(CUdeviceptr address, CUresult *result) {
  if (!__atomic_load_n(&memories, __ATOMIC_RELAXED)) return false;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_graph_memory *memory = gs_graph_memory_find(address);
  if (memory) *result = release(memory);
  pthread_mutex_unlock(&gs_driver.mutex);
  return memory != NULL;
}

/* The caller holds gs_driver.mutex. */
static void give_back(struct gs_device *device) {
  int i = device->ordinal;
  uint64_t keep = round_up(books[i].used_bytes, GROWTH_BYTES);
  if (books[i].reserved_bytes <= keep) return;
  gs_memory_give(device->gpu, books[i].reserved_bytes - keep);
  books[i].reserved_bytes = keep;
}

void gs_graph_memory_reset_device(struct gs_device *device) {
  for (struct gs_graph_memory *next, *memory = memories; memory; memory = next) {
    next = memory->next;
    if (memory->device == device) (void)release(memory);
  }
  give_back(device);
}

CU_API(cuDeviceGraphMemTrim)(CUdevice ordinal) {
  ENTER(cuDeviceGraphMemTrim);
  struct gs_device *device = gs_device_of(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&gs_driver.mutex);
  give_back(device);
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}

CU_API(cuDeviceGetGraphMemAttribute)(CUdevice ordinal, int attribute, void *value) {
  ENTER(cuDeviceGetGraphMemAttribute);
  const struct gs_device *device = gs_device_of(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!value || attribute < USED || attribute > RESERVED_HIGH) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t values[] = {books[ordinal].used_bytes, books[ordinal].used_high_bytes, books[ordinal].reserved_bytes,
                             books[ordinal].reserved_high_bytes};
  *(uint64_t *)value = values[attribute];
  return CUDA_SUCCESS;
}

/* A mark can only be reset. */
CU_API(cuDeviceSetGraphMemAttribute)(CUdevice ordinal, int attribute, void *value) {
  ENTER(cuDeviceSetGraphMemAttribute);
  const struct gs_device *device = gs_device_of(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!value || *(uint64_t *)value != 0) return CUDA_ERROR_INVALID_VALUE;
  if (attribute != USED_HIGH && attribute != RESERVED_HIGH) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  if (attribute == USED_HIGH)
    books[ordinal].used_high_bytes = books[ordinal].used_bytes;
  else
    books[ordinal].reserved_high_bytes = books[ordinal].reserved_bytes;
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}
