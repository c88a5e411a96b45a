/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * main.c - runs the cases, each in a process of its own, and counts. Arguments: names of cases (default: all).
 */
#define _GNU_SOURCE
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

const char *sim_directory;
enum { LONGEST_CASE_SECONDS = 60 };

static const struct {
  const char *name;
  void (*run)(void);
  const char *arguments;
} cases[] = {
#define CASE(name, arguments) {#name, test_##name, arguments},
#include "cases.def"
#undef CASE
};

uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t cpu_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void skip_without(const char *name, const char *why) {
  const char *required = getenv("VGPU_TEST_REQUIRE");
  char list[1024];
  char wanted[128];
  snprintf(list, sizeof list, ",%s,", required ? required : "");
  snprintf(wanted, sizeof wanted, ",%s,", name);
  fprintf(stderr, "skipped: %s: %s\n", name, why);
  exit(strstr(list, wanted) ? EXIT_FAILED : EXIT_SKIPPED);
}

int wait_for(pid_t child) {
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run(const char *format, ...) {
  char command[4096];
  va_list values;
  va_start(values, format);
  vsnprintf(command, sizeof command, format, values);
  va_end(values);
  int status = system(command);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

unsigned long long status_number(const char *key) {
  char command[PATH_MAX];
  char text[65536];
  char wanted[128];
  snprintf(command, sizeof command, "%s/gpusim status --json", sim_directory);
  FILE *pipe = popen(command, "r");
  CHECK(pipe != NULL);
  size_t got = fread(text, 1, sizeof text - 1, pipe);
  text[got] = 0;
  CHECK_EQUAL(pclose(pipe), 0);
  snprintf(wanted, sizeof wanted, "\"%s\": ", key);
  const char *found = strstr(text, wanted);
  return found ? strtoull(found + strlen(wanted), NULL, 10) : 0;
}

CUcontext begin_cuda(void) {
  CUcontext context;
  CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
  CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
  return context;
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *walk) {
  (void)status;
  (void)kind;
  (void)walk;
  return remove(path);
}

/* In the case's process, which leads a process group of its own. */
static void run_case(size_t index, const char *directory) {
  char command[PATH_MAX];
  setpgid(0, 0);
  setenv("GPUSIM_DIR", directory, 1);
  unsetenv("CUDA_VISIBLE_DEVICES");
  alarm(LONGEST_CASE_SECONDS);
  snprintf(command, sizeof command, "%s/gpusim init %s >/dev/null", sim_directory, cases[index].arguments);
  if (system(command) != 0) exit(EXIT_FAILED);
  cases[index].run();
  exit(0);
}

/* 0 passed, EXIT_SKIPPED, else failed. */
static int judge(size_t index) {
  char directory[] = "/tmp/gpusim-test-XXXXXX";
  CHECK(mkdtemp(directory) != NULL);
  fflush(NULL);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) run_case(index, directory);
  int code = wait_for(child);
  kill(-child, SIGKILL); /* what the case left behind */
  nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
  return code;
}

int main(int count, char **arguments) {
  int passed = 0;
  int failed = 0;
  int skipped = 0;
  sim_directory = getenv("GPUSIM_TEST_SIM");
  if (!sim_directory) {
    fprintf(stderr, "GPUSIM_TEST_SIM must name the directory of the libraries\n");
    return 2;
  }
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    bool chosen = count < 2;
    for (int j = 1; j < count; j++)
      chosen = chosen || strcmp(arguments[j], cases[i].name) == 0;
    if (!chosen) continue;
    uint64_t start = now_ns();
    int code = judge(i);
    passed += code == 0;
    skipped += code == EXIT_SKIPPED;
    failed += code != 0 && code != EXIT_SKIPPED;
    printf("%-8s %s (%.2f s)\n",
           code == 0              ? "ok"
           : code == EXIT_SKIPPED ? "skipped"
                                  : "FAILED",
           cases[i].name, (double)(now_ns() - start) / 1e9);
  }
  printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  return failed != 0;
}
