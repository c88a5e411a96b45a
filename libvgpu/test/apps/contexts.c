/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * contexts.c - a process is in the usage pages from its first context on, whatever call makes it and whatever is limited:
 * contexts CASE USAGE..., with the usage files of its pages.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../include/vgpu_abi.h"
#include "driver.h"

enum { PID_MASK = (1 << 22) - 1, PAGES_MAX = 4 };

static struct vgpu_usage_page *pages[PAGES_MAX];
static int page_count;
static const char *first_path;

static void *map(const char *path) {
  int fd = open(path, O_RDWR | O_CLOEXEC);
  off_t bytes = lseek(fd, 0, SEEK_END);
  void *page = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) {
    printf("FAIL cannot map %s\n0 passed, 1 failed, 0 skipped\n", path);
    exit(1);
  }
  close(fd);
  return page;
}

static struct vgpu_usage_slot *slot_of(int page, uint32_t index) {
  return (void *)((char *)pages[page] + vgpu_usage_slot_offset(pages[page]->device_count, index));
}

/* In how many of the pages this process has a slot; more than one in a page count as many. */
static int registered(void) {
  int count = 0;
  for (int page = 0; page < page_count; page++) {
    for (uint32_t i = 0; i < VGPU_SLOT_COUNT; i++) {
      const struct vgpu_usage_slot *slot = slot_of(page, i);
      count += (slot->owner & PID_MASK) == (uint64_t)getpid() && slot->ready == slot->owner;
    }
  }
  return count;
}

typedef CUresult (*make_context)(CUcontext *context, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d);

/* The calls that make contexts, all called with zeros: flags, lists of nothing, the first device. */
static const char *const makers[] = {
    "cuCtxCreate",      "cuCtxCreate_v2", "cuCtxCreate_v3",   "cuCtxCreate_v4",   "cuDevicePrimaryCtxRetain",
    "cuGreenCtxCreate", "cuGLCtxCreate",  "cuGLCtxCreate_v2", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2"};

static int exit_code(pid_t child) {
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Each call in a process of its own. A context that the driver refuses costs a slot, and no more. */
static void test_makers(void) {
  int present = 0;
  for (size_t i = 0; i < sizeof(makers) / sizeof(makers[0]); i++) {
    pid_t child = fork();
    if (child == 0) {
      CUcontext context = NULL;
      make_context make = (make_context)dlsym(RTLD_DEFAULT, makers[i]);
      if (!make) _exit(100);
      if (cuInit(0) != CUDA_SUCCESS || registered() != 0) _exit(1);
      make(&context, 0, 0, 0, 0);
      if (registered() != page_count) _exit(2);
      make(&context, 0, 0, 0, 0);
      _exit(registered() == page_count ? 0 : 3);
    }
    int code = exit_code(child);
    if (code == 100) continue; /* this driver has no such call */
    CHECK_EQUAL(code, 0, makers[i]);
    present++;
  }
  CHECK(present >= 3, "%d calls were tried", present);
}

/* The slot is there first: the driver fails, and it was taken all the same. */
static void test_refused(void) {
  CUcontext context;
  CHECK_EQUAL(cuInit(0), 0, "cuInit");
  CHECK_EQUAL(cuCtxCreate_v2(&context, 0, 0), 999, "the driver's own failure");
  CHECK_EQUAL(registered(), page_count, "slots");
}

/* A child has a slot of its own, and it has nothing to do with its parent's. */
static void test_fork(void) {
  use_device(0);
  CHECK_EQUAL(registered(), page_count, "slots");
  pid_t child = fork();
  if (child == 0) {
    CUcontext context;
    if (registered() != 0) _exit(1);
    cuDevicePrimaryCtxRetain(&context, 0); /* the driver refuses: it was started by the parent */
    _exit(registered() == page_count ? 0 : 2);
  }
  CHECK_EQUAL(exit_code(child), 0, "the child");
  CHECK_EQUAL(registered(), page_count, "slots of the parent");
}

/* A context that no call of ours made (the runtime has private tables): who launches is told of all the same. */
static void test_hidden(void) {
  enum { LAUNCHES = 200 };
  CUcontext hidden = dlsym(RTLD_DEFAULT, "fake_contexts");
  CUmodule module;
  CUfunction kernel;
  CHECK(hidden != NULL, "the driver has a context that it gives out by no call");
  if (!hidden) return;
  CHECK_EQUAL(cuInit(0), 0, "cuInit");
  CHECK_EQUAL(cuCtxSetCurrent(hidden), 0, "cuCtxSetCurrent");
  CHECK_EQUAL(cuModuleLoadData(&module, ""), 0, "cuModuleLoadData");
  CHECK_EQUAL(cuModuleGetFunction(&kernel, module, "kernel"), 0, "cuModuleGetFunction");
  CHECK_EQUAL(registered(), 0, "slots before");
  for (int i = 0; i < LAUNCHES; i++)
    CHECK_EQUAL(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), 0, "launch");
  CHECK_EQUAL(registered(), page_count, "slots after some launches");
}

/* All slots are other living processes': no context, and one when there is room. */
static void test_full(void) {
  char path[4096];
  CUcontext context;
  snprintf(path, sizeof(path), "%.*slimits", (int)(strrchr(first_path, '/') + 1 - first_path), first_path);
  const struct vgpu_limits_page *limits = map(path);
  for (uint32_t i = 0; i < VGPU_SLOT_COUNT; i++) {
    struct vgpu_usage_slot *slot = slot_of(0, i);
    slot->epoch = limits->epoch; /* of a pid namespace that nobody knows: they cannot be seen dead */
    slot->ready = slot->owner = ((uint64_t)(i + 1) << 23) | 1;
  }
  pages[0]->slot_high_water = VGPU_SLOT_COUNT;
  CHECK_EQUAL(cuInit(0), 0, "cuInit");
  for (int tries = 0; tries < 2; tries++) {
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY, "no slot, no context");
  }
  slot_of(0, 7)->owner = 0;
  CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), 0, "a slot is free");
  CHECK_EQUAL(registered(), 1, "slots");
}

static const struct {
  const char *name;
  void (*run)(void);
} cases[] = {{"makers", test_makers},
             {"refused", test_refused},
             {"fork", test_fork},
             {"hidden", test_hidden},
             {"full", test_full}};

int main(int argc, char **argv) {
  for (int i = 2; i < argc && page_count < PAGES_MAX; i++)
    pages[page_count++] = map(argv[i]);
  first_path = argv[2];
  for (size_t i = 0; argc > 2 && i < sizeof(cases) / sizeof(cases[0]); i++) {
    if (strcmp(argv[1], cases[i].name) == 0) {
      cases[i].run();
      return check_done();
    }
  }
  return 2;
}
