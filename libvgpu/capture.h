/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * capture.h - which streams of this process capture, known from the program's own calls: the streams on which captures
 * were begun, and those that joined them through an event. The driver is never asked. Nothing runs on the GPU during a
 * capture, so a launch into one is neither charged nor kept waiting; all other streams stay under the limit, however
 * long somebody holds a capture open.
 */
#ifndef VGPU_CAPTURE_H
#define VGPU_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "include/cuda_api.h"

/* How many captures are under way; atomic. */
extern uint32_t vgpu_capture_count;

/* The stream that a call with per-thread default streams (_ptsz) means. */
static inline CUstream vgpu_stream_per_thread(CUstream stream) {
  return stream ? stream : CU_STREAM_PER_THREAD;
}

bool vgpu_capture_has_slow(CUstream stream);

/* Whether the stream captures. One load while nothing does. */
static inline bool vgpu_capture_has(CUstream stream) {
  return __builtin_expect(__atomic_load_n(&vgpu_capture_count, __ATOMIC_RELAXED) != 0, 0) &&
         vgpu_capture_has_slow(stream);
}

/* Around the driver's own call. From the first until the end of the capture no driver call of ours is made (holds.h). */
void vgpu_capture_beginning(void);
void vgpu_capture_begun(CUstream stream, CUresult result);

/* After the driver's own calls, with its result. */
void vgpu_capture_ended(CUstream stream, CUresult result);
void vgpu_capture_recorded(CUevent event, CUstream stream);
void vgpu_capture_joined(CUstream stream, CUevent event);
void vgpu_capture_stream_gone(CUstream stream);
void vgpu_capture_context_gone(CUcontext context);

/* In a forked child. */
void vgpu_capture_forget(void);

#endif
