/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * account.h - a word that says how much GPU time was bought, held against a line, at one instant. Internal to the core.
 *
 * A word that is further ahead of the line than any honest process leaves it is damage, and read as neither credit nor
 * debt; one that is behind it by more than the burst is read as the burst.
 *
 * What launches took by the clock may hold what others ran meanwhile, also others that pay from the same account. One GPU
 * cannot have worked longer than the clock went, so what is booked by measurement leaves the account no further than
 * that beyond where it was last seen free of debt.
 */
#ifndef VGPU_ACCOUNT_H
#define VGPU_ACCOUNT_H

#include "line.h"

struct vgpu_account {
  uint64_t *spent_ns; /* atomic */
  uint64_t *
      even_ns; /* atomic; when it was last seen free of debt; not later than work began that was booked since; 0: never */
  const struct vgpu_line *line;
  uint64_t now_ns;
  uint64_t line_ns; /* what the line entitles to now */
  uint64_t burst_ns;
};

struct vgpu_account vgpu_account_of(uint64_t *spent_ns, uint64_t *even_ns, const struct vgpu_line *line,
                                    uint64_t now_ns);

/* How far it is in debt; 0: it has credit. */
uint64_t vgpu_account_debt_ns(const struct vgpu_account *account);

/* 0: something may be bought now; else how long to wait, at least VGPU_WAIT_MIN_NS. */
uint64_t vgpu_account_wait_ns(const struct vgpu_account *account);

/* Takes `*amount`, and as much more, up to `ahead`, as there is credit for; *amount is what was taken then. 0, or how
 * long to wait. `force`: takes it in any case. */
uint64_t vgpu_account_take(const struct vgpu_account *account, uint64_t *amount, uint64_t ahead, bool force);

/* Books `amount` for work that took `elapsed_ns` by the clock and was charged so much too little: less, if the GPU cannot
 * have worked for so long. `under_way_ns`: of what was bought, for work that is not known to be done. */
void vgpu_account_book(const struct vgpu_account *account, uint64_t amount, uint64_t elapsed_ns, uint64_t under_way_ns);

#endif
