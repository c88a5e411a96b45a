/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml_api.h - own declarations of just the NVML calls that libvgpu hooks or makes. Source of fact: the public
 * NVML API documentation.
 */
#ifndef VGPU_NVML_API_H
#define VGPU_NVML_API_H

#include <stdint.h>

typedef struct nvmlDevice_st *nvmlDevice_t;

typedef enum { NVML_SUCCESS = 0, NVML_ERROR_UNINITIALIZED = 1 } nvmlReturn_t;

typedef struct {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used; /* here the driver's reserve is part of used */
} nvmlMemory_t;

typedef struct {
  unsigned int version; /* size in the low bits, 2 in the top byte; checked by the driver */
  unsigned long long total;
  unsigned long long reserved; /* by the driver, not part of used */
  unsigned long long free;
  unsigned long long used;
} nvmlMemory_v2_t;

#pragma GCC visibility push(default)

/* Hooked. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);

/* Called, never replaced. */
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length);

#pragma GCC visibility pop

#endif
