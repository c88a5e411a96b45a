/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * doors.c - every way of finding a driver function leads to the limited one, and to nothing that the driver does
 * not have. Not linked with the driver: it is opened, locally, as the CUDA runtime does.
 *   doors DRIVER NEIGHBOUR    paths of libcuda.so.1, or of a copy by another name, and of libneighbour.so
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>

#include "driver.h"

typedef CUresult (*alloc_function)(CUdeviceptr *, size_t);
typedef CUresult (*free_function)(CUdeviceptr);
typedef CUresult (*proc_v1)(const char *, void **, int, uint64_t);
typedef CUresult (*proc_v2)(const char *, void **, int, uint64_t, int *);

static void *driver;
static const char *driver_file; /* its name without directories */
static void *hook;              /* cuMemAlloc_v2 as dlsym gives it */

static int is_in(const void *address, const char *file) {
  Dl_info info;
  return dladdr(address, &info) != 0 && strstr(info.dli_fname, file) != NULL;
}

static void check_limited(void *address, const char *how) {
  CUdeviceptr pointer;
  CHECK(address != NULL, "%s: never null", how);
  if (!address) return;
  CHECK(is_in(address, "libvgpu.so"), "%s: the limited function", how);
  CHECK_EQUAL(((alloc_function)address)(&pointer, 4096 * MIB), CUDA_ERROR_OUT_OF_MEMORY, how);
}

static void *look_up_repeatedly(void *data) {
  int *failed = data;
  for (int i = 0; i < 1000; i++) {
    *failed += dlsym(driver, "cuMemAlloc_v2") != hook;
    *failed += dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != hook;
    *failed += dlsym(RTLD_NEXT, "cuMemAlloc_v2") != hook;
    *failed += dlvsym(driver, "cuMemAlloc_v2", "ANY_1.0") != hook;
    *failed += dlsym(driver, "cuNoSuchThing") != NULL;
  }
  return NULL;
}

static void test_look_ups(void) {
  enum { THREADS = 8 };
  pthread_t threads[THREADS];
  int failed[THREADS] = {0}, sum = 0;
  hook = dlsym(driver, "cuMemAlloc_v2");
  for (int i = 0; i < 3; i++) {
    check_limited(dlsym(driver, "cuMemAlloc_v2"), "dlsym(handle)");
    check_limited(dlsym(RTLD_NEXT, "cuMemAlloc_v2"), "dlsym(RTLD_NEXT)");
    check_limited(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), "dlsym(RTLD_DEFAULT)");
    check_limited(dlvsym(driver, "cuMemAlloc_v2", "GLIBC_2.2.5"), "dlvsym(handle)");
    check_limited(dlvsym(RTLD_DEFAULT, "cuMemAlloc_v2", "GLIBC_2.2.5"), "dlvsym(RTLD_DEFAULT)");
  }
  for (int i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, look_up_repeatedly, &failed[i]);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL), sum += failed[i];
  CHECK_EQUAL(sum, 0, "the same answers in 8 threads");
}

/* What is not ours is as if we were not there. */
static void test_neighbours(const char *path) {
  void *neighbour = dlopen(path, RTLD_NOW);
  CHECK(neighbour != NULL, "neighbour: %s", dlerror());
  if (!neighbour) return;
  void *(*next_of)(const char *) = (void *(*)(const char *))dlsym(neighbour, "neighbour_next");
  int (*forward)(int) = (int (*)(int))dlsym(neighbour, "neighbour_forward");
  CHECK(next_of && forward, "the neighbour's own functions");
  for (int i = 0; i < 3; i++) {
    void *next = next_of("open");
    CHECK(next != NULL && is_in(next, "libc.so"), "RTLD_NEXT of a library means what follows that library");
  }
  CHECK_EQUAL(forward(41), 42, "a function that forwards to RTLD_NEXT of its own name");
  CHECK(dlsym(RTLD_NEXT, "open") != NULL, "RTLD_NEXT of the program");
  CHECK(dlsym(RTLD_DEFAULT, "curl_easy_init") == NULL, "a name that begins with cu");
  CHECK(dlsym(RTLD_DEFAULT, "cublasCreate_v2") == NULL, "another name that begins with cu");
  CHECK(dlsym(driver, "cuMemAlloc_v9") == NULL, "a variant that does not exist");
  dlerror();
  CHECK(dlsym(driver, "cuNoSuchThing") == NULL && dlerror() != NULL, "the error text of what is missing");
  CHECK(is_in(dlsym(driver, "cuInit"), driver_file), "a function without a hook is the driver's own");
}

/* Before the driver is there, its names are not. */
static void test_before(void) {
  CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL, "no driver: no function by RTLD_DEFAULT");
  CHECK(dlsym(RTLD_NEXT, "cuMemGetInfo_v2") == NULL, "no driver: no function by RTLD_NEXT");
}

/* What is asked of cuGetProcAddress: the limited variant of exactly this version. */
struct request {
  const char *symbol;
  int version;
  uint64_t flags;
  const char *variant; /* its exported name; NULL: not found */
  int hooked;
};

static const struct request requests[] = {
    {"cuCtxCreate", 11030, 0, "cuCtxCreate_v2", 1},
    {"cuCtxCreate", 11040, 0, "cuCtxCreate_v3", 1},
    {"cuCtxGetCurrent", 11040, 0, "cuCtxGetCurrent", 0},
    {"cuMemAlloc", 2000, 0, "cuMemAlloc", 1},
    {"cuMemAlloc", 3020, 0, "cuMemAlloc_v2", 1},
    {"cuMemFree", 2000, 0, "cuMemFree", 1},
    {"cuMemFree", 12000, 0, "cuMemFree_v2", 1},
    {"cuMemGetInfo", 13000, 0, "cuMemGetInfo_v2", 1},
    {"cuMemGetInfo", 2000, 0, "cuMemGetInfo", 1},
    {"cuMemAllocAsync", 11020, 0, "cuMemAllocAsync", 1},
    {"cuMemAllocAsync", 11020, 2, "cuMemAllocAsync_ptsz", 1},
    {"cuMemFreeAsync", 12000, 2, "cuMemFreeAsync_ptsz", 1},
    {"cuDevicePrimaryCtxRelease", 7000, 0, "cuDevicePrimaryCtxRelease", 1},
    {"cuDevicePrimaryCtxRelease", 11000, 0, "cuDevicePrimaryCtxRelease_v2", 1},
    {"cuGetProcAddress", 11030, 0, "cuGetProcAddress", 1},
    {"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2", 1},
    {"cuLaunchKernel", 11000, 0, "cuLaunchKernel", 1},
    {"cuLaunchKernel", 11000, 2, "cuLaunchKernel_ptsz", 1},
    {"cuLaunchKernelEx", 12000, 0, "cuLaunchKernelEx", 1},
    {"cuGraphLaunch", 11000, 2, "cuGraphLaunch_ptsz", 1},
    {"cuGraphExecUpdate", 12000, 0, "cuGraphExecUpdate_v2", 1},
    {"cuStreamBeginCapture", 11000, 0, "cuStreamBeginCapture_v2", 1},
    {"cuMemcpyHtoD", 11000, 0, "cuMemcpyHtoD_v2", 1},
    {"cuMemsetD8", 11000, 0, "cuMemsetD8_v2", 0},
    {"cuMemAlloc_v2", 12000, 0, NULL, 0},
    {"cuNoSuchThing", 12000, 0, NULL, 0},
};

static void check_request(const struct request *request, int result, void *function, const char *door) {
  const char *how = request->symbol;
  if (!request->variant) {
    CHECK(result != 0 || function == NULL, "%s %s: not found", door, how);
    return;
  }
  CHECK(result == 0 && function != NULL, "%s %s %d: found (%d)", door, how, request->version, result);
  CHECK(function == dlsym(driver, request->variant), "%s %s %d is %s", door, how, request->version, request->variant);
  CHECK(is_in(function, request->hooked ? "libvgpu.so" : driver_file), "%s %s %d: whose", door, how, request->version);
}

static void test_proc_address(void) {
  proc_v1 first = (proc_v1)dlsym(driver, "cuGetProcAddress");
  proc_v2 second = (proc_v2)dlsym(driver, "cuGetProcAddress_v2");
  CHECK(first && second, "both doors");
  for (unsigned i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
    const struct request *request = &requests[i];
    void *function = NULL, *function_too = NULL;
    int status = -1;
    int result = (int)first(request->symbol, &function, request->version, request->flags);
    check_request(request, result, function, "cuGetProcAddress");
    result = (int)second(request->symbol, &function_too, request->version, request->flags, &status);
    check_request(request, result, function_too, "cuGetProcAddress_v2");
    CHECK((status == 0) == (request->variant != NULL), "%s: the driver's status (%d)", request->symbol, status);
  }
  void *function = NULL;
  CHECK(first("cuMemAlloc", NULL, 12000, 0) != 0, "no output is the driver's error");
  CHECK(first(NULL, &function, 12000, 0) != 0, "no symbol is the driver's error");
  CHECK_EQUAL(second("cuMemAlloc", &function, 12000, 0, NULL), 0, "no status is allowed");
  check_limited(function, "cuMemAlloc by cuGetProcAddress_v2");
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  test_before();
  driver = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  CHECK(driver != NULL, "driver: %s", dlerror());
  if (!driver) return check_done();
  driver_file = strrchr(argv[1], '/') ? strrchr(argv[1], '/') + 1 : argv[1];
  CUcontext context = NULL;
  CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(driver, "cuInit");
  CUresult (*retain)(CUcontext *, CUdevice) =
      (CUresult(*)(CUcontext *, CUdevice))dlsym(driver, "cuDevicePrimaryCtxRetain");
  CUresult (*set)(CUcontext) = (CUresult(*)(CUcontext))dlsym(driver, "cuCtxSetCurrent");
  CHECK(init(0) == 0 && retain(&context, 0) == 0 && set(context) == 0, "a context");
  test_look_ups();
  test_neighbours(argv[2]);
  test_proc_address();
  return check_done();
}
