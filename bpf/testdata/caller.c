// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors
//
// A program of the CUDA driver API that does what it is told, one command a line, and answers each with a line: what the
// kernel counts of it is compared with what it was told to do. It knows nothing of vgpud.
//
//   load PATH              load the library
//   map PATH               map a file to execute, and do nothing with it
//   begin                  make a context, allocate 1 MiB to copy with
//   htod N BYTES           N copies of that size; dtoh, dtod, async (host to device), any (cuMemcpy) likewise
//   rect N WIDTH HEIGHT    N copies of rectangles, host to device
//   alloc N BYTES          N allocations, freed at once
//   refused N              N allocations of 2^60 bytes and N copies past the end; all must fail
//   sync N                 N times cuCtxSynchronize
//   quick N                N times cuCtxSynchronize; answers with the processor time of each, in ns
//   syscalls N             N getpid; answers likewise
//   control N              N ioctls on descriptor 0; answers likewise
//   ioctl PATH N           N ioctls on a device node
//   container GROUP LIBRARY N BYTES   in a child with a control group and a mount namespace of its own, see the library
//                          at a path of its own, load and begin, and make N copies; wait for it
//   crowd N                N children that have mapped what this process has, until it ends
//   fork                   end the child of a fork
//   exit                   end

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long device_pointer;

enum { ROOM = 1 << 20 };

struct rectangle {
  size_t from_x, from_y;
  unsigned from_type;
  const void *from_host;
  device_pointer from_device;
  void *from_array;
  size_t from_pitch, to_x, to_y;
  unsigned to_type;
  void *to_host;
  device_pointer to_device;
  void *to_array;
  size_t to_pitch, width, height;
};

static struct {
  int (*init)(unsigned);
  int (*retain)(void **, int);
  int (*set_current)(void *);
  int (*alloc)(device_pointer *, size_t);
  int (*release)(device_pointer);
  int (*htod)(device_pointer, const void *, size_t);
  int (*dtoh)(void *, device_pointer, size_t);
  int (*dtod)(device_pointer, device_pointer, size_t);
  int (*htod_async)(device_pointer, const void *, size_t, void *);
  int (*any)(device_pointer, device_pointer, size_t);
  int (*rect)(const struct rectangle *);
  int (*sync)(void);
} cuda;

static char host[ROOM];
static device_pointer card;

static void fail(const char *what, int code) {
  printf("error %s %d\n", what, code);
  exit(1);
}

static void ok(const char *what, int code) {
  if (code != 0) {
    fail(what, code);
  }
}

static void *look(void *library, const char *name) {
  void *function = dlsym(library, name);
  if (function == NULL) {
    fail(name, -1);
  }
  return function;
}

static void open_library(const char *path) {
  void *library = dlopen(path, RTLD_NOW);
  if (library == NULL) {
    fail(dlerror(), -1);
  }
  *(void **)&cuda.init = look(library, "cuInit");
  *(void **)&cuda.retain = look(library, "cuDevicePrimaryCtxRetain");
  *(void **)&cuda.set_current = look(library, "cuCtxSetCurrent");
  *(void **)&cuda.alloc = look(library, "cuMemAlloc_v2");
  *(void **)&cuda.release = look(library, "cuMemFree_v2");
  *(void **)&cuda.htod = look(library, "cuMemcpyHtoD_v2");
  *(void **)&cuda.dtoh = look(library, "cuMemcpyDtoH_v2");
  *(void **)&cuda.dtod = look(library, "cuMemcpyDtoD_v2");
  *(void **)&cuda.htod_async = look(library, "cuMemcpyHtoDAsync_v2");
  *(void **)&cuda.any = look(library, "cuMemcpy");
  *(void **)&cuda.rect = look(library, "cuMemcpy2D_v2");
  *(void **)&cuda.sync = look(library, "cuCtxSynchronize");
}

static void begin(void) {
  void *context = NULL;
  ok("cuInit", cuda.init(0));
  ok("cuDevicePrimaryCtxRetain", cuda.retain(&context, 0));
  ok("cuCtxSetCurrent", cuda.set_current(context));
  ok("cuMemAlloc", cuda.alloc(&card, ROOM));
}

static uint64_t cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// one does a command once.
static void one(const char *verb, size_t bytes, size_t height) {
  device_pointer piece = 0;
  if (strcmp(verb, "htod") == 0) {
    ok(verb, cuda.htod(card, host, bytes));
  } else if (strcmp(verb, "dtoh") == 0) {
    ok(verb, cuda.dtoh(host, card, bytes));
  } else if (strcmp(verb, "dtod") == 0) {
    ok(verb, cuda.dtod(card + ROOM / 2, card, bytes));
  } else if (strcmp(verb, "async") == 0) {
    ok(verb, cuda.htod_async(card, host, bytes, NULL));
  } else if (strcmp(verb, "any") == 0) {
    ok(verb, cuda.any(card, (device_pointer)(uintptr_t)host, bytes));
  } else if (strcmp(verb, "rect") == 0) {
    struct rectangle r = {.from_type = 1,
                          .from_host = host,
                          .from_pitch = bytes,
                          .to_type = 2,
                          .to_device = card,
                          .to_pitch = bytes,
                          .width = bytes,
                          .height = height};
    ok(verb, cuda.rect(&r));
  } else if (strcmp(verb, "alloc") == 0) {
    ok(verb, cuda.alloc(&piece, bytes));
    ok("free", cuda.release(piece));
  } else if (strcmp(verb, "refused") == 0) {
    if (cuda.alloc(&piece, (size_t)1 << 60) == 0 || cuda.htod(card + ROOM - 8, host, ROOM) == 0) {
      fail("not refused", 0);
    }
  } else if (strcmp(verb, "sync") == 0 || strcmp(verb, "quick") == 0) {
    ok(verb, cuda.sync());
  } else if (strcmp(verb, "syscalls") == 0) {
    syscall(SYS_getpid);
  } else if (strcmp(verb, "control") == 0) {
    ioctl(0, 0x4600, NULL);
  } else {
    fail("unknown command", 0);
  }
}

static void ioctls(const char *path, size_t n) {
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    fail(path, fd);
  }
  for (size_t i = 0; i < n; i++) {
    ioctl(fd, 0x4600 + i % 16, NULL);
  }
  close(fd);
}

static void write_pid(const char *group) {
  char path[4096];
  snprintf(path, sizeof path, "%s/cgroup.procs", group);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, "0", 1) != 1) {
    fail(path, fd);
  }
  close(fd);
}

// container is a container as far as probes can tell.
static void container(const char *group, const char *library, size_t n, size_t bytes) {
  pid_t child = fork();
  int status = 0;
  if (child == 0) {
    write_pid(group);
    ok("unshare", unshare(CLONE_NEWNS));
    ok("private mounts", mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    ok("tmpfs", mount("none", "/mnt", "tmpfs", 0, NULL));
    int fd = open("/mnt/libcuda.so.1", O_CREAT | O_CLOEXEC | O_WRONLY, 0755);
    ok("file to bind to", fd < 0);
    close(fd);
    ok("bind", mount(library, "/mnt/libcuda.so.1", NULL, MS_BIND, NULL));
    open_library("/mnt/libcuda.so.1");
    begin();
    for (size_t i = 0; i < n; i++) {
      one("htod", bytes, 0);
    }
    _exit(0);
  }
  if (waitpid(child, &status, 0) != child || status != 0) {
    fail("container", status);
  }
}

static void crowd(size_t n) {
  for (size_t i = 0; i < n; i++) {
    pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) {
        pause();
      }
    }
    ok("fork", child < 0);
  }
}

int main(void) {
  char line[8192], verb[16], path[4000], group[4000];
  size_t n = 1, bytes = 0, height = 0;
  while (fgets(line, sizeof line, stdin) != NULL) {
    if (sscanf(line, "load %3999s", path) == 1) {
      open_library(path);
    } else if (sscanf(line, "map %3999s", path) == 1) {
      int fd = open(path, O_RDONLY | O_CLOEXEC);
      if (fd < 0 || mmap(NULL, ROOM / 4, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED) {
        fail(path, fd);
      }
      close(fd);
    } else if (strcmp(line, "begin\n") == 0) {
      begin();
    } else if (sscanf(line, "ioctl %3999s %zu", path, &n) == 2) {
      ioctls(path, n);
    } else if (sscanf(line, "container %3999s %3999s %zu %zu", group, path, &n, &bytes) == 4) {
      container(group, path, n, bytes);
    } else if (sscanf(line, "crowd %zu", &n) == 1) {
      crowd(n);
    } else if (strcmp(line, "fork\n") == 0) {
      pid_t child = fork();
      if (child == 0) {
        _exit(0);
      }
      waitpid(child, NULL, 0);
    } else if (strcmp(line, "exit\n") == 0) {
      return 0;
    } else if (sscanf(line, "%15s %zu %zu %zu", verb, &n, &bytes, &height) >= 2) {
      uint64_t start = cpu_ns();
      for (size_t i = 0; i < n; i++) {
        one(verb, bytes, height);
      }
      printf("ok %llu\n", (unsigned long long)((cpu_ns() - start) / (n ? n : 1)));
      fflush(stdout);
      continue;
    } else {
      fail("unknown line", 0);
    }
    puts("ok 0");
    fflush(stdout);
  }
  return 0;
}
