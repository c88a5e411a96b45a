/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * module.c - loaded code and its functions and variables. Nothing is translated: an image must look like one (PTX
 * text, a cubin, a fat binary), and a name must occur in it where that can be told: as ".entry name" or a variable in
 * PTX, as a string in a cubin; a fat binary may be compressed, so any name is taken. A variable takes its size of the
 * card when it is first asked for.
 * What a kernel takes of the card stands in its name (kernel_name.c).
 */
#define _GNU_SOURCE
#include "module.h"

#include <ctype.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum image_kind { IMAGE_PTX, IMAGE_CUBIN, IMAGE_FAT };
enum { FAT_MAGIC = (int)0xba55ed50, FAT_WRAPPER_MAGIC = 0x466243b1 };

struct variable {
  struct variable *next;
  CUdeviceptr address;
  size_t bytes;
  char name[GS_KERNEL_NAME_BYTES];
};

struct gs_module {
  struct gs_object object;
  enum image_kind kind;
  char *image; /* own copy; NUL behind it */
  size_t bytes;
  struct variable *variables;
  struct gs_kernel *kernels; /* that were asked for */
};

static struct gs_objects modules = {.object_bytes = sizeof(struct gs_module), .capacity = 1u << 18};
static struct gs_objects kernels = {.object_bytes = sizeof(struct gs_kernel), .capacity = 1u << 20};

bool gs_kernel_valid(CUfunction kernel) {
  return gs_object_alive(&kernels, kernel);
}

/* Size of a cubin: the end of its section table, or of its furthest section. */
static size_t cubin_bytes(const Elf64_Ehdr *elf) {
  size_t end = elf->e_shoff + (size_t)elf->e_shentsize * elf->e_shnum;
  const Elf64_Shdr *sections = (const void *)((const char *)elf + elf->e_shoff);
  for (int i = 0; i < elf->e_shnum; i++)
    if (sections[i].sh_type != SHT_NOBITS && sections[i].sh_offset + sections[i].sh_size > end)
      end = sections[i].sh_offset + sections[i].sh_size;
  return end;
}

/* Tells what an image is and how long. False: none that a driver would take. */
static bool recognise(const void *image, enum image_kind *kind, size_t *bytes) {
  const unsigned char *text = image;
  uint32_t magic;
  memcpy(&magic, image, sizeof magic);
  if (memcmp(image, ELFMAG, SELFMAG) == 0) {
    *kind = IMAGE_CUBIN;
    *bytes = cubin_bytes(image);
  } else if (magic == (uint32_t)FAT_MAGIC || magic == FAT_WRAPPER_MAGIC) {
    *kind = IMAGE_FAT;
    *bytes = 0;
  } else {
    if (!isprint(*text) && !isspace(*text)) return false;
    *kind = IMAGE_PTX;
    *bytes = strlen(image);
    return strstr(image, ".version") && strstr(image, ".target");
  }
  return true;
}

static CUresult make(struct gs_context *owner, CUmodule *out, enum image_kind kind, const void *image, size_t bytes) {
  char *copy = malloc(bytes + 1);
  if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
  memcpy(copy, image, bytes);
  copy[bytes] = 0;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_module *module = gs_object_new(&modules, owner);
  if (module) {
    module->kind = kind;
    module->image = copy;
    module->bytes = bytes;
    *out = module;
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  if (!module) free(copy);
  return module ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gs_module_load(struct gs_context *owner, CUmodule *out, const void *image) {
  enum image_kind kind;
  size_t bytes;
  if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
  if (!recognise(image, &kind, &bytes)) return CUDA_ERROR_INVALID_IMAGE;
  return make(owner, out, kind, image, bytes);
}

CUresult gs_module_copy(struct gs_context *owner, CUmodule *out, const struct gs_module *module) {
  return make(owner, out, module->kind, module->image, module->bytes);
}

bool gs_module_valid(CUmodule module) {
  return gs_object_alive(&modules, module);
}

static CUresult load(CUmodule *out, const void *image) {
  NEED_CONTEXT(context);
  NOT_CAPTURED(gs_capture_unsafe());
  return gs_module_load(context, out, image);
}

CU_API(cuModuleLoadData)(CUmodule *out, const void *image) {
  ENTER(cuModuleLoadData);
  return load(out, image);
}

CU_API(cuModuleLoadDataEx)(CUmodule *out, const void *image, unsigned count, int *options, void **values) {
  ENTER(cuModuleLoadDataEx);
  if (count > 0 && (!options || !values)) return CUDA_ERROR_INVALID_VALUE;
  return load(out, image);
}

CU_API(cuModuleLoadFatBinary)(CUmodule *out, const void *image) {
  ENTER(cuModuleLoadFatBinary);
  return load(out, image);
}

CUresult gs_module_read(const char *path, char **image) {
  FILE *file = fopen(path, "re");
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  *image = NULL;
  long bytes = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  if (bytes > 0 && fseek(file, 0, SEEK_SET) == 0) *image = calloc(1, (size_t)bytes + 64);
  bool read_all = *image && fread(*image, 1, (size_t)bytes, file) == (size_t)bytes;
  fclose(file);
  if (read_all) return CUDA_SUCCESS;
  free(*image);
  return CUDA_ERROR_INVALID_IMAGE;
}

CU_API(cuModuleLoad)(CUmodule *out, const char *path) {
  char *image;
  ENTER(cuModuleLoad);
  if (!out || !path) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gs_module_read(path, &image);
  if (result != CUDA_SUCCESS) return result;
  result = load(out, image);
  free(image);
  return result;
}

/* The caller holds gs_driver.mutex. Variables are the context's memory and end with it or are freed by the caller. */
static void unload(void *object) {
  struct gs_module *module = object;
  for (struct gs_kernel *next, *kernel = module->kernels; kernel; kernel = next) {
    next = kernel->next;
    gs_object_free(&kernels, kernel);
  }
  for (struct variable *next, *variable = module->variables; variable; variable = next) {
    next = variable->next;
    free(variable);
  }
  module->variables = NULL;
  free(module->image);
  module->image = NULL;
  gs_object_free(&modules, module);
}

void gs_modules_release_context(struct gs_context *context) {
  gs_objects_of(&modules, context, unload);
}

void gs_module_unload(CUmodule module) {
  for (struct variable *variable = module->variables; variable; variable = variable->next)
    gs_memory_free(variable->address);
  pthread_mutex_lock(&gs_driver.mutex);
  unload(module);
  pthread_mutex_unlock(&gs_driver.mutex);
}

CU_API(cuModuleUnload)(CUmodule module) {
  ENTER(cuModuleUnload);
  if (!gs_module_valid(module)) return CUDA_ERROR_INVALID_HANDLE;
  NOT_CAPTURED(gs_capture_unsafe());
  gs_module_unload(module);
  return CUDA_SUCCESS;
}

static bool is_name_character(char c) {
  return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

/* First place in PTX text where `name` stands as a whole word and the line up to it has `directive`. */
static const char *find_in_ptx(const struct gs_module *module, const char *directive, const char *name) {
  size_t length = strlen(name);
  for (const char *at = module->image; (at = strstr(at, name)); at += length) {
    if (is_name_character(at[length]) || (at > module->image && is_name_character(at[-1]))) continue;
    const char *line = at;
    while (line > module->image && line[-1] != '\n' && line[-1] != ';')
      line--;
    const char *found = strstr(line, directive);
    if (found && found < at) return at;
  }
  return NULL;
}

static bool has_name(const struct gs_module *module, const char *directive, const char *name) {
  if (module->kind == IMAGE_FAT) return true;
  if (module->kind == IMAGE_PTX) return find_in_ptx(module, directive, name) != NULL;
  return memmem(module->image, module->bytes, name, strlen(name) + 1) != NULL;
}

static struct gs_kernel *find_kernel(const struct gs_module *module, const char *name) {
  struct gs_kernel *kernel = module->kernels;
  while (kernel && strcmp(kernel->name, name) != 0)
    kernel = kernel->next;
  return kernel;
}

/* A kernel has one handle, however often it is asked for. */
CUresult gs_module_kernel(CUmodule module, CUfunction *out, const char *name) {
  if (!out || !name || *name == 0) return CUDA_ERROR_INVALID_VALUE;
  if (strlen(name) >= GS_KERNEL_NAME_BYTES || !has_name(module, ".entry", name)) return CUDA_ERROR_NOT_FOUND;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_kernel *kernel = find_kernel(module, name);
  struct gs_kernel *made = kernel ? NULL : gs_object_new(&kernels, module->object.context);
  if (made) {
    made->module = module;
    made->next = module->kernels;
    module->kernels = made;
    made->carveout = -1;
    strcpy(made->name, name);
    gs_kernel_read_name(made);
    kernel = made;
  }
  pthread_mutex_unlock(&gs_driver.mutex);
  if (kernel) *out = kernel;
  return kernel ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API(cuModuleGetFunction)(CUfunction *out, CUmodule module, const char *name) {
  ENTER(cuModuleGetFunction);
  NEED_CONTEXT(context);
  (void)context;
  if (!gs_module_valid(module)) return CUDA_ERROR_INVALID_HANDLE;
  return gs_module_kernel(module, out, name);
}

/* Bytes of a variable declared at `at` in PTX: its ".b8"-like type before the name, "[n]" behind it. */
static size_t declared_bytes(const struct gs_module *module, const char *at, const char *name) {
  size_t bits = 8;
  size_t count = 1;
  const char *line = at;
  while (line > module->image && line[-1] != '\n' && line[-1] != ';')
    line--;
  for (const char *dot = line; (dot = strchr(dot, '.')) && dot < at; dot++)
    if (strchr("bufs", dot[1]) && isdigit((unsigned char)dot[2])) bits = strtoull(dot + 2, NULL, 10);
  const char *behind = at + strlen(name);
  if (*behind == '[') count = strtoull(behind + 1, NULL, 10);
  return bits >= 8 && bits <= 128 && count > 0 ? bits / 8 * count : 8;
}

static struct variable *find_variable(struct gs_module *module, const char *name) {
  struct variable *variable = module->variables;
  while (variable && strcmp(variable->name, name) != 0)
    variable = variable->next;
  return variable;
}

static CUresult make_variable(struct gs_context *context, struct gs_module *module, const char *name) {
  const char *at = NULL;
  if (module->kind == IMAGE_PTX) {
    at = find_in_ptx(module, ".global", name);
    if (!at) at = find_in_ptx(module, ".const", name);
  }
  if (strlen(name) >= GS_KERNEL_NAME_BYTES || (module->kind == IMAGE_PTX ? !at : !has_name(module, ".global", name)))
    return CUDA_ERROR_NOT_FOUND;
  struct variable *variable = calloc(1, sizeof *variable);
  if (!variable) return CUDA_ERROR_OUT_OF_MEMORY;
  strcpy(variable->name, name);
  variable->bytes = at ? declared_bytes(module, at, name) : 8;
  CUresult result = gs_memory_allocate(context, &variable->address, variable->bytes);
  if (result != CUDA_SUCCESS) {
    free(variable);
    return result;
  }
  variable->next = module->variables;
  module->variables = variable;
  return CUDA_SUCCESS;
}

CUresult gs_module_variable(struct gs_context *context, CUmodule module, CUdeviceptr *address, size_t *bytes,
                            const char *name) {
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  if (!find_variable(module, name)) {
    CUresult result = make_variable(context, module, name);
    if (result != CUDA_SUCCESS) return result;
  }
  struct variable *variable = find_variable(module, name);
  if (address) *address = variable->address;
  if (bytes) *bytes = variable->bytes;
  return CUDA_SUCCESS;
}

CU_API(cuModuleGetGlobal_v2)(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name) {
  ENTER(cuModuleGetGlobal_v2);
  NEED_CONTEXT(context);
  if (!gs_module_valid(module)) return CUDA_ERROR_INVALID_HANDLE;
  return gs_module_variable(context, module, address, bytes, name);
}

CU_API(cuFuncGetModule)(CUmodule *out, CUfunction kernel) {
  ENTER(cuFuncGetModule);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (kernel->library) {
    CUresult result = gs_library_function(kernel, &kernel);
    if (result != CUDA_SUCCESS) return result;
  }
  *out = kernel->module;
  return CUDA_SUCCESS;
}
