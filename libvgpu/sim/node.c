/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * node.c - device nodes; see node.h.
 */
#define _GNU_SOURCE
#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>

#include "region.h"

/* The number of the driver's own allocation request: type 'F', 0x2b, 32 bytes both ways. */
#define ALLOCATION_REQUEST _IOC(_IOC_READ | _IOC_WRITE, 'F', 0x2b, 32)

static int nodes[GS_MAX_GPUS]; /* descriptor plus one; 0: not open */

bool gs_node_open(int gpu) {
  char path[32];
  if (!gs_self.region->settings.device_nodes || nodes[gpu]) return true;
  snprintf(path, sizeof path, "/dev/nvidia%d", gpu);
  nodes[gpu] = open(path, O_RDWR | O_CLOEXEC) + 1;
  return nodes[gpu] != 0;
}

void gs_node_touch(int gpu) {
  char request[32] = {0};
  int kept = errno;
  if (nodes[gpu]) (void)ioctl(nodes[gpu] - 1, ALLOCATION_REQUEST, request); /* a null device refuses: no matter */
  errno = kept;
}
