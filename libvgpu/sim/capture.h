/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * capture.h - stream capture, as the entry points see it that give work to streams, wait, or do what a capture cannot
 * see. While nothing is captured in the process each hook costs one look at a counter.
 */
#ifndef GPUSIM_CAPTURE_H
#define GPUSIM_CAPTURE_H

#include "driver.h"
#include "graph.h"

/* A stream's part in a capture. */
struct gs_branch;

extern uint32_t gs_capture_count; /* captures that were begun and not ended; atomic */

static inline bool gs_capturing(void) {
  return __builtin_expect(__atomic_load_n(&gs_capture_count, __ATOMIC_RELAXED) != 0, 0);
}

/* Before work is given to the stream. `branch` gets NULL if the work is to run, else where to add it instead. Fails if
 * the stream's capture is invalid, or if it is the legacy stream, which waits for capturing streams. */
CUresult gs_capture_begin(struct gs_context *context, CUstream stream, struct gs_branch **branch);

/* Adds what the call does as a node, which takes over what the action names. */
CUresult gs_capture_add(struct gs_branch *branch, const struct gs_action *action);

/* For work that cannot be captured: invalidates the capture and answers `result`. */
CUresult gs_capture_fail(struct gs_branch *branch, CUresult result);

/* Before a call that uses the legacy stream without naming it. `waits`: the call waits for its work. */
CUresult gs_capture_legacy(struct gs_context *context, bool waits);

/* Before a call that a capture does not see and that a replay might need, such as an allocation. */
CUresult gs_capture_unsafe(void);

/* Before asking or waiting for the work of a stream or of a whole context. */
CUresult gs_capture_wait_stream(struct gs_context *context, CUstream stream);
CUresult gs_capture_wait_context(struct gs_context *context);

/* Before asking or waiting for an event. */
CUresult gs_capture_wait_event(CUevent event);

/* Recording an event in a stream, and making a stream wait for one. `done`: it concerned a capture, and the result is the
 * call's. */
CUresult gs_capture_record(struct gs_context *context, CUevent event, CUstream stream, unsigned flags, bool *done);
CUresult gs_capture_join(struct gs_context *context, CUstream stream, CUevent event, unsigned flags, bool *done);

/* A stream or a context ends: so does what it captured. The caller holds gs_driver.mutex. */
void gs_capture_stream_ends(CUstream stream);
void gs_capture_context_ends(const struct gs_context *context);

struct gs_graph *gs_capture_graph(const struct gs_branch *branch);

/* stream.c, event.c: what capture.c keeps in these objects. */
struct gs_branch **gs_stream_branch(CUstream stream); /* of a created one */
bool gs_stream_blocking(CUstream stream);             /* likewise: whether the legacy stream waits for it */
uint64_t *gs_event_capture(CUevent event);            /* the capture it was last recorded in; 0: none */
bool gs_event_recorded(CUevent event);

/* CAPTURE(context, stream, branch): gs_capture_begin as a line at the head of an entry point. */
#define CAPTURE(context, stream, branch) \
  struct gs_branch *branch = NULL;       \
  NOT_CAPTURED(gs_capture_begin((context), (stream), &(branch)))

/* For the others: returns what the hook answers unless that is success. */
#define NOT_CAPTURED(hook)                                      \
  do {                                                          \
    CUresult captured = gs_capturing() ? (hook) : CUDA_SUCCESS; \
    if (captured != CUDA_SUCCESS) return captured;              \
  } while (0)

#endif
