/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * capture.c - contract in capture.h. Two small tables, of streams and of events, each with the number of its capture.
 * They only grow while something captures. What finds no room is not known to capture: it is charged and kept waiting,
 * which spoils nothing.
 */
#include "capture.h"

#include "claim.h"
#include "holds.h"
#include "spin.h"

enum { STREAMS = 1024, EVENTS = 4096 };

struct member {
  uint64_t key;     /* 0: free */
  uint64_t capture; /* number of the capture, from 1 */
};

struct table {
  struct member *members;
  uint32_t capacity;
  uint32_t count; /* members at and above it are not used */
};

uint32_t vgpu_capture_count;

static struct member stream_members[STREAMS], event_members[EVENTS];
static struct table streams = {stream_members, STREAMS, 0};
static struct table events = {event_members, EVENTS, 0};
static uint64_t last_number;
static uint32_t lock;

/* The stream on which each capture was begun, and its context as far as it is known. */
static struct origin {
  uint64_t stream; /* key; 0: free */
  uint64_t number;
  CUcontext context;
} origins[STREAMS];

/* Handles are addresses; the per-thread default stream is another one in each thread. */
static uint64_t key_of(CUstream stream) {
  return stream == CU_STREAM_PER_THREAD ? (uint64_t)(uintptr_t)__builtin_thread_pointer() | 1
                                        : (uint64_t)(uintptr_t)stream;
}

static struct member *find(const struct table *table, uint64_t key) {
  for (uint32_t i = 0; i < table->count; i++) {
    if (table->members[i].key == key) return &table->members[i];
  }
  return NULL;
}

static uint64_t capture_of(const struct table *table, uint64_t key) {
  const struct member *member = key ? find(table, key) : NULL;
  return member ? member->capture : 0;
}

static void put(struct table *table, uint64_t key, uint64_t capture) {
  struct member *member = find(table, key);
  if (!member && table->count < table->capacity) member = &table->members[table->count++];
  if (member) *member = (struct member){key, capture};
}

static void drop(struct table *table, struct member *member) {
  *member = table->members[--table->count];
}

static void drop_capture(struct table *table, uint64_t capture) {
  for (uint32_t i = table->count; i-- > 0;) {
    if (table->members[i].capture == capture) drop(table, &table->members[i]);
  }
}

/* Inside the lock. */
static void end(struct origin *origin) {
  drop_capture(&streams, origin->number);
  drop_capture(&events, origin->number);
  *origin = (struct origin){0, 0, NULL};
  __atomic_sub_fetch(&vgpu_capture_count, 1, __ATOMIC_RELAXED);
  vgpu_hold_release();
}

static struct origin *origin_of(uint64_t key) {
  for (int i = 0; key && i < STREAMS; i++) {
    if (origins[i].stream == key) return &origins[i];
  }
  return NULL;
}

bool vgpu_capture_has_slow(CUstream stream) {
  vgpu_spin_lock(&lock);
  bool has = capture_of(&streams, key_of(stream)) != 0;
  vgpu_spin_unlock(&lock);
  return has;
}

void vgpu_capture_beginning(void) {
  vgpu_hold();
}

void vgpu_capture_begun(CUstream stream, CUresult result) {
  uint64_t key = key_of(stream);
  CUcontext context = result == CUDA_SUCCESS ? vgpu_current_context() : NULL;
  bool is_noted = false;
  if (result == CUDA_SUCCESS && key) {
    vgpu_spin_lock(&lock);
    struct origin *old = origin_of(key);
    if (old) end(old); /* its end was not seen */
    for (int i = 0; i < STREAMS && !is_noted; i++) {
      if (origins[i].stream) continue;
      origins[i] = (struct origin){key, ++last_number, context};
      put(&streams, key, last_number);
      __atomic_add_fetch(&vgpu_capture_count, 1, __ATOMIC_RELAXED);
      is_noted = true;
    }
    vgpu_spin_unlock(&lock);
  }
  if (!is_noted) vgpu_hold_release();
}

void vgpu_capture_ended(CUstream stream, CUresult result) {
  /* The driver said that it goes on: another thread, or another stream, has to end it. */
  if (result == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD || result == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED) return;
  if (result == CUDA_ERROR_INVALID_VALUE) return;
  vgpu_spin_lock(&lock);
  struct origin *origin = origin_of(key_of(stream));
  if (origin) end(origin);
  vgpu_spin_unlock(&lock);
}

void vgpu_capture_recorded(CUevent event, CUstream stream) {
  uint64_t key = (uint64_t)(uintptr_t)event;
  vgpu_spin_lock(&lock);
  uint64_t capture = capture_of(&streams, key_of(stream));
  struct member *old = find(&events, key);
  if (capture) {
    put(&events, key, capture);
  } else if (old) {
    drop(&events, old);
  }
  vgpu_spin_unlock(&lock);
}

void vgpu_capture_joined(CUstream stream, CUevent event) {
  vgpu_spin_lock(&lock);
  uint64_t capture = capture_of(&events, (uint64_t)(uintptr_t)event);
  if (capture && key_of(stream)) put(&streams, key_of(stream), capture);
  vgpu_spin_unlock(&lock);
}

void vgpu_capture_stream_gone(CUstream stream) {
  vgpu_spin_lock(&lock);
  struct origin *origin = origin_of(key_of(stream));
  struct member *member = find(&streams, key_of(stream));
  if (origin) {
    end(origin);
  } else if (member) {
    drop(&streams, member);
  }
  vgpu_spin_unlock(&lock);
}

void vgpu_capture_context_gone(CUcontext context) {
  vgpu_spin_lock(&lock);
  for (int i = 0; i < STREAMS; i++) {
    if (origins[i].stream && origins[i].context == context) end(&origins[i]);
  }
  vgpu_spin_unlock(&lock);
}

void vgpu_capture_forget(void) {
  lock = 0;
  streams.count = 0;
  events.count = 0;
  for (int i = 0; vgpu_capture_count && i < STREAMS; i++)
    origins[i] = (struct origin){0, 0, NULL};
  vgpu_capture_count = 0;
}
