/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * slot.c - life of a slot of the usage page. Contract in slot.h.
 *
 *   claim     owner: 0 -> token (compare-and-swap), raise slot_high_water, clear and fill the fields,
 *             ready = token. A kill in between leaves ready != owner: the slot counts nothing.
 *   re-claim  of our own slot of an older epoch: owner: token -> new token, charges stay where they are. A reaper
 *             that judged the old token can then no longer succeed.
 *   reap      only of a token whose process is gone for good: fold the counters once (folded: x -> token),
 *             then owner: token -> 0 (compare-and-swap). Tokens are random and never used twice, so whatever
 *             happens between the judgement and the swap, no other registration can be hit. A kill in between is
 *             finished by the next reaper; at worst one dead process's counters (statistics) are lost.
 *
 * Half claimed (owner is set, ready is not it). Four things look so, and only the last is damage:
 *   1. a claim, in progress or killed, of a slot that another process left. That one was folded before its slot became
 *      free, so ready == folded. The charges are leavings.
 *   2. the same of a slot that nobody had before: ready and charges are 0, and so is the epoch, until all is written.
 *   3. a re-claim: ready is the older token, the charges are the claimer's own, the epoch is the older one, until all
 *      is written.
 *   4. what somebody scribbled there, over the slot of a process that may live and hold what the slot said.
 * 1 counts nothing. The others are in doubt, if of our epoch: their charges count like a claim of somebody else, which
 * is waited for (quota.c). A claimer that lives is ready in no time; one that was killed holds nothing, is found dead,
 * and its slot is freed: no lasting false refusal, unless a process is killed between the stores of epoch and ready
 * and its pid belongs to another one at once (then until the container starts again). Of 4, random bytes are known by
 * words that no process writes, wherever it is killed (damage.c): refused with -EPROTO before anything is
 * reaped, and told by the agent, too. What a process might have written is waited for, then refused, while its claimer
 * seems to live.
 * Not to be told from an honest page: a slot that somebody sets free (owner = 0), or gives to a dead owner or epoch.
 *
 * Nobody clears another's fields: the next claimer clears them, while the slot does not count.
 *
 * Known limit: a process that is alive in another pid namespace while the epoch is raised cannot be told from a
 * dead one. If its slot is taken over in the nanoseconds in which one of its threads is at work on it, that thread's
 * last stores land in the new owner's slot. They are undone by the new owner's next call, because every call stores
 * the whole value of a word, from private memory.
 */
#include "slot.h"

#include <errno.h>

#include "life.h"
#include "sys.h"

enum {
  LOOKS_PER_CLAIM = 16,        /* slots that a claim checks for dead owners on its way to a free one */
  UNREADY_GRACE_NS = 20000000, /* how long a claim may stay unfinished before its owner is looked at */
  ENTER_SPINS = 200,           /* then yield, */
  ENTER_YIELDS = 220,          /* then sleep, */
  ENTER_SLEEP_NS = 50000,      /* this long each time, */
  ENTER_TRIES = 50000          /* up to this try: a few seconds */
};

static uint64_t random_token(uint32_t pid) {
  static uint64_t sequence;
  uint64_t random = 0;
  if (vgpu_sys_getrandom(&random, sizeof(random), VGPU_GRND_NONBLOCK) != (long)sizeof(random)) {
    random = (uint64_t)vgpu_sys_monotonic_ns() + (vgpu_add(&sequence, 1) << 32);
    random *= 0x9e3779b97f4a7c15ULL;
  }
  return ((random | 1) << VGPU_PID_BITS) | (pid & VGPU_PID_MASK);
}

static bool swap(uint64_t *word, uint64_t from, uint64_t to) {
  return __atomic_compare_exchange_n(word, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static void raise_high_water(struct vgpu_usage_page *usage, uint32_t count) {
  uint32_t seen = vgpu_load(&usage->slot_high_water);
  while (seen < count && !__atomic_compare_exchange_n(&usage->slot_high_water, &seen, count, false, __ATOMIC_SEQ_CST,
                                                      __ATOMIC_SEQ_CST)) {
  }
}

static struct vgpu_process identity_of(struct vgpu_usage_slot *slot, uint64_t owner) {
  struct vgpu_process process = {
      .start_time = vgpu_load_relaxed(&slot->start_time),
      .start_stack = vgpu_load_relaxed(&slot->start_stack),
      .pid_namespace = vgpu_load_relaxed(&slot->pid_namespace),
      .pid = (uint32_t)(owner & VGPU_PID_MASK),
  };
  return process;
}

/* True if the registered process `owner` of `slot`, which is not this one's, is gone. Where its pid does not tell, its
 * lock does if it has one (life.h). One of an older epoch is gone unless it can be seen alive (it then counts no
 * longer, and registers again at its next call). */
static bool is_dead(struct vgpu_book *book, struct vgpu_usage_slot *slot, uint64_t owner) {
  struct vgpu_process process = identity_of(slot, owner);
  uint32_t epoch = vgpu_load_relaxed(&slot->epoch);
  bool has_lock = vgpu_load_relaxed(&slot->life_lock) == VGPU_LIFE_LOCKED;
  if (vgpu_load(&slot->owner) != owner) {
    return false;
  }
  enum vgpu_look look = vgpu_process_look(&book->self, &process);
  if (has_lock && look != VGPU_LOOK_ALIVE && look != VGPU_LOOK_DEAD) {
    enum vgpu_look by_lock = vgpu_life_look(book, owner);
    look = by_lock != VGPU_LOOK_UNKNOWN ? by_lock : look;
  }
  bool is_older = (int32_t)(epoch - vgpu_load_relaxed(&book->limits->epoch)) < 0;
  return is_older ? look != VGPU_LOOK_ALIVE : look != VGPU_LOOK_ALIVE && look != VGPU_LOOK_UNKNOWN;
}

/* Moves the counters of dead `owner` to the device totals, once. They no longer change, and are read before
 * `folded` says so, because the slot may be free for others right after. */
static void fold_counters(struct vgpu_book *book, struct vgpu_usage_slot *slot, uint64_t owner) {
  struct vgpu_usage_device *totals = (struct vgpu_usage_device *)(book->usage + 1);
  uint64_t counts[VGPU_MAX_DEVICES][4];
  uint64_t folded = vgpu_load(&slot->folded);
  for (uint32_t i = 0; i < book->device_count; i++) {
    struct vgpu_usage_slot_device *from = vgpu_slot_device(slot, i);
    counts[i][0] = vgpu_load_relaxed(&from->allocations);
    counts[i][1] = vgpu_load_relaxed(&from->frees);
    counts[i][2] = vgpu_load_relaxed(&from->refusals);
    counts[i][3] = vgpu_load_relaxed(&from->unknown);
  }
  if (folded == owner || vgpu_load(&slot->owner) != owner || !swap(&slot->folded, folded, owner)) {
    return;
  }
  for (uint32_t i = 0; i < book->device_count; i++) {
    vgpu_add(&totals[i].allocations, counts[i][0]);
    vgpu_add(&totals[i].frees, counts[i][1]);
    vgpu_add(&totals[i].refusals, counts[i][2]);
    if (counts[i][3] != 0) { /* it was charged a guess, and nobody will know: the next guess is higher */
      vgpu_store_relaxed(&totals[i].first_ns, 2 * vgpu_first_ns(&totals[i]));
    }
  }
}

/* Takes the slot back if its registered owner is dead. */
static bool reap_slot(struct vgpu_book *book, struct vgpu_usage_slot *slot) {
  uint64_t owner = vgpu_load(&slot->owner);
  if (owner == 0 || owner == book->token || vgpu_load(&slot->ready) != owner || !is_dead(book, slot, owner)) {
    return false;
  }
  fold_counters(book, slot, owner);
  return swap(&slot->owner, owner, 0);
}

/* True if the slot holds or tries for bytes of `device`. */
static bool holds_bytes(struct vgpu_usage_slot *slot, uint32_t device) {
  struct vgpu_usage_slot_device *books = vgpu_slot_device(slot, device);
  uint64_t any = vgpu_load_relaxed(&books->trying_bytes);
  for (int kind = 0; kind < VGPU_KIND_COUNT; kind++) {
    any |= vgpu_load_relaxed(&books->charged_bytes[kind]);
  }
  return any != 0;
}

uint32_t vgpu_slot_reap(struct vgpu_book *book, uint32_t device) {
  uint32_t epoch = vgpu_load_relaxed(&book->limits->epoch);
  uint32_t freed = 0;
  for (uint32_t i = 0; i < book->slot_count; i++) {
    struct vgpu_usage_slot *slot = vgpu_slot_at(book, i);
    bool wanted = device == VGPU_EVERY_DEVICE || (vgpu_slot_counts(slot, epoch) && holds_bytes(slot, device));
    freed += wanted && reap_slot(book, slot);
  }
  return freed;
}

/* Who claims a half-claimed slot. Its pid namespace is in the slot if it had the slot before; else ours is assumed. */
static struct vgpu_process claimer_of(const struct vgpu_book *book, struct vgpu_usage_slot *slot, uint64_t owner) {
  struct vgpu_process process = {.pid_namespace = book->self.pid_namespace, .pid = (uint32_t)(owner & VGPU_PID_MASK)};
  uint64_t pid_namespace = vgpu_load_relaxed(&slot->pid_namespace);
  if (vgpu_slot_is_in_doubt(slot) && pid_namespace != 0) {
    process.pid_namespace = pid_namespace;
  }
  return process;
}

/* A claim in progress looks like one that was killed, so the same token must be seen unready twice. */
uint32_t vgpu_slot_reap_unready(struct vgpu_book *book, bool every) {
  uint64_t seen[VGPU_SLOT_COUNT];
  uint32_t freed = 0, count = book->slot_count < VGPU_SLOT_COUNT ? book->slot_count : VGPU_SLOT_COUNT;
  bool any = false;
  for (uint32_t i = 0; i < count; i++) {
    struct vgpu_usage_slot *slot = vgpu_slot_at(book, i);
    seen[i] = vgpu_load(&slot->owner);
    if (seen[i] == vgpu_load(&slot->ready) || !(every || vgpu_slot_is_in_doubt(slot))) {
      seen[i] = 0;
    }
    any = any || seen[i] != 0;
  }
  if (any) {
    vgpu_sys_nanosleep(UNREADY_GRACE_NS);
  }
  for (uint32_t i = 0; any && i < count; i++) {
    struct vgpu_usage_slot *slot = vgpu_slot_at(book, i);
    struct vgpu_process process = claimer_of(book, slot, seen[i]);
    enum vgpu_look look = vgpu_process_look(&book->self, &process);
    if (seen[i] != 0 && vgpu_load(&slot->ready) != seen[i] && (look == VGPU_LOOK_DEAD || look == VGPU_LOOK_OTHER)) {
      freed += swap(&slot->owner, seen[i], 0);
    }
  }
  return freed;
}

/* Writes what we hold and who we are into a slot whose owner is `token` already, and lets it count. The lock of `token`
 * is taken before: nobody may see the slot say so without it. */
static void publish(struct vgpu_book *book, struct vgpu_usage_slot *slot, uint64_t token) {
  for (uint32_t i = 0; i < book->device_count; i++) {
    struct vgpu_usage_slot_device *books = vgpu_slot_device(slot, i);
    vgpu_store_relaxed(&books->trying_bytes, (uint64_t)0);
    for (int kind = 0; kind < VGPU_KIND_COUNT; kind++) {
      vgpu_store_relaxed(&books->charged_bytes[kind], vgpu_load_relaxed(&book->private_bytes[i][kind]));
    }
  }
  vgpu_store_relaxed(&slot->start_time, book->self.start_time);
  vgpu_store_relaxed(&slot->start_stack, book->self.start_stack);
  vgpu_store_relaxed(&slot->pid_namespace, book->self.pid_namespace);
  vgpu_store_relaxed(&slot->epoch, vgpu_load_relaxed(&book->limits->epoch));
  vgpu_store_relaxed(&slot->life_lock, book->is_locked ? (uint32_t)VGPU_LIFE_LOCKED : 0u);
  vgpu_store(&slot->ready, token);
}

/* Starts the counters of a slot that was somebody else's before. */
static void clear_counters(struct vgpu_book *book, struct vgpu_usage_slot *slot) {
  for (uint32_t i = 0; i < book->device_count; i++) {
    struct vgpu_usage_slot_device *books = vgpu_slot_device(slot, i);
    vgpu_store_relaxed(&books->allocations, (uint64_t)0);
    vgpu_store_relaxed(&books->frees, (uint64_t)0);
    vgpu_store_relaxed(&books->refusals, (uint64_t)0);
    vgpu_store_relaxed(&books->served_ns, (uint64_t)0);
    vgpu_store_relaxed(&books->waiting_ns, (uint64_t)0);
    vgpu_store_relaxed(&books->launches, (uint64_t)0);
    vgpu_store_relaxed(&books->throttled_ns, (uint64_t)0);
    vgpu_store_relaxed(&books->unknown, (uint64_t)0);
    vgpu_store_relaxed(&books->unknown_since_ns, (uint64_t)0);
    vgpu_store_relaxed(&books->under_way_ns, (uint64_t)0);
  }
}

/* Claims the lowest slot that is free, or was left by a dead process. Index, or -EAGAIN. */
static int claim(struct vgpu_book *book, uint64_t token) {
  int looks = LOOKS_PER_CLAIM;
  for (uint32_t i = 0; i < book->slot_count; i++) {
    struct vgpu_usage_slot *slot = vgpu_slot_at(book, i);
    if (vgpu_load(&slot->owner) != 0 && (looks-- <= 0 || !reap_slot(book, slot))) {
      continue;
    }
    if (swap(&slot->owner, 0, token)) {
      raise_high_water(book->usage, i + 1);
      clear_counters(book, slot);
      publish(book, slot, token);
      return (int)i;
    }
  }
  return -EAGAIN;
}

/* Takes our own slot again under a new token. False if it was lost. */
static bool claim_again(struct vgpu_book *book, uint64_t token) {
  struct vgpu_usage_slot *slot = vgpu_slot_at(book, book->slot_index);
  if (book->token == 0 || !swap(&slot->owner, book->token, token)) {
    return false;
  }
  raise_high_water(book->usage, book->slot_index + 1);
  publish(book, slot, token);
  return true;
}

__attribute__((noinline, cold)) int vgpu_slot_attach(struct vgpu_book *book) {
  uint64_t token = random_token(book->self.pid), before = book->token;
  book->is_locked = vgpu_life_take(book, token);
  if (!claim_again(book, token)) {
    int index = claim(book, token);
    if (index < 0 && vgpu_slot_reap(book, VGPU_EVERY_DEVICE) + vgpu_slot_reap_unready(book, true) > 0) {
      index = claim(book, token);
    }
    if (index < 0) {
      vgpu_life_drop(book, token);
      return index;
    }
    vgpu_store_relaxed(&book->slot_index, (uint32_t)index);
  }
  vgpu_store(&book->token, token);
  vgpu_life_drop(book, before);
  if (book->fork_canary != NULL) {
    vgpu_store(book->fork_canary, 1);
  }
  return 0;
}

/* Forgets what a fork copied from the parent, whose slot and memory stay the parent's. */
static void forget_parent(struct vgpu_book *book) {
  vgpu_store(&book->token, 0);
  book->self.pid = 0; /* in a new pid namespace the child may have the parent's pid */
  for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
    vgpu_store_relaxed(&book->private_total[i], (uint64_t)0);
    for (int kind = 0; kind < VGPU_KIND_COUNT; kind++) {
      vgpu_store_relaxed(&book->private_bytes[i][kind], (uint64_t)0);
    }
  }
}

/* Takes the lock if it is free, or was copied by a fork from a parent whose other thread was inside. */
static bool try_enter(struct vgpu_book *book, uint32_t pid) {
  uint32_t holder = vgpu_load(&book->lock);
  if (holder != 0 && (holder == pid || vgpu_slot_is_registered(book))) {
    return false;
  }
  return __atomic_compare_exchange_n(&book->lock, &holder, pid, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

__attribute__((noinline, cold)) int vgpu_slot_enter_slowly(struct vgpu_book *book) {
  uint32_t pid = vgpu_process_pid();
  for (int tries = 0; !try_enter(book, pid); tries++) {
    if (tries >= ENTER_TRIES) {
      return -EAGAIN;
    }
    if (tries < ENTER_SPINS) {
      vgpu_cpu_relax();
    } else if (tries < ENTER_YIELDS) {
      vgpu_sys_sched_yield();
    } else {
      vgpu_sys_nanosleep(ENTER_SLEEP_NS);
    }
  }
  if (book->token != 0 && !vgpu_slot_is_registered(book)) {
    forget_parent(book);
  }
  if (book->self.pid != pid) {
    vgpu_process_self(&book->self);
  }
  return 0;
}

__attribute__((noinline)) bool vgpu_slot_look_now_and_then(struct vgpu_book *book, uint32_t device) {
  uint64_t now = vgpu_ticks(), last = vgpu_load_relaxed(&book->looked_ticks);
  if ((last != 0 && now - last < vgpu_ticks_now_and_then()) || vgpu_slot_enter_slowly(book) != 0) {
    return false;
  }
  vgpu_store_relaxed(&book->looked_ticks, now);
  uint32_t freed = vgpu_slot_reap(book, device);
  vgpu_slot_leave(book);
  return freed > 0;
}

void vgpu_slot_detach(struct vgpu_book *book) {
  struct vgpu_usage_slot *slot = vgpu_slot_at(book, book->slot_index);
  uint64_t token = book->token;
  vgpu_store(&book->token, 0);
  if (token != 0 && vgpu_load(&slot->owner) == token) {
    fold_counters(book, slot, token);
    swap(&slot->owner, token, 0);
  }
}
