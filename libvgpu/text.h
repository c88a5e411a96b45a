/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * text.h - the few text functions that libvgpu needs, since it has no libc.
 */
#ifndef VGPU_TEXT_H
#define VGPU_TEXT_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

static inline size_t vgpu_text_length(const char *text) {
  size_t length = 0;
  while (text[length])
    length++;
  return length;
}

static inline int vgpu_text_equal(const char *a, const char *b) {
  while (*a && *a == *b)
    a++, b++;
  return *a == *b;
}

/* What follows `prefix` in `text`; NULL when `text` does not start with it. */
static inline const char *vgpu_text_starts(const char *text, const char *prefix) {
  while (*prefix && *text == *prefix)
    text++, prefix++;
  return *prefix ? NULL : text;
}

/* 0, or -ENAMETOOLONG and an empty text. */
static inline int vgpu_text_copy(char *to, size_t size, const char *from) {
  size_t length = vgpu_text_length(from);
  if (length >= size) {
    to[0] = 0;
    return -ENAMETOOLONG;
  }
  for (size_t i = 0; i <= length; i++)
    to[i] = from[i];
  return 0;
}

#endif
