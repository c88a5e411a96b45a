/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * engine.c - simulated GPU time by processor sharing. The model is in engine.h.
 *
 * Virtual time advances by real time divided by the number of queues that have work. A queue that was given
 * work w at virtual time v is done at v + w, whoever comes and goes, so one number per queue (end_v) is all
 * the state there is. From virtual time v to v + w pass sum over queues of min(end_v - v, w) of real time.
 */
#include "engine.h"

#include <string.h>
#include <time.h>

static const uint64_t LONGEST_SLEEP_NS = 50000000;

static uint32_t queue_count(void) {
  return __atomic_load_n(&gs_self.region->slot_high[GS_KIND_CUDA], __ATOMIC_SEQ_CST);
}

/* Adds one `divisor`-th of the time from `from` to `to` to the buckets it falls in. */
static void add_to_buckets(uint64_t *ns, uint64_t *index, uint64_t from, uint64_t to, uint64_t divisor) {
  uint64_t first = from / GS_BUCKET_NS;
  uint64_t last = to / GS_BUCKET_NS;
  if (last > first + GS_BUCKETS) {
    first = last - GS_BUCKETS;
    from = first * GS_BUCKET_NS;
  }
  for (uint64_t bucket = first; bucket <= last; bucket++) {
    uint64_t end = (bucket + 1) * GS_BUCKET_NS;
    uint64_t until = to < end ? to : end;
    if (index[bucket % GS_BUCKETS] != bucket) {
      index[bucket % GS_BUCKETS] = bucket;
      ns[bucket % GS_BUCKETS] = 0;
    }
    if (until > from) ns[bucket % GS_BUCKETS] += (until - from) / divisor;
    from = until;
  }
}

static void account(struct gs_gpu *gpu, uint64_t from, uint64_t to, uint64_t active) {
  gpu->busy_ns += to - from;
  add_to_buckets(gpu->bucket_ns, gpu->bucket_index, from, to, 1);
  for (uint32_t slot = 0; slot < queue_count(); slot++) {
    struct gs_queue *queue = &gpu->queues[slot];
    if (queue->end_v <= gpu->virtual_ns) continue;
    queue->busy_ns += (to - from) / active;
    add_to_buckets(queue->bucket_ns, queue->bucket_index, from, to, active);
  }
}

/* Brings virtual time up to `now`. */
static void advance(struct gs_gpu *gpu, uint64_t now) {
  while (gpu->updated_ns < now) {
    uint64_t active = 0;
    uint64_t first_end = UINT64_MAX;
    for (uint32_t slot = 0; slot < queue_count(); slot++) {
      uint64_t end = gpu->queues[slot].end_v;
      if (end <= gpu->virtual_ns) continue;
      active++;
      if (end < first_end) first_end = end;
    }
    if (active == 0) {
      gpu->updated_ns = now;
      return;
    }
    uint64_t need = (first_end - gpu->virtual_ns) * active;
    uint64_t step = now - gpu->updated_ns;
    step = step < need ? step - step % active : need;
    if (step == 0) return;
    account(gpu, gpu->updated_ns, gpu->updated_ns + step, active);
    gpu->virtual_ns += step / active;
    gpu->updated_ns += step;
  }
}

/* Real time until a queue that now has `work` before it has done it, if nobody enqueues more. */
static uint64_t real_time(struct gs_gpu *gpu, uint64_t work) {
  uint64_t sum = 0;
  for (uint32_t slot = 0; slot < queue_count(); slot++) {
    uint64_t end = gpu->queues[slot].end_v;
    if (end > gpu->virtual_ns) sum += end - gpu->virtual_ns < work ? end - gpu->virtual_ns : work;
  }
  return sum;
}

static uint64_t backlog(struct gs_gpu *gpu, struct gs_queue *queue) {
  return queue->end_v > gpu->virtual_ns ? queue->end_v - gpu->virtual_ns : 0;
}

/* Work still to be done before the mark is reached. */
static uint64_t work_before(struct gs_gpu *gpu, struct gs_queue *queue, uint64_t mark) {
  uint64_t done = queue->enqueued_ns - backlog(gpu, queue);
  return mark > done ? mark - done : 0;
}

uint64_t gs_engine_enqueue(struct gs_gpu *gpu, uint64_t ns, uint64_t *finish_ns) {
  struct gs_queue *queue = &gpu->queues[gs_self.slot];
  gs_lock(gpu);
  uint64_t now = gs_now_ns();
  advance(gpu, now);
  if (ns > 0) {
    if (queue->end_v < gpu->virtual_ns) queue->end_v = gpu->virtual_ns;
    queue->end_v += ns;
    queue->enqueued_ns += ns;
  }
  uint64_t mark = queue->enqueued_ns;
  if (finish_ns) *finish_ns = now + real_time(gpu, backlog(gpu, queue));
  gs_unlock(gpu);
  return mark;
}

uint64_t gs_engine_mark(struct gs_gpu *gpu) {
  return __atomic_load_n(&gpu->queues[gs_self.slot].enqueued_ns, __ATOMIC_RELAXED);
}

bool gs_engine_done(struct gs_gpu *gpu, uint64_t mark) {
  struct gs_queue *queue = &gpu->queues[gs_self.slot];
  if (mark == 0) return true;
  gs_lock(gpu);
  advance(gpu, gs_now_ns());
  bool done = work_before(gpu, queue, mark) == 0;
  gs_unlock(gpu);
  return done;
}

void gs_engine_wait(struct gs_gpu *gpu, uint64_t mark) {
  struct gs_queue *queue = &gpu->queues[gs_self.slot];
  if (mark == 0) return;
  for (;;) {
    gs_lock(gpu);
    uint64_t now = gs_now_ns();
    gs_reap_gpu_locked(gpu);
    advance(gpu, now);
    uint64_t work = work_before(gpu, queue, mark);
    uint64_t wait = real_time(gpu, work);
    gs_unlock(gpu);
    if (work == 0) return;
    if (wait > LONGEST_SLEEP_NS) wait = LONGEST_SLEEP_NS;
    if (wait < 1000) wait = 1000;
    const struct timespec pause = {.tv_nsec = (long)wait};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
  }
}

uint32_t gs_engine_utilization(struct gs_gpu *gpu, int slot, uint32_t window) {
  uint64_t *ns = slot < 0 ? gpu->bucket_ns : gpu->queues[slot].bucket_ns;
  uint64_t *index = slot < 0 ? gpu->bucket_index : gpu->queues[slot].bucket_index;
  uint64_t sum = 0;
  gs_lock(gpu);
  gs_reap_gpu_locked(gpu);
  advance(gpu, gs_now_ns());
  uint64_t current = gpu->updated_ns / GS_BUCKET_NS;
  for (uint64_t bucket = current - window; bucket < current; bucket++)
    if (index[bucket % GS_BUCKETS] == bucket) sum += ns[bucket % GS_BUCKETS];
  gs_unlock(gpu);
  return (uint32_t)(sum * 1000 / ((uint64_t)window * GS_BUCKET_NS));
}

bool gs_engine_busy(struct gs_gpu *gpu, uint32_t slot) {
  return slot < GS_CUDA_SLOTS && gpu->queues[slot].enqueued_ns > 0;
}

void gs_engine_drop(struct gs_gpu *gpu, uint32_t slot) {
  advance(gpu, gs_now_ns());
  memset(&gpu->queues[slot], 0, sizeof gpu->queues[slot]);
}

/* No update spans two queues, so a half-made one only leaves numbers that are a little off; what cannot be is
 * put right here. */
void gs_engine_repair(struct gs_gpu *gpu) {
  for (uint32_t slot = 0; slot < GS_CUDA_SLOTS; slot++) {
    struct gs_queue *queue = &gpu->queues[slot];
    if (backlog(gpu, queue) > queue->enqueued_ns) queue->end_v = gpu->virtual_ns + queue->enqueued_ns;
  }
}
