/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * check.h - the few macros of the C tests. A test program counts its checks and closes with one line,
 * "N passed, N failed, N skipped".
 */
#ifndef VGPU_CHECK_H
#define VGPU_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_passed, check_failed, check_skipped;

/* One check: `condition`, and what it is in words (printf). */
#define CHECK(condition, ...)                     \
  do {                                            \
    if (condition) {                              \
      check_passed++;                             \
    } else {                                      \
      check_failed++;                             \
      printf("FAIL %s:%d: ", __FILE__, __LINE__); \
      printf(__VA_ARGS__);                        \
      printf("\n");                               \
    }                                             \
  } while (0)

/* Two integers that must be equal, and what they are in words. */
#define CHECK_EQUAL(got, want, what)                                                        \
  do {                                                                                      \
    long long got_value = (long long)(got), want_value = (long long)(want);                 \
    CHECK(got_value == want_value, "%s: got %lld, want %lld", what, got_value, want_value); \
  } while (0)

#define SKIP(...)        \
  do {                   \
    check_skipped++;     \
    printf("skip ");     \
    printf(__VA_ARGS__); \
    printf("\n");        \
  } while (0)

/* The closing line, and the exit code. */
static inline int check_done(void) {
  printf("%d passed, %d failed, %d skipped\n", check_passed, check_failed, check_skipped);
  fflush(stdout);
  return check_failed != 0;
}

#endif
