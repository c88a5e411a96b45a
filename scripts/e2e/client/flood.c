// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors
//
// Keeps a GPU busy in one of the ways in which programs do, and says what it did.
//
//   flood [OPTION=VALUE...]    as flood_options.h lists them
//
// Lines: ready=1 pid= when it begins; launch= at_ms= took_ms= (of the launch call) with log=1; signal=2 as soon as SIGINT
// was answered, after which it ends with 130; sums=1 with what the first thread did so far; done=1 with the sums of a
// process, and with the copies' or with measure= how long operations took, those of its newest that were measured. With
// count it waits until the GPU has done all; with seconds it ends at once.

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "copies.h"
#include "driver.h"
#include "flood_options.h"

// What is launched on each device, and the device of the calling thread.
struct device {
  void *context, *kernel, *other, *first;
  void **kernels; // the first one is `kernel`
};
static struct device devices[MAX_DEVICES];
static __thread struct device *device;
static uint64_t begun_ns;

struct worker {
  pthread_t thread;
  int number;
  void *streams[MAX_STREAMS];
  void *executable, *node; // of the graph paths: what is replayed, and one of its kernels
  long launches, rounds;   // a round: copies and a launch
  uint64_t longest_ns, reported_ns;
  struct copier copier;
  struct meter meter;
  struct durations took; // launches that were measured
};
static struct worker workers[MAX_THREADS];

static void on_interrupt(int signal_number) {
  static const char line[] = "signal=2\n";
  (void)signal_number;
  if (write(STDOUT_FILENO, line, sizeof line - 1) > 0) _exit(130);
  _exit(1);
}

static struct kernel_node node_of(void *function) {
  return (struct kernel_node){.function = function,
                              .grid_x = (unsigned)options.grid,
                              .grid_y = 1,
                              .grid_z = 1,
                              .block_x = (unsigned)options.block,
                              .block_y = 1,
                              .block_z = 1};
}

// add_kernels adds kernels to a graph, one after the other, behind `after` (NULL: first), and returns the last one.
static void *add_kernels(void *graph, long count, void *after) {
  struct kernel_node parameters = node_of(device->kernel);
  void *node = after;
  for (long i = 0; i < count; i++) {
    void *before = node;
    CALL(cuGraphAddKernelNode, &node, graph, &before, before != NULL, &parameters);
  }
  return node;
}

static void *add_memset(void *graph, void *after) {
  struct memset_node parameters = {.pitch = 4096, .element_bytes = 1, .width = 4096, .height = 1};
  void *node;
  CALL(cuMemAlloc, &parameters.target, 4096);
  CALL(cuGraphAddMemsetNode, &node, graph, &after, after != NULL, &parameters, device->context);
  return node;
}

// make_graph makes a graph of `nodes` kernels in all; the first of them is worker->node.
static void *make_graph(struct worker *worker) {
  void *graph, *child, *last;
  if (path_is("capture")) {
    CALL(cuStreamBeginCapture, worker->streams[0], 1);
    for (long i = 0; i < options.nodes; i++)
      CALL(cuLaunchKernel, device->kernel, (unsigned)options.grid, 1, 1, (unsigned)options.block, 1, 1, 0,
           worker->streams[0], NULL, NULL);
    CALL(cuStreamEndCapture, worker->streams[0], &graph);
    return graph;
  }
  CALL(cuGraphCreate, &graph, 0);
  last = worker->node = add_kernels(graph, 1, NULL);
  if (!path_is("rich")) {
    add_kernels(graph, options.nodes - 1, last);
    return graph;
  }
  CALL(cuGraphCreate, &child, 0);
  add_kernels(child, (options.nodes - 1) / 2, add_memset(child, NULL));
  void *after = add_memset(graph, last);
  CALL(cuGraphAddChildGraphNode, &last, graph, &after, 1, child);
  add_kernels(graph, options.nodes - 1 - (options.nodes - 1) / 2, last);
  return graph;
}

// choose_device makes the worker's device the calling thread's.
static void choose_device(const struct worker *worker) {
  device = &devices[worker->number % options.devices];
  CALL(cuCtxSetCurrent, device->context);
}

static void prepare(struct worker *worker) {
  choose_device(worker);
  for (long i = 0; i < options.streams; i++)
    worker->streams[i] = new_stream();
  prepare_copier(&worker->copier, &options.copy);
  if (path_is("old") || path_is("grid")) CALL(cuFuncSetBlockShape, device->kernel, (int)options.block, 1, 1);
  if (!is_graph()) return;
  CALL(cuGraphInstantiateWithFlags, &worker->executable, make_graph(worker), 0);
  CALL(cuGraphUpload, worker->executable, worker->streams[0]);
}

static void launch_one(void *function, void *stream) {
  unsigned grid = (unsigned)options.grid, block = (unsigned)options.block;
  if (path_is("ex")) {
    struct launch_config config = {grid, 1, 1, block, 1, 1, 0, stream, NULL, 0};
    CALL(cuLaunchKernelEx, &config, function, NULL, NULL);
  } else if (path_is("cooperative")) {
    CALL(cuLaunchCooperativeKernel, function, grid, 1, 1, block, 1, 1, 0, stream, NULL);
  } else if (path_is("multi")) {
    struct launch_of_many one = {function, grid, 1, 1, block, 1, 1, 0, stream, NULL};
    CALL(cuLaunchCooperativeKernelMultiDevice, &one, 1, 0);
  } else if (path_is("old")) {
    CALL(cuLaunchGridAsync, function, (int)grid, 1, stream);
  } else if (path_is("grid")) {
    CALL(cuLaunchGrid, function, (int)grid, 1);
  } else if (path_is("ptsz")) {
    check("cuLaunchKernel_ptsz", per_thread.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, NULL, NULL, NULL));
  } else {
    CALL(cuLaunchKernel, function, grid, 1, 1, block, 1, 1, 0, stream, NULL, NULL);
  }
}

static void replay(struct worker *worker, void *stream) {
  if (path_is("fresh")) {
    void *graph = make_graph(worker), *executable;
    CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
    CALL(cuGraphLaunch, executable, stream);
    CALL(cuGraphExecDestroy, executable);
    CALL(cuGraphDestroy, graph);
    return;
  }
  CALL(cuGraphLaunch, worker->executable, stream);
  if (options.other == NULL) return;
  struct kernel_node parameters = node_of(worker->launches % 2 == 0 ? device->other : device->kernel);
  CALL(cuGraphExecKernelNodeSetParams, worker->executable, worker->node, &parameters);
}

static void rest(double ms) {
  struct timespec pause = {.tv_sec = (time_t)(ms / 1000)};
  pause.tv_nsec = (long)((ms - 1000.0 * (double)pause.tv_sec) * 1e6);
  if (ms > 0) nanosleep(&pause, NULL);
}

// rest_of_phase rests until the next phase of launching begins, if this is not one.
static void rest_of_phase(void) {
  double length = options.on_ms + options.off_ms, at = (double)(now_ns() - begun_ns) / 1e6;
  if (options.on_ms <= 0) return;
  at -= length * (double)(uint64_t)(at / length);
  if (at >= options.on_ms) rest(length - at);
}

// rest_until_due rests until the round is due.
static void rest_until_due(const struct worker *worker) {
  double due = options.delay_ms + (double)worker->rounds * options.period_ms;
  if (worker->rounds == 0 || options.period_ms > 0) rest(due - (double)(now_ns() - begun_ns) / 1e6);
}

static void launch_next(struct worker *worker, void *stream) {
  bool measured = options.measure > 0 && worker->launches % options.measure == 0 &&
                  begin_measure(&worker->meter, &worker->took, stream);
  uint64_t before = now_ns();
  if (is_graph())
    replay(worker, stream);
  else
    launch_one(device->kernels[worker->launches % options.kernels], stream);
  uint64_t took = now_ns() - before;
  if (measured) end_measure(&worker->meter, stream);
  if (took > worker->longest_ns) worker->longest_ns = took;
  if (options.log) {
    printf("launch=%ld thread=%d at_ms=%.1f took_ms=%.1f\n", worker->launches, worker->number,
           (double)(before - begun_ns) / 1e6, (double)took / 1e6);
    fflush(stdout);
  }
  worker->launches++;
}

static void report(struct worker *worker) {
  uint64_t now = now_ns();
  if (options.report_ms <= 0 || worker->number != 0) return;
  if ((double)(now - worker->reported_ns) < options.report_ms * 1e6) return;
  printf("sums=1 pid=%d seconds=%.3f launches=%ld copies=%llu copied_bytes=%llu\n", getpid(),
         (double)(now - begun_ns) / 1e9, worker->launches, (unsigned long long)worker->copier.copies,
         (unsigned long long)worker->copier.bytes);
  fflush(stdout);
  worker->reported_ns = now;
}

static void *work(void *argument) {
  struct worker *worker = argument;
  uint64_t length = options.seconds > 0 ? (uint64_t)(options.seconds * 1e9) : UINT64_MAX;
  choose_device(worker);
  worker->reported_ns = begun_ns;
  while (now_ns() - begun_ns < length && (options.count == 0 || worker->rounds < options.count)) {
    void *stream = worker->streams[worker->rounds % options.streams];
    rest_until_due(worker);
    rest_of_phase();
    for (long i = 0; copies(&options.copy) && i < options.copies; i++) {
      bool measured = options.measure > 0 && worker->copier.copies % (uint64_t)options.measure == 0;
      copy_once(&worker->copier, stream, measured ? &worker->meter : NULL);
    }
    if (launches()) launch_next(worker, stream);
    worker->rounds++;
    if (strcmp(options.sync, "each") == 0) CALL(cuCtxSynchronize);
    if (strcmp(options.sync, "stream") == 0) CALL(cuStreamSynchronize, stream);
    report(worker);
    rest(options.pause_ms);
  }
  return NULL;
}

// merge adds what was measured of the one to the other.
static void merge(struct durations *all, const struct durations *one) {
  uint64_t kept = one->count < KEPT ? one->count : KEPT;
  double sum = all->sum_ms + one->sum_ms;
  uint64_t count = all->count + one->count;
  for (uint64_t i = 0; i < kept; i++)
    add_duration(all, (double)one->kept[i]);
  all->sum_ms = sum;
  all->count = count;
}

// print_copies prints what was copied, and what was measured.
static void print_copies(void) {
  struct durations copy = {0}, kernel = {0};
  unsigned long long count = 0, bytes = 0;
  for (long i = 0; i < options.threads; i++) {
    look_at_meter(&workers[i].meter);
    count += workers[i].copier.copies;
    bytes += workers[i].copier.bytes;
    merge(&copy, &workers[i].copier.took);
    merge(&kernel, &workers[i].took);
  }
  if (copies(&options.copy)) printf(" copies=%llu copied_bytes=%llu", count, bytes);
  print_durations("copy", &copy);
  print_durations("kernel", &kernel);
}

static void print_sums(void) {
  long sum = 0;
  uint64_t longest = 0;
  struct rusage use;
  for (long i = 0; i < options.threads; i++) {
    sum += workers[i].launches;
    if (workers[i].longest_ns > longest) longest = workers[i].longest_ns;
  }
  getrusage(RUSAGE_SELF, &use);
  printf("done=1 pid=%d launches=%ld kernels=%ld seconds=%.3f longest_ms=%.1f cpu_ms=%ld", getpid(), sum,
         is_graph() ? sum * options.nodes : sum, (double)(now_ns() - begun_ns) / 1e9, (double)longest / 1e6,
         (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000 + (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1000);
  print_copies();
  printf("\n");
  fflush(stdout);
}

// load_kernels loads kernels of the same length, whose names differ.
static void **load_kernels(const char *name, long count) {
  void **kernels = calloc((size_t)count, sizeof *kernels);
  if (kernels == NULL) fail("calloc", -1);
  kernels[0] = load_kernel(name);
  for (long i = 1; i < count; i++) {
    char other[256];
    snprintf(other, sizeof other, "k%ld_%s", i, name);
    kernels[i] = load_kernel(other);
  }
  return kernels;
}

static void open_device(int ordinal) {
  use_device(ordinal);
  devices[ordinal].context = context;
  if (!launches()) return;
  devices[ordinal].kernels = load_kernels(options.kernel, options.kernels);
  devices[ordinal].kernel = devices[ordinal].kernels[0];
  if (options.other != NULL) devices[ordinal].other = load_kernel(options.other);
  if (options.first != NULL) devices[ordinal].first = load_kernel(options.first);
}

static int flood(void) {
  device_pointer held;
  open_driver();
  for (long i = 0; i < options.devices; i++)
    open_device((int)i);
  if (options.bytes > 0) CALL(cuMemAlloc, &held, (size_t)options.bytes);
  for (long i = 0; i < options.threads; i++) {
    workers[i].number = (int)i;
    prepare(&workers[i]);
  }
  begun_ns = now_ns();
  printf("ready=1 pid=%d\n", getpid());
  fflush(stdout);
  choose_device(&workers[0]);
  if (device->first != NULL) launch_one(device->first, workers[0].streams[0]);
  for (long i = 1; i < options.threads; i++)
    if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) fail("pthread_create", -1);
  work(&workers[0]);
  for (long i = 1; i < options.threads; i++)
    pthread_join(workers[i].thread, NULL);
  if (options.count > 0) CALL(cuCtxSynchronize);
  print_sums();
  return 0;
}

// flood_in_children starts the processes before any of them calls the driver, and returns the worst exit code. One that is
// killed is not an error: the others go on.
static int flood_in_children(void) {
  int status, worst = 0;
  for (long i = 0; i < options.processes; i++) {
    pid_t child = fork();
    if (child < 0) fail("fork", errno);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      exit(flood());
    }
  }
  for (long i = 0; i < options.processes; i++) {
    while (wait(&status) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) > worst) worst = WEXITSTATUS(status);
  }
  return worst;
}

int main(int argc, char **argv) {
  struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
  for (int i = 1; i < argc; i++)
    set_option(argv[i]);
  check_options();
  sigaction(SIGINT, &action, NULL);
  return options.processes == 1 ? flood() : flood_in_children();
}
