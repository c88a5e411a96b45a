/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * compute.c - programs under a share of a GPU: compute CASE SHARE..., the share in percent from outside. What a loop of
 * launches got is the GPU time of its kernels over the time until the last one ended.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../include/vgpu_abi.h"
#include "gpu_time.h"

static double wanted; /* share, 0..1 */

enum { PATH_US = 1000 };

static CUfunction path_kernel;
static CUgraphExec path_graph;
static CUstream path_stream;

static void *variant(const char *name) {
  return dlsym(RTLD_DEFAULT, name);
}

/* Every way to launch; the name is also the function that has to be there. */
static CUresult by_plain(void) {
  return launch_on(path_kernel, path_stream);
}
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

/* Launches for `seconds`; each launch runs `us` on the GPU. The share that it got; negative: an error. */
static double share_of(CUresult (*launch)(void), double us, double seconds) {
  double begun = seconds_now();
  int launches = 0;
  while (seconds_now() - begun < seconds) {
    CUresult result = launch();
    if (result != CUDA_SUCCESS) return -(double)result;
    launches++;
  }
  cuCtxSynchronize();
  return launches * us / 1e6 / (seconds_now() - begun);
}

static double least_share(void) {
  return wanted * 0.85 - 0.01;
}

/* The same, again when it was too little: a machine that is busy with other things gives less, never more. */
static double good_share_of(CUresult (*launch)(void), double us, double seconds) {
  double share = 0;
  for (int i = 0; i < 4 && share >= 0 && share <= least_share(); i++)
    share = share_of(launch, us, seconds);
  return share;
}

static void check_share(double share, const char *what) {
  CHECK(share > least_share() && share < wanted * 1.1 + 0.015, "%s: got %.3f of the GPU, want %.3f", what, share,
        wanted);
}

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

/* A child of a process that has not called the driver yet: launches kernels of `us` for some time; their number. */
static pid_t child_that_launches(int us, double until, volatile double *share, double from) {
  pid_t child = fork();
  if (child != 0) return child;
  use_device(0);
  path_kernel = kernel_of(us);
  while (seconds_now() < from)
    usleep(1000);
  *share = share_of(by_plain, us, until - seconds_now());
  _exit(check_failed != 0);
}

enum { PROCESSES = 3 };
static const int process_us[PROCESSES] = {200, 1000, 4000};

/* Runs them for 3 s; their shares. */
static void run_processes(volatile double *shares) {
  pid_t children[PROCESSES];
  double begun = seconds_now() + 0.5;
  for (int i = 0; i < PROCESSES; i++)
    children[i] = child_that_launches(process_us[i], begun + 3, &shares[i], begun);
  for (int i = 0; i < PROCESSES; i++) {
    int status = 1;
    waitpid(children[i], &status, 0);
    CHECK_EQUAL(status, 0, "a process ends well");
  }
}

/* Processes of one container share its time, whatever the length of their kernels. */
static void test_processes(void) {
  volatile double *shares = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  double all = 0, least = 0;
  for (int tries = 0; tries < 4 && (all <= least_share() || least <= 0.7 * wanted / PROCESSES); tries++) {
    run_processes(shares);
    all = least = 0;
    for (int i = 0; i < PROCESSES; i++) {
      all += shares[i];
      least = i == 0 || shares[i] < least ? shares[i] : least;
    }
  }
  for (int i = 0; i < PROCESSES; i++) {
    CHECK(shares[i] > 0.7 * wanted / PROCESSES && shares[i] < 1.3 * wanted / PROCESSES,
          "the one with kernels of %d us got %.3f, want %.3f", process_us[i], shares[i], wanted / PROCESSES);
  }
  check_share(all, "three processes");
}

/* One process after the other launches once and ends: with a wait, and then without any last call of the driver. */
static void test_once(void) {
  enum { ONCE_US = 20000 };
  double begun = seconds_now();
  int launches = 0;
  for (; seconds_now() - begun < 3; launches++) {
    pid_t child = fork();
    if (child == 0) {
      use_device(0);
      CHECK_EQUAL(launch_on(kernel_of(ONCE_US), NULL), 0, "launch");
      if (launches % 2) cuCtxSynchronize();
      usleep(ONCE_US * 3 / 2);
      exit(check_failed != 0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK_EQUAL(status, 0, "a process ends well");
  }
  double share = launches * ONCE_US / 1e6 / (seconds_now() - begun);
  CHECK(share < wanted * 1.1 + 0.02, "got %.3f of the GPU, want %.3f", share, wanted);
}

/* A process that is killed while it waits holds up nobody. */
static void test_kill(void) {
  volatile double *share = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  double begun = seconds_now(), longest = 0;
  pid_t victims[8];
  for (int i = 0; i < 8; i++)
    victims[i] = child_that_launches(3000, begun + 60, share, begun);
  use_device(0);
  path_kernel = kernel_of(PATH_US);
  usleep(500000);
  for (int i = 0; i < 8; i++) {
    kill(victims[i], SIGKILL);
    waitpid(victims[i], NULL, 0);
    double before = seconds_now();
    CHECK_EQUAL(by_plain(), 0, "launch");
    longest = seconds_now() - before > longest ? seconds_now() - before : longest;
    usleep(20000);
  }
  CHECK(longest < 1, "the longest wait was %.3f s", longest);
  share_of(by_plain, PATH_US, 0.3);
  check_share(good_share_of(by_plain, PATH_US, 1), "alone again");
}

/* A child of a process that has launched. */
static void test_fork(void) {
  volatile double *share = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  use_device(0);
  path_kernel = kernel_of(PATH_US);
  share_of(by_plain, PATH_US, 0.3);
  double begun = seconds_now();
  pid_t child = child_that_launches(PATH_US, begun + 2, share, begun + 0.1);
  int status = 1;
  waitpid(child, &status, 0);
  CHECK_EQUAL(status, 0, "the child ends well");
  check_share(*share, "a forked child");
  check_share(good_share_of(by_plain, PATH_US, 0.5), "its parent afterwards");
}

static void test_plain(void) {
  path_kernel = kernel_of(PATH_US);
  share_of(by_plain, PATH_US, 0.1);
  check_share(good_share_of(by_plain, PATH_US, 1), "cuLaunchKernel");
}

static volatile bool is_over;

/* Writes garbage over all words of the usage page but its header, again and again. */
static void *scribble(void *page) {
  uint64_t *words = page, state = 88172645463325252ULL;
  size_t bytes = 0;
  char path[512];
  find_page("usage", path, &bytes);
  while (!is_over) {
    for (size_t i = sizeof(struct vgpu_usage_page) / 8; i < bytes / 8; i++) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      __atomic_store_n(&words[i], state, __ATOMIC_RELAXED);
    }
    usleep(5000);
  }
  return NULL;
}

/* Nothing that is written into the usage page gives a process more than its share, or hangs it. */
static void test_garbage(void) {
  char path[512];
  size_t bytes;
  pthread_t thread;
  double longest = 0, begun;
  int launches = 0;
  path_kernel = kernel_of(PATH_US);
  share_of(by_plain, PATH_US, 0.2);
  void *page = find_page("usage", path, &bytes);
  CHECK(page != NULL, "the usage page is mapped");
  if (!page) return;
  pthread_create(&thread, NULL, scribble, page);
  for (begun = seconds_now(); seconds_now() - begun < 2; launches++) {
    double before = seconds_now();
    CHECK_EQUAL(by_plain(), 0, "launch");
    longest = seconds_now() - before > longest ? seconds_now() - before : longest;
  }
  cuCtxSynchronize();
  double share = launches * PATH_US / 1e6 / (seconds_now() - begun);
  is_over = true;
  pthread_join(thread, NULL);
  CHECK(share < wanted * 1.1 + 0.015, "got %.3f of the GPU, want at most %.3f", share, wanted);
  CHECK(longest < 1, "the longest wait was %.3f s", longest);
}

/* Gives the device all of the GPU after 300 ms, as the agent does. */
static void *raise_rate(void *device) {
  struct vgpu_limits_device *limits = device;
  usleep(300000);
  uint32_t generation = limits->rate_generation + 1;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
  struct vgpu_rate *rate = &limits->rates[generation & 1];
  *rate = limits->rates[(generation & 1) ^ 1];
  rate->entitled_ns += (now_ns - rate->since_ns) * rate->rate_ppm / VGPU_PPM + 1000000000;
  rate->since_ns = now_ns;
  rate->rate_ppm = VGPU_PPM;
  __atomic_store_n(&limits->rate_generation, generation, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &limits->rate_generation, 1 /* FUTEX_WAKE */, INT32_MAX, NULL, NULL, 0);
  return NULL;
}

/* A thread that waits goes on at once when the rate is raised. */
static void test_change(void) {
  char path[512] = "";
  size_t bytes = 0;
  pthread_t thread;
  long_kernel = kernel_of(200000);
  launch_and_wait(); /* seconds of debt, under a small share */
  find_page("limits", path, &bytes);
  int file = open(path, O_RDWR);
  struct vgpu_limits_page *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  CHECK(file >= 0 && page != MAP_FAILED, "the limits page is a file: %s", path);
  if (page == MAP_FAILED) return;
  pthread_create(&thread, NULL, raise_rate, &page->devices[0]);
  double begun = seconds_now();
  CHECK_EQUAL(launch_on(long_kernel, NULL), 0, "launch");
  double waited = seconds_now() - begun;
  pthread_join(thread, NULL);
  CHECK(waited > 0.25 && waited < 0.39, "waited %.3f s, want 0.3", waited);
}

/* What the usage page says afterwards. */
static void test_told(void) {
  char path[512];
  size_t bytes;
  path_kernel = kernel_of(PATH_US);
  double begun = seconds_now(), share = share_of(by_plain, PATH_US, 1), took = seconds_now() - begun;
  const struct vgpu_usage_page *page = find_page("usage", path, &bytes);
  CHECK(page != NULL, "the usage page is mapped");
  if (!page) return;
  const struct vgpu_usage_device *usage = (const struct vgpu_usage_device *)(page + 1);
  double charged = (double)usage->charged_ns / 1e9 / took, throttled = (double)usage->throttled_ns / 1e9 / took;
  CHECK(charged > share * 0.9 && charged < share * 1.2, "charged %.3f of the GPU, used %.3f", charged, share);
  CHECK(throttled > 0.5, "throttled for %.3f of the time", throttled);
  CHECK(usage->launches >= (uint64_t)(share * took * 900), "%lu launches", (unsigned long)usage->launches);
  CHECK((double)usage->degraded_ns / 1e9 > 0.5 * took, "nobody steers, for %.3f s", (double)usage->degraded_ns / 1e9);
  CHECK(seconds_now() - (double)usage->wanted_ns / 1e9 < 0.5, "wanted");
}

static const struct test {
  const char *name;
  void (*run)(void);
  bool makes_context; /* by itself */
} tests[] = {{"paths", test_paths, false},     {"graphs", test_graphs, false},
             {"long", test_long, false},       {"garbage", test_garbage, false},
             {"change", test_change, false},   {"told", test_told, false},
             {"signals", test_signals, false}, {"threads", test_threads, false},
             {"plain", test_plain, false},     {"processes", test_processes, true},
             {"kill", test_kill, true},        {"once", test_once, true},
             {"fork", test_fork, true}};

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  wanted = atof(argv[2]) / 100;
  for (unsigned i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
    if (strcmp(tests[i].name, argv[1]) != 0) continue;
    if (!tests[i].makes_context) use_device(0);
    tests[i].run();
    return check_done();
  }
  return 2;
}
