/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * check.h - the simulator's tests. Each case runs in a process of its own with fresh simulated cards in a
 * directory of its own ($GPUSIM_DIR); a case fails by a failed CHECK, by a crash or by taking longer than 60 s.
 * To add a case, add a function and a line in cases.def.
 */
#ifndef GPUSIM_TEST_CHECK_H
#define GPUSIM_TEST_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "../cuda_types.h"
#include "api.h"

enum { EXIT_FAILED = 1, EXIT_SKIPPED = 77 };

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      exit(EXIT_FAILED);                                              \
    }                                                                 \
  } while (0)

#define CHECK_EQUAL(got, wanted)                                                                 \
  do {                                                                                           \
    long long got_ = (long long)(got), wanted_ = (long long)(wanted);                            \
    if (got_ != wanted_) {                                                                       \
      fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #got, got_, wanted_); \
      exit(EXIT_FAILED);                                                                         \
    }                                                                                            \
  } while (0)

/* Ends the case as skipped, unless VGPU_TEST_REQUIRE (a comma list) names what is missing. */
void skip_without(const char *name, const char *why);

/* cuInit and the primary context of device 0 made current. */
CUcontext begin_cuda(void);

/* Runs a command line of the shell; its exit code. */
int run(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* First word that `gpusim status --json` gives behind "key": of card 0. */
unsigned long long status_number(const char *key);

/* Waits for a child and answers its exit code, or 128 + signal. */
int wait_for(pid_t child);

uint64_t now_ns(void);
uint64_t cpu_ns(void); /* of this process */

extern const char *sim_directory; /* with libcuda.so.1, libnvidia-ml.so.1, gpusim */

#define CASE(name, arguments) void test_##name(void);
#include "cases.def"
#undef CASE

#endif
