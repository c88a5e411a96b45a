/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * late.c - programs that change their surroundings before their first call, or become another program after it:
 *   late chdir LIMIT | gone ALLOC_DIRECTORY | exec TIMES MIB | hold MIB
 */
#include <unistd.h>

#include "driver.h"

/* Another directory, with a library that was named by a relative path. */
static void test_chdir(uint64_t limit) {
  CHECK_EQUAL(chdir("/"), 0, "chdir");
  use_device(0);
  CHECK_EQUAL(total_bytes(), limit, "limit after chdir");
}

/* As after chroot: the pages are out of sight, and the environment that could tell of them is cleared. */
static void test_gone(const char *alloc) {
  char elsewhere[4096], *simulated = strdup(getenv("GPUSIM_DIR"));
  CUdeviceptr pointer;
  snprintf(elsewhere, sizeof(elsewhere), "%s.gone", alloc);
  CHECK_EQUAL(rename(alloc, elsewhere), 0, "rename");
  clearenv();
  setenv("GPUSIM_DIR", simulated, 1);
  use_device(0);
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY, "one byte");
}

static void test_hold(uint64_t mib) {
  CUdeviceptr pointer;
  use_device(0);
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, mib * MIB), 0, "what the one before has left");
}

/* The memory of a program that execve replaces is free again. */
static void test_exec(char **argv) {
  char times[16];
  test_hold(strtoull(argv[3], NULL, 10));
  int left = atoi(argv[2]);
  if (left == 0 || check_failed) return;
  snprintf(times, sizeof(times), "%d", left - 1);
  argv[2] = times;
  execv("/proc/self/exe", argv);
  CHECK(0, "execv");
}

int main(int argc, char **argv) {
  const char *name = argc > 2 ? argv[1] : "";
  if (strcmp(name, "chdir") == 0) test_chdir(strtoull(argv[2], NULL, 10));
  if (strcmp(name, "gone") == 0) test_gone(argv[2]);
  if (strcmp(name, "hold") == 0) test_hold(strtoull(argv[2], NULL, 10));
  if (strcmp(name, "exec") == 0 && argc > 3) test_exec(argv);
  CHECK(check_passed > 0, "no such case: %s", name);
  return check_done();
}
