/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * modules.h - looks into the symbol tables of the libraries that are loaded, without libc's help: dlsym is one of
 * our doors, and its versions differ between libcs. Takes the loader's lock for the time of one call.
 */
#ifndef VGPU_MODULES_H
#define VGPU_MODULES_H

#include <stddef.h>
#include <stdint.h>

enum vgpu_library {
  VGPU_LIBRARY_CUDA, /* the CUDA driver: libcuda.so*, else the first module with its marker symbols */
  VGPU_LIBRARY_NVML, /* libnvidia-ml.so*, likewise */
  VGPU_LIBRARY_NEXT, /* every module loaded after ourselves, in load order: what RTLD_NEXT means */
  VGPU_LIBRARY_VGPU, /* the first other libvgpu that was loaded after ourselves */
  VGPU_LIBRARY_ANY   /* every module but ourselves, in load order */
};

/* Address of the exported function or variable `name`; NULL when no such module has it. */
void *vgpu_find_symbol(enum vgpu_library library, const char *name);

/* The same for `count` names, all from one module, under one hold of the loader's lock. */
void vgpu_find_symbols(enum vgpu_library library, const char *const *names, void **found, size_t count);

/* Whether `address` lies in a module that is a driver of this kind (not in ourselves). */
int vgpu_is_in_driver(enum vgpu_library library, const void *address);

/* Whether `address` lies in another libvgpu. */
int vgpu_is_in_libvgpu(const void *address);

/* The path of this library as the loader names it; copied, NUL ended. -ENAMETOOLONG, -ENOENT. */
int vgpu_own_path(char *path, size_t size);

#endif
