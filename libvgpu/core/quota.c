/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * quota.c - the memory book: reserve, cancel, release, charge, sum. Contract in quota.h, slots in slot.c.
 *
 * There is no global counter, because a counter cannot tell whose bytes to take off when a process dies. Each
 * process has a slot; a slot has, per device, charged_bytes[kind] and trying_bytes. The sum of the charges over
 * the slots that count is what is held. One thread of a process at a time works on its slot (slot.h):
 *
 *   claim   trying = n                           (sequentially consistent)
 *   weigh   total = n + what we hold + the sum over the other slots of trying, then charged
 *   admit   if total <= limit: charged += n
 *   end     trying = 0
 *
 * Never over the limit. Take any instant and the set S of reservations that are charged then, by processes that
 * live. Let x be the one of S whose claim came last in the total order of the sequentially consistent operations.
 * When x weighed, every y of S in another process had claimed already, so its slot was ready and below
 * slot_high_water (both are written, sequentially consistent, before the first claim), and y was in trying, or in
 * charged, or in both: y enters charged before it leaves trying, and x loads trying first; if that load misses y,
 * it reads a value stored after y was charged, and so the load of charged sees y. Nor was y released before x
 * weighed, as it is still held later. Those y of x's own process are in its private sums. So x's total was at least
 * the sum of S, and x was admitted, so it was not above the limit that x had loaded. A total that is too high (a
 * reservation seen twice or released meanwhile, a dead process) errs on the side of the limit.
 *
 * Killed at any instruction. A process dies with its claim in trying, in both, or in charged: its slot counts too
 * much at worst, until somebody who is short of room finds it dead and takes it back (slot.c). Nobody waits for a
 * word that a dead process should have written: there is no lock in shared memory, and the private one dies with
 * the process.
 *
 * No lasting false refusal. A total over the limit may be due to others' claims only. So the claimer withdraws and
 * looks at the charges alone. If they leave no room it is refused, after a look for dead processes, and only if two
 * walks in a row saw the same words (else a release may have passed behind the walk). If they leave room it is a
 * conflict: claims exclude each other. Then the claimer in the lowest slot keeps its claim and weighs again while
 * the higher ones withdraw and pause, so that one of them gets through. A claimer that was killed is found dead and
 * taken back; one that is stopped is waited for about a second, then the request is refused.
 *
 * Tampering. A process writes its slot from its private sums, and counts itself by them: what others write there
 * does not last, and never lowers its own count. Words of others are bounded before they are added. A slot that is
 * half claimed counts like a claim, and one that no process can have written is refused (slot.c, "Half claimed").
 * Damage may have erased what an idle process holds, and putting the page right does not bring it back: so the agent
 * freezes the limits page first, and nothing is admitted until the container starts again.
 */
#include "quota.h"

#include <errno.h>

#include "life.h"
#include "line.h"
#include "slot.h"
#include "sys.h"

enum {
  PAUSE_SPINS = 6,             /* pauses double up to 2^6 cpu_relax, */
  PAUSE_YIELDS = 12,           /* then yield up to this try, */
  PAUSE_SLEEP_NS = 20000,      /* then sleep, this much more each time, */
  PAUSE_SLEEP_MAX_NS = 500000, /* up to this */
  KEEP_TRIES = 8,              /* how often a kept claim is weighed before it is withdrawn for a pause */
  LOOK_EVERY = 8,              /* conflicting tries between two looks for dead claimers */
  CONFLICT_NS = 1000000000,    /* after which a conflict is a refusal */
  AGREEING_WALKS = 16          /* walks that a refusal takes at most to find two that agree */
};

/* What a walk over the other slots finds. */
struct sums {
  uint64_t charged;
  uint64_t trying;
  uint64_t mark;    /* differs if a reservation or a release passed */
  bool lower_claim; /* a slot before ours has a claim */
};

static inline uint64_t limit_of(const struct vgpu_book *book, uint32_t device) {
  return vgpu_smaller(vgpu_load_relaxed(&book->limits->devices[device].memory_limit_bytes),
                      book->ceiling_bytes[device]);
}

static inline bool is_page(const struct vgpu_book *book) {
  return vgpu_load_relaxed(&book->usage->magic) == VGPU_USAGE_MAGIC;
}

static inline bool is_frozen(const struct vgpu_book *book) {
  return __atomic_load_n(&book->limits->frozen, __ATOMIC_ACQUIRE) != 0;
}

static inline struct vgpu_usage_slot_device *own_books(const struct vgpu_book *book, uint32_t device) {
  return vgpu_slot_device(vgpu_slot_at(book, book->slot_index), device);
}

/* Adds one slot to the sums. A word beyond belief (only tampering makes one) counts as more than any limit. */
static inline void add_slot(struct sums *sums, struct vgpu_usage_slot_device *books) {
  uint64_t charged = 0, bits = 0;
  uint64_t trying = vgpu_load(&books->trying_bytes);
#pragma GCC unroll 8
  for (int kind = 0; kind < VGPU_KIND_COUNT; kind++) {
    uint64_t word = vgpu_load(&books->charged_bytes[kind]);
    charged += word;
    bits |= word;
  }
  charged = bits < 2 * VGPU_BYTES_MAX ? charged : 2 * VGPU_BYTES_MAX;
  uint64_t passed = vgpu_load_relaxed(&books->allocations) + vgpu_load_relaxed(&books->frees);
  sums->trying += vgpu_smaller(trying, VGPU_BYTES_MAX);
  sums->charged += charged;
  sums->mark = (sums->mark ^ charged ^ (passed << 40)) * 0x9e3779b97f4a7c15ULL;
}

/* Walks the slots of the other processes that count; all of them for `own_index` >= slot_count. */
static inline struct sums walk(const struct vgpu_book *book, uint32_t device, uint32_t own_index) {
  struct sums sums = {0, 0, 0, false};
  uint32_t epoch = vgpu_load_relaxed(&book->limits->epoch);
  uint32_t count = vgpu_load(&book->usage->slot_high_water);
  count = count < book->slot_count ? count : book->slot_count;
  for (uint32_t i = 0; i < count; i++) {
    struct vgpu_usage_slot *slot = vgpu_slot_at(book, i);
    if (i == own_index) {
      sums.lower_claim = sums.trying != 0;
    } else if (vgpu_slot_counts(slot, epoch)) {
      add_slot(&sums, vgpu_slot_device(slot, device));
    } else if (__builtin_expect(vgpu_slot_is_in_doubt(slot), 0)) {
      sums.trying += vgpu_slot_doubtful_bytes(slot, device, book->device_count, epoch);
    }
  }
  return sums;
}

/* Whether `bytes` fit beside what we hold and `others` hold. No sum here can overflow. */
static inline bool fits(const struct vgpu_book *book, uint32_t device, uint64_t bytes, uint64_t others) {
  uint64_t limit = limit_of(book, device);
  return bytes <= limit && vgpu_load_relaxed(&book->private_total[device]) + others + bytes <= limit;
}

/* Sets what we hold of one kind, in private and in our slot if it is ours. */
static inline void set_charge(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes,
                              struct vgpu_usage_slot_device *books) {
  uint64_t *own = &book->private_bytes[device][kind];
  uint64_t *total = &book->private_total[device];
  vgpu_store_relaxed(total, vgpu_load_relaxed(total) - vgpu_load_relaxed(own) + bytes);
  vgpu_store_relaxed(own, bytes);
  if (books != NULL) {
    vgpu_store_release(&books->charged_bytes[kind], bytes);
  }
}

/* Claims, weighs and admits, inside the lock. `keep`: weigh again for as long as only higher claims are in the way.
 * True if the bytes are reserved. */
static inline bool try_once(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes, bool keep) {
  struct vgpu_usage_slot_device *books = own_books(book, device);
  bool admitted = false;
  __atomic_exchange_n(&books->trying_bytes, vgpu_smaller(bytes, VGPU_BYTES_MAX), __ATOMIC_SEQ_CST);
  for (int tries = keep ? 0 : KEEP_TRIES;; tries++) {
    struct sums others = walk(book, device, book->slot_index);
    admitted = fits(book, device, bytes, others.trying + others.charged);
    if (admitted || tries >= KEEP_TRIES || others.lower_claim || !fits(book, device, bytes, others.charged)) {
      break;
    }
    vgpu_cpu_relax();
  }
  if (admitted) {
    set_charge(book, device, kind, vgpu_load_relaxed(&book->private_bytes[device][kind]) + bytes, books);
    vgpu_count(&books->allocations);
  }
  vgpu_store_release(&books->trying_bytes, (uint64_t)0);
  return admitted;
}

/* Whether the charges alone leave no room for `bytes`, and did so at some instant since the call. */
static bool is_full(struct vgpu_book *book, uint32_t device, uint64_t bytes) {
  struct sums last = walk(book, device, book->slot_index);
  for (int i = 1; i < AGREEING_WALKS; i++) {
    if (fits(book, device, bytes, last.charged)) {
      return false;
    }
    struct sums next = walk(book, device, book->slot_index);
    if (next.mark == last.mark && next.charged == last.charged) {
      return true;
    }
    last = next;
  }
  return true;
}

/* Pauses after conflicting try number `tries`; threads and processes differ in their pauses. */
static void pause_try(int tries) {
  if (tries < PAUSE_SPINS) {
    uint64_t spins = ((uint64_t)1 << tries) + vgpu_ticks() % 16;
    for (uint64_t i = 0; i < spins; i++) {
      vgpu_cpu_relax();
    }
  } else if (tries < PAUSE_YIELDS) {
    vgpu_sys_sched_yield();
  } else {
    uint64_t sleep_ns = (uint64_t)(tries - PAUSE_YIELDS + 1) * PAUSE_SLEEP_NS;
    vgpu_sys_nanosleep((int64_t)(vgpu_smaller(sleep_ns, PAUSE_SLEEP_MAX_NS) + vgpu_ticks() % PAUSE_SLEEP_NS));
  }
}

/* Takes the lock with a slot that is ours. 0, -EAGAIN or -EPROTO (and then without the lock). */
static inline int enter_slot(struct vgpu_book *book) {
  int result = vgpu_slot_enter(book);
  if (__builtin_expect(result != 0, 0)) {
    return result;
  }
  if (__builtin_expect(!is_page(book) || is_frozen(book), 0)) {
    result = -EPROTO;
  } else if (__builtin_expect(book->token == 0 || !vgpu_slot_is_ours(book), 0)) {
    result = vgpu_slot_attach(book);
  }
  if (__builtin_expect(result != 0, 0)) {
    vgpu_slot_leave(book);
  }
  return result;
}

/* Goes on after the first try did not fit, inside the lock, until the bytes are reserved or there is no room.
 * Leaves the lock. */
__attribute__((noinline)) static int contend(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind,
                                             uint64_t bytes) {
  int64_t deadline_ns = 0;
  for (int tries = 0;; tries++) {
    if (vgpu_slot_any_damaged(book)) {
      vgpu_slot_leave(book);
      return -EPROTO;
    }
    bool full = is_full(book, device, bytes);
    bool look = full || tries % LOOK_EVERY == LOOK_EVERY - 1;
    if (look && bytes <= limit_of(book, device) && vgpu_slot_reap(book, device) > 0) {
      full = false;
    }
    if (look && !full) {
      vgpu_slot_reap_unready(book, false);
    }
    if (tries == PAUSE_YIELDS) {
      deadline_ns = vgpu_sys_monotonic_ns() + CONFLICT_NS;
    }
    if (full || (tries > PAUSE_YIELDS && vgpu_sys_monotonic_ns() > deadline_ns)) {
      vgpu_slot_leave(book);
      return -ENOMEM;
    }
    vgpu_slot_leave(book);
    pause_try(tries);
    int result = enter_slot(book);
    if (result != 0) {
      return result;
    }
    if (try_once(book, device, kind, bytes, true)) {
      vgpu_slot_leave(book);
      return 0;
    }
  }
}

int vgpu_reserve(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes) {
  if (device >= book->device_count || (unsigned)kind >= VGPU_KIND_COUNT) {
    return -EINVAL;
  }
  int result = enter_slot(book);
  if (__builtin_expect(result != 0, 0)) {
    return result;
  }
  if (__builtin_expect(bytes > limit_of(book, device) || !try_once(book, device, kind, bytes, false), 0)) {
    return contend(book, device, kind, bytes);
  }
  vgpu_slot_leave(book);
  return 0;
}

static inline void give_back(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes, bool freed) {
  bool valid = device < book->device_count && (unsigned)kind < VGPU_KIND_COUNT;
  if (!valid || vgpu_slot_enter(book) != 0) {
    return;
  }
  struct vgpu_usage_slot_device *books = NULL;
  if (__builtin_expect(book->token != 0 && vgpu_slot_is_ours(book), 1)) {
    books = own_books(book, device);
  }
  uint64_t held = vgpu_load_relaxed(&book->private_bytes[device][kind]);
  set_charge(book, device, kind, held - vgpu_smaller(bytes, held), books);
  if (freed && books != NULL) {
    vgpu_count(&books->frees);
  }
  vgpu_slot_leave(book);
}

void vgpu_cancel(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes) {
  give_back(book, device, kind, bytes, false);
}

void vgpu_release(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes) {
  give_back(book, device, kind, bytes, true);
}

void vgpu_charge(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes) {
  struct vgpu_usage_slot_device *books = NULL;
  if (device >= book->device_count || (unsigned)kind >= VGPU_KIND_COUNT || vgpu_slot_enter(book) != 0) {
    return;
  }
  if (vgpu_slot_ensure(book) == 0) {
    books = own_books(book, device);
    vgpu_count(&books->allocations);
  }
  uint64_t held = vgpu_load_relaxed(&book->private_bytes[device][kind]);
  set_charge(book, device, kind, vgpu_smaller(held + vgpu_smaller(bytes, VGPU_BYTES_MAX), VGPU_BYTES_MAX), books);
  vgpu_slot_leave(book);
}

void vgpu_count_refusal(struct vgpu_book *book, uint32_t device) {
  if (device >= book->device_count || vgpu_slot_enter(book) != 0) {
    return;
  }
  if (is_page(book) && book->token != 0 && vgpu_slot_is_ours(book)) {
    vgpu_count(&own_books(book, device)->refusals);
  }
  vgpu_slot_leave(book);
}

void vgpu_book_close(struct vgpu_book *book) {
  if (vgpu_slot_is_registered(book) && vgpu_slot_enter(book) == 0) {
    vgpu_slot_detach(book);
    vgpu_slot_leave(book);
  }
  vgpu_life_close(book);
}

uint64_t vgpu_limit_bytes(const struct vgpu_book *book, uint32_t device) {
  return device < book->device_count ? limit_of(book, device) : 0;
}

uint64_t vgpu_used_bytes(struct vgpu_book *book, uint32_t device) {
  if (device >= book->device_count) {
    return 0;
  }
  bool registered = vgpu_slot_is_registered(book);
  uint64_t own = registered ? vgpu_load_relaxed(&book->private_total[device]) : 0;
  uint32_t own_index = registered ? vgpu_load_relaxed(&book->slot_index) : UINT32_MAX;
  if (registered && vgpu_load(&vgpu_slot_at(book, own_index)->owner) != vgpu_load_relaxed(&book->token)) {
    own_index = UINT32_MAX; /* it was lost, and may be another's by now */
  }
  if (__builtin_expect(!is_page(book), 0)) {
    uint64_t limit = limit_of(book, device);
    return own > limit ? own : limit;
  }
  struct sums others = walk(book, device, own_index);
  if (__builtin_expect(others.charged != 0, 0) && vgpu_slot_look_now_and_then(book, device)) {
    others = walk(book, device, own_index);
  }
  return own + others.charged;
}
