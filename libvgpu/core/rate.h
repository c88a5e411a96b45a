/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * rate.h - the compute bucket: whether GPU time may be bought now, and else how long to wait. The agent publishes a line
 * (struct vgpu_rate): how much GPU time the allocation was entitled to at any time. The container's processes share one
 * word, spent_ns: how much they bought. Buying is one compare-and-swap, so a process that is killed anywhere leaves
 * nothing half done, and nobody waits for anybody.
 *
 * Credit is what the line is ahead of spent_ns, at most VGPU_BURST_NS at the rate in force; debt is what it lags behind.
 * Something may be bought while there is no debt, whatever it costs: a kernel cannot be cut short, so it is paid
 * for afterwards. The long-run mean is exact for kernels of any length.
 *
 * Beside the shared word each process keeps a private one of the same kind, and has to satisfy both: what others write
 * into the usage page never lets one process have more than the allocation's rate.
 *
 * No clock here: callers say what time it is, by CLOCK_MONOTONIC of the node's first time namespace. No CUDA, no libc, no
 * allocation; no system call but for the registration of the process.
 */
#ifndef VGPU_RATE_H
#define VGPU_RATE_H

#include "line.h"
#include "quota.h"

#define VGPU_BURST_NS ((uint64_t)20000000)              /* credit is at most what the rate gives in this time */
#define VGPU_GRAB_NS ((uint64_t)100000)                 /* a process buys at most this much ahead of its needs */
#define VGPU_WAIT_MIN_NS ((uint64_t)50000)              /* shortest wait */
#define VGPU_WAIT_MAX_NS ((uint64_t)10000000000)        /* longest wait in which the allocation launches nothing */
#define VGPU_WAIT_OWN_NS ((uint64_t)600000000000)       /* and of a launch that costs more than that by itself */
#define VGPU_STALE_NS ((uint64_t)2000000000)            /* heartbeat that stood still this long: nobody steers */
#define VGPU_LATE_NS ((uint64_t)600000000)              /* and this long: somebody may have steered for the last time */
#define VGPU_LOAN_NS ((uint64_t)60000000000)            /* and after this, what was lent is given back */
#define VGPU_DEBT_BELIEVED_NS ((uint64_t)3600000000000) /* a spent_ns further ahead than this is damage */
#define VGPU_COST_MAX_NS ((uint64_t)1800000000000)      /* no single cost above this is booked */
#define VGPU_TURN_NS ((uint64_t)4000000) /* a waiter that has not come back so long after its wait is not waited for */
#define VGPU_LEAD_NS ((uint64_t)2000000) /* lead in GPU time that a process may have over one that waits */
#define VGPU_ACTIVE_NS ((uint64_t)300000000)    /* who has not asked for so long starts level with those who have */
#define VGPU_SPIN_FREE_NS ((uint64_t)100000000) /* what a process that runs little but collectives may spin unpaid */
#define VGPU_UNKNOWN_NS ((uint64_t)30000000000) /* a first launch that has run for longer says nothing about others */
enum {
  VGPU_SPIN_PART = 16, /* stable for shares above one in so many and one */
  VGPU_MIXED_PART =
      4 /* who pays more than one part in so many for other launches runs collectives among them, not under their name */
};
enum { VGPU_OPEN_PPM = 950000 }; /* from this rate on an elastic allocation is as good as alone */

/* This process's view of one device of one book. Private memory; forgotten after a fork (vgpu_rate_open again). All
 * words that change are atomic, and no two of them need to agree. */
struct vgpu_rate_book {
  struct vgpu_book *book;
  uint32_t device;
  uint32_t ceiling_ppm;      /* of this process alone, from the environment; VGPU_PPM: none */
  uint64_t own_spent_ns;     /* the private word, against the line of the limits page */
  uint64_t ceiling_spent_ns; /* the same against the line of ceiling_ppm, which begins at time 0 */
  uint64_t own_even_ns;      /* when these two words were last seen to owe nothing */
  uint64_t ceiling_even_ns;
  uint64_t under_way_ns;       /* charged for launches that are not known to be done, by estimate */
  uint64_t served_ns;          /* what our slot's served_ns is to say */
  uint64_t asked_ns;           /* when we last asked */
  uint64_t bought_ns;          /* when we last got GPU time */
  uint64_t heartbeat_seen_ns;  /* when the heartbeat was last seen to change */
  uint64_t attached_ns;        /* when we last tried to register */
  uint64_t line_seen_ns;       /* what the line entitled to when it was last looked at */
  uint64_t anchor_ns;          /* when a line that cannot be was first seen, */
  uint64_t anchor_entitled_ns; /* what it is taken to entitle to then, */
  uint32_t anchor_generation;  /* and which: rate_generation | 1 << 31 */
  uint32_t heartbeat;          /* what it was then */
  uint32_t is_seen;            /* the two words of the heartbeat are valid */
  uint32_t is_stale;           /* nobody steered when we last asked */
  uint32_t waiters;            /* threads that are kept waiting */
  uint64_t renewed_ns;         /* when one last said so; if that was long ago, they have left by longjmp, say */
  uint64_t collective_ns;      /* paid for collectives of late, but for what they spun, */
  uint64_t ordinary_ns;        /* and for other launches */
  uint64_t spin_left_ns;       /* what may be spun unpaid; gains by what is bought for collectives */
};

void vgpu_rate_open(struct vgpu_rate_book *rate, struct vgpu_book *book, uint32_t device, uint32_t ceiling_ppm);

/* True if the device's GPU time is limited at all. One load. */
static inline bool vgpu_rate_is_limiting(const struct vgpu_rate_book *rate) {
  return __atomic_load_n(&rate->book->limits->devices[rate->device].compute_mode, __ATOMIC_RELAXED) !=
             VGPU_COMPUTE_NONE ||
         rate->ceiling_ppm < VGPU_PPM;
}

/* Buys GPU time for a launch of `cost_ns` by estimate (0: one that nothing is known of). 0: bought, and *bought_ns (not
 * less than cost_ns) may be used; else the time to wait before asking again, at least VGPU_WAIT_MIN_NS. `force`: buy in
 * any case (the longest wait is over, or this launch must not wait); returns 0. Takes a slot for this process at the
 * first call. */
uint64_t vgpu_rate_buy(struct vgpu_rate_book *rate, uint64_t cost_ns, uint64_t now_ns, bool force, uint64_t *bought_ns);

/* Books what turned out dearer (> 0) or cheaper (< 0) than was bought, by estimate. */
void vgpu_rate_correct(struct vgpu_rate_book *rate, int64_t more_ns);

/* So much more (> 0) or less was charged for launches that are being measured. */
void vgpu_rate_under_way(struct vgpu_rate_book *rate, int64_t more_ns);

/* Like vgpu_rate_correct, for a launch that took `elapsed_ns` by the clock, is seen to be done now, and was charged
 * `more_ns` too little: not more than the GPU can have worked (account.h). As served, and as charged, all of it counts. */
void vgpu_rate_measured(struct vgpu_rate_book *rate, uint64_t more_ns, uint64_t elapsed_ns, uint64_t now_ns);

/* What a launch is charged of which nothing is known: what first launches of functions took of late in this container. */
uint64_t vgpu_rate_first_ns(const struct vgpu_rate_book *rate);

/* A first launch took `elapsed_ns`. */
void vgpu_rate_first(struct vgpu_rate_book *rate, uint64_t elapsed_ns);

/* So many launches are under way of which nothing is known, the first of them since `since_ns`: others of the container
 * take notice, and if this process dies now, the next guess is higher. */
void vgpu_rate_unknown(struct vgpu_rate_book *rate, uint32_t count, uint64_t since_ns);

struct vgpu_unknown {
  uint32_t count;
  uint64_t since_ns; /* when the first of them began; now: there is none */
};

/* What the other processes of the container say of such launches. */
struct vgpu_unknown vgpu_rate_unknown_of_others(const struct vgpu_rate_book *rate, uint64_t now_ns);

/* `ns` was paid, for a collective or for something else. */
void vgpu_rate_mix(struct vgpu_rate_book *rate, uint64_t ns, bool is_collective);

/* False: this process runs hardly anything but what it calls collectives. */
bool vgpu_rate_is_mixed(const struct vgpu_rate_book *rate);

/* Books what collectives spun. It was used, so it is told; but it is only paid for to one part in VGPU_SPIN_PART: a rank
 * that paid for waiting would be late the next time, and let its peers wait and pay for longer than that. Of a process
 * that runs hardly anything else, only as much as VGPU_SPIN_FREE_NS, and a part of what it buys, is forgiven. */
void vgpu_rate_spun(struct vgpu_rate_book *rate, uint64_t spun_ns);

/* A thread begins to wait for GPU time until `until_ns` (`waited_ns` is 0), or goes on waiting; `waited_ns`: how long it
 * has since the last call. */
void vgpu_rate_waiting(struct vgpu_rate_book *rate, uint64_t now_ns, uint64_t until_ns, uint64_t waited_ns);
/* It waits no longer; `waited_ns`: since the last call. Once for each wait that began. */
void vgpu_rate_waited(struct vgpu_rate_book *rate, uint64_t now_ns, uint64_t waited_ns);

/* Puts launches that were counted elsewhere into the usage page. */
void vgpu_rate_count(struct vgpu_rate_book *rate, uint64_t launches, uint64_t now_ns);

/* How far this process is in debt, with the others of the allocation or by itself, in GPU time; 0: it has credit. */
uint64_t vgpu_rate_debt_ns(struct vgpu_rate_book *rate, uint64_t now_ns);

/* For how long nobody of the allocation has got GPU time; UINT64_MAX: nobody ever did. */
uint64_t vgpu_rate_idle_ns(const struct vgpu_rate_book *rate, uint64_t now_ns);

/* The rate in force for this process, in millionths. */
uint32_t vgpu_rate_ppm(const struct vgpu_rate_book *rate);

/* True if this process is as good as alone: what it launches need not be known before it goes on. */
bool vgpu_rate_is_open(const struct vgpu_rate_book *rate);

/* True if an agent steered, and its heartbeat is late. */
bool vgpu_rate_is_left(const struct vgpu_rate_book *rate, uint64_t now_ns);

/* True if launches took their own time by the clock of late (VGPU_RATE_ALONE, or no agent ever steered). */
bool vgpu_rate_is_alone(const struct vgpu_rate_book *rate);

#endif
