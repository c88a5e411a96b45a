/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * neighbour.c - a library that looks up what follows itself, as other preloaded libraries and wrappers do.
 */
#include <dlfcn.h>
#include <stddef.h>

void *neighbour_next(const char *name);
int neighbour_forward(int value);
int tolower(int character);

/* The definition of `name` behind this library. */
void *neighbour_next(const char *name) {
  return dlsym(RTLD_NEXT, name);
}

/* Forwards to the next function of its own name, and adds one; there is none, so the value itself counts. */
__attribute__((weak)) int neighbour_forward(int value) {
  int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "neighbour_forward");
  return next ? next(value) + 1 : value + 1;
}
