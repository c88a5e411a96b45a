/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * samples.c - contract in samples.h.
 */
#include "samples.h"

#include "claim.h"
#include "clock.h"
#include "core/sys.h"
#include "holds.h"
#include "marks.h"
#include "pairs.h"
#include "watch.h"

struct vgpu_timed {
  struct vgpu_pair pair;
  struct vgpu_usage_traffic *traffic;
  struct vgpu_sample sample;
  uint64_t most_ns;
};

uint32_t vgpu_samples_under_way;

static struct vgpu_timed all[VGPU_SAMPLES];
static uint64_t salt; /* atomic; 0: not drawn yet */

uint64_t vgpu_samples_salt(void) {
  uint64_t value = __atomic_load_n(&salt, __ATOMIC_RELAXED), drawn = 0;
  if (value != 0) return value;
  if (vgpu_sys_getrandom(&drawn, sizeof(drawn), VGPU_GRND_NONBLOCK) != (long)sizeof(drawn)) drawn = vgpu_ticks();
  drawn |= 1;
  return __atomic_compare_exchange_n(&salt, &value, drawn, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ? drawn : value;
}

static struct vgpu_timed *take_free(CUcontext context) {
  for (int wish = 0; wish < VGPU_PAIR_WISHES; wish++) {
    for (int i = 0; i < VGPU_SAMPLES; i++) {
      struct vgpu_pair *pair = &all[i].pair;
      if (vgpu_pair_suits(pair, context, wish) && vgpu_pair_take(pair, VGPU_PAIR_FREE)) return &all[i];
    }
  }
  return NULL;
}

/* In the context that is current. */
static struct vgpu_timed *begin(CUstream stream) {
  CUcontext context = vgpu_current_context();
  struct vgpu_timed *timed = context ? take_free(context) : NULL;
  if (!timed || vgpu_pair_begin(&timed->pair, context, stream)) return timed;
  vgpu_sample_drop(timed);
  return NULL;
}

struct vgpu_timed *vgpu_sample_begin(CUstream stream) {
  vgpu_check_fork();
  if (vgpu_is_held()) return NULL;
  vgpu_samples_harvest();
  vgpu_marks_register_exit();
  bool is_pushed = vgpu_push_context_of(stream);
  struct vgpu_timed *timed = begin(stream);
  if (is_pushed) vgpu_pop_context();
  return timed;
}

void vgpu_sample_drop(struct vgpu_timed *timed) {
  vgpu_pair_put_back(&timed->pair, VGPU_PAIR_FREE);
}

void vgpu_sample_end(struct vgpu_timed *timed, CUstream stream, struct vgpu_usage_traffic *traffic,
                     const struct vgpu_sample *sample, uint64_t most_ns) {
  timed->traffic = traffic;
  timed->sample = *sample;
  timed->most_ns = most_ns;
  bool is_recorded = vgpu_pair_end(&timed->pair, stream);
  if (is_recorded) __atomic_add_fetch(&vgpu_samples_under_way, 1, __ATOMIC_RELAXED);
  vgpu_pair_put_back(&timed->pair, is_recorded ? VGPU_PAIR_UNDER_WAY : VGPU_PAIR_FREE);
}

/* Looks at one that is under way, and was taken. */
static void look(struct vgpu_timed *timed) {
  float milliseconds = 0;
  CUresult result = vgpu_pair_look(&timed->pair, &milliseconds);
  if (result == CUDA_ERROR_NOT_READY) {
    vgpu_pair_put_back(&timed->pair, VGPU_PAIR_UNDER_WAY);
    return;
  }
  struct vgpu_timed copy = *timed;
  bool is_good = result == CUDA_SUCCESS && milliseconds >= 0;
  if (!is_good) vgpu_pair_drop_events(&timed->pair, false); /* whatever is wrong with them, others may do better */
  __atomic_sub_fetch(&vgpu_samples_under_way, 1, __ATOMIC_RELAXED);
  vgpu_pair_put_back(&timed->pair, VGPU_PAIR_FREE);
  if (!is_good) return;
  uint64_t ns = (uint64_t)((double)milliseconds * 1e6);
  copy.sample.ns = ns < copy.most_ns ? ns : copy.most_ns;
  if (copy.sample.kind == VGPU_CLASS_KERNEL || copy.sample.kind == VGPU_CLASS_GRAPH) vgpu_watch_took(copy.sample.ns);
  vgpu_traffic_sample(copy.traffic, &copy.sample, vgpu_now_ns());
}

void vgpu_samples_harvest(void) {
  if (__atomic_load_n(&vgpu_samples_under_way, __ATOMIC_RELAXED) == 0) return;
  vgpu_check_fork();
  if (vgpu_is_held()) return;
  for (int i = 0; i < VGPU_SAMPLES; i++) {
    if (vgpu_pair_take(&all[i].pair, VGPU_PAIR_UNDER_WAY)) look(&all[i]);
  }
}

static uint32_t take_all(uint32_t from, CUcontext context) {
  uint32_t taken = 0;
  for (int i = 0; i < VGPU_SAMPLES; i++) {
    struct vgpu_pair *pair = &all[i].pair;
    if (vgpu_pair_context(pair) == context && vgpu_pair_take(pair, from)) taken |= 1u << i;
  }
  return taken;
}

static void put_all_back(uint32_t taken, uint32_t state) {
  for (; taken != 0; taken &= taken - 1)
    vgpu_pair_put_back(&all[__builtin_ctz(taken)].pair, state);
}

struct vgpu_parked_samples vgpu_samples_park(CUcontext context) {
  vgpu_samples_harvest();
  return (struct vgpu_parked_samples){take_all(VGPU_PAIR_UNDER_WAY, context), take_all(VGPU_PAIR_FREE, context)};
}

void vgpu_samples_resume(struct vgpu_parked_samples parked) {
  put_all_back(parked.under_way, VGPU_PAIR_UNDER_WAY);
  put_all_back(parked.idle, VGPU_PAIR_FREE);
}

/* What was under way is never told. */
void vgpu_samples_end_context(struct vgpu_parked_samples parked) {
  uint32_t both = parked.under_way | parked.idle;
  for (uint32_t left = both; left != 0; left &= left - 1) {
    vgpu_pair_drop_events(&all[__builtin_ctz(left)].pair, false);
    bool was_under_way = (parked.under_way & left & -left) != 0;
    if (was_under_way) __atomic_sub_fetch(&vgpu_samples_under_way, 1, __ATOMIC_RELAXED);
  }
  put_all_back(both, VGPU_PAIR_FREE);
}

void vgpu_samples_forget(void) {
  for (int i = 0; i < VGPU_SAMPLES; i++)
    all[i] = (struct vgpu_timed){.pair = {.state = VGPU_PAIR_FREE}};
  vgpu_samples_under_way = 0;
  salt = 0;
}
