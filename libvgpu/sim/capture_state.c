/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * capture_state.c - what is captured now: captures, the streams that take part in each, and events recorded in it.
 */
#include "capture_state.h"

#include <stdlib.h>
#include <string.h>

uint32_t gs_capture_count;
struct gs_capture *gs_captures;

static bool is_per_thread(CUstream stream) {
  return (uintptr_t)stream == CU_STREAM_PER_THREAD;
}

struct gs_branch *gs_branch_of(CUstream stream) {
  if (gs_is_legacy(stream)) return NULL;
  if (!is_per_thread(stream)) return *gs_stream_branch(stream);
  for (const struct gs_capture *capture = gs_captures; capture; capture = capture->next)
    for (struct gs_branch *branch = capture->branches; branch; branch = branch->next)
      if (is_per_thread(branch->stream) && branch->thread == &gs_thread && capture->context == gs_thread.current)
        return branch;
  return NULL;
}

bool gs_nodes_copy(struct gs_node ***out, size_t *count, struct gs_node *const *nodes, size_t length) {
  struct gs_node **list = malloc((length + 1) * sizeof(struct gs_node *));
  if (!list) return false;
  if (length > 0) memcpy(list, nodes, length * sizeof(struct gs_node *));
  free(*out);
  *out = list;
  *count = length;
  return true;
}

/* What the branch depends on already is not added again. */
bool gs_branch_add(struct gs_branch *branch, struct gs_node *const *nodes, size_t length) {
  struct gs_node **list = realloc(branch->nodes, (branch->count + length + 1) * sizeof(struct gs_node *));
  if (!list) return false;
  branch->nodes = list;
  for (size_t i = 0; i < length; i++) {
    size_t j = 0;
    while (j < branch->count && list[j] != nodes[i])
      j++;
    if (j == branch->count) list[branch->count++] = nodes[i];
  }
  return true;
}

struct gs_branch *gs_branch_new(struct gs_capture *capture, CUstream stream, struct gs_node *const *nodes,
                                size_t count) {
  struct gs_branch *branch = calloc(1, sizeof *branch);
  if (!branch || !gs_nodes_copy(&branch->nodes, &branch->count, nodes, count)) {
    free(branch);
    return NULL;
  }
  branch->capture = capture;
  branch->stream = stream;
  branch->thread = &gs_thread;
  branch->blocking = is_per_thread(stream) || gs_stream_blocking(stream);
  branch->next = capture->branches;
  capture->branches = branch;
  if (!is_per_thread(stream)) *gs_stream_branch(stream) = branch;
  return branch;
}

static void free_branch(struct gs_branch *branch) {
  if (!is_per_thread(branch->stream)) *gs_stream_branch(branch->stream) = NULL;
  free(branch->nodes);
  free(branch);
}

struct gs_capture *gs_capture_find(uint64_t id) {
  struct gs_capture *capture = gs_captures;
  while (capture && capture->id != id)
    capture = capture->next;
  return capture;
}

struct gs_recorded *gs_capture_recorded(const struct gs_capture *capture, CUevent event) {
  struct gs_recorded *recorded = capture->events;
  while (recorded && recorded->event != event)
    recorded = recorded->next;
  return recorded;
}

void gs_capture_free(struct gs_capture *capture) {
  struct gs_capture **link = &gs_captures;
  while (*link != capture)
    link = &(*link)->next;
  *link = capture->next;
  for (struct gs_branch *next, *branch = capture->branches; branch; branch = next) {
    next = branch->next;
    free_branch(branch);
  }
  for (struct gs_recorded *next, *recorded = capture->events; recorded; recorded = next) {
    next = recorded->next;
    free(recorded->nodes);
    free(recorded);
  }
  if (capture->graph) gs_graph_free(capture->graph);
  free(capture);
  __atomic_fetch_sub(&gs_capture_count, 1, __ATOMIC_RELAXED);
}

void gs_capture_stream_ends(CUstream stream) {
  struct gs_branch *branch = gs_branch_of(stream);
  struct gs_capture *capture = branch->capture;
  if (branch == capture->first) {
    gs_capture_free(capture);
    return;
  }
  struct gs_branch **link = &capture->branches;
  while (*link != branch)
    link = &(*link)->next;
  *link = branch->next;
  free_branch(branch);
  capture->invalidated = true;
}

void gs_capture_context_ends(const struct gs_context *context) {
  for (struct gs_capture *next, *capture = gs_captures; capture; capture = next) {
    next = capture->next;
    if (capture->context == context) gs_capture_free(capture);
  }
}
