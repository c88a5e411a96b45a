/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * nvml_errors.c - NVML: texts of result codes, and the internal table that nvidia-smi asks for. Source of fact for
 * the texts: what libnvidia-ml.so.535.261.03 answers.
 */
#include <string.h>

#include "nvml_types.h"

const char *impl_nvmlErrorString(nvmlReturn_t code);

static const char *const texts[] = {
    "Success",
    "Uninitialized",
    "Invalid Argument",
    "Not Supported",
    "Insufficient Permissions",
    "Already Initialized",
    "Not Found",
    "Insufficient Size",
    "Insufficient External Power",
    "Driver Not Loaded",
    "Timeout",
    "Interrupt Request Issue",
    "NVML Shared Library Not Found",
    "Function Not Found",
    "Corrupted infoROM",
    "GPU is lost",
    "GPU requires reset",
    "GPU access blocked by the operating system",
    "Driver/library version mismatch",
    "In use by another client",
    "Insufficient Memory",
    "No data",
    "vGPU ECC not supported",
    "Insufficient Resources",
    "Invalid Frequency",
    "Argument version mismatch",
    "Requested functionality has been deprecated",
    "System is not in ready state",
};

NV_ALIAS(nvmlErrorString, nvmlErrorString)
const char *impl_nvmlErrorString(nvmlReturn_t code) {
  (void)nv_enter(FN_nvmlErrorString, -1);
  return code >= 0 && (size_t)code < sizeof texts / sizeof *texts ? texts[code] : "Unknown Error";
}

/* nvidia-smi wants a table before it asks anything else, and takes "not supported" from each entry it calls. */
enum { TABLE_ENTRIES = 256 };

static nvmlReturn_t entry_not_supported(void) {
  return NVML_ERROR_NOT_SUPPORTED;
}

NV_API(nvmlInternalGetExportTable)(const void **table, const void *id) {
  static const unsigned char known[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                          0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
  static nvmlReturn_t (*entries[TABLE_ENTRIES])(void);
  nvmlReturn_t entered = nv_enter(FN_nvmlInternalGetExportTable, -1);
  if (entered != NVML_SUCCESS) return entered;
  if (!table || !id) return NVML_ERROR_INVALID_ARGUMENT;
  if (memcmp(id, known, sizeof known) != 0) return NVML_ERROR_NOT_SUPPORTED;
  for (int i = 0; i < TABLE_ENTRIES; i++)
    entries[i] = entry_not_supported;
  *table = entries;
  return NVML_SUCCESS;
}
