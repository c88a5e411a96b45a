/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * cost.c - contract in cost.h.
 *
 * The mean of all samples is what launches of a key cost on average, whatever their durations. It holds only if the
 * samples are chosen without regard to the duration: so a key that has had a long launch among short ones is measured
 * every time, and corrected every time, until it has had none for long. A first sample may hold what the driver
 * does once (loading the code), so the second one takes its place.
 *
 * The lower envelope is an expectile: a sample below the estimate moves it by half of the difference, one above it by
 * a sixteenth. It lies above the shortest time, so one odd sample does not decide, and it is near the true time as
 * long as one sample in nine was not interrupted.
 */
#include "cost.h"

#include "rate.h"
#include "slot.h"

#define KEY_FACTOR 0x9e3779b97f4a7c15ULL
#define KEY_LAST UINT64_MAX                           /* of the entry of last resort */
#define ELAPSED_MIN_NS ((uint64_t)500)                /* what the GPU's clock resolves */
#define ELAPSED_MAX_NS ((uint64_t)86400 * 1000000000) /* above: the driver gave nonsense */

enum {
  MEAN_SAMPLES = 16,         /* the mean follows changes as one over so many samples, */
  MEAN_SAMPLES_WIDE = 256,   /* or over so many where they differ much */
  FALL_SHIFT = 1,            /* the envelope falls by this part (a power of two) of a difference, */
  RISE_SHIFT = 4,            /* and rises by this */
  RISE_SHIFT_COLLECTIVE = 6, /* (that of collectives, which falls all the way, by this), */
  DEVIATION_SHIFT = 5,       /* the deviation follows by this */
  STEADY_PART = 10,          /* steady: the deviation is at most this part of the estimate, */
  WIDE_PART = 4,             /* they differ much: from this part on, */
  NARROW_PART = 16,          /* to this part */
  STEADY_SAMPLES = 8,        /* after so many samples */
  ABOVE_MOST = 16,           /* samples in a row above twice the estimate */
  USUAL_SAMPLES = 256,       /* the slow mean of the estimate is one over so many samples */
  PEAK_SHIFT = 4,            /* the largest sample is forgotten by this part with each one */
  GUESSES_BELIEVED = 4096    /* guesses that are put right, at most */
};

/* Twice the logarithm to the base of 2, rounded down. */
static uint64_t half_octaves(uint64_t value) {
  if (value < 2) {
    return value;
  }
  uint64_t octave = 63 - (uint64_t)__builtin_clzll(value);
  return 2 * octave + (value >> (octave - 1) & 1);
}

static uint64_t key_of(const void *function, uint64_t blocks, uint32_t threads) {
  uint64_t key = (uint64_t)(uintptr_t)function * KEY_FACTOR;
  key = (key ^ key >> 32 ^ (half_octaves(blocks) << 8 | half_octaves(threads))) * KEY_FACTOR;
  return key != 0 && key != KEY_LAST ? key : 1;
}

struct vgpu_cost *vgpu_cost_find(struct vgpu_costs *costs, const void *function, uint64_t blocks, uint32_t threads) {
  uint64_t key = key_of(function, blocks, threads);
  for (uint64_t probe = 0; probe < VGPU_COST_PROBES; probe++) {
    struct vgpu_cost *entry = &costs->entries[((key >> 40) + probe) % VGPU_COST_ENTRIES];
    uint64_t found = vgpu_load_relaxed(&entry->key);
    if (found == key) {
      return entry;
    }
    if (found == 0 &&
        (__atomic_compare_exchange_n(&entry->key, &found, key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
         found == key)) {
      return entry;
    }
  }
  return &costs->last_resort;
}

static uint32_t count_launch(struct vgpu_cost *cost) {
  uint32_t launches = vgpu_load_relaxed(&cost->launches);
  vgpu_store_relaxed(&cost->launches, launches + 1);
  return launches;
}

enum vgpu_cost_step vgpu_cost_next(struct vgpu_cost *cost) {
  uint32_t flags = vgpu_load_relaxed(&cost->flags);
  if (vgpu_load_relaxed(&cost->cost_ns) == 0) {
    return vgpu_load(&cost->first) != 0 ? VGPU_COST_BUSY : VGPU_COST_FIRST;
  }
  uint32_t launches = count_launch(cost);
  if ((flags & VGPU_COST_UNSETTLED) != 0) {
    return VGPU_COST_SETTLE;
  }
  bool each = (flags & VGPU_COST_LONG) != 0;
  return each || vgpu_cost_is_due(launches, flags) ? VGPU_COST_SAMPLE : VGPU_COST_CHARGE;
}

bool vgpu_cost_claim(struct vgpu_cost *cost) {
  if (__atomic_exchange_n(&cost->first, 1, __ATOMIC_ACQ_REL) != 0) {
    return false;
  }
  if (vgpu_load(&cost->cost_ns) != 0) {
    vgpu_store(&cost->first, 0u); /* it has just become known */
    return false;
  }
  count_launch(cost);
  return true;
}

uint64_t vgpu_cost_price(const struct vgpu_cost *cost) {
  uint64_t known = vgpu_load_relaxed(&cost->cost_ns), peak = (uint64_t)vgpu_load_relaxed(&cost->peak_us) * 1000;
  uint32_t flags = vgpu_load_relaxed(&cost->flags);
  if ((flags & VGPU_COST_COLLECTIVE) != 0 && peak > VGPU_COST_SPIN_NS) {
    peak = VGPU_COST_SPIN_NS;
  }
  return known > peak ? known : peak;
}

uint64_t vgpu_cost_guess(struct vgpu_cost *cost) {
  uint64_t known = vgpu_load_relaxed(&cost->cost_ns);
  if (known != 0) {
    return (vgpu_load_relaxed(&cost->flags) & VGPU_COST_UNSETTLED) != 0 ? vgpu_cost_price(cost) : known;
  }
  __atomic_fetch_add(&cost->guesses, 1, __ATOMIC_RELAXED);
  return VGPU_COST_GUESS_NS;
}

void vgpu_cost_give_up(struct vgpu_cost *cost) {
  vgpu_store(&cost->first, 0u);
}

/* The estimate after sample number `samples` (from 1), by the flags of the key. */
static uint64_t estimate(uint64_t cost, uint64_t sample, uint32_t samples, bool alone, uint32_t flags) {
  bool wide = (flags & VGPU_COST_WIDE) != 0;
  bool collective = (flags & VGPU_COST_COLLECTIVE) != 0;
  if (samples <= 1 || (samples == 2 && (alone || sample < cost))) {
    return sample;
  }
  if (alone) {
    uint64_t most = wide ? MEAN_SAMPLES_WIDE : MEAN_SAMPLES, weight = samples - 1 < most ? samples - 1 : most;
    return sample > cost ? cost + (sample - cost) / weight : cost - (cost - sample) / weight;
  }
  if (sample > cost) {
    return cost + ((sample - cost) >> (collective ? RISE_SHIFT_COLLECTIVE : RISE_SHIFT));
  }
  return collective ? sample : cost - ((cost - sample) >> FALL_SHIFT);
}

/* The flags after one more sample. What decides how often launches are measured, and how fast the mean moves, must not
 * follow the estimate about: else it would be measured less, or move more, just when it is too low. So the deviation is
 * a slow mean, and there is a gap between becoming wide and being so no longer. */
static void mark(struct vgpu_cost *cost, uint64_t sample, uint64_t difference, uint64_t after, uint32_t samples) {
  uint32_t launches = vgpu_load_relaxed(&cost->launches), flags = vgpu_load_relaxed(&cost->flags);
  uint64_t spread = vgpu_load_relaxed(&cost->deviation_ns);
  uint32_t wanted = flags & ~(uint32_t)(VGPU_COST_LONG | VGPU_COST_STEADY | VGPU_COST_UNSETTLED);
  wanted |= samples < VGPU_COST_FRESH ? VGPU_COST_UNSETTLED : 0U;
  if (sample >= VGPU_COST_LONG_NS || after >= VGPU_COST_LONG_NS) {
    vgpu_store_relaxed(&cost->long_launch, launches);
    wanted |= VGPU_COST_LONG;
  } else if ((flags & VGPU_COST_LONG) != 0 && launches - vgpu_load_relaxed(&cost->long_launch) < VGPU_COST_LONG_AGO) {
    wanted |= VGPU_COST_LONG;
  }
  spread = samples <= 2 ? difference : spread - (spread >> DEVIATION_SHIFT) + (difference >> DEVIATION_SHIFT);
  vgpu_store_relaxed(&cost->deviation_ns, spread);
  if (spread > after / WIDE_PART) {
    wanted |= VGPU_COST_WIDE;
  } else if (spread < after / NARROW_PART) {
    wanted &= ~(uint32_t)VGPU_COST_WIDE;
  }
  if (samples >= STEADY_SAMPLES && spread <= after / STEADY_PART && difference <= after / 2) {
    wanted |= VGPU_COST_STEADY;
  }
  if (wanted != flags) { /* whoever changed another flag meanwhile is not overruled */
    __atomic_compare_exchange_n(&cost->flags, &flags, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
}

/* True if the key's content is another by now: so many samples in a row are far above the mean of no distribution. (Far
 * below it they may be: of one with rare long ones. The estimate then falls as fast as a mean does.) */
static bool is_another(struct vgpu_cost *cost, uint64_t sample, uint64_t before) {
  uint32_t above = sample / 2 > before ? vgpu_load_relaxed(&cost->above) + 1U : 0;
  bool another = above >= ABOVE_MOST;
  vgpu_store_relaxed(&cost->above, (uint16_t)(another ? 0 : above));
  return another;
}

static void remember_peak(struct vgpu_cost *cost, uint64_t sample) {
  uint64_t most = sample < VGPU_COST_MAX_NS ? sample : VGPU_COST_MAX_NS, us = (most + 999) / 1000;
  uint32_t peak = vgpu_load_relaxed(&cost->peak_us);
  peak -= peak >> PEAK_SHIFT;
  vgpu_store_relaxed(&cost->peak_us, us > peak ? (uint32_t)us : peak);
}

/* The slow mean follows the estimate after sample number `samples` (from 1). */
static void follow_usual(struct vgpu_cost *cost, uint64_t after, uint32_t samples) {
  uint64_t usual = vgpu_load_relaxed(&cost->usual_ns), weight = samples < USUAL_SAMPLES ? samples : USUAL_SAMPLES;
  usual = samples <= 1 ? after : after > usual ? usual + (after - usual) / weight : usual - (usual - after) / weight;
  vgpu_store_relaxed(&cost->usual_ns, usual);
}

static int64_t too_low(uint64_t real, uint64_t charged) {
  real = real < VGPU_COST_MAX_NS ? real : VGPU_COST_MAX_NS;
  charged = charged < VGPU_COST_MAX_NS ? charged : VGPU_COST_MAX_NS;
  return (int64_t)real - (int64_t)charged;
}

/* What the guesses of a key that has just become known were too low by. */
static int64_t put_guesses_right(struct vgpu_cost *cost, uint64_t known) {
  uint32_t guesses = __atomic_exchange_n(&cost->guesses, 0, __ATOMIC_RELAXED);
  int64_t count = guesses < GUESSES_BELIEVED ? guesses : GUESSES_BELIEVED;
  int64_t each = too_low(known < VGPU_COST_MAX_NS / GUESSES_BELIEVED ? known : VGPU_COST_MAX_NS / GUESSES_BELIEVED,
                         VGPU_COST_GUESS_NS);
  return count * each;
}

uint64_t vgpu_cost_spun(const struct vgpu_cost *cost, uint64_t elapsed_ns, uint64_t own_ns) {
  bool collective = (vgpu_load_relaxed(&cost->flags) & VGPU_COST_COLLECTIVE) != 0;
  uint64_t elapsed = elapsed_ns < VGPU_COST_MAX_NS ? elapsed_ns : VGPU_COST_MAX_NS;
  return collective && elapsed_ns <= ELAPSED_MAX_NS && elapsed > own_ns ? elapsed - own_ns : 0;
}

int64_t vgpu_cost_learn(struct vgpu_cost *cost, uint64_t elapsed_ns, uint64_t charged_ns, bool alone) {
  uint64_t before = vgpu_load_relaxed(&cost->cost_ns);
  if (elapsed_ns > ELAPSED_MAX_NS) {
    vgpu_cost_give_up(cost);
    return charged_ns == 0 ? (int64_t)vgpu_cost_guess(cost) : 0;
  }
  bool collective = (vgpu_load_relaxed(&cost->flags) & VGPU_COST_COLLECTIVE) != 0;
  alone = alone && !collective;
  remember_peak(cost, elapsed_ns);
  if (collective && before == 0 && elapsed_ns > VGPU_COST_GUESS_NS) {
    elapsed_ns = VGPU_COST_GUESS_NS; /* who knows how long it spun */
  }
  uint64_t sample = elapsed_ns < ELAPSED_MIN_NS ? ELAPSED_MIN_NS : elapsed_ns;
  sample = sample < VGPU_COST_MAX_NS ? sample : VGPU_COST_MAX_NS;
  uint32_t samples = before != 0 ? vgpu_load_relaxed(&cost->samples) : 0;
  samples += samples < UINT16_MAX;
  uint32_t flags = vgpu_load_relaxed(&cost->flags);
  if (is_another(cost, sample, before)) {
    samples = 1;
  }
  uint64_t after = estimate(before, sample, samples, alone, flags);
  uint64_t difference = samples <= 1 ? 0 : sample > before ? sample - before : before - sample;
  vgpu_store_relaxed(&cost->samples, (uint16_t)samples);
  follow_usual(cost, after, samples);
  mark(cost, sample, difference, after, samples);
  vgpu_store(&cost->cost_ns, after);
  vgpu_store(&cost->first, 0u);
  bool exact = charged_ns == 0 ||
               (alone && before != 0 && ((flags & VGPU_COST_LONG) != 0 || sample >= VGPU_COST_LONG_NS || samples <= 2));
  bool whole = charged_ns != 0 || before == 0 || alone || sample < after;
  int64_t guessed = vgpu_load_relaxed(&cost->guesses) != 0 ? put_guesses_right(cost, after) : 0;
  return guessed + (exact ? too_low(whole ? sample : after, charged_ns) : 0);
}

void vgpu_cost_hold(struct vgpu_cost *cost) {
  uint64_t usual = vgpu_load_relaxed(&cost->usual_ns);
  if (vgpu_load_relaxed(&cost->cost_ns) != 0 && usual != 0) {
    vgpu_store(&cost->cost_ns, usual);
  }
}

void vgpu_cost_doubt(struct vgpu_cost *cost) {
  if (vgpu_load_relaxed(&cost->cost_ns) != 0) {
    __atomic_fetch_add(&cost->era, 1, __ATOMIC_RELAXED);
    vgpu_cost_unsettle(cost);
  }
}

void vgpu_cost_unsettle(struct vgpu_cost *cost) {
  vgpu_store_relaxed(&cost->samples, (uint16_t)0);
  __atomic_fetch_or(&cost->flags, VGPU_COST_UNSETTLED, __ATOMIC_RELAXED);
}

void vgpu_cost_forget(struct vgpu_cost *cost) {
  __atomic_fetch_add(&cost->era, 1, __ATOMIC_RELAXED);
  vgpu_store_relaxed(&cost->samples, (uint16_t)0);
  vgpu_store_relaxed(&cost->guesses, 0u);
  vgpu_store_relaxed(&cost->peak_us, 0u);
  vgpu_store_relaxed(&cost->flags, 0u);
  vgpu_store(&cost->cost_ns, (uint64_t)0);
  vgpu_store(&cost->first, 0u);
}
