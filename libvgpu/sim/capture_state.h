/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * capture_state.h - what is captured now, for the parts of capture: capture.c (the calls that capture), capture_rules.c
 * (what others may do meanwhile) and capture_state.c. gs_driver.mutex guards all of it; the callers of these functions
 * hold it.
 *
 * A stream takes part in a capture because that was begun there, or because it waited for an event recorded in it; each
 * has the list of nodes that its next work depends on.
 */
#ifndef GPUSIM_CAPTURE_STATE_H
#define GPUSIM_CAPTURE_STATE_H

#include "capture.h"

enum capture_mode { MODE_GLOBAL = 0, MODE_THREAD_LOCAL = 1, MODE_RELAXED = 2 };

/* An event as it was last recorded in a capture. */
struct gs_recorded {
  struct gs_recorded *next;
  CUevent event;
  struct gs_node **nodes;
  size_t count;
};

struct gs_branch {
  struct gs_branch *next; /* of the same capture; the first is the one it was begun in */
  struct gs_capture *capture;
  CUstream stream;
  const void *thread;     /* that joined it to the capture */
  struct gs_node **nodes; /* what the next work depends on */
  size_t count;
  bool blocking;
};

struct gs_capture {
  struct gs_capture *next;
  uint64_t id;
  int mode;
  bool invalidated;
  const void *thread; /* that began it: the address of its gs_thread */
  struct gs_context *context;
  struct gs_graph *graph;
  struct gs_branch *branches; /* of streams that have not ended */
  struct gs_branch *first;    /* where it was begun */
  struct gs_recorded *events;
};

extern struct gs_capture *gs_captures;

static inline bool gs_is_legacy(CUstream stream) {
  return (uintptr_t)stream < CU_STREAM_PER_THREAD;
}

/* The stream's branch, or NULL. A thread's default stream is one per context. */
struct gs_branch *gs_branch_of(CUstream stream);

/* Makes the stream take part, after these nodes. NULL: no room. */
struct gs_branch *gs_branch_new(struct gs_capture *capture, CUstream stream, struct gs_node *const *nodes,
                                size_t count);

/* Makes the branch's next work depend on these nodes too. False: no room. */
bool gs_branch_add(struct gs_branch *branch, struct gs_node *const *nodes, size_t count);

/* Exchanges a list of nodes for a copy of another. False: no room. */
bool gs_nodes_copy(struct gs_node ***out, size_t *count, struct gs_node *const *nodes, size_t length);

struct gs_capture *gs_capture_find(uint64_t id); /* NULL: none, or it has ended */
struct gs_recorded *gs_capture_recorded(const struct gs_capture *capture, CUevent event);
void gs_capture_free(struct gs_capture *capture);

/* Whether the legacy stream would wait for a stream that captures; invalidates those captures if asked to. */
bool gs_capture_holds_legacy(const struct gs_context *context, bool invalidate);

#endif
