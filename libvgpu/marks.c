/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * marks.c - contract in marks.h. A fixed set of pairs; a pair keeps its two events for as long as their context lives.
 * Each is worked on by the one thread that took it by compare-and-swap; no lock is held over a driver call.
 */
#include "marks.h"

#include "claim.h"
#include "clock.h"
#include "failures.h"
#include "holds.h"
#include "modules.h"
#include "state.h"
#include "table.h"

enum {
  NEGLIGIBLE_PART = 16, /* a call that took less than this part of the time measured changes little about it */
  MARKS = 64,           /* launches that are measured at the same time */
  LOOK_AT = 8,          /* pairs that one look asks for */
  NOT_READY_ENOUGH = 2  /* and after so many that are not done, it stops */
};

#define LOADING_NS ((uint64_t)200000) /* a launch whose call takes longer than this has loaded code */

enum { FREE, TAKEN, UNDER_WAY };

struct vgpu_mark {
  uint32_t state;    /* atomic */
  CUcontext context; /* that the events belong to; NULL: there are none yet. Atomic */
  CUevent begin, end;
  struct vgpu_marked marked;
};

static struct vgpu_mark marks[MARKS];
uint32_t vgpu_marks_under_way;
static uint32_t next_look; /* atomic; where the next look begins */

static bool take(struct vgpu_mark *mark, uint32_t from) {
  return __atomic_load_n(&mark->state, __ATOMIC_RELAXED) == from &&
         __atomic_compare_exchange_n(&mark->state, &from, TAKEN, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static void put_back(struct vgpu_mark *mark, uint32_t state) {
  __atomic_store_n(&mark->state, state, __ATOMIC_RELEASE);
}

static CUcontext context_of(const struct vgpu_mark *mark) {
  return __atomic_load_n(&mark->context, __ATOMIC_RELAXED);
}

/* A free pair of this context; else one without events; else one of another context. NULL. */
static struct vgpu_mark *take_free(CUcontext context) {
  for (int wanted = 0; wanted < 3; wanted++) {
    for (int i = 0; i < MARKS; i++) {
      CUcontext of = context_of(&marks[i]);
      bool is_it = wanted == 0 ? of == context : wanted == 1 ? of == NULL : of != context;
      if (is_it && take(&marks[i], FREE)) return &marks[i];
    }
  }
  return NULL;
}

/* Forgets the events; the driver is asked to destroy them if it may be. */
static void drop_events(struct vgpu_mark *mark, bool destroy) {
  __typeof__(&cuEventDestroy_v2) real = VGPU_REAL(cuEventDestroy_v2);
  CUcontext context = context_of(mark);
  int mode;
  __atomic_store_n(&mark->context, NULL, __ATOMIC_RELAXED);
  if (!destroy || !context || !real || !vgpu_hold_enter(&mode)) return;
  real(mark->begin);
  real(mark->end);
  vgpu_hold_leave(mode);
}

static bool create_events(struct vgpu_mark *mark, CUcontext context) {
  __typeof__(&cuEventCreate) create = VGPU_REAL(cuEventCreate);
  __typeof__(&cuEventDestroy_v2) destroy = VGPU_REAL(cuEventDestroy_v2);
  bool is_made = false;
  int mode;
  if (!create || !destroy || !vgpu_hold_enter(&mode)) return false;
  if (create(&mark->begin, 0) == CUDA_SUCCESS) {
    is_made = create(&mark->end, 0) == CUDA_SUCCESS;
    if (!is_made) destroy(mark->begin);
  }
  vgpu_hold_leave(mode);
  if (is_made) __atomic_store_n(&mark->context, context, __ATOMIC_RELAXED);
  return is_made;
}

static bool record(CUevent event, CUstream stream) {
  __typeof__(&cuEventRecord) real = VGPU_REAL(cuEventRecord);
  return real && !vgpu_is_held() && real(event, stream) == CUDA_SUCCESS;
}

/* Takes the pairs in `from` that are of this context; NULL: of any. */
static uint64_t take_all(uint32_t from, CUcontext context) {
  uint64_t taken = 0;
  for (int i = 0; i < MARKS; i++) {
    bool is_it = !context || context_of(&marks[i]) == context;
    if (is_it && take(&marks[i], from)) taken |= (uint64_t)1 << i;
  }
  return taken;
}

static void put_all_back(uint64_t taken, uint32_t state) {
  for (; taken != 0; taken &= taken - 1)
    put_back(&marks[__builtin_ctzll(taken)], state);
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
  uint64_t taken = take_all(UNDER_WAY, NULL);
  settle_by_clock(taken);
  put_all_back(taken, FREE);
}

/* libc's own list: we have no destructor, and the driver's come after what was registered after them. */
static void register_exit(void) {
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
  if (!mark) return NULL;
  if (context_of(mark) != context) {
    drop_events(mark, true);
    if (!create_events(mark, context)) return vgpu_mark_drop(mark), NULL;
  }
  if (record(mark->begin, stream)) return mark;
  vgpu_mark_drop(mark);
  return NULL;
}

struct vgpu_mark *vgpu_mark_begin(CUstream stream) {
  if (vgpu_is_held()) return NULL;
  register_exit();
  bool is_pushed = vgpu_push_context_of(stream);
  struct vgpu_mark *mark = begin(stream);
  if (is_pushed) vgpu_pop_context();
  return mark;
}

void vgpu_mark_drop(struct vgpu_mark *mark) {
  put_back(mark, FREE);
}

bool vgpu_mark_end(struct vgpu_mark *mark, CUstream stream, const struct vgpu_marked *marked) {
  mark->marked = *marked;
  bool is_pushed = vgpu_push_context_of(stream), is_recorded = record(mark->end, stream);
  if (is_pushed) vgpu_pop_context();
  if (is_recorded) __atomic_add_fetch(&vgpu_marks_under_way, 1, __ATOMIC_RELAXED);
  put_back(mark, is_recorded ? UNDER_WAY : FREE);
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

/* Asks the driver about a pair that this thread has taken. CUDA_ERROR_NOT_READY: not yet. */
static CUresult look(const struct vgpu_mark *mark, float *milliseconds) {
  __typeof__(&cuEventQuery) query = VGPU_REAL(cuEventQuery);
  __typeof__(&cuEventElapsedTime) elapsed = VGPU_REAL(cuEventElapsedTime);
  if (!query || !elapsed) return CUDA_ERROR_NOT_INITIALIZED;
  int mode;
  if (!vgpu_hold_enter(&mode)) return CUDA_ERROR_NOT_READY;
  CUresult result = query(mark->end);
  if (result == CUDA_SUCCESS) result = elapsed(milliseconds, mark->begin, mark->end);
  vgpu_hold_leave(mode);
  return result == CUDA_ERROR_INVALID_CONTEXT ? CUDA_ERROR_NOT_READY : result; /* no context is current here */
}

static void settle_measured(const struct vgpu_marked *marked, uint64_t elapsed_ns) {
  vgpu_failures_end(marked->ticket.cost);
  if (marked->extra_ns != 0) vgpu_rate_correct(&marked->pacer->rate, -(int64_t)marked->extra_ns);
  if (!is_unclean(marked, elapsed_ns)) vgpu_pace_measured(marked->pacer, &marked->ticket, elapsed_ns, vgpu_now_ns());
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
  CUresult result = look(mark, &milliseconds);
  if (result == CUDA_ERROR_NOT_READY) {
    put_back(mark, UNDER_WAY);
    return false;
  }
  if (result == CUDA_SUCCESS && milliseconds >= 0) {
    struct vgpu_marked marked = mark->marked;
    __atomic_sub_fetch(&vgpu_marks_under_way, 1, __ATOMIC_RELAXED);
    put_back(mark, FREE);
    settle_measured(&marked, (uint64_t)((double)milliseconds * 1e6));
  } else {
    drop_events(mark, false); /* whatever is wrong with them, others may do better */
    settle_failed(mark);
    put_back(mark, FREE);
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
    if (!take(mark, UNDER_WAY)) continue;
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
  return (struct vgpu_parked){take_all(UNDER_WAY, context), take_all(FREE, context)};
}

void vgpu_marks_resume(struct vgpu_parked parked) {
  put_all_back(parked.under_way, UNDER_WAY);
  put_all_back(parked.idle, FREE);
}

void vgpu_marks_end_context(struct vgpu_parked parked) {
  uint64_t all = parked.under_way | parked.idle;
  settle_by_clock(parked.under_way);
  for (uint64_t left = all; left != 0; left &= left - 1)
    drop_events(&marks[__builtin_ctzll(left)], false);
  put_all_back(all, FREE);
}

void vgpu_marks_forget(void) {
  for (int i = 0; i < MARKS; i++)
    marks[i] = (struct vgpu_mark){.state = FREE};
  vgpu_marks_under_way = 0;
}
