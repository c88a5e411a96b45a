// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors
//
// A program without CUDA, built for musl and for 32 bits: it has to run beside the preloaded library.

#include <stdio.h>

int main(void) {
  printf("hello from %zu bits\n", sizeof(void *) * 8);
  return 0;
}
