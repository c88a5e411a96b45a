/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * bench.c - what libvgpu adds to a call, and to the start of a program: bench OUT [REPETITIONS]
 *
 * Calls. OUT/libvgpu-test/client runs bare and preloaded in turn, and each of the two goes first every other time.
 * One round is a loop over the call, some 0.1 to 5 ms long, in CPU time of the process, divided by the number of
 * calls: others on the machine disturb that little. Round j of a bare run is compared with round j of the preloaded
 * run beside it, which met the same machine: what is printed as added is the median of those differences, not the
 * difference of the medians. One process, and four at once that share one book; on fewer cores than that, four say
 * what contention costs, and so only the row of one process is held against the target.
 *
 * Starts. /bin/true, likewise in turn and in pairs: CPU time of the child, and wall time from before the spawn
 * until the child is reaped (for four: until the last one is). The target is for the wall time of one.
 *
 * A difference is within the noise when it is negative, or smaller than the 95 % interval of a median of as many
 * independent differences as there were runs (1.8 interquartile ranges / sqrt(runs); rounds of one run are not
 * independent). The table then prints that bound in its place. The JSON has the plain figures.
 *
 * Launches. Those that are limited (capped) run under a share of 99 percent with credit at hand. A quantile is that of the
 * launches of one round, each timed by the clock, on the driver that logs its calls, so that launches that are also
 * measured, or look for measurements, are told from the usual ones; "all" is the mean over both. A wake-up is late by
 * the time between the moment that a launch is due under its share and the return of its call.
 *
 * A refusal, and what only a limit does, have no bare run (-1 in the JSON): all that it costs is added. Medians, 99th percentiles and verdicts also go to
 * OUT/bench-shim.json. A target that is not met is said so, and does not fail the run.
 */
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  ROUNDS = 11,
  MAX_PROCESSES = 4,
  MAX_SAMPLES = 1 << 14,
  STARTS = 40,
  LONGEST_STARTS_US = 15000000,
  PATH_BYTES = 4096
};

extern char **environ;

struct samples {
  double values[MAX_SAMPLES];
  int count;
};

enum driver { SIMULATED, LOGGING };

struct row {
  const char *call;
  const char *text;
  double target_ns;  /* added at most; 0: no target, for information */
  const char *share; /* NULL: GPU time is not limited */
  enum driver driver;
  bool is_only_with; /* there is nothing to compare it with */
  bool is_single;    /* one process only */
  const char *name;  /* in the JSON; NULL: that of the call */
};

static const struct row rows[] = {
    {.call = "alloc_free", .text = "cuMemAlloc + cuMemFree", .target_ns = 80},
    {.call = "query", .text = "cuMemGetInfo, 1 MiB held", .target_ns = 10},
    {.call = "launch", .text = "cuLaunchKernel", .target_ns = 10},
    {.call = "launch_p50", .text = "cuLaunchKernel, p50", .target_ns = 10, .driver = LOGGING, .is_single = true},
    {.call = "launch_p99", .text = "cuLaunchKernel, p99", .target_ns = 30, .driver = LOGGING, .is_single = true},
    {.call = "launch_p50",
     .text = "capped cuLaunchKernel, p50",
     .target_ns = 25,
     .share = "99",
     .driver = LOGGING,
     .is_single = true,
     .name = "launch_capped_p50"},
    {.call = "launch_p99",
     .text = "capped cuLaunchKernel, p99",
     .target_ns = 60,
     .share = "99",
     .driver = LOGGING,
     .is_single = true,
     .name = "launch_capped_p99"},
    {.call = "launch_measured",
     .text = "a measured cuLaunchKernel, p50",
     .target_ns = 2500,
     .share = "99",
     .driver = LOGGING,
     .is_only_with = true,
     .is_single = true},
    {.call = "launch", .text = "capped cuLaunchKernel, all", .target_ns = 150, .share = "99", .name = "launch_capped"},
    {.call = "graph", .text = "cuGraphLaunch of 10 kernels", .target_ns = 10, .is_single = true},
    {.call = "graph",
     .text = "capped cuGraphLaunch, all",
     .target_ns = 150,
     .share = "99",
     .is_single = true,
     .name = "graph_capped"},
    {.call = "wake",
     .text = "wake-up late by, median",
     .target_ns = 100000,
     .share = "50",
     .is_only_with = true,
     .is_single = true},
    {.call = "wait",
     .text = "CPU time of 1 ms of waiting",
     .target_ns = 1000,
     .share = "50",
     .is_only_with = true,
     .is_single = true},
    {.call = "copy", .text = "cuMemcpyHtoDAsync of 64 bytes", .target_ns = 20, .driver = LOGGING},
    {.call = "copy_p50", .text = "cuMemcpyHtoDAsync, p50", .target_ns = 20, .driver = LOGGING, .is_single = true},
    {.call = "copy_p99", .text = "cuMemcpyHtoDAsync, p99", .target_ns = 60, .driver = LOGGING, .is_single = true},
    {.call = "unhooked", .text = "cuCtxGetCurrent (no hook)", .target_ns = 2},
    {.call = "pool", .text = "cuMemAllocAsync + cuMemFreeAsync"},
    {.call = "refuse", .text = "a refused cuMemAlloc", .is_only_with = true},
};

static char preload[PATH_BYTES + 16], client[PATH_BYTES + 32], book[PATH_BYTES + 64], logging[PATH_BYTES + 64];

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double quantile(struct samples *samples, double q) {
  if (samples->count == 0) return -1;
  qsort(samples->values, (size_t)samples->count, sizeof(double), compare);
  int at = (int)(q * (samples->count - 1) + 0.5);
  return samples->values[at];
}

static void add(struct samples *samples, double value) {
  if (samples->count < MAX_SAMPLES) samples->values[samples->count++] = value;
}

/* The environment of a run: the limits always, a book for several processes, the library when `with` is set. */
static char **environment_of(const struct row *row, bool with, int processes) {
  static char *variables[1024], share[32];
  bool is_logging = row && row->driver == LOGGING;
  int count = 0;
  for (char **v = environ; *v && count < 1000; v++) {
    bool is_set_here = strncmp(*v, "LD_PRELOAD=", 11) == 0 || (is_logging && strncmp(*v, "LD_LIBRARY_PATH=", 16) == 0);
    if (!is_set_here) variables[count++] = *v;
  }
  if (is_logging) {
    variables[count++] = logging;
    variables[count++] = "CUDA_VISIBLE_DEVICES=0";
  }
  if (row && row->share) {
    snprintf(share, sizeof(share), "CUDA_DEVICE_SM_LIMIT=%s", row->share);
    variables[count++] = share;
  }
  variables[count++] = "CUDA_DEVICE_MEMORY_LIMIT=8g";
  if (processes > 1) variables[count++] = book;
  if (with) variables[count++] = preload;
  variables[count] = NULL;
  return variables;
}

/* Runs the client in `processes` processes at once and collects all rounds. False: one of them failed. */
static bool run(const struct row *row, bool with, int processes, struct samples *samples) {
  char rounds[16];
  FILE *outputs[MAX_PROCESSES];
  pid_t children[MAX_PROCESSES];
  bool good = true;
  snprintf(rounds, sizeof(rounds), "%d", ROUNDS);
  unlink(strchr(book, '=') + 1); /* a new one each time: slots of processes that are gone cost a look */
  for (int i = 0; i < processes; i++) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    char *arguments[] = {client, (char *)row->call, rounds, NULL};
    good &= posix_spawn(&children[i], client, &actions, NULL, arguments, environment_of(row, with, processes)) == 0;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    outputs[i] = fdopen(ends[0], "r");
  }
  for (int i = 0; i < processes; i++) {
    char line[64];
    int status = 1;
    while (fgets(line, sizeof(line), outputs[i]))
      add(samples, atof(line));
    fclose(outputs[i]);
    waitpid(children[i], &status, 0);
    good &= status == 0;
  }
  return good;
}

static double wall_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static double us_of(struct timeval time) {
  return (double)time.tv_sec * 1e6 + (double)time.tv_usec;
}

/* Starts /bin/true in `processes` processes and waits for them. One sample each: CPU time of all, wall time. */
static bool start(bool with, int processes, struct samples *cpu, struct samples *wall) {
  char *arguments[] = {"/bin/true", NULL};
  char **environment = environment_of(NULL, with, processes);
  struct rusage used;
  double cpu_us = 0, before = wall_us();
  int status, bad = 0;
  for (int i = 0; i < processes; i++) {
    pid_t child;
    if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environment) != 0) return false;
  }
  for (int i = 0; i < processes; i++) {
    bad += wait4(-1, &status, 0, &used) < 0 || status != 0;
    cpu_us += us_of(used.ru_utime) + us_of(used.ru_stime);
  }
  add(wall, wall_us() - before);
  add(cpu, cpu_us / processes);
  return bad == 0;
}

/* The table's cells: "-" for what was not measured; the noise in place of a difference that is below it. */
static void print_row(const char *text, int processes, struct samples *bare, struct samples *with, double added,
                      double noise, double target) {
  bool is_noise = added <= 0 || added < noise;
  char cells[4][32] = {"-", "-", "-", "-"};
  const char *verdict = "";
  if (noise < -added) noise = -added;
  if (bare->count) {
    snprintf(cells[0], sizeof(cells[0]), "%.1f", quantile(bare, 0.5));
    snprintf(cells[1], sizeof(cells[1]), "%.1f", quantile(bare, 0.99));
    snprintf(cells[2], sizeof(cells[2]), is_noise ? "< %.1f" : "+%.1f", is_noise ? noise : added);
  }
  if (target > 0) {
    snprintf(cells[3], sizeof(cells[3]), "<= %.0f", target);
    if (is_noise)
      verdict = noise > target ? "too noisy to tell" : "met, no difference seen";
    else
      verdict = added > target ? "NOT MET" : "met";
  }
  if (isatty(2)) fprintf(stderr, "\r\033[K");
  printf("%-34s %d  %9s %9s  %9.1f %9.1f  %9s  %-7s %s\n", text, processes, cells[0], cells[1], quantile(with, 0.5),
         quantile(with, 0.99), cells[2], cells[3], verdict);
}

static void report(FILE *json, const char *name, const char *text, int processes, struct samples *bare,
                   struct samples *with, double target, const char *unit, int runs) {
  static struct samples differences;
  differences.count = 0;
  for (int i = 0; i < bare->count && i < with->count; i++)
    add(&differences, with->values[i] - bare->values[i]);
  double added = differences.count ? quantile(&differences, 0.5) : quantile(with, 0.5); /* no bare run: all of it */
  double bare_median = quantile(bare, 0.5), with_median = quantile(with, 0.5);
  double bare_p99 = quantile(bare, 0.99), with_p99 = quantile(with, 0.99);
  double range = differences.count ? quantile(&differences, 0.75) - quantile(&differences, 0.25) : 0;
  double noise = 1.8 * range / sqrt(runs);
  print_row(text, processes, bare, with, added, noise, target);
  fprintf(json,
          "%s\n    {\"call\": \"%s\", \"processes\": %d, \"unit\": \"%s\", \"bare_median\": %.2f, \"bare_p99\": %.2f, "
          "\"shim_median\": %.2f, \"shim_p99\": %.2f, \"added_median\": %.2f, \"target\": %.0f, \"met\": %s}",
          ftell(json) > 32 ? "," : "", name, processes, unit, bare_median, bare_p99, with_median, with_p99, added,
          target,
          target <= 0       ? "null"
          : added <= target ? "true"
                            : "false");
}

static void progress(const char *text, int processes) {
  if (isatty(2)) fprintf(stderr, "measuring %s, %d at once ...", text, processes);
}

static void print_legend(void) {
  double load = 0;
  if (getloadavg(&load, 1) == 1)
    printf("load average %.2f%s\n\n", load,
           load > 1 ? ": NOISY, others are at work here; do not trust small figures" : "");
  printf("n        processes at once, which share one slice\n"
         "bare     median without libvgpu, libvgpu: median with it; p99: 99th percentile of each\n"
         "added    median of the differences of paired runs, not the difference of the medians;\n"
         "         \"< x\": none that could be told from noise of x\n"
         "Times are CPU time of the process in ns per call, but for the starts of a program, which are in us.\n\n");
}

static bool measure(FILE *json, const struct row *row, int processes, int repetitions) {
  static struct samples bare, with;
  bare.count = with.count = 0;
  progress(row->text, processes);
  for (int i = 0; i < 2 * repetitions; i++) {
    bool preloaded = i % 4 == 1 || i % 4 == 2;
    if (!preloaded && row->is_only_with) continue;
    if (!run(row, preloaded, processes, preloaded ? &with : &bare)) return false;
  }
  report(json, row->name ? row->name : row->call, row->text, processes, &bare, &with,
         processes == 1 ? row->target_ns : 0, "ns", repetitions);
  return true;
}

static bool measure_starts(FILE *json, int processes, int pairs) {
  static struct samples cpu[2], wall[2];
  progress("starts", processes);
  for (int i = 0; i < 2; i++)
    cpu[i].count = wall[i].count = 0;
  double latest = wall_us() + LONGEST_STARTS_US; /* others on the machine may make this slow */
  for (int i = 0; i < 2 * pairs && (i % 4 != 0 || wall_us() < latest); i++) {
    bool preloaded = i % 4 == 1 || i % 4 == 2;
    if (!start(preloaded, processes, &cpu[preloaded], &wall[preloaded])) return false;
  }
  report(json, "start_cpu", "/bin/true, us (CPU)", processes, &cpu[0], &cpu[1], 0, "us", cpu[0].count);
  report(json, "start", "/bin/true, us (wall)", processes, &wall[0], &wall[1], processes == 1 ? 150 : 0, "us",
         cpu[0].count);
  return true;
}

int main(int argc, char **argv) {
  char path[PATH_BYTES + 32];
  int repetitions = argc > 2 ? atoi(argv[2]) : 7, bad = 0;
  if (argc < 2) return 2;
  snprintf(preload, sizeof(preload), "LD_PRELOAD=%s/libvgpu.so", argv[1]);
  snprintf(client, sizeof(client), "%s/libvgpu-test/client", argv[1]);
  snprintf(logging, sizeof(logging), "LD_LIBRARY_PATH=%s/libvgpu-test/gpu", argv[1]);
  snprintf(book, sizeof(book), "CUDA_DEVICE_MEMORY_SHARED_CACHE=%s/libvgpu-test/bench-book", argv[1]);
  snprintf(path, sizeof(path), "%s/bench-shim.json", argv[1]);
  FILE *json = fopen(path, "w");
  if (!json) return perror(path), 1;
  fprintf(json, "{\"version\": 1, \"results\": [");
  setvbuf(stdout, NULL, _IOLBF, 0);
  print_legend();
  printf("%-34s %s  %9s %9s  %9s %9s  %9s  %s\n", "call", "n", "bare", "p99", "libvgpu", "p99", "added", "target");
  for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    int most = rows[i].is_single ? 1 : MAX_PROCESSES;
    for (int processes = 1; processes <= most; processes += MAX_PROCESSES - 1) {
      if (measure(json, &rows[i], processes, repetitions)) continue;
      printf("%s: the client failed\n", rows[i].text);
      bad = 1;
    }
  }
  for (int processes = 1; processes <= MAX_PROCESSES; processes += MAX_PROCESSES - 1)
    bad |= !measure_starts(json, processes, STARTS * repetitions);
  fprintf(json, "\n]}\n");
  printf("\nwritten to %s\n", path);
  return fclose(json) != 0 || bad;
}
