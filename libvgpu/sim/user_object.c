/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * user_object.c - a program's own objects that graphs keep alive: counted references, and a function that is called when
 * the last one goes. A copy of a graph, an executable one included, has the references of its origin.
 */
#include <stdlib.h>

#include "graph.h"

struct gs_user_object {
  struct gs_object object;
  void (*destroy)(void *data);
  void *data;
  uint64_t references;
};

struct gs_user_reference {
  struct gs_user_reference *next;
  struct gs_user_object *object;
  uint64_t count;
};

enum { NO_DESTRUCTOR_SYNC = 1, MOVE = 1 };

static struct gs_objects objects = {.object_bytes = sizeof(struct gs_user_object), .capacity = 1u << 20};

/* The caller holds gs_driver.mutex, under which the program's function runs: it must not call the driver, by contract. */
static void release(struct gs_user_object *object, uint64_t count) {
  object->references -= count;
  if (object->references > 0) return;
  object->destroy(object->data);
  gs_object_free(&objects, object);
}

/* Where the graph's reference to the object is linked in, or the end of the list. */
static struct gs_user_reference **link_of(struct gs_graph *graph, const struct gs_user_object *object) {
  struct gs_user_reference **link = &graph->references;
  while (*link && (*link)->object != object)
    link = &(*link)->next;
  return link;
}

/* Counts references that the graph holds; those must have been added to the object's. */
static bool hold(struct gs_graph *graph, struct gs_user_object *object, uint64_t count) {
  struct gs_user_reference **link = link_of(graph, object);
  if (!*link) {
    *link = calloc(1, sizeof **link);
    if (!*link) return false;
    (*link)->object = object;
  }
  (*link)->count += count;
  return true;
}

bool gs_user_references_copy(struct gs_graph *to, const struct gs_graph *from) {
  for (const struct gs_user_reference *reference = from->references; reference; reference = reference->next) {
    if (!hold(to, reference->object, reference->count)) return false;
    reference->object->references += reference->count;
  }
  return true;
}

void gs_user_references_drop(struct gs_graph *graph) {
  for (struct gs_user_reference *next, *reference = graph->references; reference; reference = next) {
    next = reference->next;
    release(reference->object, reference->count);
    free(reference);
  }
  graph->references = NULL;
}

CU_API(cuUserObjectCreate)
(CUuserObject *out, void *data, void (*destroy)(void *data), unsigned references, unsigned flags) {
  ENTER(cuUserObjectCreate);
  if (!out || !destroy || references == 0 || flags != NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_user_object *object = gs_object_new(&objects, (struct gs_context *)&objects);
  if (object) {
    object->destroy = destroy;
    object->data = data;
    object->references = references;
    *out = object;
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  return object ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API(cuUserObjectRetain)(CUuserObject object, unsigned count) {
  ENTER(cuUserObjectRetain);
  if (!gs_object_alive(&objects, object) || count == 0) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  object->references += count;
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}

CU_API(cuUserObjectRelease)(CUuserObject object, unsigned count) {
  ENTER(cuUserObjectRelease);
  if (!gs_object_alive(&objects, object) || count == 0 || count > object->references) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  release(object, count);
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}

CU_API(cuGraphRetainUserObject)(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  ENTER(cuGraphRetainUserObject);
  if (!gs_graph_valid(graph) || !gs_object_alive(&objects, object) || count == 0 || flags > MOVE)
    return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  bool held = hold(graph, object, count);
  if (held && !(flags & MOVE)) object->references += count;
  pthread_mutex_unlock(&gs_driver.mutex);
  return held ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API(cuGraphReleaseUserObject)(CUgraph graph, CUuserObject object, unsigned count) {
  ENTER(cuGraphReleaseUserObject);
  if (!gs_graph_valid(graph) || !gs_object_alive(&objects, object) || count == 0) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_user_reference **link = link_of(graph, object);
  struct gs_user_reference *reference = *link;
  bool enough = reference && reference->count >= count;
  if (enough) {
    reference->count -= count;
    if (reference->count == 0) {
      *link = reference->next;
      free(reference);
    }
    release(object, count);
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  return enough ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
