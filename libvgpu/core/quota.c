/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * quota.c - the memory book: reserve, cancel, release, charge, sum. Contract in quota.h, slots in slot.c.
 *
 * There is no global counter, because a counter cannot tell whose bytes to take off when a process dies. Each
 * process has a slot; a slot has, per device, charged_bytes[kind] and trying_bytes. The sum of the charges over
 * the slots that count is what is held.
 *
 *   claim   trying += n                          (sequentially consistent)
 *   weigh   total = sum over the slots of trying, then charged  (trying of a slot is loaded before its charges)
 *   admit   if total <= limit: charged += n, then trying -= n
 *   else    trying -= n
 *
 * Never over the limit. Take any instant and the set S of reservations that are charged then, by processes that
 * live. Let x be the one of S whose claim came last in the total order of the sequentially consistent claims.
 * When x weighed, every y in S had claimed already, so its slot was ready and below slot_high_water (both are
 * written, sequentially consistent, before the first claim), and y was in trying, or in charged, or both: y enters
 * charged before it leaves trying, and x loads trying first; if that load misses y it read the value that y left
 * behind, and so sees y's charge. y was not released before x weighed, as it is still held later. So x's total was
 * at least the sum of S, and x was admitted under the limit that it had loaded. Aggregation does not matter: the
 * words are sums of non-negative contributions of reservations. Our own slot counts as the larger of the shared
 * word and our private one, each of which keeps the same order. Loading a total that is too high (a reservation
 * in flight twice, one that is released meanwhile, a dead process) errs on the side of the limit.
 *
 * Killed at any instruction. A process dies with its claim in trying, in both, or in charged: its slot counts too
 * much at worst, until somebody who is short of room finds it dead and takes it back (slot.c). Nobody waits for a
 * word that a dead process should have written: there is no lock in shared memory.
 *
 * No lasting false refusal. A total over the limit may be due to other claims only. So the claimer withdraws and
 * sums the charges alone. If they leave no room it is refused, after a look for dead processes, and only if two
 * sums in a row agree in all words (else a release may have passed behind the sum). If they leave room, it is a
 * conflict: claims exclude each other. Then the claimer in the lowest slot keeps its claim and weighs again while
 * the higher ones withdraw and pause, so that one of them gets through; within a process one thread at a time may
 * keep its claim. A claimer that was killed is found dead and taken back; one that is stopped is waited for about
 * a second, then the request is refused.
 */
#include "quota.h"

#include <errno.h>

#include "slot.h"
#include "sys.h"

enum {
  PAUSE_SPINS = 6,            /* pauses double up to 2^6 cpu_relax, */
  PAUSE_YIELDS = 12,          /* then yield up to this try, */
  PAUSE_SLEEP_NS = 20000,     /* then sleep, 20 us more each time, */
  PAUSE_SLEEP_MAX_NS = 500000 /* up to this */
};

enum {
  LOOK_EVERY = 8,                   /* conflicting tries between two looks for dead claimers */
  CONFLICT_NS = 1000 * 1000 * 1000,        /* after which a conflict is a refusal */
  AGREEING_SUMS = 16                       /* sums that a refusal takes at most to find two that agree */
};

/* Where this process's words for one device are. */
struct place {
  struct vgpu_usage_slot *slot;
  struct vgpu_usage_slot_device *books;
  uint64_t *own; /* private_bytes of the device */
  uint64_t token;
  uint32_t index; /* of the slot */
};

/* What a walk over the slots finds. */
struct sums {
  uint64_t charged;
  uint64_t trying;
  uint64_t mark;    /* changes when a reservation or release passed; only filled by sum_charges */
  bool lower_claim; /* a slot before ours has a claim */
};

/* One request that did not fit at first sight. */
struct request {
  struct vgpu_book *book;
  struct place at;
  uint64_t bytes;
  int64_t deadline_ns; /* 0: not waiting yet */
  uint32_t device;
  enum vgpu_kind kind;
  bool keeper; /* this thread holds book->keeper */
};

static inline uint64_t limit_of(const struct vgpu_book *book, uint32_t device) {
  uint64_t limit = vgpu_load_relaxed(&book->limits->devices[device].memory_limit_bytes);
  return limit < VGPU_BYTES_MAX ? limit : VGPU_BYTES_MAX;
}

static inline bool is_page(const struct vgpu_book *book) {
  return vgpu_load_relaxed(&book->usage->magic) == VGPU_USAGE_MAGIC;
}

/* Finds our slot without any system call. False: we have to register (again). */
static inline bool locate(struct vgpu_book *book, uint32_t device, struct place *at) {
  at->token = vgpu_load(&book->token);
  at->index = vgpu_load_relaxed(&book->slot_index);
  at->slot = vgpu_slot_at(book, at->index);
  at->books = vgpu_slot_device(at->slot, device);
  at->own = book->private_bytes[device];
  return vgpu_slot_is_registered(book, at->token) && vgpu_slot_is_ours(book, at->slot, at->token);
}

/* Finds our slot, registers us if need be. 0, -EAGAIN or -EPROTO. */
static int take_place(struct vgpu_book *book, uint32_t device, struct place *at) {
  for (int tries = 0; !locate(book, device, at); tries++) {
    int result = !is_page(book) ? -EPROTO : tries < 8 ? vgpu_slot_attach(book) : -EAGAIN;
    if (result != 0) {
      return result;
    }
  }
  return is_page(book) ? 0 : -EPROTO;
}

/* Charges of one slot; for our own slot `own` is our private words, else NULL. A word beyond belief (only
 * tampering makes one) counts as more than any limit. */
static inline uint64_t slot_charges(struct vgpu_usage_slot_device *books, const uint64_t *own) {
  uint64_t sum = 0, bits = 0;
  for (int kind = 0; kind < VGPU_KIND_COUNT; kind++) {
    uint64_t word = vgpu_load(&books->charged_bytes[kind]);
    if (own != NULL) {
      uint64_t mine = vgpu_load_relaxed(&own[kind]);
      word = word > mine ? word : mine;
    }
    sum += word;
    bits |= word;
  }
  return bits < 2 * VGPU_BYTES_MAX ? sum : 16 * VGPU_BYTES_MAX;
}

/* Walks the slots that count: claims and charges. Our own slot counts in any case. */
static inline struct sums weigh(struct vgpu_book *book, uint32_t device, const struct place *at) {
  struct sums sums = {0, 0, 0, false};
  uint32_t epoch = vgpu_load_relaxed(&book->limits->epoch);
  uint32_t count = vgpu_load(&book->usage->slot_high_water);
  count = count > at->index ? count : at->index + 1;
  count = count < book->slot_count ? count : book->slot_count;
  for (uint32_t i = 0; i < count; i++) {
    struct vgpu_usage_slot *slot = vgpu_slot_at(book, i);
    if (i != at->index && !vgpu_slot_counts(slot, epoch)) {
      continue;
    }
    struct vgpu_usage_slot_device *books = vgpu_slot_device(slot, device);
    uint64_t trying = vgpu_load(&books->trying_bytes);
    trying = (int64_t)trying < 0 ? 0 : trying;
    trying = trying < VGPU_BYTES_MAX ? trying : VGPU_BYTES_MAX;
    sums.lower_claim = sums.lower_claim || (trying != 0 && i < at->index);
    sums.trying += trying;
    sums.charged += slot_charges(books, i == at->index ? at->own : NULL);
  }
  return sums;
}

/* Walks the slots that count: charges alone, with a mark that tells whether two walks saw the same. */
static struct sums sum_charges(struct vgpu_book *book, uint32_t device, uint32_t own_index, const uint64_t *own) {
  struct sums sums = {0, 0, 0, false};
  uint32_t epoch = vgpu_load_relaxed(&book->limits->epoch);
  uint32_t count = vgpu_load(&book->usage->slot_high_water);
  count = count < book->slot_count ? count : book->slot_count;
  for (uint32_t i = 0; i < count; i++) {
    struct vgpu_usage_slot *slot = vgpu_slot_at(book, i);
    if (vgpu_slot_counts(slot, epoch)) {
      struct vgpu_usage_slot_device *books = vgpu_slot_device(slot, device);
      uint64_t charged = slot_charges(books, i == own_index ? own : NULL);
      uint64_t passed = vgpu_load(&books->allocations) + vgpu_load(&books->frees);
      sums.charged += charged;
      sums.mark = (sums.mark ^ charged ^ (passed << 32) ^ vgpu_load(&slot->owner)) * 0x9e3779b97f4a7c15ULL;
    }
  }
  return sums;
}

static inline void admit(const struct place *at, enum vgpu_kind kind, uint64_t bytes) {
  vgpu_add(&at->books->charged_bytes[kind], bytes);
  vgpu_add(&at->own[kind], bytes);
  vgpu_add(&at->books->allocations, 1);
}

static inline void withdraw(const struct place *at, uint64_t bytes) {
  vgpu_subtract(&at->books->trying_bytes, bytes);
}

/* Whether the charges alone leave no room for `bytes`, now or at some instant since the call. */
static bool is_full(struct request *request) {
  struct vgpu_book *book = request->book;
  struct sums last = sum_charges(book, request->device, request->at.index, request->at.own);
  for (int i = 1; i < AGREEING_SUMS; i++) {
    uint64_t limit = limit_of(book, request->device);
    if (request->bytes <= limit && last.charged <= limit - request->bytes) {
      return false;
    }
    struct sums next = sum_charges(book, request->device, request->at.index, request->at.own);
    if (next.mark == last.mark && next.charged == last.charged) {
      return true;
    }
    last = next;
  }
  return true;
}

/* Pauses before try number `tries`; different processes differ in their pauses. */
static void pause_try(int tries, uint64_t token) {
  int64_t sleep_ns = (tries - PAUSE_YIELDS) * (int64_t)PAUSE_SLEEP_NS;
  if (tries < PAUSE_SPINS) {
    uint64_t spins = ((uint64_t)1 << tries) + ((token >> VGPU_PID_BITS) + vgpu_ticks()) % 16;
    for (uint64_t i = 0; i < spins; i++) {
      vgpu_cpu_relax();
    }
  } else if (tries < PAUSE_YIELDS) {
    vgpu_sys_sched_yield();
  } else {
    sleep_ns = sleep_ns < PAUSE_SLEEP_MAX_NS ? sleep_ns : PAUSE_SLEEP_MAX_NS;
    vgpu_sys_nanosleep(sleep_ns + (int64_t)(vgpu_ticks() % PAUSE_SLEEP_NS));
  }
}

/* True while the conflict may be waited for. */
static bool may_wait(struct request *request, int tries) {
  if (tries < PAUSE_YIELDS) {
    return true;
  }
  int64_t now = vgpu_sys_monotonic_ns();
  if (request->deadline_ns == 0) {
    request->deadline_ns = now + CONFLICT_NS;
  }
  return now < request->deadline_ns;
}

/* True if this thread may keep its claim: no lower slot has one, and no other thread of this process does. */
static bool may_keep(struct request *request, const struct sums *sums) {
  if (sums->lower_claim) {
    return false;
  }
  if (!request->keeper) {
    request->keeper = __atomic_exchange_n(&request->book->keeper, 1, __ATOMIC_SEQ_CST) == 0;
  }
  return request->keeper;
}

/* Tries until the request is admitted, or there is no room. Enters and leaves without a claim. */
static int contend(struct request *request) {
  struct vgpu_book *book = request->book;
  struct place *at = &request->at;
  for (int tries = 0;; tries++) {
    bool full = is_full(request);
    if ((full || tries % LOOK_EVERY == LOOK_EVERY - 1) && vgpu_slot_reap(book, request->device) > 0) {
      full = false;
    }
    if (full || !may_wait(request, tries)) {
      return -ENOMEM;
    }
    pause_try(tries, at->token);
    int result = take_place(book, request->device, at);
    if (result != 0) {
      return result;
    }
    if (request->bytes > limit_of(book, request->device)) {
      continue;
    }
    vgpu_add(&at->books->trying_bytes, request->bytes);
    for (int kept = 0;; kept++) {
      struct sums sums = weigh(book, request->device, at);
      if (sums.trying + sums.charged <= limit_of(book, request->device)) {
        admit(at, request->kind, request->bytes);
        withdraw(at, request->bytes);
        return 0;
      }
      bool hopeless = sums.charged + request->bytes > limit_of(book, request->device);
      if (hopeless || kept == LOOK_EVERY || !may_keep(request, &sums)) {
        break;
      }
      pause_try(kept, at->token);
    }
    withdraw(at, request->bytes);
  }
}

/* Finishes a reservation that was not admitted at once; its claim is withdrawn. */
__attribute__((noinline)) static int reserve_slowly(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind,
                                                    uint64_t bytes, const struct place *at) {
  struct request request = {.book = book, .at = *at, .bytes = bytes, .device = device, .kind = kind};
  int result = contend(&request);
  if (request.keeper) {
    vgpu_store(&book->keeper, 0);
  }
  if (result == -ENOMEM) {
    vgpu_add(&request.at.books->refusals, 1);
  }
  return result;
}

int vgpu_reserve(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes) {
  struct place at;
  if (device >= book->device_count || (unsigned)kind >= VGPU_KIND_COUNT) {
    return -EINVAL;
  }
  if (__builtin_expect(!locate(book, device, &at) || !is_page(book), 0)) {
    int result = take_place(book, device, &at);
    if (result != 0) {
      return result;
    }
  }
  uint64_t limit = limit_of(book, device);
  if (bytes <= limit) {
    vgpu_add(&at.books->trying_bytes, bytes);
    struct sums sums = weigh(book, device, &at);
    bool fits = sums.trying + sums.charged <= limit;
    if (__builtin_expect(fits, 1)) {
      admit(&at, kind, bytes);
    }
    withdraw(&at, bytes);
    if (__builtin_expect(fits, 1)) {
      return 0;
    }
  }
  return reserve_slowly(book, device, kind, bytes, &at);
}

/* Takes up to `bytes` off `word`, never below zero. Returns how many. */
static inline uint64_t take_off(uint64_t *word, uint64_t bytes) {
  uint64_t seen = vgpu_load_relaxed(word), taken;
  do {
    taken = bytes < seen ? bytes : seen;
  } while (!__atomic_compare_exchange_n(word, &seen, seen - taken, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
  return taken;
}

/* Puts `bytes` more on `word`, never above VGPU_BYTES_MAX. */
static void put_on(uint64_t *word, uint64_t bytes) {
  uint64_t seen = vgpu_load_relaxed(word), sum;
  bytes = bytes < VGPU_BYTES_MAX ? bytes : VGPU_BYTES_MAX;
  do {
    sum = seen + bytes < VGPU_BYTES_MAX ? seen + bytes : VGPU_BYTES_MAX;
  } while (seen < sum && !__atomic_compare_exchange_n(word, &seen, sum, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
}

static void give_back(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes, uint64_t frees) {
  struct place at;
  if (device >= book->device_count || (unsigned)kind >= VGPU_KIND_COUNT) {
    return;
  }
  if (__builtin_expect(!locate(book, device, &at), 0)) {
    vgpu_slot_settle(book);
    locate(book, device, &at);
    if (!vgpu_slot_is_registered(book, at.token)) {
      return; /* nothing was reserved by this process */
    }
  }
  uint64_t taken = take_off(&at.own[kind], bytes);
  if (__builtin_expect(vgpu_load_relaxed(&at.slot->owner) == at.token, 1)) {
    take_off(&at.books->charged_bytes[kind], taken);
    if (frees != 0) {
      vgpu_add(&at.books->frees, frees);
    }
  }
}

void vgpu_cancel(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes) {
  give_back(book, device, kind, bytes, 0);
}

void vgpu_release(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes) {
  give_back(book, device, kind, bytes, 1);
}

void vgpu_charge(struct vgpu_book *book, uint32_t device, enum vgpu_kind kind, uint64_t bytes) {
  struct place at;
  if (device >= book->device_count || (unsigned)kind >= VGPU_KIND_COUNT) {
    return;
  }
  if (take_place(book, device, &at) == 0) {
    put_on(&at.books->charged_bytes[kind], bytes);
    vgpu_add(&at.books->allocations, 1);
  }
  put_on(&book->private_bytes[device][kind], bytes);
}

void vgpu_book_close(struct vgpu_book *book) { vgpu_slot_detach(book); }

uint64_t vgpu_limit_bytes(const struct vgpu_book *book, uint32_t device) {
  return device < book->device_count ? limit_of(book, device) : 0;
}

/* Looks for dead processes if others hold bytes, now and then. True if any slot was taken back. */
static bool look_now_and_then(struct vgpu_book *book, uint32_t device) {
  uint64_t now = vgpu_ticks(), last = vgpu_load_relaxed(&book->looked_ticks);
  if (last != 0 && now - last < vgpu_ticks_now_and_then()) {
    return false;
  }
  vgpu_store_relaxed(&book->looked_ticks, now);
  return vgpu_slot_identify(book) && vgpu_slot_reap(book, device) > 0;
}

uint64_t vgpu_used_bytes(struct vgpu_book *book, uint32_t device) {
  struct place at;
  if (device >= book->device_count) {
    return 0;
  }
  bool ours = locate(book, device, &at);
  uint64_t mine = 0;
  if (vgpu_slot_is_registered(book, at.token)) {
    for (int kind = 0; kind < VGPU_KIND_COUNT; kind++) {
      mine += vgpu_load_relaxed(&book->private_bytes[device][kind]);
    }
  }
  if (!is_page(book)) {
    uint64_t limit = limit_of(book, device);
    return mine > limit ? mine : limit;
  }
  struct sums sums = sum_charges(book, device, ours ? at.index : UINT32_MAX, at.own);
  if (sums.charged != mine && look_now_and_then(book, device)) {
    sums = sum_charges(book, device, ours ? at.index : UINT32_MAX, at.own);
  }
  return sums.charged + (ours ? 0 : mine);
}
