/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * compute.c - one process under a share of a GPU: every way to launch, graphs, long kernels, signals, threads.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

#include "share.h"

static CUgraphExec path_graph;

static void *variant(const char *name) {
  return dlsym(RTLD_DEFAULT, name);
}

/* Every way to launch; the name is also the function that has to be there. */
static CUresult by_plain_ptsz(void) {
  __typeof__(&cuLaunchKernel) launch = variant("cuLaunchKernel_ptsz");
  return launch(path_kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
}
static CUresult by_extended(void) {
  const CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, path_stream, NULL, 0};
  return cuLaunchKernelEx(&config, path_kernel, NULL, NULL);
}
static CUresult by_extended_ptsz(void) {
  const CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, path_stream, NULL, 0};
  __typeof__(&cuLaunchKernelEx) launch = variant("cuLaunchKernelEx_ptsz");
  return launch(&config, path_kernel, NULL, NULL);
}
static CUresult by_cooperative(void) {
  return cuLaunchCooperativeKernel(path_kernel, 1, 1, 1, 32, 1, 1, 0, path_stream, NULL);
}
static CUresult by_cooperative_ptsz(void) {
  __typeof__(&cuLaunchCooperativeKernel) launch = variant("cuLaunchCooperativeKernel_ptsz");
  return launch(path_kernel, 1, 1, 1, 32, 1, 1, 0, path_stream, NULL);
}
static CUresult by_list(void) {
  CUDA_LAUNCH_PARAMS list[] = {{path_kernel, 1, 1, 1, 32, 1, 1, 0, path_stream, NULL}};
  return cuLaunchCooperativeKernelMultiDevice(list, 1, 0);
}
static CUresult by_first(void) {
  return cuLaunch(path_kernel);
}
static CUresult by_grid(void) {
  return cuLaunchGrid(path_kernel, 1, 1);
}
static CUresult by_grid_async(void) {
  return cuLaunchGridAsync(path_kernel, 1, 1, path_stream);
}
static CUresult by_graph(void) {
  return cuGraphLaunch(path_graph, path_stream);
}
static CUresult by_graph_ptsz(void) {
  __typeof__(&cuGraphLaunch) launch = variant("cuGraphLaunch_ptsz");
  return launch(path_graph, path_stream);
}

static const struct path {
  const char *name;
  CUresult (*launch)(void);
} paths[] = {{"cuLaunchKernel", by_plain},
             {"cuLaunchKernel_ptsz", by_plain_ptsz},
             {"cuLaunchKernelEx", by_extended},
             {"cuLaunchKernelEx_ptsz", by_extended_ptsz},
             {"cuLaunchCooperativeKernel", by_cooperative},
             {"cuLaunchCooperativeKernel_ptsz", by_cooperative_ptsz},
             {"cuLaunchCooperativeKernelMultiDevice", by_list},
             {"cuLaunch", by_first},
             {"cuLaunchGrid", by_grid},
             {"cuLaunchGridAsync", by_grid_async},
             {"cuGraphLaunch", by_graph},
             {"cuGraphLaunch_ptsz", by_graph_ptsz}};

static CUgraphExec graph_of(CUfunction function, int kernels) {
  CUstream stream;
  CUgraph graph;
  CUgraphExec executable;
  cuStreamCreate(&stream, 1);
  if (cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS) return NULL;
  for (int i = 0; i < kernels; i++)
    CHECK_EQUAL(launch_on(function, stream), 0, "launch into a capture");
  CHECK_EQUAL(cuStreamEndCapture(stream, &graph), 0, "end the capture");
  CHECK_EQUAL(cuGraphInstantiateWithFlags(&executable, graph, 0), 0, "instantiate");
  return executable;
}

static void test_paths(void) {
  path_kernel = kernel_of(PATH_US);
  path_graph = graph_of(path_kernel, 1);
  CHECK_EQUAL(cuFuncSetBlockShape(path_kernel, 32, 1, 1), 0, "the shape of the first calls");
  cuStreamCreate(&path_stream, 1);
  share_of(by_plain, PATH_US, 0.2); /* the first burst is over */
  for (unsigned i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
    double share = variant(paths[i].name) ? good_share_of(paths[i].launch, PATH_US, 0.5) : -801;
    if (share <= -801) {
      SKIP("%s: this driver has none", paths[i].name);
      continue;
    }
    check_share(share, paths[i].name);
  }
}

/* One replay pays for all kernels of the graph, and for those that an update put into it. */
static void test_graphs(void) {
  CUfunction kernel = kernel_of(200);
  path_graph = graph_of(kernel, 100);
  if (!path_graph) {
    SKIP("graphs: this driver has none");
    return;
  }
  cuStreamCreate(&path_stream, 1);
  CHECK_EQUAL(cuGraphUpload(path_graph, path_stream), 0, "upload");
  share_of(by_graph, 100 * 200, 0.3);
  check_share(good_share_of(by_graph, 100 * 200, 2), "a graph of 100 kernels");
}

static CUfunction long_kernel;

static CUresult launch_and_wait(void) {
  CUresult result = launch_on(long_kernel, NULL);
  return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
}

/* Kernels that are longer than any control period are paid for afterwards. */
static void test_long(void) {
  long_kernel = kernel_of(100000);
  double begun = seconds_now();
  enum { LONG_COUNT = 6 };
  for (int i = 0; i < LONG_COUNT; i++)
    CHECK_EQUAL(launch_and_wait(), 0, "launch and wait");
  double took = seconds_now() - begun, due = (LONG_COUNT - 1) * 0.1 / wanted + 0.1 - 0.02;
  CHECK(took > due * 0.95 && took < due * 1.2 + 0.05, "6 kernels of 100 ms took %.3f s, want %.3f", took, due);
}

static volatile sig_atomic_t alarms;

static void count_alarm(int number) {
  (void)number;
  alarms++;
}

/* A thread that waits for GPU time handles signals, uses no CPU time, and the wait goes on. */
static void test_signals(void) {
  struct sigaction action = {.sa_handler = count_alarm};
  long_kernel = kernel_of(200000);
  sigaction(SIGALRM, &action, NULL);
  launch_and_wait();
  struct itimerval timer = {{0, 20000}, {0, 20000}};
  setitimer(ITIMER_REAL, &timer, NULL);
  double begun = seconds_now(), cpu = cpu_seconds();
  errno = 77;
  CHECK_EQUAL(launch_on(long_kernel, NULL), 0, "a launch among signals");
  double waited = seconds_now() - begun, used = cpu_seconds() - cpu, due = 0.2 / wanted - 0.2 - 0.02;
  timer = (struct itimerval){{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &timer, NULL);
  CHECK_EQUAL(errno, 77, "errno");
  CHECK(waited > due * 0.9 && waited < due * 1.3 + 0.1, "waited %.3f s, want %.3f", waited, due);
  CHECK(alarms >= waited / 0.020 / 3, "%d signals in %.3f s", (int)alarms, waited);
  CHECK(used < 0.05 * waited, "%.4f s of CPU time in %.3f s", used, waited);
}

static CUcontext shared_context;
static double deadline;

static void *launch_until_deadline(void *launches) {
  cuCtxSetCurrent(shared_context);
  while (seconds_now() < deadline) {
    if (launch_on(path_kernel, NULL) == CUDA_SUCCESS) ++*(int *)launches;
  }
  return NULL;
}

static void test_threads(void) {
  enum { THREADS = 4 };
  pthread_t threads[THREADS];
  int launches[THREADS] = {0}, all = 0;
  path_kernel = kernel_of(PATH_US);
  cuCtxGetCurrent(&shared_context);
  share_of(by_plain, PATH_US, 0.1);
  double begun = seconds_now();
  deadline = begun + 2;
  for (int i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, launch_until_deadline, &launches[i]);
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    all += launches[i];
  }
  check_share(all * PATH_US / 1e6 / (seconds_now() - begun), "four threads");
}

static void test_plain(void) {
  path_kernel = kernel_of(PATH_US);
  share_of(by_plain, PATH_US, 0.1);
  check_share(good_share_of(by_plain, PATH_US, 1), "cuLaunchKernel");
}

static const struct test tests[] = {{"paths", test_paths, false},     {"graphs", test_graphs, false},
                                    {"long", test_long, false},       {"signals", test_signals, false},
                                    {"threads", test_threads, false}, {"plain", test_plain, false}};

int main(int argc, char **argv) {
  return run_share_case(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
