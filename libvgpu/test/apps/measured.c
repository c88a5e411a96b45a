/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * measured.c - what libvgpu measures for the traffic book, held against what the driver that logs its calls
 * (test/fake_gpu.h) let it take: copies, kernels, graphs and waits, and contexts that end meanwhile.
 */
#include <stdlib.h>
#include <unistd.h>

#include "traffic.h"

/* The only class of this kind; its count of samples is 0 if there is none. */
static struct vgpu_class_view class_of(uint32_t kind, uint64_t mean_bytes) {
  struct vgpu_traffic_view view = look(0);
  struct vgpu_class_view found = {.samples = 0};
  for (uint32_t i = 0; i < view.class_count; i++) {
    struct vgpu_class_view *class = &view.classes[i];
    if (class->kind == kind && class->bytes / class->samples == mean_bytes) found = *class;
  }
  return found;
}

/* What copies took: the time that the driver gives them, though the stream had other work before. */
static void test_durations(void) {
  enum { BYTES = 1 << 23, TIMES = 100 };
  const uint64_t takes_ns = BYTES / 8;
  char *host = calloc(1, BYTES);
  CUstream stream;
  CUdeviceptr device = memory();
  CUfunction kernel = kernel_of(500);
  CHECK_EQUAL(cuStreamCreate(&stream, 1), 0, "cuStreamCreate");
  for (int i = 0; i < TIMES; i++) {
    CHECK_EQUAL(launch_on(kernel, stream), 0, "launch");
    CHECK_EQUAL(cuMemcpyHtoDAsync_v2(device, host, BYTES, stream), 0, "up");
    CHECK_EQUAL(cuMemcpyDtoH_v2(host, device, BYTES / 2), 0, "down");
  }
  CHECK_EQUAL(cuCtxSynchronize(), 0, "wait");
  struct vgpu_class_view up = class_of(VGPU_CLASS_HOST_TO_DEVICE, BYTES),
                         down = class_of(VGPU_CLASS_DEVICE_TO_HOST, BYTES / 2);
  CHECK(up.samples >= TIMES / 16, "%lu samples up", up.samples);
  CHECK(up.operations >= TIMES * 3 / 4 && up.operations <= TIMES, "they stand for %lu of %d", up.operations, TIMES);
  CHECK(up.recent_count == (up.samples < VGPU_CLASS_RECENT ? up.samples : VGPU_CLASS_RECENT), "%u recent ones",
        up.recent_count);
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i < up.recent_count; i++)
    least = up.recent_ns[i] < least ? up.recent_ns[i] : least;
  /* The driver's events lie exactly around the copy; what else is in between is a thread that was not scheduled. */
  CHECK(least >= takes_ns * 99 / 100 && least <= takes_ns * 110 / 100, "a copy took %lu ns, not %lu", least, takes_ns);
  CHECK(down.samples >= TIMES / 16, "%lu samples down", down.samples);
  CHECK(down.time_ns / down.samples >= takes_ns / 2, "down: %lu ns each", down.time_ns / down.samples);
  free(host);
}

/* Kernels and graphs are told, where their time is limited and where it is not; and how long the program waited. */
static void test_kernels(void) {
  CUfunction kernel = kernel_of(300);
  CUstream stream;
  CUgraph captured;
  CUgraphExec graph;
  CHECK_EQUAL(cuStreamCreate(&stream, 1), 0, "cuStreamCreate");
  CHECK_EQUAL(cuStreamBeginCapture_v2(stream, 2), 0, "begin");
  CHECK_EQUAL(launch_on(kernel, stream), 0, "launch");
  CHECK_EQUAL(cuStreamEndCapture(stream, &captured), 0, "end");
  CHECK_EQUAL(cuGraphInstantiateWithFlags(&graph, captured, 0), 0, "instantiate");
  struct vgpu_traffic_view before = look(0);
  for (int i = 0; i < 400; i++) {
    CHECK_EQUAL(launch_on(kernel, stream), 0, "launch");
    CHECK_EQUAL(cuGraphLaunch(graph, stream), 0, "replay");
    if (i % 8 == 7) CHECK_EQUAL(cuStreamSynchronize(stream), 0, "wait");
  }
  struct vgpu_class_view launches = class_of(VGPU_CLASS_KERNEL, 0), replays = class_of(VGPU_CLASS_GRAPH, 0);
  CHECK(launches.samples >= 5 && replays.samples >= 5, "%lu and %lu samples", launches.samples, replays.samples);
  CHECK(launches.operations >= 100 && launches.operations <= 1200, "stand for %lu launches", launches.operations);
  CHECK(replays.operations >= 100 && replays.operations <= 1200, "stand for %lu replays", replays.operations);
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i < launches.recent_count; i++)
    least = launches.recent_ns[i] < least ? launches.recent_ns[i] : least;
  CHECK(least >= 295000 && least < 330000, "a kernel took %lu ns", least);
  struct vgpu_traffic_view after = look(0);
  CHECK_EQUAL(after.stalls - before.stalls, 50, "waits");
  CHECK(after.stalled_ns - before.stalled_ns > 1000000, "waited %lu ns", after.stalled_ns - before.stalled_ns);
}

/* Contexts that end while copies are measured: no event of theirs is used any more, and what comes after is measured. */
static void test_contexts(void) {
  char *host = calloc(1, MIB);
  for (int i = 0; i < 40; i++) {
    CUcontext context;
    CHECK_EQUAL(cuCtxCreate_v2(&context, 0, 0), 0, "cuCtxCreate");
    for (int j = 0; j < 3; j++) {
      usleep(11000);
      CHECK_EQUAL(cuMemcpyHtoDAsync_v2(1 << 20, host, MIB, NULL), 0, "copy");
    }
    CHECK_EQUAL(cuCtxDestroy_v2(context), 0, "cuCtxDestroy");
  }
  CHECK_EQUAL(fake_stale_events, 0, "events of contexts that have ended");
  CHECK(class_of(VGPU_CLASS_HOST_TO_DEVICE, MIB).samples >= 40, "%lu samples",
        class_of(VGPU_CLASS_HOST_TO_DEVICE, MIB).samples);
  free(host);
}

static const struct test tests[] = {
    {"durations", test_durations, false}, {"kernels", test_kernels, false}, {"contexts", test_contexts, false}};

int main(int argc, char **argv) {
  return run_traffic_case(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
