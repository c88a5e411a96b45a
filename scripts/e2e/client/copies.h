/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * copies.h - the copies of flood.c: between host memory and a device or inside it, in the ways in which programs copy, and
 * how long operations took on the device, by events around some of them. Included once, behind driver.h.
 */
#ifndef CLIENT_COPIES_H
#define CLIENT_COPIES_H

#include "driver.h"

enum { MAX_COPY_STREAMS = 32, PENDING = 64, KEPT = 1 << 16 };

struct copy_options {
  const char *direction; /* none, htod, dtoh, dtod, both */
  size_t bytes;
  long wait; /* 1: no copy is begun before the last one in its stream is done */
  long streams, pinned;
};

/* How long operations of one kind took, in ms; the newest are kept. */
struct durations {
  float *kept;
  uint64_t count;
  double sum_ms;
};

/* Operations with an event before and behind them, oldest first. */
struct meter {
  struct {
    void *before, *behind;
    struct durations *of;
  } pending[PENDING];
  uint64_t begun, ended;
};

/* The copies of one thread. */
struct copier {
  const struct copy_options *options;
  char *host;
  device_pointer device;
  void *streams[MAX_COPY_STREAMS];
  uint64_t copies, bytes;
  struct durations took;
};

static inline void add_duration(struct durations *durations, double ms) {
  if (durations->kept == NULL) durations->kept = calloc(KEPT, sizeof *durations->kept);
  if (durations->kept == NULL) fail("calloc", -1);
  durations->kept[durations->count++ % KEPT] = (float)ms;
  durations->sum_ms += ms;
}

static inline int compare_ms(const void *a, const void *b) {
  return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

static inline void print_durations(const char *kind, struct durations *durations) {
  size_t kept = durations->count < KEPT ? (size_t)durations->count : KEPT;
  if (kept == 0) return;
  qsort(durations->kept, kept, sizeof *durations->kept, compare_ms);
  printf(" %s_measured=%llu %s_ms_mean=%.4f %s_ms_p10=%.4f %s_ms_p50=%.4f %s_ms_p90=%.4f", kind,
         (unsigned long long)durations->count, kind, durations->sum_ms / (double)durations->count, kind,
         (double)durations->kept[kept / 10], kind, (double)durations->kept[kept / 2], kind,
         (double)durations->kept[kept * 9 / 10]);
}

/* Takes the times of what is done. */
static inline void look_at_meter(struct meter *meter) {
  for (; meter->ended < meter->begun; meter->ended++) {
    size_t at = meter->ended % PENDING;
    float ms;
    if (cuda.cuEventQuery(meter->pending[at].behind) != CUDA_SUCCESS) return;
    CALL(cuEventElapsedTime, &ms, meter->pending[at].before, meter->pending[at].behind);
    add_duration(meter->pending[at].of, (double)ms);
  }
}

/* Begins to measure what is put into the stream next; false: as much is being measured as can be. */
static inline bool begin_measure(struct meter *meter, struct durations *of, void *stream) {
  size_t at = meter->begun % PENDING;
  look_at_meter(meter);
  if (meter->begun - meter->ended == PENDING) return false;
  if (meter->pending[at].before == NULL) {
    CALL(cuEventCreate, &meter->pending[at].before, 0);
    CALL(cuEventCreate, &meter->pending[at].behind, 0);
  }
  meter->pending[at].of = of;
  CALL(cuEventRecord, meter->pending[at].before, stream);
  return true;
}

static inline void end_measure(struct meter *meter, void *stream) {
  CALL(cuEventRecord, meter->pending[meter->begun++ % PENDING].behind, stream);
}

static inline bool copies(const struct copy_options *options) {
  return strcmp(options->direction, "none") != 0;
}

/* Whether the options make sense together. */
static inline bool copy_options_good(const struct copy_options *options) {
  static const char *const known[] = {"none", "htod", "dtoh", "dtod", "both"};
  bool good = false;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    good = good || strcmp(options->direction, known[i]) == 0;
  return good && options->bytes >= 1 && options->bytes <= (size_t)1 << 40 && options->wait >= 0 && options->wait <= 1 &&
         options->streams >= 0 && options->streams <= MAX_COPY_STREAMS && options->pinned >= 0 && options->pinned <= 1;
}

/* In the context that is current. */
static inline void prepare_copier(struct copier *copier, const struct copy_options *options) {
  copier->options = options;
  if (!copies(options)) return;
  CALL(cuMemAlloc, &copier->device, 2 * options->bytes);
  if (options->pinned)
    CALL(cuMemHostAlloc, (void **)&copier->host, options->bytes, 0);
  else
    copier->host = calloc(1, options->bytes);
  if (copier->host == NULL) fail("calloc", -1);
  for (long i = 0; i < options->streams; i++)
    copier->streams[i] = new_stream();
}

/* A copy without a stream, which ends when it is done. */
static inline void copy_and_wait(struct copier *copier, bool up, bool down) {
  size_t bytes = copier->options->bytes;
  uint64_t begun = now_ns();
  if (up)
    CALL(cuMemcpyHtoD, copier->device, copier->host, bytes);
  else if (down)
    CALL(cuMemcpyDtoH, copier->host, copier->device, bytes);
  else
    CALL(cuMemcpyDtoD, copier->device + bytes, copier->device, bytes);
  add_duration(&copier->took, (double)(now_ns() - begun) / 1e6);
}

static inline void copy_in(struct copier *copier, void *stream, bool up, bool down) {
  size_t bytes = copier->options->bytes;
  if (up)
    CALL(cuMemcpyHtoDAsync, copier->device, copier->host, bytes, stream);
  else if (down)
    CALL(cuMemcpyDtoHAsync, copier->host, copier->device, bytes, stream);
  else
    CALL(cuMemcpyDtoDAsync, copier->device + bytes, copier->device, bytes, stream);
}

/* One copy: without a stream if copies are waited for and have no streams of their own, else in the next of those, or in
 * `stream` if there are none. `meter`: measures it, unless NULL. */
static inline void copy_once(struct copier *copier, void *stream, struct meter *meter) {
  const struct copy_options *options = copier->options;
  bool both = strcmp(options->direction, "both") == 0;
  bool up = both ? copier->copies % 2 == 0 : strcmp(options->direction, "htod") == 0;
  bool down = both ? !up : strcmp(options->direction, "dtoh") == 0;
  if (options->streams > 0) stream = copier->streams[copier->copies % (uint64_t)options->streams];
  if (options->wait && options->streams <= 1) {
    copy_and_wait(copier, up, down);
  } else {
    if (options->wait) CALL(cuStreamSynchronize, stream);
    bool measured = meter != NULL && begin_measure(meter, &copier->took, stream);
    copy_in(copier, stream, up, down);
    if (measured) end_measure(meter, stream);
  }
  copier->copies++;
  copier->bytes += options->bytes;
}

#endif
