// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors
//
// Captures two streams into a graph, and replays it. It says when the capture begins and ends and waits for a line on
// standard input each time, so that the one who started it can look at what the driver was asked for in between.
//
//   capture MODE KERNEL REPLAYS [SECONDS]
//
// MODE: 0 global, 1 thread-local, 2 relaxed; in a relaxed capture a second thread allocates and frees meanwhile. The
// graph has 400 launches of KERNEL, an allocation and its release, and events that fork to the second stream and join
// it again. It is replayed REPLAYS times, or until SECONDS are over.

#include <pthread.h>

#include "driver.h"

enum { LAUNCHES_PER_STREAM = 200, RELAXED = 2, ALLOCATIONS = 50, PIECE = 1 << 20, GRID = 1024, BLOCK = 256 };

// pause_here says where the program is and returns when it is told to go on.
static void pause_here(const char *where, uint64_t since) {
  printf("%s=1 took_ms=%.1f\n", where, (double)(now_ns() - since) / 1e6);
  fflush(stdout);
  if (getchar() == EOF) exit(1);
}

static void *allocate_meanwhile(void *unused) {
  device_pointer piece;
  CALL(cuCtxSetCurrent, context);
  for (int i = 0; i < ALLOCATIONS; i++) {
    CALL(cuMemAlloc, &piece, PIECE);
    CALL(cuMemFree, piece);
  }
  return unused;
}

static void launch_on(void *kernel, void *stream) {
  for (int i = 0; i < LAUNCHES_PER_STREAM; i++)
    CALL(cuLaunchKernel, kernel, GRID, 1, 1, BLOCK, 1, 1, 0, stream, NULL, NULL);
}

// capture_streams returns the graph of what it puts on both streams.
static void *capture_streams(int mode, void *kernel, void *first, void *second) {
  void *graph, *forked, *joined;
  device_pointer piece;
  pthread_t other;
  CALL(cuEventCreate, &forked, 0);
  CALL(cuEventCreate, &joined, 0);
  uint64_t started = now_ns();
  pause_here("capturing", started);
  started = now_ns();
  CALL(cuStreamBeginCapture, first, mode);
  if (mode == RELAXED) pthread_create(&other, NULL, allocate_meanwhile, NULL);
  CALL(cuMemAllocAsync, &piece, PIECE, first);
  launch_on(kernel, first);
  CALL(cuEventRecord, forked, first);
  CALL(cuStreamWaitEvent, second, forked, 0);
  launch_on(kernel, second);
  CALL(cuEventRecord, joined, second);
  CALL(cuStreamWaitEvent, first, joined, 0);
  CALL(cuMemFreeAsync, piece, first);
  if (mode == RELAXED) pthread_join(other, NULL);
  CALL(cuStreamEndCapture, first, &graph);
  pause_here("captured", started);
  return graph;
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: capture MODE KERNEL REPLAYS [SECONDS]\n");
    return 2;
  }
  open_driver();
  use_device(0);
  void *kernel = load_kernel(argv[2]), *first = new_stream(), *second = new_stream(), *executable;
  // The kernel's cost is known by then, or being learnt, which must not reach into the capture either.
  CALL(cuLaunchKernel, kernel, GRID, 1, 1, BLOCK, 1, 1, 0, first, NULL, NULL);
  void *graph = capture_streams(atoi(argv[1]), kernel, first, second);
  CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  uint64_t begun = now_ns(), length = argc > 4 ? (uint64_t)(atof(argv[4]) * 1e9) : UINT64_MAX;
  int replays = 0;
  for (; replays < atoi(argv[3]) && now_ns() - begun < length; replays++)
    CALL(cuGraphLaunch, executable, first);
  CALL(cuStreamSynchronize, first);
  printf("done=1 replays=%d kernels=%d seconds=%.3f\n", replays, replays * 2 * LAUNCHES_PER_STREAM,
         (double)(now_ns() - begun) / 1e9);
  return 0;
}
