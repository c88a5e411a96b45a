/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * fake_gpu.h - a driver of two devices on which kernels only take time, for what has to be counted: it logs every call
 * that it gets, with the stream, and has every way to launch, also those that only newer drivers have. All work of a
 * device is done in the order of the launches. A kernel "name_N" takes N microseconds; a graph has one kernel for each
 * launch into its capture. It has every call that copies. Works after a fork. What the test program reads and sets comes first; the rest is the driver's.
 */
#ifndef VGPU_TEST_FAKE_GPU_H
#define VGPU_TEST_FAKE_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "../include/cuda_api.h"

enum { FAKE_DEVICES = 2, FAKE_LOG = 1 << 16, FAKE_DEVICE_SHIFT = 38 /* of the addresses of memory */ };

struct fake_call {
  const char *name;
  CUstream stream;
};

extern uint64_t fake_calls;                 /* so far */
extern struct fake_call fake_log[FAKE_LOG]; /* the last of them */
extern uint64_t fake_busy_ns[FAKE_DEVICES]; /* GPU time of all that was launched */
extern uint64_t fake_kernels;
extern uint64_t fake_stale_events;   /* uses of an event whose context has ended */
extern int fake_fail_launches;       /* launches answer this */
extern const char *fake_fail_call;   /* the call of this name, of those that measure, answers 999 */
extern int fake_loading_us;          /* the call of a function's first launch takes so long, while the kernel runs */
extern CUstream fake_blocked_stream; /* what is given to it never runs, and holds up no other stream */

#ifdef VGPU_FAKE_DRIVER

#define EXPORT __attribute__((visibility("default")))

enum { ERROR_ISOLATION = 905, ERROR_UNSUPPORTED = 900, ERROR_UNKNOWN = 999 };

struct CUctx_st {
  int device;
  bool is_gone;
};
struct CUstream_st {
  CUcontext context;
  CUgraph capture; /* NULL: it captures nothing */
};
struct CUgraph_st {
  uint64_t ns, kernels;
  CUstream origin;
  bool is_spoilt;
};

EXPORT extern struct CUctx_st fake_contexts[FAKE_DEVICES]; /* the primary ones */
extern __thread CUcontext fake_current;
extern int fake_captures; /* under way; atomic */

void fake_note(const char *name, CUstream stream);
#define NOTE(stream) fake_note(__func__, stream)

uint64_t fake_now_ns(void);
bool fake_is_named(CUstream stream);
CUgraph fake_capture_of(CUstream stream);
CUcontext fake_context_of(CUstream stream);

/* When the work will be done; UINT64_MAX: never. */
uint64_t fake_enqueue(CUstream stream, uint64_t ns);

/* Whether the call of this name is to fail. */
bool fake_is_failing(const char *name);

/* What must not be called while anything captures, by a thread that does not say that it spoils nothing. */
CUresult fake_unsafe(void);

#endif
#endif
