/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * library.c - libraries: code that belongs to no context, and its kernels, whose handles stand for a function in whatever
 * context is current. Each context gets a module of its own when a function or variable is first asked for in it.
 */
#include <stdlib.h>

#include "module.h"

/* A library's module in one context. */
struct instance {
  struct instance *next;
  struct gs_context *context;
  uint64_t context_id; /* a context comes again at the same address with another */
  CUmodule module;
};

struct gs_library {
  struct gs_object object;
  CUmodule master; /* owned by no context; its kernels are the library's */
  struct instance *instances;
};

static struct gs_objects libraries = {.object_bytes = sizeof(struct gs_library), .capacity = 1u << 16};

static CUresult load(CUlibrary *out, const void *image) {
  CUmodule master = NULL;
  if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gs_module_load((struct gs_context *)&libraries, &master, image);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_library *library = gs_object_new(&libraries, (struct gs_context *)&libraries);
  if (library) library->master = master;
  pthread_mutex_unlock(&gs_driver.mutex);
  if (library)
    *out = library;
  else
    gs_module_unload(master);
  return library ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API(cuLibraryLoadData)
(CUlibrary *out, const void *image, int *jit_options, void **jit_values, unsigned jit_count, int *options,
 void **values, unsigned count) {
  ENTER(cuLibraryLoadData);
  if ((jit_count > 0 && (!jit_options || !jit_values)) || (count > 0 && (!options || !values)))
    return CUDA_ERROR_INVALID_VALUE;
  return load(out, image);
}

CU_API(cuLibraryLoadFromFile)
(CUlibrary *out, const char *path, int *jit_options, void **jit_values, unsigned jit_count, int *options, void **values,
 unsigned count) {
  char *image;
  ENTER(cuLibraryLoadFromFile);
  if (!path || (jit_count > 0 && (!jit_options || !jit_values)) || (count > 0 && (!options || !values)))
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gs_module_read(path, &image);
  if (result != CUDA_SUCCESS) return result;
  result = load(out, image);
  free(image);
  return result;
}

CU_API(cuLibraryUnload)(CUlibrary library) {
  ENTER(cuLibraryUnload);
  if (!gs_object_alive(&libraries, library)) return CUDA_ERROR_INVALID_HANDLE;
  NOT_CAPTURED(gs_capture_unsafe());
  for (struct instance *next, *instance = library->instances; instance; instance = next) {
    next = instance->next;
    if (gs_context_valid(instance->context) && instance->context->id == instance->context_id &&
        gs_module_valid(instance->module))
      gs_module_unload(instance->module);
    free(instance);
  }
  gs_module_unload(library->master);
  pthread_mutex_lock(&gs_driver.mutex);
  library->instances = NULL;
  gs_object_free(&libraries, library);
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}

/* The library's module in the current context. */
static CUresult module_of(struct gs_library *library, CUmodule *out) {
  NEED_CONTEXT(context);
  for (const struct instance *instance = library->instances; instance; instance = instance->next) {
    if (instance->context_id != context->id) continue;
    *out = instance->module;
    return CUDA_SUCCESS;
  }
  struct instance *instance = calloc(1, sizeof *instance);
  if (!instance) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = gs_module_copy(context, &instance->module, library->master);
  if (result != CUDA_SUCCESS) {
    free(instance);
    return result;
  }
  instance->context = context;
  instance->context_id = context->id;
  pthread_mutex_lock(&gs_driver.mutex);
  instance->next = library->instances;
  library->instances = instance;
  pthread_mutex_unlock(&gs_driver.mutex);
  *out = instance->module;
  return CUDA_SUCCESS;
}

CU_API(cuLibraryGetModule)(CUmodule *out, CUlibrary library) {
  ENTER(cuLibraryGetModule);
  if (!gs_object_alive(&libraries, library)) return CUDA_ERROR_INVALID_HANDLE;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  return module_of(library, out);
}

CU_API(cuLibraryGetKernel)(CUkernel *out, CUlibrary library, const char *name) {
  ENTER(cuLibraryGetKernel);
  if (!gs_object_alive(&libraries, library)) return CUDA_ERROR_INVALID_HANDLE;
  CUresult result = gs_module_kernel(library->master, out, name);
  if (result == CUDA_SUCCESS) (*out)->library = library;
  return result;
}

CUresult gs_library_function(CUkernel kernel, CUfunction *out) {
  CUmodule module;
  CUresult result = module_of(kernel->library, &module);
  return result == CUDA_SUCCESS ? gs_module_kernel(module, out, kernel->name) : result;
}

static bool is_library_kernel(CUkernel kernel) {
  return gs_kernel_valid(kernel) && kernel->library;
}

CU_API(cuKernelGetFunction)(CUfunction *out, CUkernel kernel) {
  ENTER(cuKernelGetFunction);
  if (!is_library_kernel(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  return gs_library_function(kernel, out);
}

CU_API(cuLibraryGetGlobal)(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name) {
  CUmodule module;
  ENTER(cuLibraryGetGlobal);
  if (!gs_object_alive(&libraries, library)) return CUDA_ERROR_INVALID_HANDLE;
  CUresult result = module_of(library, &module);
  return result == CUDA_SUCCESS ? gs_module_variable(gs_thread.current, module, address, bytes, name) : result;
}

CU_API(cuKernelGetAttribute)(int *value, int attribute, CUkernel kernel, CUdevice ordinal) {
  ENTER(cuKernelGetAttribute);
  const struct gs_device *device = gs_device_of(ordinal);
  if (!is_library_kernel(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  return gs_kernel_attribute(&device->gpu->card, kernel, attribute, value);
}

/* What is set is set for all devices. */
CU_API(cuKernelSetAttribute)(int attribute, int value, CUkernel kernel, CUdevice ordinal) {
  ENTER(cuKernelSetAttribute);
  if (!is_library_kernel(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (!gs_device_of(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  return gs_kernel_set_attribute(kernel, attribute, value);
}

CU_API(cuKernelSetCacheConfig)(CUkernel kernel, int config, CUdevice ordinal) {
  ENTER(cuKernelSetCacheConfig);
  if (!is_library_kernel(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (!gs_device_of(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  return config >= 0 && config <= 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
