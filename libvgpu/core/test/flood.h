/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * flood.h - what the tests of pacing share: pages whose GPU time is limited, and processes that launch in virtual time
 * on a GPU that runs one kernel after the other and nothing else.
 */
#ifndef VGPU_FLOOD_H
#define VGPU_FLOOD_H

#include "../pace.h"
#include "check.h"

#define MICROSECOND ((uint64_t)1000)
#define MILLISECOND ((uint64_t)1000000)
#define SECOND ((uint64_t)1000000000)
#define MINUTE (60 * SECOND)

enum { UNMEASURED_MOST = 64, QUEUE_MOST = 1024, LAUNCH_NS = 2000 };

/* Pages for one device with a share of its time. The line begins at `now_ns`. */
static inline struct pair make_compute_pair(uint32_t mode, uint32_t share_ppm, uint64_t now_ns) {
  struct pair pair = make_pair(1, 1000);
  struct vgpu_compute compute = {mode, share_ppm, mode == VGPU_COMPUTE_HARD ? share_ppm : (uint32_t)VGPU_PPM};
  CHECK_EACH(vgpu_limits_set_compute(pair.limits, 0, &compute, now_ns) == 0);
  return pair;
}

/* Publishes as the agent would. */
static inline void publish(struct pair pair, uint32_t rate_ppm, uint32_t scale_ppm, uint32_t flags, uint64_t now_ns) {
  struct vgpu_line line;
  CHECK_EACH(vgpu_line_read(&pair.limits->devices[0], &line));
  vgpu_line_continue(&line, now_ns);
  line.rate_ppm = rate_ppm;
  line.scale_ppm = scale_ppm;
  line.flags = flags;
  vgpu_line_publish(&pair.limits->devices[0], &line);
}

/* A process that always has a next launch. */
struct flooder {
  struct vgpu_book *book;
  struct vgpu_pacer pacer;
  struct vgpu_costs costs;
  void (*prepare)(struct flooder *);      /* called once for each launch, before it asks; NULL */
  uint64_t (*duration)(struct flooder *); /* of the next kernel */
  uint64_t function;                      /* which kernel the next one is */
  bool is_collective;
  uint64_t fixed_ns;
  uint64_t random;
  uint64_t patience_ns;
  bool sync; /* waits for each kernel */

  struct vgpu_ticket ticket;
  bool is_asking;
  uint64_t next_ns;  /* when it acts next */
  uint64_t began_ns; /* when it began to wait, 0: it does not */
  uint64_t told_ns;  /* when it last said so */
  uint64_t launched;
  uint64_t done_ns[QUEUE_MOST]; /* when the last launches are done */
  uint64_t used_ns;             /* of the GPU */
  uint64_t longest_wait_ns;
  struct {
    struct vgpu_ticket ticket;
    uint64_t duration_ns;
    uint64_t done_ns;
  } running[UNMEASURED_MOST];
  uint32_t running_count;
};

static uint64_t gpu_free_ns; /* when the GPU has done what was launched */

static inline uint64_t fixed_duration(struct flooder *flooder) {
  return flooder->fixed_ns;
}

static inline struct flooder *make_flooder(struct pair pair, uint64_t duration_ns) {
  struct flooder *flooder = calloc(1, sizeof(*flooder));
  flooder->book = open_book(pair);
  flooder->duration = fixed_duration;
  flooder->fixed_ns = duration_ns;
  flooder->random = 88172645463325252ULL;
  flooder->patience_ns = VGPU_WAIT_MAX_NS;
  vgpu_rate_open(&flooder->pacer.rate, flooder->book, 0, VGPU_PPM);
  return flooder;
}

static inline void free_flooder(struct flooder *flooder) {
  close_book(flooder->book);
  free(flooder);
}

static inline void harvest(struct flooder *flooder, uint64_t now_ns) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < flooder->running_count; i++) {
    if (flooder->running[i].done_ns <= now_ns) {
      vgpu_pace_measured(&flooder->pacer, &flooder->running[i].ticket, flooder->running[i].duration_ns, now_ns);
    } else {
      flooder->running[kept++] = flooder->running[i];
    }
  }
  flooder->running_count = kept;
}

static inline void launch(struct flooder *flooder, uint64_t now_ns) {
  uint64_t duration = flooder->duration(flooder);
  gpu_free_ns = (gpu_free_ns > now_ns ? gpu_free_ns : now_ns) + duration;
  flooder->done_ns[flooder->launched++ % QUEUE_MOST] = gpu_free_ns;
  flooder->used_ns += duration;
  if (flooder->ticket.sample && flooder->running_count < UNMEASURED_MOST) {
    flooder->running[flooder->running_count].ticket = flooder->ticket;
    flooder->running[flooder->running_count].duration_ns = duration;
    flooder->running[flooder->running_count++].done_ns = gpu_free_ns;
  } else if (flooder->ticket.sample) {
    vgpu_pace_unmeasured(&flooder->pacer, &flooder->ticket);
  }
  uint64_t room = flooder->done_ns[flooder->launched % QUEUE_MOST]; /* a full queue holds up the next launch */
  flooder->next_ns = flooder->sync ? gpu_free_ns : room > now_ns + LAUNCH_NS ? room : now_ns + LAUNCH_NS;
  flooder->ticket = (struct vgpu_ticket){0};
  flooder->is_asking = false;
}

/* The cost of the next launch. */
static inline struct vgpu_cost *cost_of(struct flooder *flooder) {
  const void *function = (const void *)((uintptr_t)flooder + flooder->function);
  struct vgpu_cost *cost = vgpu_cost_find(&flooder->costs, function, 100, 256);
  cost->flags |= flooder->is_collective ? VGPU_COST_COLLECTIVE : 0U;
  return cost;
}

/* One step at next_ns: asks, and launches or waits, as libvgpu does. */
static inline void step(struct flooder *flooder) {
  uint64_t now = flooder->next_ns, waited = flooder->began_ns != 0 ? now - flooder->began_ns : 0;
  harvest(flooder, now);
  if (flooder->prepare != NULL && !flooder->is_asking) {
    flooder->prepare(flooder);
  }
  flooder->is_asking = true;
  struct vgpu_cost *cost = cost_of(flooder);
  bool quick = flooder->ticket.cost == NULL && vgpu_pace_quick(&flooder->pacer, cost, &flooder->ticket);
  uint64_t wait = quick ? 0 : vgpu_pace(&flooder->pacer, cost, now, waited, flooder->patience_ns, &flooder->ticket);
  if (wait != 0) {
    uint64_t piece = wait < 100 * MILLISECOND ? wait : 100 * MILLISECOND;
    if (!flooder->ticket.busy) {
      vgpu_rate_waiting(&flooder->pacer.rate, now, now + piece, flooder->told_ns != 0 ? now - flooder->told_ns : 0);
      flooder->told_ns = now;
    }
    flooder->began_ns = flooder->began_ns != 0 ? flooder->began_ns : now;
    flooder->next_ns = now + piece;
    return;
  }
  if (flooder->told_ns != 0) {
    vgpu_rate_waited(&flooder->pacer.rate, now, now - flooder->told_ns);
  }
  flooder->longest_wait_ns = waited > flooder->longest_wait_ns ? waited : flooder->longest_wait_ns;
  flooder->told_ns = flooder->began_ns = 0;
  launch(flooder, now);
}

/* Lets all of them launch until `end_ns`. */
static inline void run_until(struct flooder *flooders[], size_t count, uint64_t end_ns) {
  for (;;) {
    struct flooder *next = flooders[0];
    for (size_t i = 1; i < count; i++) {
      next = flooders[i]->next_ns < next->next_ns ? flooders[i] : next;
    }
    if (next->next_ns >= end_ns) {
      return;
    }
    step(next);
  }
}

#endif
