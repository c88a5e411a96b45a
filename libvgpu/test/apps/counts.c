/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * counts.c - what libvgpu does around launches, counted: the usual launch, refused ones, collectives, kernels of libraries,
 * several GPUs.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <ucontext.h>
#include <unistd.h>

#include "counted.h"

enum { ERROR_LAUNCH = 719 };

/* Faults of a read-only usage page, and system calls, of the launch under way. */
static volatile sig_atomic_t page_stores, system_calls;
static void *usage_page;
static size_t usage_bytes;
static volatile char system_call_gate; /* SYSCALL_DISPATCH_FILTER_ALLOW is 0, _BLOCK is 1 */

static void on_page_store(int number, siginfo_t *info, void *context) {
  (void)context;
  char *at = info->si_addr;
  if (at < (char *)usage_page || at >= (char *)usage_page + usage_bytes) {
    signal(number, SIG_DFL);
    return;
  }
  page_stores++;
  system_call_gate = 0;
  mprotect(usage_page, usage_bytes, PROT_READ | PROT_WRITE);
  system_call_gate = 1;
}

#if defined(__x86_64__) && defined(PR_SET_SYSCALL_USER_DISPATCH)
/* Lets it be made after all. */
static void on_system_call(int number, siginfo_t *info, void *context) {
  (void)number, (void)info;
  ucontext_t *user = context;
  system_calls++;
  system_call_gate = 0;
  user->uc_mcontext.gregs[REG_RAX] = info->si_syscall;
  user->uc_mcontext.gregs[REG_RIP] -= 2;
}

static bool count_system_calls(void) {
  struct sigaction action = {.sa_sigaction = on_system_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGSYS, &action, NULL);
  return prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &system_call_gate) == 0;
}
#else
static bool count_system_calls(void) {
  return false;
}
#endif

/* The usual launch: the driver gets the launch alone, nothing is stored into shared memory, no system call is made. */
static void test_usual(void) {
  enum { LAUNCHES = 4000, USUAL = LAUNCHES * 9 / 10 };
  struct sigaction action = {.sa_sigaction = on_page_store, .sa_flags = SA_SIGINFO};
  CUfunction kernel = kernel_of(0);
  int quiet_driver = 0, quiet_page = 0, quiet_kernel = 0, quiet = 0;
  for (int i = 0; i < 200; i++)
    launch_on(kernel, NULL);
  char path[512];
  usage_page = find_page("usage", path, &usage_bytes);
  CHECK(usage_page != NULL, "the usage page is mapped");
  sigaction(SIGSEGV, &action, NULL);
  bool is_counted = count_system_calls();
  for (int i = 0; i < LAUNCHES; i++) {
    uint64_t before = fake_calls;
    mprotect(usage_page, usage_bytes, PROT_READ);
    page_stores = system_calls = 0;
    system_call_gate = is_counted;
    launch_on(kernel, NULL);
    system_call_gate = 0;
    quiet_driver += fake_calls - before == 1;
    quiet_page += page_stores == 0;
    quiet_kernel += system_calls == 0;
    quiet += fake_calls - before == 1 && page_stores == 0 && system_calls == 0;
  }
  CHECK(quiet_driver > USUAL, "no other driver call: %d of %d", quiet_driver, LAUNCHES);
  CHECK(quiet_page > USUAL, "no store into the usage page: %d of %d", quiet_page, LAUNCHES);
  CHECK(quiet_page < LAUNCHES, "stores are seen");
  CHECK(quiet > USUAL, "neither, and no system call: %d of %d", quiet, LAUNCHES);
  if (is_counted)
    CHECK(quiet_kernel > USUAL, "no system call: %d of %d", quiet_kernel, LAUNCHES);
  else
    SKIP("system calls: this kernel cannot count them");
}

/* Launches that the driver refuses cost nothing. */
static void test_refused(void) {
  CUfunction kernel = kernel_of(5000), unknown = kernel_of(5000);
  for (int i = 0; i < 5; i++)
    launch_on(kernel, NULL);
  fake_fail_launches = ERROR_LAUNCH;
  CHECK_EQUAL(launch_on(unknown, NULL), ERROR_LAUNCH, "the driver's own answer");
  CHECK_EQUAL(launch_on(unknown, NULL), ERROR_LAUNCH, "again, at once");
  double begun = seconds_now();
  for (int i = 0; i < 200; i++)
    CHECK_EQUAL(launch_on(kernel, NULL), ERROR_LAUNCH, "the driver's own answer");
  CHECK(seconds_now() - begun < 0.5, "200 refusals took %.3f s", seconds_now() - begun);
  fake_fail_launches = 0;
  begun = seconds_now();
  CHECK_EQUAL(launch_on(kernel, NULL), 0, "a good one");
  CHECK(seconds_now() - begun < 0.1, "waited %.3f s", seconds_now() - begun);
}

/* Collectives: charged, not kept waiting in the middle of a group, nor before there is much debt. (One that takes long at first is
 * taken to wait for its peers, so these are short.) */
static void test_collectives(void) {
  CUfunction collective = kernel_named("ncclDevKernel_AllReduce_900us"), plain = kernel_of(10000);
  for (int i = 0; i < 3; i++) { /* both are known */
    launch_on(collective, NULL);
    cuCtxSynchronize();
    launch_on(plain, NULL);
    cuCtxSynchronize();
  }
  sleep(1);
  launch_on(plain, NULL); /* 10 ms of debt, less the burst */
  double begun = seconds_now();
  for (int i = 0; i < 150; i++)
    CHECK_EQUAL(launch_on(collective, NULL), 0, "launch");
  CHECK(seconds_now() - begun < 0.25, "150 of 0.9 ms went without a wait (%.3f s)", seconds_now() - begun);
  begun = seconds_now();
  CHECK_EQUAL(launch_on(plain, NULL), 0, "another kernel");
  CHECK(seconds_now() - begun > 0.2, "pays for them (%.3f s)", seconds_now() - begun);
  begun = seconds_now();
  for (int i = 0; i < 600; i++)
    CHECK_EQUAL(launch_on(collective, NULL), 0, "launch");
  double took = seconds_now() - begun;
  CHECK(took > 0.7, "600 of 0.9 ms, each a group of its own: held at 200 ms of debt (%.3f s)", took);
}

/* The driver loads code in the first launch's call, while the kernel runs or before: neither is that time the kernel's, nor
 * the rest of it all of its time. */
static void test_loading(void) {
  static const int us[] = {1000, 20000};
  fake_loading_us = 5000;
  for (unsigned i = 0; i < sizeof(us) / sizeof(us[0]); i++) {
    CUfunction kernel = kernel_of(us[i]);
    uint64_t busy = fake_busy_ns[0];
    double begun = seconds_now();
    while (seconds_now() - begun < 1)
      CHECK_EQUAL(launch_on(kernel, NULL), 0, "launch");
    cuCtxSynchronize();
    double share = (double)(fake_busy_ns[0] - busy) / 1e9 / (seconds_now() - begun);
    CHECK(share > 0.22 && share < 0.36, "kernels of %d us: got %.3f, want 0.3", us[i], share);
  }
}

/* Kernels of libraries are launched as if they were functions, and are not asked about as if they were. */
static void test_kernels(void) {
  CUkernel plain, collective;
  CHECK_EQUAL(cuLibraryGetKernel(&plain, NULL, "plain_100us"), 0, "a kernel");
  CHECK_EQUAL(cuLibraryGetKernel(&collective, NULL, "_Z21ncclDevKernel_Generic_10000us"), 0, "a collective");
  uint64_t from = fake_calls;
  CHECK_EQUAL(launch_on((CUfunction)plain, NULL), 0, "launch");
  CHECK_EQUAL(launch_on((CUfunction)collective, NULL), 0, "launch");
  cuCtxSynchronize();
  double begun = seconds_now();
  for (int i = 0; i < 10; i++)
    CHECK_EQUAL(launch_on((CUfunction)collective, NULL), 0, "launch");
  CHECK(seconds_now() - begun < 0.1, "10 collectives of 10 ms went without a wait (%.3f s)", seconds_now() - begun);
  CHECK_EQUAL(calls_since(from, "cuFuncGetName", NULL), 0, "questions about names");
}

/* Each GPU has its own share: the second has twice the first one's. */
static void test_two(void) {
  CUcontext contexts[2];
  CUfunction kernel = kernel_of(500);
  for (int i = 0; i < 2; i++) {
    cuDevicePrimaryCtxRetain(&contexts[i], i);
    cuCtxSetCurrent(contexts[i]);
    launch_on(kernel, NULL);
  }
  for (int i = 0; i < 2; i++) {
    cuCtxSetCurrent(contexts[i]);
    uint64_t busy = fake_busy_ns[i];
    double begun = seconds_now(), want = i == 0 ? 0.2 : 0.4;
    while (seconds_now() - begun < 1)
      launch_on(kernel, NULL);
    double share = (double)(fake_busy_ns[i] - busy) / 1e9 / (seconds_now() - begun);
    CHECK(share > want - 0.05 && share < want + 0.05, "GPU %d: got %.3f, want %.1f", i, share, want);
  }
}

/* A launch pays where its stream is, whatever context is current. */
static void test_elsewhere(void) {
  CUcontext contexts[2];
  CUstream stream;
  CUfunction kernel = kernel_of(2000);
  for (int i = 1; i >= 0; i--) {
    cuDevicePrimaryCtxRetain(&contexts[i], i);
    cuCtxSetCurrent(contexts[i]);
    if (i == 1) cuStreamCreate(&stream, 1);
  }
  uint64_t busy = fake_busy_ns[1];
  double begun = seconds_now();
  while (seconds_now() - begun < 1)
    CHECK_EQUAL(launch_on(kernel, stream), 0, "launch");
  double share = (double)(fake_busy_ns[1] - busy) / 1e9 / (seconds_now() - begun);
  CHECK(share > 0.35 && share < 0.45, "GPU 1: got %.3f, want 0.4", share);
}

static const struct test tests[] = {
    {"usual", test_usual, false},        {"refused", test_refused, false}, {"collectives", test_collectives, false},
    {"kernels", test_kernels, false},    {"loading", test_loading, false}, {"two", test_two, false},
    {"elsewhere", test_elsewhere, false}};

int main(int argc, char **argv) {
  return run_counted_case(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
