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
 * No clock here: callers say what time it is. No CUDA, no libc, no allocation, no system call.
 */
#ifndef VGPU_RATE_H
#define VGPU_RATE_H

#include "quota.h"

#define VGPU_BURST_NS ((uint64_t)20000000)           /* credit is at most what the rate gives in this time */
#define VGPU_GRAB_NS ((uint64_t)100000)              /* a process buys at most this much ahead of its needs */
#define VGPU_WAIT_MIN_NS ((uint64_t)50000)           /* shortest wait */
#define VGPU_WAIT_MAX_NS ((uint64_t)10000000000)     /* longest wait of one launch; debt beyond it is carried */
#define VGPU_STALE_NS ((uint64_t)2000000000)         /* heartbeat that stood still this long: nobody steers */
#define VGPU_LOAN_NS ((uint64_t)60000000000)         /* and after this, what was lent is given back */
#define VGPU_DEBT_BELIEVED_NS ((uint64_t)3600000000000) /* a spent_ns further ahead than this is damage */
enum { VGPU_SHARE_MIN_PPM = 10000 };                 /* the least share there is: one percent */

/* This process's view of one device of one book. Private memory; forgotten after a fork (vgpu_rate_open again). */
struct vgpu_rate_book {
  struct vgpu_book *book;
  uint32_t device;
  uint32_t ceiling_ppm;       /* of this process alone, from the environment; VGPU_PPM: none */
  uint64_t own_spent_ns;      /* atomic; the private word */
  uint64_t heartbeat_seen_ns; /* atomic; when the heartbeat was last seen to change */
  uint32_t heartbeat;         /* atomic; what it was then */
  /* more is core/rate.c's to add */
};

void vgpu_rate_open(struct vgpu_rate_book *rate, struct vgpu_book *book, uint32_t device, uint32_t ceiling_ppm);

/* True if the device's GPU time is limited at all. One load. */
static inline bool vgpu_rate_is_limiting(const struct vgpu_rate_book *rate) {
  return __atomic_load_n(&rate->book->limits->devices[rate->device].compute_mode, __ATOMIC_RELAXED) != VGPU_COMPUTE_NONE ||
         rate->ceiling_ppm < VGPU_PPM;
}

/* Buys GPU time for a launch of `cost_ns` by estimate. 0: bought, and *bought_ns (not less than cost_ns) may be used; else the
 * time to wait before asking again, at least VGPU_WAIT_MIN_NS. `force`: buy in any case (the longest wait is over, or this
 * launch must not wait); returns 0. Takes a slot for this process at the first call. */
uint64_t vgpu_rate_buy(struct vgpu_rate_book *rate, uint64_t cost_ns, uint64_t now_ns, bool force, uint64_t *bought_ns);

/* Books what turned out dearer (> 0) or cheaper (< 0) than was bought, by estimate. */
void vgpu_rate_correct(struct vgpu_rate_book *rate, int64_t more_ns, uint64_t now_ns);

/* A thread begins to wait until `until_ns`, or goes on waiting; `waited_ns`: how long it has since the last call. */
void vgpu_rate_waiting(struct vgpu_rate_book *rate, uint64_t now_ns, uint64_t until_ns, uint64_t waited_ns);
/* It waits no longer. */
void vgpu_rate_waited(struct vgpu_rate_book *rate, uint64_t waited_ns);

/* True if launches took their own time by the clock of late (VGPU_RATE_ALONE, or no agent ever steered). */
bool vgpu_rate_is_alone(const struct vgpu_rate_book *rate);

#endif
