/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * ledger.c - a process under a share of a GPU and its two pages: what it reads of them, tells in them, and what garbage in
 * them does.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../include/vgpu_abi.h"
#include "share.h"

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
  CUfunction long_kernel = kernel_of(200000);
  CHECK_EQUAL(launch_on(long_kernel, NULL), 0, "launch");
  cuCtxSynchronize(); /* seconds of debt, under a small share */
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

static const struct test tests[] = {
    {"garbage", test_garbage, false}, {"change", test_change, false}, {"told", test_told, false}};

int main(int argc, char **argv) {
  return run_share_case(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
