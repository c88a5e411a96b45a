/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * counts.c - what libvgpu does around launches, counted by a driver that logs its calls (test/fake_gpu.c): counts CASE,
 * with a share from outside.
 */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "gpu_time.h"

enum { LOG = 1 << 16, ERROR_LAUNCH = 719 };

struct fake_call {
  const char *name;
  CUstream stream;
};
extern uint64_t fake_calls, fake_busy_ns[], fake_kernels;
extern struct fake_call fake_log[LOG];
extern int fake_fail_launches, fake_loading_us;

/* Calls of the driver since `from` with this name (NULL: any) and stream (NULL: any). */
static uint64_t calls_since(uint64_t from, const char *name, CUstream stream) {
  uint64_t count = 0;
  for (uint64_t i = from; i < fake_calls; i++) {
    const struct fake_call *call = &fake_log[i % LOG];
    count += (!name || strcmp(call->name, name) == 0) && (!stream || call->stream == stream);
  }
  return count;
}

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

static bool is_over;

static void *allocate_meanwhile(void *context) {
  CUdeviceptr pointer;
  cuCtxSetCurrent(context);
  while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1 << 20), 0, "allocate beside a capture");
    CHECK_EQUAL(cuMemFree_v2(pointer), 0, "free beside a capture");
    usleep(1000);
  }
  return NULL;
}

enum { CAPTURED = 200 };

/* The program's own calls on `stream` and `second`, which joins and comes back. */
static void capture_much(CUfunction kernel, CUstream stream, CUstream second, CUevent fork_event, CUevent join_event) {
  CUdeviceptr pointer;
  CHECK_EQUAL(cuEventRecord(fork_event, stream), 0, "record");
  CHECK_EQUAL(cuStreamWaitEvent(second, fork_event, 0), 0, "join");
  for (int i = 0; i < CAPTURED; i++)
    CHECK_EQUAL(launch_on(kernel, i % 2 ? stream : second), 0, "launch into a capture");
  CHECK_EQUAL(cuMemAllocAsync(&pointer, 1 << 20, stream), 0, "allocate in a capture");
  CHECK_EQUAL(cuMemFreeAsync(pointer, stream), 0, "free in a capture");
  CHECK_EQUAL(cuEventRecord(join_event, second), 0, "record");
  CHECK_EQUAL(cuStreamWaitEvent(stream, join_event, 0), 0, "come back");
}

/* The driver sees on capturing streams what the program calls, and nothing is kept waiting or charged. */
static void capture_in(int mode, CUfunction kernel, CUcontext context) {
  CUstream stream, second;
  CUevent fork_event, join_event;
  CUgraph graph = NULL;
  CUgraphExec executable;
  pthread_t thread;
  cuStreamCreate(&stream, 1);
  cuStreamCreate(&second, 1);
  cuEventCreate(&fork_event, 2);
  cuEventCreate(&join_event, 2);
  launch_on(kernel, stream); /* there is something to measure */
  __atomic_store_n(&is_over, mode != CU_STREAM_CAPTURE_MODE_RELAXED, __ATOMIC_RELAXED);
  pthread_create(&thread, NULL, allocate_meanwhile, context);
  double begun = seconds_now();
  uint64_t from = fake_calls;
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, mode), 0, "begin");
  capture_much(kernel, stream, second, fork_event, join_event);
  CHECK_EQUAL(cuStreamEndCapture(stream, &graph), 0, "the capture is whole");
  double took = seconds_now() - begun;
  CHECK_EQUAL(calls_since(from, NULL, stream), 1 + 1 + CAPTURED / 2 + 2 + 1 + 1, "calls on the stream");
  CHECK_EQUAL(calls_since(from, NULL, second), 1 + CAPTURED / 2 + 1, "calls on the second one");
  CHECK_EQUAL(calls_since(from, "cuEventQuery", NULL), 0, "questions");
  CHECK_EQUAL(calls_since(from, "cuEventCreate", NULL), 0, "events");
  CHECK(took < 0.5, "%d launches of 10 ms were captured in %.3f s", CAPTURED, took);
  __atomic_store_n(&is_over, true, __ATOMIC_RELAXED);
  pthread_join(thread, NULL);
  CHECK_EQUAL(cuGraphInstantiateWithFlags(&executable, graph, 0), 0, "instantiate");
  begun = seconds_now();
  uint64_t busy = fake_busy_ns[0];
  CHECK_EQUAL(launch_on(kernel, stream), 0, "launches on it run again");
  CHECK_EQUAL(fake_busy_ns[0] - busy, 10000000, "on the GPU");
  cuStreamDestroy_v2(second);
}

static void test_capture(void) {
  CUfunction kernel = kernel_of(10000);
  CUcontext context = NULL;
  cuCtxGetCurrent(&context);
  for (int mode = 0; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++)
    capture_in(mode, kernel, context);
}

/* A capture that is held open lifts the limit from no other stream, not even for new functions. */
static void test_held(void) {
  enum { US = 2000 };
  CUstream held, stream;
  CUfunction known = kernel_of(US), unknown = kernel_of(US);
  cuStreamCreate(&held, 1);
  cuStreamCreate(&stream, 1);
  for (int i = 0; i < 20; i++)
    launch_on(known, stream);
  CHECK_EQUAL(cuStreamBeginCapture_v2(held, CU_STREAM_CAPTURE_MODE_RELAXED), 0, "begin");
  uint64_t busy = fake_busy_ns[0];
  double begun = seconds_now();
  while (seconds_now() - begun < 1)
    launch_on(known, stream);
  double share = (double)(fake_busy_ns[0] - busy) / 1e9 / (seconds_now() - begun);
  CHECK(share > 0.24 && share < 0.34, "got %.3f, want 0.3", share);
  busy = fake_busy_ns[0];
  begun = seconds_now();
  while (seconds_now() - begun < 1)
    launch_on(unknown, stream);
  share = (double)(fake_busy_ns[0] - busy) / 1e9 / (seconds_now() - begun);
  CHECK(share > 0.2 && share < 0.45, "a new function: got %.3f, want 0.3, but for the first 200 ms", share);
  CHECK_EQUAL(launch_on(unknown, held), 0, "the capture goes on");
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
  CHECK(seconds_now() - begun < 0.12, "150 of 0.9 ms went without a wait (%.3f s)", seconds_now() - begun);
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

/* Pairs of events end with their context. */
static void test_contexts(void) {
  CUcontext context, first = NULL;
  CUfunction kernel = kernel_of(100);
  cuCtxGetCurrent(&first);
  uint64_t from = fake_calls;
  for (int i = 0; i < 100; i++) {
    CHECK_EQUAL(cuCtxCreate_v2(&context, 0, 0), 0, "create");
    for (int j = 0; j < 4; j++)
      CHECK_EQUAL(launch_on(kernel, NULL), 0, "launch");
    CHECK_EQUAL(cuCtxDestroy_v2(context), 0, "destroy");
  }
  cuCtxSetCurrent(first);
  uint64_t created = calls_since(from, "cuEventCreate", NULL), gone = calls_since(from, "cuEventDestroy_v2", NULL);
  CHECK(created > 0, "launches are measured in each context");
  CHECK_EQUAL(created, gone, "events that are left");
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

static const struct test {
  const char *name;
  void (*run)(void);
} tests[] = {{"usual", test_usual},        {"capture", test_capture},         {"held", test_held},
             {"refused", test_refused},    {"collectives", test_collectives}, {"contexts", test_contexts},
             {"kernels", test_kernels},    {"loading", test_loading},         {"two", test_two},
             {"elsewhere", test_elsewhere}};

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  use_device(0);
  for (unsigned i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
    if (strcmp(tests[i].name, argv[1]) != 0) continue;
    tests[i].run();
    return check_done();
  }
  return 2;
}
