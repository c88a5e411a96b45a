/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * rate.c - buying GPU time. Contract in rate.h; accounts in account.c, launches that are
 * under way in pending.c, the line in line.c and trust.c, taking turns in turn.c.
 *
 * An account is a word that says how much was bought, held against a line. Up to three have to have credit:
 *
 *   spent_ns of the usage page, against the line of the limits page    what the container may have
 *   own_spent_ns, private, against the same line                       holds when the usage page is tampered with
 *   ceiling_spent_ns, private, against a line of the environment's     what this process may have
 *
 * The private ones are looked at first and added to last. With an honest usage page own_spent_ns never refuses
 * what spent_ns admits. Garbage in the shared word is worth one burst at most (account.h), and the private word does not
 * know of that, either.
 */
#include "rate.h"

#include "account.h"
#include "pending.h"
#include "slot.h"
#include "trust.h"
#include "turn.h"

enum {
  ASKED_EVERY_NS = 1000000,     /* shared words that say "now" are written at most so often */
  ATTACH_EVERY_NS = 1000000000, /* and a slot is looked for */
  MIX_NS = 1000000000,          /* what is bought for collectives and others is halved at this */
  PAUSE_MAX_NS = 1000000000     /* longer breaks between two requests are no time in which launches went on */
};

static bool has_ceiling(const struct vgpu_rate_book *rate) {
  return rate->ceiling_ppm < VGPU_PPM;
}

static bool has_line(const struct vgpu_rate_book *rate) {
  return vgpu_load_relaxed(&vgpu_rate_limits(rate)->compute_mode) != VGPU_COMPUTE_NONE;
}

/* The line of the environment's ceiling: the same for all time. */
static struct vgpu_line ceiling_line(const struct vgpu_rate_book *rate) {
  struct vgpu_line line = {.rate_ppm = vgpu_share_bounded(rate->ceiling_ppm), .scale_ppm = VGPU_PPM};
  return line;
}

static struct vgpu_account shared_account(struct vgpu_rate_book *rate, const struct vgpu_line *line, uint64_t now_ns) {
  struct vgpu_usage_device *usage = vgpu_rate_usage(rate);
  return vgpu_account_of(&usage->spent_ns, &usage->even_ns, line, now_ns);
}

static struct vgpu_account own_account(struct vgpu_rate_book *rate, const struct vgpu_line *line, uint64_t now_ns) {
  return vgpu_account_of(&rate->own_spent_ns, &rate->own_even_ns, line, now_ns);
}

static struct vgpu_account ceiling_account(struct vgpu_rate_book *rate, const struct vgpu_line *line, uint64_t now_ns) {
  return vgpu_account_of(&rate->ceiling_spent_ns, &rate->ceiling_even_ns, line, now_ns);
}

/* Our slot, which is looked for now and then if there is none; NULL. */
static struct vgpu_usage_slot_device *own_books(struct vgpu_rate_book *rate, uint64_t now_ns) {
  struct vgpu_book *book = rate->book;
  struct vgpu_usage_slot_device *books = vgpu_rate_slot(rate);
  uint64_t last = vgpu_load_relaxed(&rate->attached_ns);
  if (books != NULL) {
    return books;
  }
  if ((last != 0 && now_ns - last < ATTACH_EVERY_NS) || vgpu_slot_enter(book) != 0) {
    return NULL;
  }
  vgpu_store_relaxed(&rate->attached_ns, now_ns);
  bool ours = vgpu_slot_ensure(book) == 0;
  struct vgpu_usage_slot *slot = vgpu_slot_at(book, book->slot_index);
  vgpu_slot_leave(book);
  return ours ? vgpu_slot_device(slot, rate->device) : NULL;
}

/* Says that GPU time is wanted, and for how long nobody has steered. */
static void tell_wanted(struct vgpu_rate_book *rate, uint64_t now_ns) {
  struct vgpu_usage_device *usage = vgpu_rate_usage(rate);
  uint64_t last = vgpu_load_relaxed(&usage->wanted_ns), since = now_ns - last;
  if (since < ASKED_EVERY_NS ||
      !__atomic_compare_exchange_n(&usage->wanted_ns, &last, now_ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    return;
  }
  if (vgpu_load_relaxed(&rate->is_stale) && since < PAUSE_MAX_NS) {
    __atomic_fetch_add(&usage->degraded_ns, since, __ATOMIC_RELAXED);
  }
}

static void tell_bought(struct vgpu_rate_book *rate, uint64_t now_ns) {
  struct vgpu_usage_device *usage = vgpu_rate_usage(rate);
  vgpu_store_relaxed(&rate->bought_ns, now_ns);
  if (now_ns - vgpu_load_relaxed(&usage->bought_ns) >= ASKED_EVERY_NS) {
    vgpu_store_relaxed(&usage->bought_ns, now_ns);
  }
}

/* Books `amount` of GPU time in the private accounts, and as served. */
static void book_own(struct vgpu_rate_book *rate, const struct vgpu_account *own, const struct vgpu_account *ceiling,
                     uint64_t amount, struct vgpu_usage_slot_device *books) {
  uint64_t taken = amount;
  if (has_ceiling(rate)) {
    vgpu_account_take(ceiling, &taken, 0, true);
  }
  if (has_line(rate)) {
    vgpu_account_take(own, &taken, 0, true);
  }
  uint64_t served = __atomic_add_fetch(&rate->served_ns, amount, __ATOMIC_RELAXED);
  if (books != NULL) {
    vgpu_store_relaxed(&books->served_ns, served);
  }
}

void vgpu_rate_open(struct vgpu_rate_book *rate, struct vgpu_book *book, uint32_t device, uint32_t ceiling_ppm) {
  *rate = (struct vgpu_rate_book){
      .book = book, .device = device, .ceiling_ppm = ceiling_ppm, .spin_left_ns = VGPU_SPIN_FREE_NS};
}

/* Buys from the shared word, if this process may have it and it is its turn. 0, or how long to wait. */
static uint64_t buy_shared(struct vgpu_rate_book *rate, const struct vgpu_account *own, uint64_t now_ns, bool force,
                           uint64_t *amount, struct vgpu_usage_slot_device *books) {
  struct vgpu_account shared = shared_account(rate, own->line, now_ns);
  uint64_t ahead = own->burst_ns / 10 < VGPU_GRAB_NS ? own->burst_ns / 10 : VGPU_GRAB_NS;
  uint64_t wait = force ? 0 : vgpu_larger(vgpu_account_wait_ns(own), vgpu_account_wait_ns(&shared));
  bool others = books != NULL && vgpu_turn_ask(rate, books, now_ns, *amount, wait == 0);
  if (wait == 0 && others && !force) {
    wait = VGPU_TURN_LOOK_NS;
  }
  return wait != 0 ? wait : vgpu_account_take(&shared, amount, force ? 0 : ahead, force);
}

uint64_t vgpu_rate_buy(struct vgpu_rate_book *rate, uint64_t cost_ns, uint64_t now_ns, bool force,
                       uint64_t *bought_ns) {
  struct vgpu_line line, ceiling = ceiling_line(rate);
  struct vgpu_usage_slot_device *books = own_books(rate, now_ns);
  uint64_t cost = cost_ns < VGPU_COST_MAX_NS ? cost_ns : VGPU_COST_MAX_NS;
  vgpu_trust_heartbeat(rate, now_ns);
  tell_wanted(rate, now_ns);
  bool whole = vgpu_trust_line(rate, now_ns, &line);
  struct vgpu_account own = own_account(rate, &line, now_ns), capped = ceiling_account(rate, &ceiling, now_ns);
  uint64_t need = vgpu_times_ppm(cost, line.scale_ppm), amount = need;
  uint64_t wait = has_ceiling(rate) && !force ? vgpu_account_wait_ns(&capped) : 0;
  if (wait == 0 && has_line(rate)) {
    wait = whole || force ? buy_shared(rate, &own, now_ns, force, &amount, books) : VGPU_WAIT_MIN_NS;
  }
  if (wait != 0) {
    return wait;
  }
  book_own(rate, &own, &capped, amount, books);
  tell_bought(rate, now_ns);
  *bought_ns = cost_ns + (amount - need) * VGPU_PPM / line.scale_ppm;
  __atomic_fetch_add(&vgpu_rate_usage(rate)->charged_ns, *bought_ns, __ATOMIC_RELAXED);
  return 0;
}

/* Adds to what was bought, scaled; `amount` is modulo 2^64, so it may be a difference. */
static void add_spent(struct vgpu_rate_book *rate, uint64_t amount) {
  __atomic_fetch_add(&vgpu_rate_usage(rate)->spent_ns, amount, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&rate->own_spent_ns, amount, __ATOMIC_RELAXED);
  __atomic_fetch_add(&rate->ceiling_spent_ns, amount, __ATOMIC_RELAXED);
  __atomic_fetch_add(&rate->served_ns, amount, __ATOMIC_RELAXED);
}

void vgpu_rate_correct(struct vgpu_rate_book *rate, int64_t more_ns) {
  struct vgpu_line line;
  vgpu_line_read(vgpu_rate_limits(rate), &line);
  uint64_t estimate = more_ns < 0 ? -(uint64_t)more_ns : (uint64_t)more_ns;
  estimate = estimate < VGPU_COST_MAX_NS ? estimate : VGPU_COST_MAX_NS;
  uint64_t amount = vgpu_times_ppm(estimate, line.scale_ppm);
  add_spent(rate, more_ns < 0 ? -amount : amount);
  __atomic_fetch_add(&vgpu_rate_usage(rate)->charged_ns, more_ns < 0 ? -estimate : estimate, __ATOMIC_RELAXED);
}

void vgpu_rate_measured(struct vgpu_rate_book *rate, uint64_t more_ns, uint64_t elapsed_ns, uint64_t now_ns) {
  struct vgpu_line line, ceiling = ceiling_line(rate);
  vgpu_trust_line(rate, now_ns, &line);
  struct vgpu_account shared = shared_account(rate, &line, now_ns), own = own_account(rate, &line, now_ns);
  struct vgpu_account capped = ceiling_account(rate, &ceiling, now_ns);
  uint64_t estimate = more_ns < VGPU_COST_MAX_NS ? more_ns : VGPU_COST_MAX_NS;
  uint64_t amount = vgpu_times_ppm(estimate, line.scale_ppm);
  uint64_t own_ns = vgpu_times_ppm(vgpu_load_relaxed(&rate->under_way_ns), line.scale_ppm);
  vgpu_account_book(&shared, amount, elapsed_ns, vgpu_times_ppm(vgpu_rate_all_under_way(rate), line.scale_ppm));
  vgpu_account_book(&own, amount, elapsed_ns, own_ns);
  vgpu_account_book(&capped, amount, elapsed_ns, own_ns);
  __atomic_fetch_add(&rate->served_ns, amount, __ATOMIC_RELAXED);
  __atomic_fetch_add(&vgpu_rate_usage(rate)->charged_ns, estimate, __ATOMIC_RELAXED);
}

void vgpu_rate_mix(struct vgpu_rate_book *rate, uint64_t ns, bool is_collective) {
  uint64_t *own = is_collective ? &rate->collective_ns : &rate->ordinary_ns;
  uint64_t *other = is_collective ? &rate->ordinary_ns : &rate->collective_ns;
  uint64_t sum = vgpu_load_relaxed(own) + (ns < MIX_NS ? ns : MIX_NS);
  if (sum > MIX_NS) {
    sum /= 2;
    vgpu_store_relaxed(other, vgpu_load_relaxed(other) / 2);
  }
  vgpu_store_relaxed(own, sum);
  if (is_collective) {
    uint64_t left = vgpu_load_relaxed(&rate->spin_left_ns) + ns / VGPU_SPIN_PART;
    vgpu_store_relaxed(&rate->spin_left_ns, left < VGPU_SPIN_FREE_NS ? left : VGPU_SPIN_FREE_NS);
  }
}

bool vgpu_rate_is_mixed(const struct vgpu_rate_book *rate) {
  return vgpu_load_relaxed(&rate->ordinary_ns) * VGPU_MIXED_PART > vgpu_load_relaxed(&rate->collective_ns);
}

/* How much of what was spun need not be paid. */
static uint64_t forgive(struct vgpu_rate_book *rate, uint64_t spun) {
  uint64_t forgiven = spun - spun / VGPU_SPIN_PART, left = vgpu_load_relaxed(&rate->spin_left_ns);
  if (vgpu_rate_is_mixed(rate)) {
    return forgiven;
  }
  forgiven = forgiven < left ? forgiven : left;
  vgpu_store_relaxed(&rate->spin_left_ns, left - forgiven);
  return forgiven;
}

void vgpu_rate_spun(struct vgpu_rate_book *rate, uint64_t spun_ns) {
  struct vgpu_line line;
  vgpu_line_read(vgpu_rate_limits(rate), &line);
  uint64_t spun = spun_ns < VGPU_COST_MAX_NS ? spun_ns : VGPU_COST_MAX_NS;
  add_spent(rate, vgpu_times_ppm(spun - forgive(rate, spun), line.scale_ppm));
  __atomic_fetch_add(&vgpu_rate_usage(rate)->charged_ns, spun, __ATOMIC_RELAXED);
}

void vgpu_rate_waiting(struct vgpu_rate_book *rate, uint64_t now_ns, uint64_t until_ns, uint64_t waited_ns) {
  struct vgpu_usage_slot_device *books = own_books(rate, now_ns);
  struct vgpu_usage_device *usage = vgpu_rate_usage(rate);
  vgpu_store_relaxed(&rate->renewed_ns, now_ns);
  if (waited_ns == 0) {
    __atomic_add_fetch(&rate->waiters, 1, __ATOMIC_RELAXED);
  }
  if (now_ns - vgpu_load_relaxed(&usage->waited_ns) >= ASKED_EVERY_NS) {
    vgpu_store_relaxed(&usage->waited_ns, now_ns);
  }
  __atomic_fetch_add(&usage->throttled_ns, waited_ns, __ATOMIC_RELAXED);
  if (books != NULL) {
    vgpu_store_relaxed(&books->waiting_ns, until_ns);
    __atomic_fetch_add(&books->throttled_ns, waited_ns, __ATOMIC_RELAXED);
  }
}

void vgpu_rate_waited(struct vgpu_rate_book *rate, uint64_t now_ns, uint64_t waited_ns) {
  struct vgpu_usage_slot_device *books = own_books(rate, now_ns);
  __atomic_fetch_add(&vgpu_rate_usage(rate)->throttled_ns, waited_ns, __ATOMIC_RELAXED);
  uint32_t waiters = vgpu_lower(&rate->waiters);
  if (books == NULL) {
    return;
  }
  __atomic_fetch_add(&books->throttled_ns, waited_ns, __ATOMIC_RELAXED);
  if (waiters <= 1) {
    vgpu_store_relaxed(&books->waiting_ns, vgpu_turn_over(now_ns));
  }
}

void vgpu_rate_count(struct vgpu_rate_book *rate, uint64_t launches, uint64_t now_ns) {
  struct vgpu_usage_slot_device *books = own_books(rate, now_ns);
  __atomic_fetch_add(&vgpu_rate_usage(rate)->launches, launches, __ATOMIC_RELAXED);
  if (books != NULL) {
    __atomic_fetch_add(&books->launches, launches, __ATOMIC_RELAXED);
  }
}

uint64_t vgpu_rate_debt_ns(struct vgpu_rate_book *rate, uint64_t now_ns) {
  struct vgpu_line line, ceiling = ceiling_line(rate);
  uint64_t debt = 0;
  vgpu_trust_line(rate, now_ns, &line);
  struct vgpu_account accounts[] = {shared_account(rate, &line, now_ns), own_account(rate, &line, now_ns),
                                    ceiling_account(rate, &ceiling, now_ns)};
  size_t from = has_line(rate) ? 0 : 2, to = has_ceiling(rate) ? 3 : 2;
  for (size_t i = from; i < to; i++) {
    debt = vgpu_larger(debt, vgpu_account_debt_ns(&accounts[i]));
  }
  return debt;
}

uint64_t vgpu_rate_idle_ns(const struct vgpu_rate_book *rate, uint64_t now_ns) {
  uint64_t own = vgpu_load_relaxed(&rate->bought_ns);
  uint64_t shared = vgpu_load_relaxed(&vgpu_rate_usage(rate)->bought_ns);
  uint64_t last = shared <= now_ns && shared > own ? shared : own; /* a time to come is damage */
  return last == 0 ? UINT64_MAX : now_ns > last ? now_ns - last : 0;
}

uint32_t vgpu_rate_ppm(const struct vgpu_rate_book *rate) {
  struct vgpu_line line = {.rate_ppm = VGPU_PPM};
  if (has_line(rate)) {
    vgpu_line_read(vgpu_rate_limits(rate), &line);
  }
  uint32_t ceiling = has_ceiling(rate) ? vgpu_share_bounded(rate->ceiling_ppm) : line.rate_ppm;
  return ceiling < line.rate_ppm ? ceiling : line.rate_ppm;
}

bool vgpu_rate_is_open(const struct vgpu_rate_book *rate) {
  uint32_t mode = vgpu_load_relaxed(&vgpu_rate_limits(rate)->compute_mode);
  return (mode == VGPU_COMPUTE_ELASTIC || mode == VGPU_COMPUTE_NONE) && vgpu_rate_ppm(rate) >= VGPU_OPEN_PPM;
}

bool vgpu_rate_is_left(const struct vgpu_rate_book *rate, uint64_t now_ns) {
  uint32_t heartbeat = vgpu_load_relaxed(&rate->book->limits->heartbeat);
  uint64_t seen_ns = vgpu_load_relaxed(&rate->heartbeat_seen_ns);
  return heartbeat != 0 && heartbeat == vgpu_load_relaxed(&rate->heartbeat) && now_ns > seen_ns &&
         now_ns - seen_ns > VGPU_LATE_NS;
}

bool vgpu_rate_is_alone(const struct vgpu_rate_book *rate) {
  struct vgpu_line line;
  if (vgpu_load_relaxed(&rate->book->limits->heartbeat) == 0) {
    return true;
  }
  vgpu_line_read(vgpu_rate_limits(rate), &line);
  return (line.flags & VGPU_RATE_ALONE) != 0 && !vgpu_load_relaxed(&rate->is_stale);
}
