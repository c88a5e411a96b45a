/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * traffic.h - what the clients that look into the traffic book have in common, on the driver that logs its calls
 * (test/fake_gpu.h). Each includes it once.
 */
#ifndef VGPU_TEST_TRAFFIC_H
#define VGPU_TEST_TRAFFIC_H

#include <stdlib.h>

#include "../../core/traffic.h"
#include "counted.h"

static struct vgpu_usage_traffic *books; /* in the usage page of this container */

static inline struct vgpu_usage_traffic *open_books(void) {
  char path[512];
  size_t bytes;
  struct vgpu_usage_page *page = find_page("usage", path, &bytes);
  if (!page) {
    printf("FAIL no usage page\n0 passed, 1 failed, 0 skipped\n");
    exit(1);
  }
  return (struct vgpu_usage_traffic *)((char *)page + vgpu_usage_traffic_offset(page->device_count, 0));
}

static inline struct vgpu_traffic_view look(int device) {
  struct vgpu_traffic_view view;
  vgpu_traffic_read(&books[device], &view);
  return view;
}

static inline CUdeviceptr memory(void) {
  CUdeviceptr pointer = 0;
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, MIB), 0, "cuMemAlloc");
  return pointer;
}

/* main of a client: CASE. The case "older" is for pages that have no books. */
static inline int run_traffic_case(const struct test *tests, size_t count, int argc, char **argv) {
  cuInit(0);
  CUdeviceptr first = 0;
  use_device(0);
  if (cuMemAlloc_v2(&first, 256) != CUDA_SUCCESS) return 3; /* the library opens its pages */
  if (argc > 1 && strcmp(argv[1], "older") != 0) books = open_books();
  return run_counted_case(tests, count, argc, argv);
}

#endif
