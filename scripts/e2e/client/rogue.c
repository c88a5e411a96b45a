// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors
//
// A program that the loader has no part in: it is linked statically, with the driver's code in it, so that nothing can be
// preloaded. It takes memory of the first GPU past every limit and keeps it until it is killed.
//
//   rogue BYTES

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);

static void check(const char *what, int code) {
  if (code == 0) return;
  printf("error=%s code=%d\n", what, code);
  exit(1);
}

int main(int count, char **words) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (count != 2) {
    fprintf(stderr, "usage: rogue BYTES\n");
    return 2;
  }
  unsigned long long pointer = 0;
  int device = 0;
  void *context = NULL;
  check("cuInit", cuInit(0));
  check("cuDeviceGet", cuDeviceGet(&device, 0));
  check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
  check("cuCtxSetCurrent", cuCtxSetCurrent(context));
  check("cuMemAlloc", cuMemAlloc_v2(&pointer, strtoull(words[1], NULL, 10)));
  printf("held=%s pid=%d\n", words[1], getpid());
  for (;;) pause();
}
