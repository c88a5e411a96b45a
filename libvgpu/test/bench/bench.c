/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * bench.c - what libvgpu adds to a call: bench OUT [REPETITIONS]
 *
 * Runs OUT/libvgpu-test/client bare and preloaded in turn, so that both meet the same machine; one and four
 * processes at once under one limit. Prints the median and the 99th percentile over all rounds, and what is added,
 * against its target; the same as JSON to OUT/bench-shim.json. CPU time of the process that calls, so that others
 * on the machine disturb little. A target that is not met is said so and
 * does not fail the run.
 */
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 11, MAX_PROCESSES = 4, MAX_SAMPLES = 1 << 14, STARTS = 40, PATH_BYTES = 4096 };

extern char **environ;

struct samples {
  double values[MAX_SAMPLES];
  int count;
};

struct row {
  const char *call;
  const char *text;
  double target_ns; /* added at most; 0: no target, for information */
};

static const struct row rows[] = {
    {"alloc_free", "cuMemAlloc + cuMemFree", 80},
    {"query", "cuMemGetInfo", 10},
    {"launch", "cuLaunchKernel", 10},
    {"unhooked", "cuCtxGetCurrent (no hook)", 2},
    {"pool", "cuMemAllocAsync + cuMemFreeAsync", 0},
    {"refuse", "a refused cuMemAlloc", 0},
};

static char preload[PATH_BYTES + 16], client[PATH_BYTES + 32];

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

/* The environment of a run: the limit always, the library when `with` is set. */
static char **environment_of(bool with) {
  static char *variables[1024];
  int count = 0;
  for (char **v = environ; *v && count < 1000; v++) {
    if (strncmp(*v, "LD_PRELOAD=", 11) != 0) variables[count++] = *v;
  }
  variables[count++] = "CUDA_DEVICE_MEMORY_LIMIT=8g";
  if (with) variables[count++] = preload;
  variables[count] = NULL;
  return variables;
}

/* Runs the client in `processes` processes at once and collects all rounds. False: one of them failed. */
static bool run(const char *call, bool with, int processes, struct samples *samples) {
  char rounds[16];
  FILE *outputs[MAX_PROCESSES];
  pid_t children[MAX_PROCESSES];
  bool good = true;
  snprintf(rounds, sizeof(rounds), "%d", ROUNDS);
  for (int i = 0; i < processes; i++) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    char *arguments[] = {client, (char *)call, rounds, NULL};
    good &= posix_spawn(&children[i], client, &actions, NULL, arguments, environment_of(with)) == 0;
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

static void start(bool with, struct samples *samples) {
  char *arguments[] = {"/bin/true", NULL};
  struct rusage used;
  int status;
  pid_t child;
  if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environment_of(with)) != 0) return;
  if (wait4(child, &status, 0, &used) != child || status != 0) return;
  add(samples, (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec));
}

static void report(FILE *json, const char *name, const char *text, int processes, struct samples *bare,
                   struct samples *with, double target, const char *unit) {
  /* Neighbours in time met the same machine: their differences say more than the difference of two medians. */
  static struct samples differences;
  differences.count = 0;
  for (int i = 0; i < bare->count && i < with->count; i++)
    add(&differences, with->values[i] - bare->values[i]);
  double added = quantile(&differences, 0.5);
  double bare_median = quantile(bare, 0.5), with_median = quantile(with, 0.5);
  double bare_p99 = quantile(bare, 0.99), with_p99 = quantile(with, 0.99);
  const char *verdict = target <= 0 ? "" : added <= target ? "met" : "NOT MET";
  char target_text[32] = "-";
  if (target > 0) snprintf(target_text, sizeof(target_text), "<= %.0f", target);
  printf("%-34s %d  %9.1f %9.1f  %9.1f %9.1f  %+9.1f  %-7s %s\n", text, processes, bare_median, bare_p99, with_median,
         with_p99, added, target_text, verdict);
  fprintf(json,
          "%s\n    {\"call\": \"%s\", \"processes\": %d, \"unit\": \"%s\", \"bare_median\": %.2f, \"bare_p99\": %.2f, "
          "\"shim_median\": %.2f, \"shim_p99\": %.2f, \"added_median\": %.2f, \"target\": %.0f, \"met\": %s}",
          ftell(json) > 32 ? "," : "", name, processes, unit, bare_median, bare_p99, with_median, with_p99, added,
          target,
          target <= 0       ? "null"
          : added <= target ? "true"
                            : "false");
}

static bool measure(FILE *json, const struct row *row, int processes, int repetitions) {
  static struct samples bare, with;
  bare.count = with.count = 0;
  for (int i = 0; i < repetitions; i++) {
    if (!run(row->call, false, processes, &bare) && strcmp(row->call, "refuse") != 0) return false;
    if (!run(row->call, true, processes, &with)) return false;
  }
  /* Wall time of four processes on two cores says little; the target is for one. */
  report(json, row->call, row->text, processes, &bare, &with, processes == 1 ? row->target_ns : 0, "ns");
  return true;
}

int main(int argc, char **argv) {
  static struct samples bare, with;
  char path[PATH_BYTES + 32];
  int repetitions = argc > 2 ? atoi(argv[2]) : 7, bad = 0;
  if (argc < 2) return 2;
  snprintf(preload, sizeof(preload), "LD_PRELOAD=%s/libvgpu.so", argv[1]);
  snprintf(client, sizeof(client), "%s/libvgpu-test/client", argv[1]);
  snprintf(path, sizeof(path), "%s/bench-shim.json", argv[1]);
  FILE *json = fopen(path, "w");
  if (!json) return perror(path), 1;
  fprintf(json, "{\"version\": 1, \"results\": [");
  printf("%-34s %s  %9s %9s  %9s %9s  %9s  %s\n", "ns per call (CPU)", "n", "bare", "p99", "libvgpu", "p99", "added",
         "target");
  for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    for (int processes = 1; processes <= MAX_PROCESSES; processes += MAX_PROCESSES - 1) {
      if (measure(json, &rows[i], processes, repetitions)) continue;
      printf("%s: the client failed\n", rows[i].text);
      bad = 1;
    }
  }
  for (int i = 0; i < STARTS * repetitions; i++) {
    start(false, &bare);
    start(true, &with);
  }
  report(json, "start", "/bin/true (us)", 1, &bare, &with, 150, "us");
  fprintf(json, "\n]}\n");
  return fclose(json) != 0 || bad;
}
