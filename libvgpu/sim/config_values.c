/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * config_values.c - values of the configuration: numbers, sizes, times.
 */
#include "config_parts.h"
#include "engine.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool gs_parse_bytes(const char *text, uint64_t *bytes) {
  static const struct {
    const char *suffix;
    uint64_t unit;
  } units[] = {{"", 1},
               {"B", 1},
               {"KiB", 1ull << 10},
               {"MiB", 1ull << 20},
               {"GiB", 1ull << 30},
               {"TiB", 1ull << 40},
               {"KB", 1000},
               {"MB", 1000000},
               {"GB", 1000000000},
               {"TB", 1000000000000}};
  char *end;
  errno = 0;
  if (!isdigit((unsigned char)*text)) return false;
  uint64_t number = strtoull(text, &end, 10);
  for (size_t i = 0; errno == 0 && i < sizeof units / sizeof *units; i++)
    if (strcmp(end, units[i].suffix) == 0) return !__builtin_mul_overflow(number, units[i].unit, bytes);
  return false;
}

bool gs_parse_number(const char *text, uint64_t *number) {
  char *end;
  errno = 0;
  if (!isdigit((unsigned char)*text)) return false;
  *number = strtoull(text, &end, 0);
  return errno == 0 && *end == 0;
}

/* A whole number of `unit` ns from `low` to `high`. */
int gs_set_time(uint64_t *ns, const char *value, uint64_t unit, uint64_t low, uint64_t high) {
  uint64_t number = 0;
  if (!gs_parse_number(value, &number) || number < low || number > high) return -1;
  *ns = number * unit;
  return 1;
}

int gs_set_small(uint32_t *setting, const char *value, uint32_t high) {
  uint64_t number = 0;
  if (!gs_parse_number(value, &number) || number > high) return -1;
  *setting = (uint32_t)number;
  return 1;
}

/* A part of a whole, in thousandths: not none of it. */
int gs_set_part(uint32_t *setting, const char *value) {
  uint64_t number = 0;
  if (!gs_parse_number(value, &number) || number < 1 || number > 1000) return -1;
  *setting = (uint32_t)number;
  return 1;
}

/* Whole ticks of the counters, in ms, at least `low` and not more than are kept. */
int gs_set_ticks(uint64_t *ns, const char *value, uint64_t low) {
  uint64_t number = 0;
  if (gs_set_time(&number, value, 1000000, 0, 1000) < 0 || number % GS_TICK_NS || number < low * GS_TICK_NS) return -1;
  *ns = number;
  return 1;
}
