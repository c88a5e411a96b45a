/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * marks.c - contract in marks.h: a fixed set of pairs.
 */
#include "marks.h"

#include "claim.h"
#include "clock.h"
#include "failures.h"
#include "holds.h"
#include "modules.h"
#include "pairs.h"
#include "samples.h"
#include "state.h"

enum {
  NEGLIGIBLE_PART = 16, /* a call that took less than this part of the time measured changes little about it */
  MARKS = 64,           /* launches that are measured at the same time */
  LOOK_AT = 8,          /* pairs that one look asks for */
  NOT_READY_ENOUGH = 2  /* and after so many that are not done, it stops */
};

#define LOADING_NS ((uint64_t)200000) /* a launch whose call takes longer than this has loaded code */

struct vgpu_mark {
  struct vgpu_pair pair;
  struct vgpu_marked marked;
};

static struct vgpu_mark marks[MARKS];
uint32_t vgpu_marks_under_way;
static uint32_t next_look; /* atomic; where the next look begins */

/* A free pair, the best one for the context; NULL. */
static struct vgpu_mark *take_free(CUcontext context) {
  for (int wish = 0; wish < VGPU_PAIR_WISHES; wish++) {
    for (int i = 0; i < MARKS; i++) {
      struct vgpu_pair *pair = &marks[i].pair;
      if (vgpu_pair_suits(pair, context, wish) && vgpu_pair_take(pair, VGPU_PAIR_FREE)) return &marks[i];
    }
  }
  return NULL;
}

/* Takes the pairs in `from` that are of this context; NULL: of any. */
static uint64_t take_all(uint32_t from, CUcontext context) {
  uint64_t taken = 0;
  for (int i = 0; i < MARKS; i++) {
    struct vgpu_pair *pair = &marks[i].pair;
    bool is_it = !context || vgpu_pair_context(pair) == context;
    if (is_it && vgpu_pair_take(pair, from)) taken |= (uint64_t)1 << i;
  }
  return taken;
}

static void put_all_back(uint64_t taken, uint32_t state) {
  for (; taken != 0; taken &= taken - 1)
    vgpu_pair_put_back(&marks[__builtin_ctzll(taken)].pair, state);
}

/* Those of `taken` that one pacer was charged for are settled by what was charged, and if their charges were to be put
 * right, by the time since the first of these was launched if that is more: the GPU took no longer for all of them.
 * Returns the others. */
static uint64_t settle_one_pacer(uint64_t taken, uint64_t now_ns) {
  struct vgpu_pacer *pacer = marks[__builtin_ctzll(taken)].marked.pacer;
  uint64_t others = 0, since_ns = now_ns, charged_ns = 0;
  for (; taken != 0; taken &= taken - 1) {
    const struct vgpu_marked *marked = &marks[__builtin_ctzll(taken)].marked;
    if (marked->pacer != pacer) {
      others |= taken & -taken;
      continue;
    }
    if (marked->ticket.settle) {
      if (marked->launched_ns < since_ns) since_ns = marked->launched_ns;
      charged_ns += marked->ticket.charged_ns;
    }
    __atomic_sub_fetch(&vgpu_marks_under_way, 1, __ATOMIC_RELAXED);
    vgpu_pace_unmeasured(pacer, &marked->ticket);
  }
  uint64_t took_ns = now_ns - since_ns < VGPU_COST_MAX_NS ? now_ns - since_ns : VGPU_COST_MAX_NS;
  if (took_ns > charged_ns) vgpu_rate_correct(&pacer->rate, (int64_t)(took_ns - charged_ns));
  return others;
}

static void settle_by_clock(uint64_t taken) {
  uint64_t now_ns = taken != 0 ? vgpu_now_ns() : 0;
  while (taken != 0)
    taken = settle_one_pacer(taken, now_ns);
}

/* What ended before the program did is paid for; of what is still running, nobody will know. A forked child has inherited
 * this, and the marks, of its parent. */
static void settle_at_exit(void *unused) {
  (void)unused;
  if (vgpu_is_forked()) return;
  vgpu_marks_harvest(true);
  vgpu_samples_harvest();
  uint64_t taken = take_all(VGPU_PAIR_UNDER_WAY, NULL);
  settle_by_clock(taken);
  put_all_back(taken, VGPU_PAIR_FREE);
}

/* libc's own list: we have no destructor, and the driver's come after what was registered after them. */
void vgpu_marks_register_exit(void) {
  static uint32_t is_registered;
  typedef int (*at_exit)(void (*function)(void *), void *argument, void *library);
  if (__atomic_exchange_n(&is_registered, 1, __ATOMIC_RELAXED)) return;
  at_exit add = (at_exit)vgpu_find_symbol(VGPU_LIBRARY_ANY, "__cxa_atexit");
  if (add) add(settle_at_exit, NULL, NULL);
}

bool vgpu_marks_are_exhausted(void) {
  return __atomic_load_n(&vgpu_marks_under_way, __ATOMIC_RELAXED) >= MARKS;
}

/* In the context that is current. */
static struct vgpu_mark *begin(CUstream stream) {
  CUcontext context = vgpu_current_context();
  struct vgpu_mark *mark = context ? take_free(context) : NULL;
  if (!mark || vgpu_pair_begin(&mark->pair, context, stream)) return mark;
  vgpu_mark_drop(mark);
  return NULL;
}

struct vgpu_mark *vgpu_mark_begin(CUstream stream) {
  if (vgpu_is_held()) return NULL;
  vgpu_marks_register_exit();
  bool is_pushed = vgpu_push_context_of(stream);
  struct vgpu_mark *mark = begin(stream);
  if (is_pushed) vgpu_pop_context();
  return mark;
}

void vgpu_mark_drop(struct vgpu_mark *mark) {
  vgpu_pair_put_back(&mark->pair, VGPU_PAIR_FREE);
}

bool vgpu_mark_end(struct vgpu_mark *mark, CUstream stream, const struct vgpu_marked *marked) {
  mark->marked = *marked;
  bool is_recorded = vgpu_pair_end(&mark->pair, stream);
  if (is_recorded) __atomic_add_fetch(&vgpu_marks_under_way, 1, __ATOMIC_RELAXED);
  vgpu_pair_put_back(&mark->pair, is_recorded ? VGPU_PAIR_UNDER_WAY : VGPU_PAIR_FREE);
  return is_recorded;
}

/* The driver may have loaded code in the call of a first launch, between the events, while the kernel ran or before it did:
 * then it is paid for, once, what the GPU did for certain, a guess at least, and the next launch is the first one again.
 * (A call that took longer than the time between the events waited for its place in the queue, and that time is true.)
 * False: the time is to be learnt. */
static bool is_unclean(const struct vgpu_marked *marked, uint64_t elapsed_ns) {
  uint64_t called_ns = marked->called_ns;
  if (called_ns <= LOADING_NS || called_ns > elapsed_ns || called_ns < elapsed_ns / NEGLIGIBLE_PART) return false;
  uint32_t flags = __atomic_fetch_or(&marked->ticket.cost->flags, VGPU_COST_UNCLEAN, __ATOMIC_RELAXED);
  if (flags & VGPU_COST_UNCLEAN) return false;
  uint64_t least = elapsed_ns < VGPU_COST_GUESS_NS ? elapsed_ns : VGPU_COST_GUESS_NS;
  uint64_t certain = elapsed_ns - called_ns;
  vgpu_pace_unlearnt(marked->pacer, &marked->ticket, certain > least ? certain : least);
  return true;
}

/* Whoever looks for contention hears of it, too. */
static void tell(const struct vgpu_marked *marked, uint64_t elapsed_ns, uint64_t now_ns) {
  const struct vgpu_rate_book *rate = &marked->pacer->rate;
  struct vgpu_usage_traffic *traffic = vgpu_traffic_of(rate->book, rate->device);
  uint64_t key = marked->ticket.cost->key;
  if (!traffic || key == 0) return;
  const struct vgpu_sample sample = {.id = vgpu_traffic_id(key, vgpu_samples_salt()),
                                     .kind = marked->is_graph ? VGPU_CLASS_GRAPH : VGPU_CLASS_KERNEL,
                                     .operations = marked->ticket.weight,
                                     .ns = elapsed_ns};
  vgpu_traffic_sample(traffic, &sample, now_ns);
}

static void settle_measured(const struct vgpu_marked *marked, uint64_t elapsed_ns) {
  vgpu_failures_end(marked->ticket.cost);
  if (marked->extra_ns != 0) vgpu_rate_correct(&marked->pacer->rate, -(int64_t)marked->extra_ns);
  if (is_unclean(marked, elapsed_ns)) return;
  uint64_t now_ns = vgpu_now_ns();
  tell(marked, elapsed_ns, now_ns);
  vgpu_pace_measured(marked->pacer, &marked->ticket, elapsed_ns, now_ns);
}

/* Nobody will know what the launch took. */
static void settle_failed(const struct vgpu_mark *mark) {
  const struct vgpu_marked *marked = &mark->marked;
  uint64_t extra_ns = marked->ticket.first ? vgpu_failure_ns(marked->pacer, marked->ticket.cost) : 0;
  settle_by_clock((uint64_t)1 << (mark - marks));
  if (extra_ns != 0) vgpu_rate_correct(&marked->pacer->rate, (int64_t)extra_ns);
}

/* Looks at one pair that is under way. False: it is not done. */
static bool harvest(struct vgpu_mark *mark) {
  float milliseconds = 0;
  CUresult result = vgpu_pair_look(&mark->pair, &milliseconds);
  if (result == CUDA_ERROR_NOT_READY) {
    vgpu_pair_put_back(&mark->pair, VGPU_PAIR_UNDER_WAY);
    return false;
  }
  if (result == CUDA_SUCCESS && milliseconds >= 0) {
    struct vgpu_marked marked = mark->marked;
    __atomic_sub_fetch(&vgpu_marks_under_way, 1, __ATOMIC_RELAXED);
    vgpu_pair_put_back(&mark->pair, VGPU_PAIR_FREE);
    settle_measured(&marked, (uint64_t)((double)milliseconds * 1e6));
  } else {
    vgpu_pair_drop_events(&mark->pair, false); /* whatever is wrong with them, others may do better */
    settle_failed(mark);
    vgpu_pair_put_back(&mark->pair, VGPU_PAIR_FREE);
  }
  return true;
}

unsigned vgpu_marks_harvest(bool all) {
  unsigned done = 0, asked = 0, not_ready = 0;
  if (__atomic_load_n(&vgpu_marks_under_way, __ATOMIC_RELAXED) == 0) return 0;
  vgpu_check_fork();
  if (vgpu_is_held()) return 0;
  uint32_t first = __atomic_load_n(&next_look, __ATOMIC_RELAXED);
  for (uint32_t i = 0; i < MARKS; i++) {
    struct vgpu_mark *mark = &marks[(first + i) % MARKS];
    if (!vgpu_pair_take(&mark->pair, VGPU_PAIR_UNDER_WAY)) continue;
    bool is_done = harvest(mark);
    done += is_done;
    not_ready += !is_done;
    if (all || (++asked < LOOK_AT && not_ready < NOT_READY_ENOUGH)) continue;
    __atomic_store_n(&next_look, (first + i + 1) % MARKS, __ATOMIC_RELAXED);
    break;
  }
  return done;
}

/* (What a thread has that launches in a context while another one ends it is theirs to answer for.) */
struct vgpu_parked vgpu_marks_park(CUcontext context) {
  vgpu_marks_harvest(true);
  return (struct vgpu_parked){take_all(VGPU_PAIR_UNDER_WAY, context), take_all(VGPU_PAIR_FREE, context),
                              vgpu_samples_park(context)};
}

void vgpu_marks_resume(struct vgpu_parked parked) {
  put_all_back(parked.under_way, VGPU_PAIR_UNDER_WAY);
  put_all_back(parked.idle, VGPU_PAIR_FREE);
  vgpu_samples_resume(parked.samples);
}

void vgpu_marks_end_context(struct vgpu_parked parked) {
  uint64_t all = parked.under_way | parked.idle;
  settle_by_clock(parked.under_way);
  for (uint64_t left = all; left != 0; left &= left - 1)
    vgpu_pair_drop_events(&marks[__builtin_ctzll(left)].pair, false);
  put_all_back(all, VGPU_PAIR_FREE);
  vgpu_samples_end_context(parked.samples);
}

void vgpu_marks_forget(void) {
  for (int i = 0; i < MARKS; i++)
    marks[i] = (struct vgpu_mark){.pair = {.state = VGPU_PAIR_FREE}};
  vgpu_marks_under_way = 0;
  vgpu_samples_forget();
}
