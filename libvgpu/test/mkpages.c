/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * mkpages.c - makes an allocation's pages for tests: mkpages DIRECTORY KEY UUID=BYTES[,PERCENT[,MODE]]...
 * MODE is that of enum vgpu_compute_mode, hard unless given; no PERCENT: GPU time is not limited. With ABI=2 in the environment, of that version. Prints nothing. The real ones are made by the agent; the layout is the same header's.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/page.h"

static int write_file(const char *directory, const char *name, const void *bytes, size_t size, mode_t mode) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s", directory, name);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, mode);
  if (fd < 0 || write(fd, bytes, size) != (ssize_t)size || fchmod(fd, mode) != 0) {
    perror(path);
    return 1;
  }
  return close(fd);
}

/* What follows the bytes: ",PERCENT,MODE". The line begins at time 0 of the clock, and nobody steers. */
static void set_share(struct vgpu_limits_device *device, const char *rest) {
  if (*rest != ',') return;
  char *mode;
  uint32_t share = (uint32_t)(strtod(rest + 1, &mode) * VGPU_PPM / 100);
  device->share_ppm = share;
  device->ceiling_ppm = VGPU_PPM;
  device->compute_mode = *mode == ',' ? (uint32_t)atoi(mode + 1) : VGPU_COMPUTE_HARD;
  for (int i = 0; i < 2; i++)
    device->rates[i] = (struct vgpu_rate){.rate_ppm = share, .scale_ppm = VGPU_PPM};
}

int main(int argc, char **argv) {
  static union {
    struct vgpu_limits_page page;
    uint8_t bytes[VGPU_LIMITS_PAGE_BYTES];
  } limits;
  uint32_t count = (uint32_t)(argc - 3);
  if (argc < 4 || count > VGPU_MAX_DEVICES) return 2;
  limits.page.magic = VGPU_LIMITS_MAGIC;
  const char *wanted = getenv("ABI");
  uint32_t version = wanted ? (uint32_t)atoi(wanted) : VGPU_ABI_VERSION;
  limits.page.abi_version = version;
  limits.page.page_bytes = VGPU_LIMITS_PAGE_BYTES;
  limits.page.device_count = count;
  limits.page.epoch = 1;
  snprintf((char *)limits.page.allocation_key, VGPU_KEY_BYTES, "%s", argv[2]);
  for (uint32_t i = 0; i < count; i++) {
    char *value = strchr(argv[3 + i], '=');
    if (!value) return 2;
    *value = 0;
    snprintf((char *)limits.page.devices[i].uuid, VGPU_UUID_BYTES, "%s", argv[3 + i]);
    limits.page.devices[i].slice_count = 1;
    limits.page.devices[i].memory_limit_bytes = strtoull(value + 1, &value, 10);
    set_share(&limits.page.devices[i], value);
  }
  size_t usage_bytes = vgpu_usage_page_bytes(count, version);
  void *usage = calloc(1, usage_bytes);
  vgpu_usage_repair(usage, count, version);
  mkdir(argv[1], 0755);
  return write_file(argv[1], "limits", &limits, sizeof(limits), 0644) ||
         write_file(argv[1], "usage", usage, usage_bytes, 0666);
}
