/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * freestanding.c - the memory functions that the compiler may call by itself, so that no libc is needed. Hidden:
 * they are for this library alone.
 */
#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t bytes);
void *memset(void *to, int value, size_t bytes);

void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    ((char *)to)[i] = ((const char *)from)[i];
  return to;
}

void *memset(void *to, int value, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    ((char *)to)[i] = (char)value;
  return to;
}
