/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * module.h - kernels, and loaded code as libraries of it see it.
 */
#ifndef GPUSIM_MODULE_H
#define GPUSIM_MODULE_H

#include "capture.h"

enum { GS_KERNEL_NAME_BYTES = 200 };

struct gs_kernel {
  struct gs_object object; /* its context is that of the module, or no real one if it is a library's */
  struct gs_kernel *next;  /* of the same module */
  struct gs_module *module;
  struct gs_library *library; /* NULL: a function of a module, not a kernel of a library */
  uint64_t duration_ns;       /* UINT64_MAX: the machine's default */
  uint16_t dram_permille;     /* of DRAM's bandwidth; UINT16_MAX: the machine's default */
  uint16_t bound_permille, cache_permille, rx_permille, tx_permille; /* see struct gs_work */
  int dynamic_shared_bytes, carveout;
  int block[3]; /* cuFuncSetBlockShape; 0: not set */
  unsigned shared_bytes;
  char name[GS_KERNEL_NAME_BYTES];
};

/* kernel_name.c: fills in what the name says. */
void gs_kernel_read_name(struct gs_kernel *kernel);

/* module.c */
bool gs_kernel_valid(CUfunction kernel);
bool gs_module_valid(CUmodule module);
CUresult gs_module_load(struct gs_context *owner, CUmodule *out, const void *image);
CUresult gs_module_copy(struct gs_context *owner, CUmodule *out, const struct gs_module *module);
CUresult gs_module_read(const char *path, char **image); /* a file; the caller frees the image */
CUresult gs_module_kernel(CUmodule module, CUfunction *out, const char *name);
CUresult gs_module_variable(struct gs_context *context, CUmodule module, CUdeviceptr *address, size_t *bytes,
                            const char *name);
void gs_module_unload(CUmodule module); /* the caller does not hold gs_driver.mutex */

/* library.c: the function that a library's kernel is in the current context. */
CUresult gs_library_function(CUkernel kernel, CUfunction *out);

/* launch.c: whether a kernel can be launched so, putting it into a stream, and what a call that launches one does. */
CUresult gs_launch_check(const struct cu_kernel_node *launch);
CUresult gs_launch_run(struct gs_context *context, CUstream stream, const struct cu_kernel_node *launch);
CUresult gs_launch(const struct cu_kernel_node *launch, CUstream stream);
CUresult gs_kernel_attribute(const struct gs_card *card, const struct gs_kernel *kernel, int attribute, int *value);
CUresult gs_kernel_set_attribute(struct gs_kernel *kernel, int attribute, int value);

#endif
