/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * life.c - contract in life.h. The descriptor is the program's neighbour: it has a high number, is closed on execve,
 * and before each use it is made sure that it is still the file that it was.
 */
#include "life.h"

#include "sys.h"

enum {
  HIGH_NUMBER = 1000, /* where programs that count descriptors from 0 do not meet it, */
  LOWER_NUMBER = 100, /* or here under a lower limit */
  COMMAND_DUP = 1030, /* F_DUPFD_CLOEXEC */
  COMMAND_GET = 36,   /* F_OFD_GETLK */
  COMMAND_SET = 37,   /* F_OFD_SETLK */
  TYPE_WRITE = 1,     /* F_WRLCK */
  TYPE_NONE = 2,      /* F_UNLCK */
  STAT_WORDS = 32,    /* more than struct stat has; it begins with the device and the inode */
  PATH_BYTES = 32
};

/* The kernel's struct flock for 64-bit machines. */
struct file_lock {
  int16_t type;
  int16_t whence; /* 0: from the start of the file */
  int64_t start;
  int64_t length;
  int32_t pid; /* 0 */
};

static long lock_call(const struct vgpu_book *book, int command, struct file_lock *lock, int type, uint64_t token) {
  *lock = (struct file_lock){.type = (int16_t)type, .start = (int64_t)VGPU_LIFE_BYTE(token), .length = 1};
  return vgpu_syscall3(__NR_fcntl, book->file, command, (long)lock);
}

static bool identify(int fd, uint64_t id[2]) {
  uint64_t stat[STAT_WORDS];
  if (fd < 0 || vgpu_syscall2(__NR_fstat, fd, (long)stat) != 0) {
    return false;
  }
  id[0] = stat[0];
  id[1] = stat[1];
  return true;
}

/* True if `fd` is the usage file still. */
static bool is_file(const struct vgpu_book *book, int fd) {
  uint64_t id[2];
  return identify(fd, id) && id[0] == book->file_id[0] && id[1] == book->file_id[1];
}

/* The same open file description under a high number; `fd` itself where there is none. */
static int move_high(int fd) {
  long high = vgpu_syscall3(__NR_fcntl, fd, COMMAND_DUP, HIGH_NUMBER);
  high = high < 0 ? vgpu_syscall3(__NR_fcntl, fd, COMMAND_DUP, LOWER_NUMBER) : high;
  if (high < 0) {
    return fd;
  }
  vgpu_sys_close(fd);
  return (int)high;
}

/* Notes that this process opened the file. */
static void own_file(struct vgpu_book *book, int fd) {
  book->file = move_high(fd);
  book->file_pid = vgpu_process_pid();
  book->file_namespace = vgpu_process_namespace();
}

void vgpu_book_use_file(struct vgpu_book *book, int fd) {
  if (identify(fd, book->file_id)) {
    own_file(book, fd);
  }
}

/* "/proc/self/fd/<number>". */
static void link_path(int number, char path[PATH_BYTES]) {
  static const char head[] = "/proc/self/fd/";
  char digits[12];
  int count = 0, at = 0;
  for (const char *c = head; *c != '\0'; c++) {
    path[at++] = *c;
  }
  do {
    digits[count++] = (char)('0' + number % 10);
    number /= 10;
  } while (number != 0);
  while (count > 0) {
    path[at++] = digits[--count];
  }
  path[at] = '\0';
}

/* Makes sure that book->file is the file, by an open file description of our own: a forked child has its parent's,
 * whose locks are the parent's. */
static bool prepare(struct vgpu_book *book) {
  char path[PATH_BYTES];
  if (!is_file(book, book->file)) {
    book->file = -1; /* the program closed it, and the number may be another file's */
    return false;
  }
  if (book->file_pid == vgpu_process_pid() && book->file_namespace == vgpu_process_namespace()) {
    return true;
  }
  link_path(book->file, path);
  long again = vgpu_sys_openat(VGPU_AT_FDCWD, path, VGPU_O_RDWR | VGPU_O_CLOEXEC | VGPU_O_NONBLOCK, 0);
  if (again < 0) {
    return false;
  }
  if (!is_file(book, (int)again)) {
    vgpu_sys_close((int)again);
    return false;
  }
  vgpu_sys_close(book->file);
  own_file(book, (int)again);
  return true;
}

bool vgpu_life_take(struct vgpu_book *book, uint64_t token) {
  struct file_lock lock;
  return prepare(book) && lock_call(book, COMMAND_SET, &lock, TYPE_WRITE, token) == 0;
}

void vgpu_life_drop(struct vgpu_book *book, uint64_t token) {
  struct file_lock lock;
  if (token != 0 && prepare(book)) {
    lock_call(book, COMMAND_SET, &lock, TYPE_NONE, token);
  }
}

enum vgpu_look vgpu_life_look(struct vgpu_book *book, uint64_t token) {
  struct file_lock lock;
  if (!prepare(book) || lock_call(book, COMMAND_GET, &lock, TYPE_WRITE, token) != 0) {
    return VGPU_LOOK_UNKNOWN;
  }
  return lock.type == TYPE_NONE ? VGPU_LOOK_DEAD : VGPU_LOOK_ALIVE;
}

void vgpu_life_close(struct vgpu_book *book) {
  if (is_file(book, book->file)) {
    vgpu_sys_close(book->file);
  }
  book->file = -1;
}
