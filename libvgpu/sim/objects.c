/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * objects.c - handles (streams, events, modules, functions, pools, contexts): memory by type that is never
 * unmapped, so that a stale or foreign handle is answered with an error instead of a crash; freed ones are used
 * again as late as possible. The caller holds gs_driver.mutex, except for gs_object_alive.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "driver.h"

void *gs_object_new(struct gs_objects *objects, struct gs_context *context) {
  struct gs_object *object = objects->free_list;
  if (!objects->base) {
    void *base = mmap(NULL, objects->object_bytes * objects->capacity, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return NULL;
    __atomic_store_n(&objects->base, base, __ATOMIC_RELEASE);
  }
  if (objects->used < objects->capacity) {
    object = (struct gs_object *)(void *)(objects->base + objects->object_bytes * objects->used++);
  } else {
    if (!object) return NULL;
    objects->free_list = object->next_free;
    if (!objects->free_list) objects->free_tail = NULL;
  }
  memset(object, 0, objects->object_bytes);
  __atomic_store_n(&object->context, context, __ATOMIC_RELEASE);
  return object;
}

bool gs_object_alive(const struct gs_objects *objects, const void *object) {
  const char *base = __atomic_load_n(&objects->base, __ATOMIC_ACQUIRE);
  uintptr_t offset = (uintptr_t)object - (uintptr_t)base;
  if (!base || offset >= objects->object_bytes * objects->capacity || offset % objects->object_bytes) return false;
  return __atomic_load_n(&((const struct gs_object *)object)->context, __ATOMIC_ACQUIRE) != NULL;
}

void gs_object_free(struct gs_objects *objects, void *freed) {
  struct gs_object *object = freed;
  __atomic_store_n(&object->context, NULL, __ATOMIC_RELEASE);
  object->next_free = NULL;
  if (objects->free_tail)
    objects->free_tail->next_free = object;
  else
    objects->free_list = object;
  objects->free_tail = object;
}

void gs_objects_of(struct gs_objects *objects, struct gs_context *context, void (*release)(void *object)) {
  for (size_t i = 0; i < objects->used; i++) {
    struct gs_object *object = (struct gs_object *)(void *)(objects->base + objects->object_bytes * i);
    if (object->context == context) release(object);
  }
}
