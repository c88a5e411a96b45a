/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * sys.h - the few system calls of libvgpu, made directly (x86-64 and arm64).
 *
 * libvgpu runs in other people's programs, under any libc, in children between fork and exec, and under other
 * preloaded libraries that may wrap libc's functions. So it asks the kernel itself: no errno, no cancellation
 * points, no recursion into somebody's wrapper. Every function returns what the kernel returned: a value, or a
 * negative errno. Source: Linux syscall(2), "Architecture calling conventions".
 */
#ifndef VGPU_SYS_H
#define VGPU_SYS_H

#include <asm/unistd.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
static inline long vgpu_syscall6(long number, long a, long b, long c, long d, long e, long f) {
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}
#elif defined(__aarch64__)
static inline long vgpu_syscall6(long number, long a, long b, long c, long d, long e, long f) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
}
#else
#error "libvgpu knows the system calls of x86-64 and arm64 only"
#endif

static inline long vgpu_syscall4(long number, long a, long b, long c, long d) {
  return vgpu_syscall6(number, a, b, c, d, 0, 0);
}

static inline long vgpu_syscall3(long number, long a, long b, long c) {
  return vgpu_syscall6(number, a, b, c, 0, 0, 0);
}

static inline long vgpu_syscall2(long number, long a, long b) {
  return vgpu_syscall6(number, a, b, 0, 0, 0, 0);
}

static inline long vgpu_syscall1(long number, long a) {
  return vgpu_syscall6(number, a, 0, 0, 0, 0, 0);
}

/* Kernel values that are the same on both machines; by our names, so that no libc header is needed. O_NOFOLLOW
 * and O_DIRECTORY differ between them. */
enum {
  VGPU_AT_FDCWD = -100,
  VGPU_O_RDONLY = 0,
  VGPU_O_WRONLY = 01,
  VGPU_O_RDWR = 02,
  VGPU_O_CREAT = 0100,
  VGPU_O_EXCL = 0200,
  VGPU_O_NONBLOCK = 04000,
  VGPU_O_CLOEXEC = 02000000,
#if defined(__x86_64__)
  VGPU_O_DIRECTORY = 0200000,
  VGPU_O_NOFOLLOW = 0400000,
#else
  VGPU_O_DIRECTORY = 040000,
  VGPU_O_NOFOLLOW = 0100000,
#endif
  VGPU_PROT_READ = 1,
  VGPU_PROT_WRITE = 2,
  VGPU_MAP_SHARED = 1,
  VGPU_MAP_PRIVATE = 2,
  VGPU_MAP_ANONYMOUS = 0x20,
  VGPU_MADV_WIPEONFORK = 18,
  VGPU_CLOCK_MONOTONIC = 1,
  VGPU_GRND_NONBLOCK = 1
};

/* The kernel's struct timespec for 64-bit machines. */
struct vgpu_timespec {
  int64_t seconds;
  int64_t nanoseconds;
};

static inline long vgpu_sys_openat(int directory, const char *path, int flags, unsigned mode) {
  return vgpu_syscall4(__NR_openat, directory, (long)path, flags, (long)mode);
}

static inline long vgpu_sys_read(int fd, void *buffer, size_t bytes) {
  return vgpu_syscall3(__NR_read, fd, (long)buffer, (long)bytes);
}

static inline long vgpu_sys_write(int fd, const void *buffer, size_t bytes) {
  return vgpu_syscall3(__NR_write, fd, (long)buffer, (long)bytes);
}

static inline long vgpu_sys_close(int fd) {
  return vgpu_syscall1(__NR_close, fd);
}

static inline long vgpu_sys_lseek(int fd, long offset, int whence) {
  return vgpu_syscall3(__NR_lseek, fd, offset, whence);
}

static inline long vgpu_sys_ftruncate(int fd, long bytes) {
  return vgpu_syscall2(__NR_ftruncate, fd, bytes);
}

static inline long vgpu_sys_getdents64(int fd, void *buffer, size_t bytes) {
  return vgpu_syscall3(__NR_getdents64, fd, (long)buffer, (long)bytes);
}

static inline long vgpu_sys_readlink(const char *path, char *buffer, size_t bytes) {
  return vgpu_syscall4(__NR_readlinkat, VGPU_AT_FDCWD, (long)path, (long)buffer, (long)bytes);
}

/* The address, or a negative errno as an address (-4095..-1). */
static inline void *vgpu_sys_mmap(void *address, size_t bytes, int protection, int flags, int fd, long offset) {
  return (void *)vgpu_syscall6(__NR_mmap, (long)address, (long)bytes, protection, flags, fd, offset);
}

static inline long vgpu_sys_munmap(void *address, size_t bytes) {
  return vgpu_syscall2(__NR_munmap, (long)address, (long)bytes);
}

static inline long vgpu_sys_madvise(void *address, size_t bytes, int advice) {
  return vgpu_syscall3(__NR_madvise, (long)address, (long)bytes, advice);
}

static inline long vgpu_sys_getpid(void) {
  return vgpu_syscall1(__NR_getpid, 0);
}

static inline long vgpu_sys_kill(int pid, int signal) {
  return vgpu_syscall2(__NR_kill, pid, signal);
}

static inline long vgpu_sys_getrandom(void *buffer, size_t bytes, unsigned flags) {
  return vgpu_syscall3(__NR_getrandom, (long)buffer, (long)bytes, (long)flags);
}

static inline long vgpu_sys_sched_yield(void) {
  return vgpu_syscall1(__NR_sched_yield, 0);
}

static inline long vgpu_sys_nanosleep(int64_t nanoseconds) {
  struct vgpu_timespec time = {nanoseconds / 1000000000, nanoseconds % 1000000000};
  return vgpu_syscall2(__NR_nanosleep, (long)&time, 0);
}

/* Nanoseconds of the monotonic clock. A system call: for slow paths only. */
static inline int64_t vgpu_sys_monotonic_ns(void) {
  struct vgpu_timespec time = {0, 0};
  vgpu_syscall2(__NR_clock_gettime, VGPU_CLOCK_MONOTONIC, (long)&time);
  return time.seconds * 1000000000 + time.nanoseconds;
}

/* Waits a moment without giving up the processor. */
static inline void vgpu_cpu_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  __asm__ volatile("yield" ::: "memory");
#endif
}

/* A cheap clock of unspecified frequency, and how many of its ticks make up to about 10 ms. Only good for "not
 * more often than now and then". */
static inline uint64_t vgpu_ticks(void) {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  uint64_t ticks;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#endif
}

static inline uint64_t vgpu_ticks_now_and_then(void) {
#if defined(__x86_64__)
  return 1u << 24;
#else
  uint64_t frequency;
  __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(frequency));
  return frequency / 128;
#endif
}

#endif
