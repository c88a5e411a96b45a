/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * launches.c - contract in launches.h: core/pace.h in real time.
 */
#include "launches.h"

#include <errno.h>

#include "claim.h"
#include "clock.h"
#include "core/sys.h"
#include "failures.h"
#include "holds.h"

enum { FUTEX_WAIT = 0 };

#define PIECE_NS ((uint64_t)100000000)   /* a thread that waits says so again this often */
#define PAUSE_MIN_NS ((uint64_t)20000)   /* between two looks for a measurement; they double up to */
#define PAUSE_MAX_NS ((uint64_t)1000000) /* this */
/* A first launch may depend on the second one: it goes after this time. */
#define BUSY_PATIENCE_NS ((uint64_t)3000000000)
#define RELEASE_PATIENCE_NS ((uint64_t)250000000) /* a little longer than holds.h holds still for a capture */
#define COLLECTIVE_DEBT_NS ((uint64_t)200000000)  /* debt from which on a group of collectives is kept waiting */

struct vgpu_costs vgpu_launch_costs;

__attribute__((noinline)) struct vgpu_device *vgpu_launch_device_slow(CUstream stream) {
  CUresult why;
  bool is_pushed = vgpu_push_context_of(stream);
  struct vgpu_device *device = vgpu_device_current(&why);
  if (is_pushed) vgpu_pop_context();
  return device;
}

static const struct vgpu_limits_device *limits_of(const struct vgpu_pacer *pacer) {
  return &pacer->rate.book->limits->devices[pacer->rate.device];
}

static void nap(uint64_t ns) {
  vgpu_sys_nanosleep((int64_t)ns);
}

/* A pause, twice as long each time, and a look at what has been measured meanwhile. */
static void pause_and_look(uint64_t *pause_ns) {
  nap(*pause_ns);
  *pause_ns = vgpu_smaller(2 * *pause_ns, PAUSE_MAX_NS);
  vgpu_marks_harvest(true);
}

/* Sleeps until the rate is no longer of `generation`, for `ns` at most, or until a signal was handled. */
static void wait_for_rate(const struct vgpu_pacer *pacer, uint32_t generation, uint64_t ns) {
  struct vgpu_timespec time = {(int64_t)(ns / 1000000000), (int64_t)(ns % 1000000000)};
  const uint32_t *word = &limits_of(pacer)->rate_generation;
  long result = vgpu_syscall4(__NR_futex, (long)word, FUTEX_WAIT, (long)generation, (long)&time);
  if (result != 0 && result != -EAGAIN && result != -EINTR && result != -ETIMEDOUT) nap(ns);
}

/* Asks the device's books in turn: the first one that has credit is charged. 0, or the least time to wait, for *pacer,
 * whose rate is of *generation. */
static uint64_t ask(struct vgpu_device *device, struct vgpu_cost *cost, uint64_t now_ns, uint64_t waited_ns,
                    uint64_t patience_ns, struct vgpu_ticket *ticket, struct vgpu_pacer **pacer, uint32_t *generation) {
  uint64_t least_ns = UINT64_MAX;
  for (uint32_t i = 0; i < device->pacer_count && least_ns != 0; i++) {
    struct vgpu_pacer *one = &device->pacers[i];
    uint32_t seen = __atomic_load_n(&limits_of(one)->rate_generation, __ATOMIC_ACQUIRE);
    uint64_t wait_ns = vgpu_pace(one, cost, now_ns, waited_ns, patience_ns, ticket);
    if (wait_ns >= least_ns) continue;
    least_ns = wait_ns;
    *pacer = one;
    *generation = seen;
  }
  return least_ns;
}

/* The least debt of the device's books. */
static uint64_t debt_of(struct vgpu_device *device, uint64_t now_ns) {
  uint64_t least_ns = UINT64_MAX;
  for (uint32_t i = 0; i < device->pacer_count; i++)
    least_ns = vgpu_smaller(least_ns, vgpu_rate_debt_ns(&device->pacers[i].rate, now_ns));
  return least_ns;
}

/* How long this launch may be kept waiting. */
static uint64_t patience_of(struct vgpu_device *device, struct vgpu_cost *cost, CUfunction named, uint64_t now_ns) {
  uint32_t flags = __atomic_load_n(&cost->flags, __ATOMIC_RELAXED);
  if (!(flags & VGPU_COST_NAMED) && !vgpu_is_held() && cost != &vgpu_launch_costs.last_resort) {
    bool is_collective = named && vgpu_is_collective(named);
    flags = __atomic_or_fetch(&cost->flags, VGPU_COST_NAMED | (is_collective ? VGPU_COST_COLLECTIVE : 0U),
                              __ATOMIC_RELAXED);
  }
  if (!(flags & VGPU_COST_COLLECTIVE)) return VGPU_WAIT_MAX_NS;
  bool may_wait = vgpu_group_is_first(device->ordinal) && debt_of(device, now_ns) >= COLLECTIVE_DEBT_NS;
  return may_wait ? VGPU_WAIT_MAX_NS : 0;
}

/* A thread that is kept waiting for GPU time, and what the usage page was last told of it. */
struct wait {
  struct vgpu_pacer *pacer; /* NULL: it does not wait */
  uint64_t told_ns;
};

static void end_wait(struct wait *wait, uint64_t now_ns) {
  if (wait->pacer) vgpu_rate_waited(&wait->pacer->rate, now_ns, now_ns - wait->told_ns);
  wait->pacer = NULL;
}

/* Begins to wait, or goes on waiting, for `pacer`. */
static void tell_wait(struct wait *wait, struct vgpu_pacer *pacer, uint64_t now_ns, uint64_t wait_ns) {
  if (wait->pacer != pacer) end_wait(wait, now_ns);
  uint64_t waited_ns = wait->pacer ? now_ns - wait->told_ns : 0;
  if (wait->pacer && waited_ns == 0) return; /* no time passed: 0 would be another beginning */
  vgpu_rate_waiting(&pacer->rate, now_ns, now_ns + wait_ns, waited_ns);
  *wait = (struct wait){pacer, now_ns};
}

/* A launch of which nothing is known, while a capture keeps it from being measured, waits until it can be: a guess may be a
 * hundred times too low, and a capture may be begun for that. */
static uint64_t wait_for_release(const struct vgpu_cost *cost, uint64_t now_ns) {
  uint64_t until_ns = now_ns + RELEASE_PATIENCE_NS;
  while (now_ns < until_ns && vgpu_is_held() && __atomic_load_n(&cost->cost_ns, __ATOMIC_RELAXED) == 0) {
    nap(PAUSE_MAX_NS);
    now_ns = vgpu_now_ns();
  }
  return now_ns;
}

/* The first launch may never end: whichever of them ends first says what they take. */
static void go_by_guess(struct vgpu_launch *launch, const struct vgpu_cost *cost) {
  launch->extra_ns = vgpu_failure_ns(launch->pacer, cost);
  if (launch->extra_ns != 0) vgpu_rate_correct(&launch->pacer->rate, (int64_t)launch->extra_ns);
  launch->ticket.blind = false;
  vgpu_ticket_sample(&launch->ticket, __atomic_load_n(&cost->flags, __ATOMIC_RELAXED));
}

/* Whether credit may come back at any moment: a launch that is not known yet waits behind such, whose deposits are given
 * back when they are measured. A program whose every launch is new would otherwise sleep for them. */
static bool awaits_refunds(const struct vgpu_launch *launch, const struct vgpu_cost *cost) {
  return !launch->ticket.blind && __atomic_load_n(&cost->cost_ns, __ATOMIC_RELAXED) == 0 &&
         __atomic_load_n(&vgpu_marks_under_way, __ATOMIC_RELAXED) != 0;
}

__attribute__((noinline, cold)) void vgpu_launch_admit(struct vgpu_launch *launch, struct vgpu_device *device,
                                                       struct vgpu_cost *cost, CUfunction named) {
  uint64_t begun_ns = vgpu_now_ns(), now_ns = begun_ns, pause_ns = PAUSE_MIN_NS;
  uint64_t patience_ns = patience_of(device, cost, named, now_ns);
  struct vgpu_pacer *pacer = NULL;
  struct wait wait = {NULL, 0};
  uint32_t generation = 0;
  bool has_turn = patience_ns == 0; /* to go by a guess, should it come to that */
  launch->ticket = (struct vgpu_ticket){.cost = NULL};
  vgpu_marks_harvest(false);
  if (patience_ns != 0) now_ns = wait_for_release(cost, now_ns);
  for (;;) {
    bool is_out_of_patience = now_ns - begun_ns > BUSY_PATIENCE_NS;
    if (!launch->ticket.cost) launch->ticket.blind |= vgpu_is_held() || is_out_of_patience;
    if (launch->ticket.blind && !has_turn) has_turn = vgpu_failure_turn(&device->pacers[0], cost, now_ns);
    if (launch->ticket.blind && !has_turn) {
      pause_and_look(&pause_ns);
      now_ns = vgpu_now_ns();
      continue;
    }
    uint64_t wait_ns = ask(device, cost, now_ns, now_ns - begun_ns, patience_ns, &launch->ticket, &pacer, &generation);
    if (wait_ns == 0) break;
    if (launch->ticket.busy) {
      pause_and_look(&pause_ns);
    } else if (vgpu_marks_harvest(true) == 0) { /* what has ended may give credit back */
      tell_wait(&wait, pacer, now_ns, wait_ns);
      wait_for_rate(pacer, generation, vgpu_smaller(wait_ns, awaits_refunds(launch, cost) ? pause_ns : PIECE_NS));
      pause_ns = vgpu_smaller(2 * pause_ns, PAUSE_MAX_NS);
    }
    now_ns = vgpu_now_ns();
  }
  end_wait(&wait, now_ns);
  launch->pacer = pacer;
  if (launch->ticket.blind && __atomic_load_n(&cost->cost_ns, __ATOMIC_RELAXED) == 0) go_by_guess(launch, cost);
}

/* Whether one estimate says little about the next launch: after one or two samples, or where long ones differ much. */
static bool is_uncertain(const struct vgpu_cost *cost) {
  uint32_t flags = __atomic_load_n(&cost->flags, __ATOMIC_RELAXED), both = VGPU_COST_LONG | VGPU_COST_WIDE;
  return __atomic_load_n(&cost->samples, __ATOMIC_RELAXED) < VGPU_COST_FRESH || (flags & both) == both;
}

/* Of such a function no more launches go than can be measured. */
static void wait_for_mark(const struct vgpu_cost *cost) {
  uint64_t pause_ns = PAUSE_MIN_NS;
  for (uint64_t waited_ns = 0; waited_ns < BUSY_PATIENCE_NS && vgpu_marks_are_exhausted(); waited_ns += pause_ns) {
    if (vgpu_is_held() || !is_uncertain(cost)) return;
    pause_and_look(&pause_ns);
  }
}

void vgpu_launch_mark(struct vgpu_launch *launch, CUstream stream) {
  vgpu_marks_harvest(vgpu_marks_are_exhausted());
  bool is_open = vgpu_rate_is_open(&launch->pacer->rate);
  if (vgpu_marks_are_exhausted() && !is_open) wait_for_mark(launch->ticket.cost);
  launch->stream = stream;
  launch->called_ns = vgpu_now_ns(); /* not between the events, where it would be measured */
  launch->mark = vgpu_mark_begin(stream);
  if (launch->ticket.first) launch->called_ns = vgpu_now_ns(); /* but without what was made for the first one */
}

__attribute__((noinline, cold)) void vgpu_launch_prepare(struct vgpu_launch *launch, const struct vgpu_device *device,
                                                         const struct vgpu_cost *cost, CUfunction named,
                                                         CUstream stream) {
  launch->is_graph = named == NULL;
  if (__atomic_load_n(&cost->flags, __ATOMIC_RELAXED) & VGPU_COST_COLLECTIVE) {
    vgpu_group_enter(device->ordinal);
  } else if (__atomic_load_n(&vgpu_group_count, __ATOMIC_RELAXED) != 0) {
    vgpu_group_leave();
  }
  if (launch->ticket.sample) vgpu_launch_mark(launch, stream);
}

/* The driver took the launch. True: it is being measured, and settled then. */
static bool end_mark(const struct vgpu_launch *launch) {
  struct vgpu_marked marked = {.pacer = launch->pacer,
                               .ticket = launch->ticket,
                               .launched_ns = launch->called_ns,
                               .extra_ns = launch->extra_ns,
                               .is_graph = launch->is_graph};
  if (launch->ticket.first) marked.called_ns = vgpu_now_ns() - launch->called_ns;
  return vgpu_mark_end(launch->mark, launch->stream, &marked);
}

__attribute__((noinline, cold)) void vgpu_launch_settle(struct vgpu_launch *launch, CUresult result) {
  struct vgpu_pacer *pacer = launch->pacer;
  if (!pacer) return;
  int64_t extra_ns = 0;
  if (result != CUDA_SUCCESS) {
    if (launch->mark) vgpu_mark_drop(launch->mark);
    extra_ns = -(int64_t)launch->extra_ns;
    vgpu_pace_refused(pacer, &launch->ticket);
  } else if (!launch->mark || !end_mark(launch)) {
    if (launch->ticket.first) extra_ns = (int64_t)vgpu_failure_ns(pacer, launch->ticket.cost);
    vgpu_pace_unmeasured(pacer, &launch->ticket);
  }
  if (extra_ns != 0) vgpu_rate_correct(&pacer->rate, extra_ns);
}

void vgpu_launch_doubt(CUgraphExec graph) {
  if (!vgpu_is_limiting()) return;
  vgpu_check_fork();
  vgpu_cost_doubt(vgpu_cost_find(&vgpu_launch_costs, graph, 0, 0));
}

void vgpu_launch_forget(CUgraphExec graph) {
  if (!vgpu_is_limiting()) return;
  vgpu_check_fork();
  vgpu_cost_forget(vgpu_cost_find(&vgpu_launch_costs, graph, 0, 0));
}

void vgpu_launches_forget(void) {
  for (int i = 0; i < VGPU_COST_ENTRIES; i++) {
    struct vgpu_cost *cost = &vgpu_launch_costs.entries[i];
    if (cost->key) *cost = (struct vgpu_cost){.key = 0};
  }
  vgpu_launch_costs.last_resort = (struct vgpu_cost){.key = 0};
  vgpu_failures_forget();
}
