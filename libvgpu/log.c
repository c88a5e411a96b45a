/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * log.c - contract in log.h.
 */
#include "log.h"

#include <stdarg.h>
#include <stddef.h>

#include "core/sys.h"

enum { LINE_BYTES = 320, STDERR = 2, LOG_POLLOUT = 4 };

struct line {
  char text[LINE_BYTES];
  size_t length;
};

static void put_text(struct line *line, const char *text) {
  /* Control characters could forge a second line; the last byte is kept for the newline. */
  for (; *text && line->length < LINE_BYTES - 1; text++)
    line->text[line->length++] = *text < ' ' ? '?' : *text;
}

static void put_number(struct line *line, uint64_t value) {
  char digits[21];
  size_t at = sizeof(digits) - 1;
  digits[at] = 0;
  do {
    digits[--at] = (char)('0' + value % 10);
    value /= 10;
  } while (value);
  put_text(line, digits + at);
}

static void put_signed(struct line *line, int value) {
  if (value < 0) put_text(line, "-");
  put_number(line, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

/* A pipe that is full or has no reader, or a closed descriptor, gets nothing. */
static int is_writable(int fd) {
  struct {
    int fd;
    short events;
    short revents;
  } wait = {fd, LOG_POLLOUT, 0};
  struct vgpu_timespec now = {0, 0};
  long ready = vgpu_syscall6(__NR_ppoll, (long)&wait, 1, (long)&now, 0, 0, 0);
  return ready == 1 && wait.revents == LOG_POLLOUT;
}

void vgpu_log(const char *format, ...) {
  struct line line = {.length = 0};
  va_list arguments;
  put_text(&line, "vgpud: ");
  va_start(arguments, format);
  for (const char *c = format; *c; c++) {
    char one[2] = {*c, 0};
    if (*c != '%' || !c[1]) {
      put_text(&line, one);
      continue;
    }
    c++;
    if (*c == 's') put_text(&line, va_arg(arguments, const char *));
    if (*c == 'd') put_signed(&line, va_arg(arguments, int));
    if (*c == 'l') put_number(&line, va_arg(arguments, uint64_t)), c++;
  }
  va_end(arguments);
  line.text[line.length++] = '\n';
  if (is_writable(STDERR)) vgpu_sys_write(STDERR, line.text, line.length);
}

int vgpu_log_is_due(uint64_t *next) {
  enum { PERIOD = 1000 }; /* of about 10 ms */
  uint64_t now = vgpu_ticks();
  uint64_t due = __atomic_load_n(next, __ATOMIC_RELAXED);
  if (due != 0 && now < due) return 0;
  return __atomic_compare_exchange_n(next, &due, now + PERIOD * vgpu_ticks_now_and_then(), 0, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED);
}
