/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * marks.c - contract in marks.h. A fixed set of pairs; a pair keeps its two events for as long as their context lives.
 * Each is worked on by the one thread that took it by compare-and-swap; no lock is held over a driver call.
 */
#include "marks.h"

#include "claim.h"
#include "clock.h"
#include "core/sys.h"
#include "modules.h"
#include "table.h"

enum {
  NO_MODE = -1,
  NEGLIGIBLE_PART = 16, /* a call that took less than this part of the time measured changes little about it */
  MARKS = 64,           /* launches that are measured at the same time */
  LOOK_AT = 8,          /* pairs that one look asks for */
  NOT_READY_ENOUGH = 2, /* and after so many that are not done, it stops */
  HOLD_SPINS = 10000    /* yields; a thread that never leaves (cancelled, left by longjmp) is not waited for longer */
};

#define LONG_HOLD_NS ((uint64_t)200000000)
#define LOADING_NS ((uint64_t)200000) /* a launch whose call takes longer than this has loaded code */

enum { FREE, TAKEN, UNDER_WAY };

struct vgpu_mark {
  uint32_t state;    /* atomic */
  CUcontext context; /* that the events belong to; NULL: there are none yet. Atomic */
  CUevent begin, end;
  struct vgpu_pacer *pacer;
  struct vgpu_ticket ticket;
  uint64_t called_ns;
};

static struct vgpu_mark marks[MARKS];
uint32_t vgpu_marks_under_way;
static uint32_t next_look;     /* atomic; where the next look begins */
static uint32_t holds;         /* atomic */
static uint64_t held_since_ns; /* atomic; since when there has been one */
static uint32_t inside;        /* atomic; threads of ours in a driver call that a capture must not meet */

/* Whether the driver lets a thread say that its calls are not to spoil anybody's capture, and it is time for that: most
 * captures are over soon, and see nothing of us at all. */
static bool is_long_hold(void) {
  return VGPU_REAL(cuThreadExchangeStreamCaptureMode) &&
         vgpu_now_ns() - __atomic_load_n(&held_since_ns, __ATOMIC_RELAXED) > LONG_HOLD_NS;
}

bool vgpu_marks_are_held(void) {
  return __atomic_load_n(&holds, __ATOMIC_RELAXED) != 0 && !is_long_hold();
}

static void exchange_mode(int *mode) {
  __typeof__(&cuThreadExchangeStreamCaptureMode) exchange = VGPU_REAL(cuThreadExchangeStreamCaptureMode);
  if (*mode != NO_MODE && exchange) exchange(mode);
}

/* Before a driver call that a capture must not meet. Either this sees the hold, or the holder sees us and waits. *mode is
 * for leave. */
static bool enter(int *mode) {
  *mode = NO_MODE;
  __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&holds, __ATOMIC_SEQ_CST) == 0) return true;
  if (is_long_hold()) {
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    exchange_mode(mode);
    return true;
  }
  __atomic_sub_fetch(&inside, 1, __ATOMIC_RELEASE);
  return false;
}

static void leave(int mode) {
  exchange_mode(&mode);
  __atomic_sub_fetch(&inside, 1, __ATOMIC_RELEASE);
}

void vgpu_marks_hold(void) {
  if (__atomic_load_n(&holds, __ATOMIC_RELAXED) == 0) __atomic_store_n(&held_since_ns, vgpu_now_ns(), __ATOMIC_RELAXED);
  __atomic_add_fetch(&holds, 1, __ATOMIC_SEQ_CST);
  for (int i = 0; i < HOLD_SPINS && __atomic_load_n(&inside, __ATOMIC_SEQ_CST) != 0; i++)
    vgpu_sys_sched_yield();
}

void vgpu_marks_release(void) {
  __atomic_sub_fetch(&holds, 1, __ATOMIC_RELEASE);
}

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
  if (!destroy || !context || !real || !enter(&mode)) return;
  real(mark->begin);
  real(mark->end);
  leave(mode);
}

static bool create_events(struct vgpu_mark *mark, CUcontext context) {
  __typeof__(&cuEventCreate) create = VGPU_REAL(cuEventCreate);
  __typeof__(&cuEventDestroy_v2) destroy = VGPU_REAL(cuEventDestroy_v2);
  bool is_made = false;
  int mode;
  if (!create || !destroy || !enter(&mode)) return false;
  if (create(&mark->begin, 0) == CUDA_SUCCESS) {
    is_made = create(&mark->end, 0) == CUDA_SUCCESS;
    if (!is_made) destroy(mark->begin);
  }
  leave(mode);
  if (is_made) __atomic_store_n(&mark->context, context, __ATOMIC_RELAXED);
  return is_made;
}

static bool record(CUevent event, CUstream stream) {
  __typeof__(&cuEventRecord) real = VGPU_REAL(cuEventRecord);
  return real && !vgpu_marks_are_held() && real(event, stream) == CUDA_SUCCESS;
}

/* What ended before the program did is paid for; of what is still running, nobody will know. */
static void settle_at_exit(void *unused) {
  (void)unused;
  vgpu_marks_harvest(true);
  for (int i = 0; i < MARKS; i++) {
    if (!take(&marks[i], UNDER_WAY)) continue;
    vgpu_pace_unmeasured(marks[i].pacer, &marks[i].ticket);
    __atomic_sub_fetch(&vgpu_marks_under_way, 1, __ATOMIC_RELAXED);
    put_back(&marks[i], FREE);
  }
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
  if (vgpu_marks_are_held()) return NULL;
  register_exit();
  bool is_pushed = vgpu_push_context_of(stream);
  struct vgpu_mark *mark = begin(stream);
  if (is_pushed) vgpu_pop_context();
  return mark;
}

void vgpu_mark_drop(struct vgpu_mark *mark) {
  put_back(mark, FREE);
}

bool vgpu_mark_end(struct vgpu_mark *mark, CUstream stream, struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket,
                   uint64_t called_ns) {
  mark->pacer = pacer;
  mark->ticket = *ticket;
  mark->called_ns = called_ns;
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
static bool is_unclean(struct vgpu_pacer *pacer, const struct vgpu_ticket *ticket, uint64_t elapsed_ns,
                       uint64_t called_ns) {
  if (called_ns <= LOADING_NS || called_ns > elapsed_ns || called_ns < elapsed_ns / NEGLIGIBLE_PART) return false;
  uint32_t flags = __atomic_fetch_or(&ticket->cost->flags, VGPU_COST_UNCLEAN, __ATOMIC_RELAXED);
  if (flags & VGPU_COST_UNCLEAN) return false;
  uint64_t least = elapsed_ns < VGPU_COST_GUESS_NS ? elapsed_ns : VGPU_COST_GUESS_NS;
  uint64_t certain = elapsed_ns - called_ns;
  vgpu_cost_give_up(ticket->cost);
  vgpu_rate_correct(&pacer->rate, (int64_t)(certain > least ? certain : least));
  return true;
}

/* Asks the driver about a pair that this thread has taken. CUDA_ERROR_NOT_READY: not yet. */
static CUresult look(const struct vgpu_mark *mark, float *milliseconds) {
  __typeof__(&cuEventQuery) query = VGPU_REAL(cuEventQuery);
  __typeof__(&cuEventElapsedTime) elapsed = VGPU_REAL(cuEventElapsedTime);
  if (!query || !elapsed) return CUDA_ERROR_NOT_INITIALIZED;
  int mode;
  if (!enter(&mode)) return CUDA_ERROR_NOT_READY;
  CUresult result = query(mark->end);
  if (result == CUDA_SUCCESS) result = elapsed(milliseconds, mark->begin, mark->end);
  leave(mode);
  return result == CUDA_ERROR_INVALID_CONTEXT ? CUDA_ERROR_NOT_READY : result; /* no context is current here */
}

/* Looks at one pair that is under way. False: it is not done. */
static bool harvest(struct vgpu_mark *mark) {
  float milliseconds = 0;
  CUresult result = look(mark, &milliseconds);
  if (result == CUDA_ERROR_NOT_READY) {
    put_back(mark, UNDER_WAY);
    return false;
  }
  struct vgpu_ticket ticket = mark->ticket;
  struct vgpu_pacer *pacer = mark->pacer;
  uint64_t called_ns = mark->called_ns;
  if (result != CUDA_SUCCESS) drop_events(mark, false); /* whatever is wrong with them, others may do better */
  __atomic_sub_fetch(&vgpu_marks_under_way, 1, __ATOMIC_RELAXED);
  put_back(mark, FREE);
  uint64_t elapsed_ns = milliseconds > 0 ? (uint64_t)((double)milliseconds * 1e6) : 0;
  if (result == CUDA_SUCCESS && milliseconds >= 0) {
    if (!is_unclean(pacer, &ticket, elapsed_ns, called_ns)) vgpu_pace_measured(pacer, &ticket, elapsed_ns);
  } else {
    vgpu_pace_unmeasured(pacer, &ticket);
  }
  return true;
}

unsigned vgpu_marks_harvest(bool all) {
  unsigned done = 0, asked = 0, not_ready = 0;
  if (__atomic_load_n(&vgpu_marks_under_way, __ATOMIC_RELAXED) == 0 || vgpu_marks_are_held()) return 0;
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

void vgpu_marks_forget_context(CUcontext context) {
  for (int i = 0; i < MARKS; i++) {
    struct vgpu_mark *mark = &marks[i];
    if (context_of(mark) != context) continue;
    if (take(mark, UNDER_WAY)) {
      __atomic_sub_fetch(&vgpu_marks_under_way, 1, __ATOMIC_RELAXED);
      vgpu_pace_unmeasured(mark->pacer, &mark->ticket);
    } else if (!take(mark, FREE)) {
      continue; /* a thread launches in a context that another one ends: theirs to answer for */
    }
    drop_events(mark, true);
    put_back(mark, FREE);
  }
}

void vgpu_marks_forget(void) {
  for (int i = 0; i < MARKS; i++)
    marks[i] = (struct vgpu_mark){.state = FREE};
  vgpu_marks_under_way = 0;
  holds = 0;
  inside = 0;
}
