/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * moves.c - copies on the simulated GPU, whose copies take time: moves UP DOWN US. Copies so many pieces of 8 MiB up and
 * down, by calls with and without a stream, beside kernels on another stream, and checks what the traffic book says: the
 * bytes, and that a piece takes US microseconds. The caller holds the bytes against the card's own counters.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../core/traffic.h"
#include "gpu_time.h"

enum { PIECE = 8 << 20 };

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes);

static struct vgpu_traffic_view look(void) {
  char path[512];
  size_t bytes;
  struct vgpu_traffic_view view = {.class_count = 0};
  struct vgpu_usage_page *page = find_page("usage", path, &bytes);
  CHECK(page != NULL, "a usage page");
  if (page)
    vgpu_traffic_read((struct vgpu_usage_traffic *)((char *)page + vgpu_usage_traffic_offset(page->device_count, 0)),
                      &view);
  return view;
}

/* The least of what the classes of a kind remember of pieces: a busy machine lets copies begin late and end late. */
static double least_us(const struct vgpu_traffic_view *view, uint32_t kind, uint64_t *samples) {
  double least = 1e12;
  *samples = 0;
  for (uint32_t i = 0; i < view->class_count; i++) {
    const struct vgpu_class_view *class = &view->classes[i];
    if (class->kind != kind || class->bytes / class->samples != PIECE) continue;
    *samples += class->samples;
    for (uint32_t j = 0; j < class->recent_count; j++)
      least = (double)class->recent_ns[j] / 1e3 < least ? (double)class->recent_ns[j] / 1e3 : least;
  }
  return least;
}

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  int up = atoi(argv[1]), down = atoi(argv[2]);
  double wanted_us = atof(argv[3]);
  void *host = NULL;
  CUstream copies, kernels;
  CUdeviceptr device = 0;
  use_device(0);
  CHECK_EQUAL(cuMemAllocHost_v2(&host, PIECE), 0, "cuMemAllocHost");
  CHECK_EQUAL(cuMemAlloc_v2(&device, PIECE), 0, "cuMemAlloc");
  CHECK_EQUAL(cuStreamCreate(&copies, 1), 0, "cuStreamCreate");
  CHECK_EQUAL(cuStreamCreate(&kernels, 1), 0, "cuStreamCreate");
  CUfunction kernel = kernel_of(500);
  struct vgpu_traffic_view before = look();
  for (int i = 0; i < up || i < down; i++) {
    CHECK_EQUAL(launch_on(kernel, kernels), 0, "launch");
    if (i < up) {
      CHECK_EQUAL(i % 2 ? cuMemcpyHtoDAsync_v2(device, host, PIECE, copies) : cuMemcpyHtoD_v2(device, host, PIECE), 0,
                  "up");
    }
    if (i < down) {
      CHECK_EQUAL(i % 2 ? cuMemcpyDtoHAsync_v2(host, device, PIECE, copies) : cuMemcpyDtoH_v2(host, device, PIECE), 0,
                  "down");
    }
    CHECK_EQUAL(cuStreamSynchronize(copies), 0, "wait");
    usleep(2000); /* so that many of them are measured */
  }
  CHECK_EQUAL(cuCtxSynchronize(), 0, "wait");
  struct vgpu_traffic_view after = look();
  uint64_t samples_up, samples_down;
  double up_us = least_us(&after, VGPU_CLASS_HOST_TO_DEVICE, &samples_up);
  double down_us = least_us(&after, VGPU_CLASS_DEVICE_TO_HOST, &samples_down);
  CHECK_EQUAL(after.bytes[VGPU_HOST_TO_DEVICE] - before.bytes[VGPU_HOST_TO_DEVICE], (uint64_t)up * PIECE, "bytes up");
  CHECK_EQUAL(after.bytes[VGPU_DEVICE_TO_HOST] - before.bytes[VGPU_DEVICE_TO_HOST], (uint64_t)down * PIECE,
              "bytes down");
  CHECK_EQUAL(after.calls[VGPU_HOST_TO_DEVICE] - before.calls[VGPU_HOST_TO_DEVICE], (uint64_t)up, "calls up");
  CHECK(after.stalls - before.stalls == (uint64_t)(up > down ? up : down) + 1, "%lu waits", after.stalls);
  CHECK(samples_up >= (uint64_t)up / 20, "%lu samples up", samples_up);
  CHECK(samples_down >= (uint64_t)down / 20, "%lu samples down", samples_down);
  CHECK(up_us > wanted_us * 0.95 && up_us < wanted_us * 1.5, "a piece up took %.1f us, not %.1f", up_us, wanted_us);
  CHECK(down_us > wanted_us * 0.95 && down_us < wanted_us * 1.5, "a piece down took %.1f us, not %.1f", down_us,
        wanted_us);
  return check_done();
}
