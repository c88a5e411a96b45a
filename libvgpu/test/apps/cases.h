/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * cases.h - programs with several cases, of which one is run: PROGRAM CASE.
 */
#ifndef VGPU_TEST_CASES_H
#define VGPU_TEST_CASES_H

#include <stdbool.h>

#include "driver.h"

struct test {
  const char *name;
  void (*run)(void);
  bool makes_context; /* by itself */
};

/* Runs the case of this name, with a context on the first device. The exit code. */
static inline int run_case(const struct test *tests, size_t count, const char *name) {
  for (size_t i = 0; i < count; i++) {
    if (strcmp(tests[i].name, name) != 0) continue;
    if (!tests[i].makes_context) use_device(0);
    tests[i].run();
    return check_done();
  }
  return 2;
}

#endif
