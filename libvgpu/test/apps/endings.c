/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * endings.c - launches that nobody measures, counted: their context ends, the driver's events fail, a stream never gets to
 * them. Less is let through then, never more.
 */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "counted.h"

static const double wanted = 0.3;

/* Pairs of events end with their context, and are not used afterwards. */
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
  /* Each launch, unless the machine is so busy that they are done before their contexts end: then one in 64 at least. */
  CHECK(calls_since(from, "cuEventCreate", NULL) >= 8, "launches are measured in new contexts");
  CHECK_EQUAL(launch_on(kernel, NULL), 0, "and in the first one");
  CHECK_EQUAL(fake_stale_events, 0, "uses of events that are gone");
}

/* Launches one new kernel in each round, of which nobody asks whether it has ended. The share that they got. */
static double share_of_rounds(void (*begin)(void), void (*end)(void)) {
  uint64_t busy = fake_busy_ns[0];
  double begun = seconds_now();
  while (seconds_now() - begun < 2) {
    begin();
    CHECK_EQUAL(launch_on(kernel_of(20000), NULL), 0, "launch");
    end();
  }
  cuCtxSetCurrent(NULL);
  return (double)(fake_busy_ns[0] - busy) / 1e9 / (seconds_now() - begun);
}

static void check_share(double share, const char *what) {
  CHECK(share < wanted * 1.1 + 0.02, "%s: got %.3f, want %.3f", what, share, wanted);
  CHECK(share > wanted / 2, "%s: got %.3f, want %.3f", what, share, wanted);
}

static CUcontext round_context;

static void create_context(void) {
  CHECK_EQUAL(cuCtxCreate_v2(&round_context, 0, 0), 0, "create");
}
static void destroy_context(void) {
  CHECK_EQUAL(cuCtxDestroy_v2(round_context), 0, "destroy");
}
static void detach_context(void) {
  CHECK_EQUAL(cuCtxDetach(round_context), 0, "detach");
}
static void retain_context(void) {
  CHECK_EQUAL(cuDevicePrimaryCtxRetain(&round_context, 0), 0, "retain");
  CHECK_EQUAL(cuCtxSetCurrent(round_context), 0, "current");
}
static void reset_context(void) {
  CHECK_EQUAL(cuDevicePrimaryCtxReset_v2(0), 0, "reset");
}
static void release_context(void) {
  CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), 0, "release");
}
static void destroy_nothing(void) {
  CHECK(cuCtxDestroy_v2(NULL) != 0, "no context");
  release_context();
}

/* What ends with its context is paid for, and what does not is measured as ever. */
static void test_last(void) {
  check_share(share_of_rounds(create_context, destroy_context), "contexts that are destroyed");
  check_share(share_of_rounds(create_context, detach_context), "contexts that are detached");
  cuDevicePrimaryCtxReset_v2(0);
  check_share(share_of_rounds(retain_context, release_context), "contexts whose last user leaves");
  check_share(share_of_rounds(retain_context, reset_context), "contexts that are reset");
  retain_context();
  check_share(share_of_rounds(retain_context, destroy_nothing), "contexts that are released, and stay");
  CHECK_EQUAL(fake_stale_events, 0, "uses of events that are gone");
}

/* Where the driver cannot measure, new functions get less than the share; those that are known are as ever. */
static void test_failing(void) {
  static const char *const calls[] = {"cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventElapsedTime"};
  CUfunction known = kernel_of(5000);
  CUstream stream;
  cuStreamCreate(&stream, 1);
  share_got(0, known, stream, 0.5);
  for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
    fake_fail_call = calls[i];
    double share = share_got(0, kernel_of(20000), stream, 2);
    CHECK(share < wanted * 1.1 + 0.02, "%s fails: got %.3f, want at most %.3f", calls[i], share, wanted);
    fake_fail_call = NULL;
    share_got(0, known, stream, 0.1);
    check_share(share_got(0, known, stream, 0.5), "afterwards");
  }
}

static CUcontext blocked_context;
static CUfunction blocked_kernel;

static void *launch_for_ever(void *unused) {
  (void)unused;
  cuCtxSetCurrent(blocked_context);
  for (;;)
    launch_on(blocked_kernel, NULL);
  return NULL;
}

/* Threads launch a new kernel for 9 s, of which the first one, or 64 launches of another, are on a stream that never gets to
 * them: 64 are all that can be measured at a time. */
static void launch_beside(bool is_first) {
  enum { MOST_MARKS = 64, THREADS = 48 };
  pthread_t thread;
  CUstream stream;
  blocked_context = use_device(0);
  cuStreamCreate(&stream, 1);
  fake_blocked_stream = stream;
  CUfunction known = kernel_of(5000);
  share_got(0, known, NULL, 0.3);
  blocked_kernel = kernel_of(100000);
  for (int i = 0; i < (is_first ? 1 : MOST_MARKS); i++) /* each is measured, as they are long */
    CHECK_EQUAL(launch_on(is_first ? blocked_kernel : known, stream), 0, "launch");
  uint64_t busy = fake_busy_ns[0];
  double begun = seconds_now();
  for (int i = 0; i < THREADS; i++)
    pthread_create(&thread, NULL, launch_for_ever, NULL);
  sleep(9);
  double share = (double)(fake_busy_ns[0] - busy) / 1e9 / (seconds_now() - begun);
  CHECK(share < wanted * 1.1 + 0.02, "got %.3f, want at most %.3f", share, wanted);
  CHECK(share > 0.01, "got %.3f", share);
  check_done();
  _exit(check_failed != 0); /* some of them wait for long */
}

static void test_blocked(void) {
  launch_beside(false);
}

static void test_blocked_first(void) {
  launch_beside(true);
}

static pid_t parent;
static uint64_t calls_at_fork;

/* Registered before libvgpu registers what it does at exit, and so called after that. */
static void check_at_exit(void) {
  if (getpid() != parent) _exit(fake_calls != calls_at_fork);
}

/* Forked children that end pay for nothing that is under way in their parent, and do not call the driver. */
static void test_children(void) {
  CUfunction kernel = kernel_of(400000);
  enum { CHILDREN = 100 };
  parent = getpid();
  atexit(check_at_exit);
  double begun = seconds_now();
  CHECK_EQUAL(launch_on(kernel, NULL), 0, "launch");
  calls_at_fork = fake_calls;
  for (int i = 0; i < CHILDREN; i++) {
    pid_t child = fork();
    if (child == 0) exit(0);
    int status = 1;
    waitpid(child, &status, 0);
    CHECK_EQUAL(status, 0, "a child calls nothing");
  }
  CHECK_EQUAL(launch_on(kernel, NULL), 0, "launch again");
  double took = seconds_now() - begun, due = 0.4 / wanted;
  CHECK(took > due * 0.9 && took < due * 1.2, "launched again after %.3f s, want %.3f", took, due);
}

static const struct test tests[] = {{"contexts", test_contexts, false},
                                    {"last", test_last, false},
                                    {"failing", test_failing, false},
                                    {"blocked", test_blocked, true},
                                    {"blocked-first", test_blocked_first, true},
                                    {"children", test_children, false}};

int main(int argc, char **argv) {
  return run_counted_case(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
