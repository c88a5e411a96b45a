/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * process.c - identity and liveness of processes; contract in process.h. Source of the fields: proc_pid_stat(5)
 * and fs/proc/array.c (do_task_stat): a zombie whose threads are all gone shows num_threads 1, one whose other
 * threads live on shows more; files, and with them the device memory, are given up before the state turns to Z.
 */
#include "process.h"

#include <errno.h>

#include "sys.h"

enum { STAT_TEXT_BYTES = 1024, STAT_PATH_BYTES = 32 };

/* Reads the decimal number at `*at` and leaves `*at` behind it. */
static uint64_t parse_number(const char *text, uint64_t length, uint64_t *at) {
  uint64_t value = 0;
  while (*at < length && text[*at] >= '0' && text[*at] <= '9') {
    value = value * 10 + (uint64_t)(text[*at] - '0');
    (*at)++;
  }
  return value;
}

bool vgpu_process_parse_stat(const char *text, uint64_t length, struct vgpu_process_stat *stat) {
  enum { FIELD_STATE = 3, FIELD_NUM_THREADS = 20, FIELD_START_TIME = 22, FIELD_START_STACK = 28 };
  uint64_t at = 0, name_end = length;
  stat->pid = parse_number(text, length, &at);
  for (uint64_t i = at; i < length; i++) {
    if (text[i] == ')') {
      name_end = i;
    }
  }
  if (length < 3 || name_end > length - 3) {
    return false;
  }
  at = name_end + 2;
  stat->state = text[at];
  for (int field = FIELD_STATE + 1; field <= FIELD_START_STACK; field++) {
    while (at < length && text[at] != ' ') {
      at++;
    }
    if (++at >= length) {
      return false;
    }
    uint64_t from = at;
    uint64_t value = parse_number(text, length, &from);
    if (field == FIELD_NUM_THREADS) {
      stat->num_threads = value;
    } else if (field == FIELD_START_TIME) {
      stat->start_time = value;
    } else if (field == FIELD_START_STACK) {
      stat->start_stack = value;
    }
  }
  return true;
}

/* Reads and parses one stat file. 0 or a negative errno. */
static long read_stat(const char *path, struct vgpu_process_stat *stat) {
  char text[STAT_TEXT_BYTES];
  long fd = vgpu_sys_openat(VGPU_AT_FDCWD, path, VGPU_O_RDONLY | VGPU_O_CLOEXEC, 0);
  if (fd < 0) {
    return fd;
  }
  long length = vgpu_sys_read((int)fd, text, sizeof(text));
  vgpu_sys_close((int)fd);
  if (length < 0) {
    return length;
  }
  return vgpu_process_parse_stat(text, (uint64_t)length, stat) ? 0 : -EINVAL;
}

/* Writes "/proc/PID/stat". */
static void stat_path(uint32_t pid, char path[STAT_PATH_BYTES]) {
  static const char head[] = "/proc/", tail[] = "/stat";
  char digits[12];
  int count = 0, at = 0;
  for (const char *c = head; *c != '\0'; c++) {
    path[at++] = *c;
  }
  do {
    digits[count++] = (char)('0' + pid % 10);
    pid /= 10;
  } while (pid != 0);
  while (count > 0) {
    path[at++] = digits[--count];
  }
  for (const char *c = tail; *c != '\0'; c++) {
    path[at++] = *c;
  }
  path[at] = '\0';
}

/* Inode of our pid namespace from the link's text, "pid:[4026531836]"; 0: unknown. */
uint64_t vgpu_process_namespace(void) {
  char text[64];
  long length = vgpu_sys_readlink("/proc/self/ns/pid", text, sizeof(text));
  for (long i = 0; i < length; i++) {
    if (text[i] == '[') {
      uint64_t at = (uint64_t)i + 1;
      return parse_number(text, (uint64_t)length, &at);
    }
  }
  return 0;
}

uint32_t vgpu_process_pid(void) {
  return (uint32_t)vgpu_sys_getpid();
}

void vgpu_process_self(struct vgpu_process *self) {
  struct vgpu_process_stat stat;
  self->pid = vgpu_process_pid();
  self->pid_namespace = vgpu_process_namespace();
  self->start_time = 0;
  self->start_stack = 0;
  self->proc_is_ours = 0;
  if (read_stat("/proc/self/stat", &stat) == 0) {
    self->start_time = stat.start_time;
    self->start_stack = stat.start_stack;
    self->proc_is_ours = stat.pid == self->pid;
  }
}

/* True if both are known and differ. */
static bool differs(uint64_t a, uint64_t b) {
  return a != 0 && b != 0 && a != b;
}

enum vgpu_look vgpu_process_look(const struct vgpu_process *self, const struct vgpu_process *other) {
  struct vgpu_process_stat stat;
  char path[STAT_PATH_BYTES];
  if (other->pid == 0 || self->pid_namespace != other->pid_namespace) {
    return VGPU_LOOK_UNKNOWN;
  }
  if (other->pid == self->pid) {
    bool gone = differs(self->start_time, other->start_time) || differs(self->start_stack, other->start_stack);
    return gone ? VGPU_LOOK_DEAD : VGPU_LOOK_SELF;
  }
  if (self->proc_is_ours) {
    stat_path(other->pid, path);
    if (read_stat(path, &stat) == 0) {
      bool zombie = (stat.state == 'Z' || stat.state == 'X') && stat.num_threads <= 1;
      if (zombie || differs(stat.start_stack, other->start_stack)) {
        return VGPU_LOOK_DEAD;
      }
      return differs(stat.start_time, other->start_time) ? VGPU_LOOK_OTHER : VGPU_LOOK_ALIVE;
    }
  }
  long result = vgpu_sys_kill((int)other->pid, 0);
  if (result == -ESRCH) {
    return VGPU_LOOK_DEAD;
  }
  return VGPU_LOOK_UNKNOWN;
}
