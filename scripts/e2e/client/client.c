// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors
//
// A small program of the CUDA driver API, as a user would write one: the end-to-end tests run it in containers and
// read what it prints, one line of key=value pairs per statement. It opens libcuda.so.1 by name and knows nothing of
// vgpud. CLIENT_DOOR=getproc fetches functions by cuGetProcAddress instead of dlsym.
//
//   client info              what each device says of itself, by the driver and by NVML
//   client fill              allocate on all devices until not one byte more is given; print the sum; free
//   client hold BYTES|all    allocate that much (all: as fill does) and keep it until a signal
//   client loop BYTES        hold BYTES, and allocate and free 1 MiB in turn until a signal; fail if ever given more
//                            than the total
//   client context           make a context on the first device and keep it, and nothing else, until a signal
//   client copy-check BYTES  copy a pattern to the device, across it and back; compare
//
// BYTES is a whole number without a unit.

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CUDA_SUCCESS = 0, MAX_PIECES = 4096, PROC_ADDRESS_VERSION = 11030, LOOP_PIECE = 1 << 20 };

typedef unsigned long long device_pointer;

struct nvml_memory {
  unsigned long long total, free, used;
};

static struct {
  int (*cuInit)(unsigned);
  int (*cuDeviceGetCount)(int *);
  int (*cuDeviceGet)(int *, int);
  int (*cuDeviceGetUuid)(unsigned char *, int);
  int (*cuDeviceTotalMem)(size_t *, int);
  int (*cuDevicePrimaryCtxRetain)(void **, int);
  int (*cuCtxSetCurrent)(void *);
  int (*cuMemGetInfo)(size_t *, size_t *);
  int (*cuMemAlloc)(device_pointer *, size_t);
  int (*cuMemFree)(device_pointer);
  int (*cuMemcpyHtoD)(device_pointer, const void *, size_t);
  int (*cuMemcpyDtoH)(void *, device_pointer, size_t);
  int (*cuMemcpyDtoD)(device_pointer, device_pointer, size_t);
} cuda;

static device_pointer pieces[MAX_PIECES];
static int piece_count;
static volatile sig_atomic_t stopped;

static void on_signal(int signal_number) {
  (void)signal_number;
  stopped = 1;
}

static void fail(const char *what, int code) {
  printf("error=%s code=%d\n", what, code);
  exit(1);
}

static void check(const char *what, int code) {
  if (code != CUDA_SUCCESS) {
    fail(what, code);
  }
}

// look_up finds one function: base is the name that cuGetProcAddress knows, exported the one that dlsym knows.
static void look_up(void *library, void *slot, const char *base, const char *exported) {
  const char *door = getenv("CLIENT_DOOR");
  void *function = NULL;
  if (door != NULL && strcmp(door, "getproc") == 0) {
    int (*get_proc_address)(const char *, void **, int, uint64_t) = NULL;
    *(void **)&get_proc_address = dlsym(library, "cuGetProcAddress");
    if (get_proc_address == NULL || get_proc_address(base, &function, PROC_ADDRESS_VERSION, 0) != CUDA_SUCCESS) {
      function = NULL;
    }
  } else {
    function = dlsym(library, exported);
  }
  if (function == NULL) {
    fail(exported, -1);
  }
  memcpy(slot, &function, sizeof function);
}

static void open_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    printf("error=dlopen text=\"%s\"\n", dlerror());
    exit(1);
  }
#define LOOK_UP(name, exported) look_up(library, &cuda.name, #name, exported)
  LOOK_UP(cuInit, "cuInit");
  LOOK_UP(cuDeviceGetCount, "cuDeviceGetCount");
  LOOK_UP(cuDeviceGet, "cuDeviceGet");
  LOOK_UP(cuDeviceGetUuid, "cuDeviceGetUuid");
  LOOK_UP(cuDeviceTotalMem, "cuDeviceTotalMem_v2");
  LOOK_UP(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  LOOK_UP(cuCtxSetCurrent, "cuCtxSetCurrent");
  LOOK_UP(cuMemGetInfo, "cuMemGetInfo_v2");
  LOOK_UP(cuMemAlloc, "cuMemAlloc_v2");
  LOOK_UP(cuMemFree, "cuMemFree_v2");
  LOOK_UP(cuMemcpyHtoD, "cuMemcpyHtoD_v2");
  LOOK_UP(cuMemcpyDtoH, "cuMemcpyDtoH_v2");
  LOOK_UP(cuMemcpyDtoD, "cuMemcpyDtoD_v2");
#undef LOOK_UP
  check("cuInit", cuda.cuInit(0));
}

static void use_device(int ordinal) {
  int device;
  void *context;
  check("cuDeviceGet", cuda.cuDeviceGet(&device, ordinal));
  check("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(&context, device));
  check("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context));
}

static void print_uuid(int device) {
  unsigned char id[16];
  check("cuDeviceGetUuid", cuda.cuDeviceGetUuid(id, device));
  printf(" uuid=GPU-");
  for (int i = 0; i < 16; i++) {
    printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
  }
}

static void info_cuda(void) {
  int count;
  check("cuDeviceGetCount", cuda.cuDeviceGetCount(&count));
  printf("cuda_devices=%d\n", count);
  for (int i = 0; i < count; i++) {
    int device;
    size_t device_total, free_bytes, total;
    check("cuDeviceGet", cuda.cuDeviceGet(&device, i));
    use_device(i);
    check("cuDeviceTotalMem", cuda.cuDeviceTotalMem(&device_total, device));
    check("cuMemGetInfo", cuda.cuMemGetInfo(&free_bytes, &total));
    printf("cuda=%d", i);
    print_uuid(device);
    printf(" device_total=%zu total=%zu free=%zu\n", device_total, total, free_bytes);
  }
}

static void info_nvml(void) {
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (library == NULL) {
    fail("dlopen_nvml", -1);
  }
  int (*init)(void), (*get_count)(unsigned *), (*get_handle)(unsigned, void **);
  int (*get_memory)(void *, struct nvml_memory *), (*get_uuid)(void *, char *, unsigned);
  *(void **)&init = dlsym(library, "nvmlInit_v2");
  *(void **)&get_count = dlsym(library, "nvmlDeviceGetCount_v2");
  *(void **)&get_handle = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
  *(void **)&get_memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
  *(void **)&get_uuid = dlsym(library, "nvmlDeviceGetUUID");
  if (init == NULL || get_count == NULL || get_handle == NULL || get_memory == NULL || get_uuid == NULL) {
    fail("dlsym_nvml", -1);
  }
  unsigned count;
  check("nvmlInit", init());
  check("nvmlDeviceGetCount", get_count(&count));
  printf("nvml_devices=%u\n", count);
  for (unsigned i = 0; i < count; i++) {
    void *handle;
    char uuid[96];
    struct nvml_memory memory;
    check("nvmlDeviceGetHandleByIndex", get_handle(i, &handle));
    check("nvmlDeviceGetUUID", get_uuid(handle, uuid, sizeof uuid));
    check("nvmlDeviceGetMemoryInfo", get_memory(handle, &memory));
    printf("nvml=%u uuid=%s total=%llu free=%llu used=%llu\n", i, uuid, memory.total, memory.free, memory.used);
  }
}

// fill_device takes what the current device has left, in pieces that halve at each refusal down to one byte.
static size_t fill_device(int *refusal) {
  size_t sum = 0;
  for (size_t piece = (size_t)1 << 32; piece > 0;) {
    if (piece_count == MAX_PIECES) fail("too_many_pieces", MAX_PIECES);
    *refusal = cuda.cuMemAlloc(&pieces[piece_count], piece);
    if (*refusal != CUDA_SUCCESS) {
      piece /= 2;
    } else {
      piece_count++;
      sum += piece;
    }
  }
  return sum;
}

// fill takes what all devices have left, and returns the exact sum.
static size_t fill(void) {
  int count, refusal = 0;
  size_t sum = 0;
  check("cuDeviceGetCount", cuda.cuDeviceGetCount(&count));
  for (int i = 0; i < count; i++) {
    use_device(i);
    sum += fill_device(&refusal);
  }
  printf("filled=%zu refusal=%d\n", sum, refusal);
  return sum;
}

static void free_pieces(void) {
  while (piece_count > 0) {
    check("cuMemFree", cuda.cuMemFree(pieces[--piece_count]));
  }
}

static void wait_for_signal(void) {
  sigset_t none;
  sigemptyset(&none);
  while (!stopped) {
    sigsuspend(&none);
  }
}

static size_t bytes_of(const char *text) {
  char *end;
  errno = 0;
  unsigned long long bytes = strtoull(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != 0 || errno != 0) {
    fprintf(stderr, "client: %s: a whole number of bytes is needed\n", text);
    exit(2);
  }
  return bytes;
}

static void hold(const char *amount) {
  if (strcmp(amount, "all") == 0) {
    printf("held=%zu\n", fill());
  } else {
    size_t bytes = bytes_of(amount);
    check("cuMemAlloc", cuda.cuMemAlloc(&pieces[piece_count++], bytes));
    printf("held=%zu\n", bytes);
  }
  fflush(stdout);
  wait_for_signal();
  free_pieces();
}

static void loop(size_t bytes) {
  size_t free_bytes, total;
  const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
  check("cuMemGetInfo", cuda.cuMemGetInfo(&free_bytes, &total));
  check("cuMemAlloc", cuda.cuMemAlloc(&pieces[piece_count++], bytes));
  for (unsigned long round = 1; !stopped; round++) {
    device_pointer small, beyond;
    if (cuda.cuMemAlloc(&small, LOOP_PIECE) == CUDA_SUCCESS) { // another process may hold all that is left
      check("cuMemFree", cuda.cuMemFree(small));
    }
    if (cuda.cuMemAlloc(&beyond, total - bytes + 1) == CUDA_SUCCESS) fail("given_beyond_total", 0);
    if (round == 1 || round % 100 == 0) {
      printf("loop=%lu total=%zu\n", round, total);
      fflush(stdout);
    }
    nanosleep(&pause, NULL);
  }
  free_pieces();
}

static void copy_check(size_t bytes) {
  unsigned char *sent = malloc(bytes), *received = calloc(1, bytes);
  device_pointer first, second;
  if (sent == NULL || received == NULL) {
    fail("malloc", -1);
  }
  for (size_t i = 0; i < bytes; i++) {
    sent[i] = (unsigned char)(i * 2654435761u >> 13);
  }
  check("cuMemAlloc", cuda.cuMemAlloc(&first, bytes));
  check("cuMemAlloc", cuda.cuMemAlloc(&second, bytes));
  check("cuMemcpyHtoD", cuda.cuMemcpyHtoD(first, sent, bytes));
  check("cuMemcpyDtoD", cuda.cuMemcpyDtoD(second, first, bytes));
  check("cuMemcpyDtoH", cuda.cuMemcpyDtoH(received, second, bytes));
  printf("copied=%zu same=%d\n", bytes, memcmp(sent, received, bytes) == 0);
  check("cuMemFree", cuda.cuMemFree(first));
  check("cuMemFree", cuda.cuMemFree(second));
  free(sent);
  free(received);
}

int main(int argc, char **argv) {
  const char *command = argc > 1 ? argv[1] : "", *argument = argc > 2 ? argv[2] : NULL;
  struct sigaction action = {.sa_handler = on_signal};
  sigset_t held_back;
  if (argument != NULL && strcmp(argument, "all") != 0) bytes_of(argument); // refused before a driver is opened
  sigemptyset(&held_back);
  sigaddset(&held_back, SIGTERM);
  sigaddset(&held_back, SIGINT);
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGINT, &action, NULL);

  if (strcmp(command, "info") == 0) {
    open_driver();
    info_cuda();
    info_nvml();
  } else if (strcmp(command, "fill") == 0) {
    open_driver();
    fill();
    free_pieces();
  } else if (strcmp(command, "hold") == 0 && argument != NULL) {
    sigprocmask(SIG_BLOCK, &held_back, NULL); // so that none is lost between the test and the wait
    open_driver();
    use_device(0);
    hold(argument);
  } else if (strcmp(command, "context") == 0) {
    sigprocmask(SIG_BLOCK, &held_back, NULL);
    open_driver();
    use_device(0);
    printf("context=1\n");
    fflush(stdout);
    wait_for_signal();
  } else if (strcmp(command, "loop") == 0 && argument != NULL) {
    open_driver();
    use_device(0);
    loop(bytes_of(argument));
  } else if (strcmp(command, "copy-check") == 0 && argument != NULL) {
    open_driver();
    use_device(0);
    copy_check(bytes_of(argument));
  } else {
    fprintf(stderr, "usage: client info | fill | hold BYTES|all | context | loop BYTES | copy-check BYTES\n");
    return 2;
  }
  return 0;
}
