/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * kernel_name.c - what a kernel's name says of it. Parts begin with "_" and may stand in any order, also inside a C++
 * mangled name: the time that it takes alone, "_250us", "_3ms", "_800ns", "_1s"; and what it takes meanwhile, in percent:
 * "_dram60" of DRAM's bandwidth, "_cache50" of that of the L2 cache ("_l2": all of it), "_rx30" or "_tx30" of that of the
 * link, which it reads or writes itself. "_bound80": it waits for memory for so much of its time; without it, for as much
 * as it takes of its bandwidth.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "module.h"

/* Whether a part of the name that ends here is one: "_3msk" and "_l2x" say nothing. */
static bool is_end(const char *at) {
  return !islower((unsigned char)*at) && !isdigit((unsigned char)*at);
}

/* Duration that the part of the name states, or UINT64_MAX. */
static uint64_t duration_at(const char *at) {
  static const struct {
    const char *unit;
    uint64_t ns;
  } units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}};
  char *end;
  uint64_t found;
  if (!isdigit((unsigned char)*at)) return UINT64_MAX;
  uint64_t number = strtoull(at, &end, 10);
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    size_t length = strlen(units[i].unit);
    if (strncmp(end, units[i].unit, length) != 0 || islower((unsigned char)end[length])) continue;
    if (!__builtin_mul_overflow(number, units[i].ns, &found)) return found;
  }
  return UINT64_MAX;
}

/* If the part of the name is `word` and a percentage, sets `permille` to it. */
static void percent_at(const char *at, const char *word, uint16_t *permille) {
  size_t length = strlen(word);
  char *end;
  if (strncmp(at, word, length) != 0 || !isdigit((unsigned char)at[length])) return;
  unsigned long percent = strtoul(at + length, &end, 10);
  if (is_end(end)) *permille = (uint16_t)(10 * (percent > 100 ? 100 : percent));
}

void gs_kernel_read_name(struct gs_kernel *kernel) {
  kernel->duration_ns = UINT64_MAX;
  kernel->dram_permille = UINT16_MAX;
  kernel->bound_permille = GS_BOUND_AS_USED;
  for (const char *at = kernel->name; (at = strchr(at, '_')); at++) {
    uint64_t duration = duration_at(at + 1);
    if (duration != UINT64_MAX) kernel->duration_ns = duration;
    percent_at(at + 1, "dram", &kernel->dram_permille);
    percent_at(at + 1, "bound", &kernel->bound_permille);
    percent_at(at + 1, "cache", &kernel->cache_permille);
    percent_at(at + 1, "rx", &kernel->rx_permille);
    percent_at(at + 1, "tx", &kernel->tx_permille);
    if (strncmp(at, "_l2", 3) == 0 && is_end(at + 3)) kernel->cache_permille = 1000;
  }
}
