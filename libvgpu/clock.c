/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * clock.c - contract in clock.h. A time namespace shifts CLOCK_MONOTONIC for its processes (time_namespaces(7)); the
 * shift is in /proc/self/timens_offsets, which speaks of the namespace of children: of ours too if they are the same.
 */
#include "clock.h"

#include "core/sys.h"
#include "modules.h"
#include "text.h"

enum { TEXT_BYTES = 256 };

typedef int (*clock_function)(int clock, struct vgpu_timespec *time);

#if defined(__x86_64__)
static const char vdso_name[] = "__vdso_clock_gettime";
#else
static const char vdso_name[] = "__kernel_clock_gettime";
#endif

static clock_function vdso;  /* atomic; NULL: none */
static int64_t offset_ns;    /* atomic; what our namespace adds */
static uint32_t is_prepared; /* atomic */

/* A decimal number, perhaps negative, after blanks; *text moves behind it. */
static int64_t parse_number(const char **text) {
  int64_t value = 0;
  while (**text == ' ' || **text == '\t')
    (*text)++;
  int is_negative = **text == '-';
  if (is_negative) (*text)++;
  for (; **text >= '0' && **text <= '9'; (*text)++)
    value = value * 10 + (**text - '0');
  return is_negative ? -value : value;
}

static int64_t read_offset(void) {
  char text[TEXT_BYTES], own[TEXT_BYTES], of_children[TEXT_BYTES];
  long own_bytes = vgpu_sys_readlink("/proc/self/ns/time", own, TEXT_BYTES);
  long bytes = vgpu_sys_readlink("/proc/self/ns/time_for_children", of_children, TEXT_BYTES);
  if (own_bytes <= 0 || own_bytes != bytes) return 0;
  for (long i = 0; i < bytes; i++) {
    if (own[i] != of_children[i]) return 0;
  }
  long fd = vgpu_sys_openat(VGPU_AT_FDCWD, "/proc/self/timens_offsets", VGPU_O_RDONLY | VGPU_O_CLOEXEC, 0);
  if (fd < 0) return 0;
  bytes = vgpu_sys_read((int)fd, text, TEXT_BYTES - 1);
  vgpu_sys_close((int)fd);
  if (bytes <= 0) return 0;
  text[bytes] = 0;
  const char *at = vgpu_text_starts(text, "monotonic");
  if (!at) return 0;
  int64_t seconds = parse_number(&at);
  return seconds * 1000000000 + parse_number(&at);
}

/* Threads that come here together do the same. */
__attribute__((noinline, cold)) static void prepare(void) {
  clock_function found = (clock_function)vgpu_find_symbol(VGPU_LIBRARY_ANY, vdso_name);
  __atomic_store_n(&vdso, found, __ATOMIC_RELAXED);
  __atomic_store_n(&offset_ns, read_offset(), __ATOMIC_RELAXED);
  __atomic_store_n(&is_prepared, 1, __ATOMIC_RELEASE);
}

uint64_t vgpu_now_ns(void) {
  struct vgpu_timespec time = {0, 0};
  if (__builtin_expect(!__atomic_load_n(&is_prepared, __ATOMIC_ACQUIRE), 0)) prepare();
  clock_function ask = __atomic_load_n(&vdso, __ATOMIC_RELAXED);
  if (!ask || ask(VGPU_CLOCK_MONOTONIC, &time) != 0) {
    vgpu_syscall2(__NR_clock_gettime, VGPU_CLOCK_MONOTONIC, (long)&time);
  }
  int64_t now = time.seconds * 1000000000 + time.nanoseconds - __atomic_load_n(&offset_ns, __ATOMIC_RELAXED);
  return now > 0 ? (uint64_t)now : 0;
}

void vgpu_clock_forget(void) {
  is_prepared = 0;
}
