// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors
//
// A parent that holds memory of the GPU and its child, which was forked before: a data loader with workers. The child
// has a driver of its own, and shares the parent's limits.
//
//   forked KERNEL SECONDS HELD_BYTES CHILD_BYTES REFUSED_BYTES
//
// The parent holds HELD_BYTES; the child allocates CHILD_BYTES, launches KERNEL for SECONDS, then asks for
// REFUSED_BYTES. It prints the driver's answers.

#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

enum { GRID = 1024, BLOCK = 256 };

static void be_child(char **argv) {
  device_pointer piece;
  use_device(0);
  int first = cuda.cuMemAlloc(&piece, strtoull(argv[4], NULL, 10));
  void *kernel = load_kernel(argv[1]);
  printf("ready=1 pid=%d first=%d\n", getpid(), first);
  fflush(stdout);
  uint64_t begun = now_ns(), length = (uint64_t)(atof(argv[2]) * 1e9);
  long launches = 0;
  for (; now_ns() - begun < length; launches++)
    CALL(cuLaunchKernel, kernel, GRID, 1, 1, BLOCK, 1, 1, 0, NULL, NULL, NULL);
  int second = cuda.cuMemAlloc(&piece, strtoull(argv[5], NULL, 10));
  printf("done=1 launches=%ld first=%d second=%d\n", launches, first, second);
  fflush(stdout);
}

int main(int argc, char **argv) {
  int held[2], status = 1;
  device_pointer piece;
  char byte = 0;
  if (argc < 6 || pipe(held) != 0) {
    fprintf(stderr, "usage: forked KERNEL SECONDS HELD_BYTES CHILD_BYTES REFUSED_BYTES\n");
    return 2;
  }
  open_driver(); // what is loaded with the program knows the parent by then
  pid_t child = fork();
  if (child == 0) {
    if (read(held[0], &byte, 1) != 1) return 1;
    be_child(argv);
    return 0;
  }
  use_device(0);
  CALL(cuMemAlloc, &piece, strtoull(argv[3], NULL, 10));
  if (write(held[1], &byte, 1) != 1) return 1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
