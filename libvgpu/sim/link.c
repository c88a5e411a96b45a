/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * link.c - the linker, as far as modules need it: PTX texts are put one behind the other, and the result loads like
 * any PTX. Other kinds of input are not modelled.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { INPUT_PTX = 1, INPUT_KINDS = 6 };

struct gs_link {
  struct gs_object object;
  char *text;
  size_t bytes;
};

static struct gs_objects links = {.object_bytes = sizeof(struct gs_link), .capacity = 65536};

CU_API(cuLinkCreate_v2)(unsigned count, int *options, void **values, struct gs_link **out) {
  ENTER(cuLinkCreate_v2);
  NEED_CONTEXT(context);
  if (!out || (count > 0 && (!options || !values))) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gs_driver.mutex);
  struct gs_link *link = gs_object_new(&links, context);
  pthread_mutex_unlock(&gs_driver.mutex);
  if (!link) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = link;
  return CUDA_SUCCESS;
}
CU_ALIAS(cuLinkCreate, cuLinkCreate_v2)

static CUresult add(struct gs_link *link, int kind, const void *data, size_t bytes) {
  if (!gs_object_alive(&links, link)) return CUDA_ERROR_INVALID_HANDLE;
  if (!data || kind < 0 || kind >= INPUT_KINDS) return CUDA_ERROR_INVALID_VALUE;
  if (kind != INPUT_PTX) return CUDA_ERROR_NOT_SUPPORTED;
  bytes = strnlen(data, bytes);
  char *grown = realloc(link->text, link->bytes + bytes + 2);
  if (!grown) return CUDA_ERROR_OUT_OF_MEMORY;
  memcpy(grown + link->bytes, data, bytes);
  link->text = grown;
  link->bytes += bytes;
  memcpy(grown + link->bytes++, "\n", 2);
  return CUDA_SUCCESS;
}

CU_API(cuLinkAddData_v2)
(struct gs_link *link, int kind, void *data, size_t bytes, const char *name, unsigned count, int *options,
 void **values) {
  ENTER(cuLinkAddData_v2);
  (void)name;
  if (count > 0 && (!options || !values)) return CUDA_ERROR_INVALID_VALUE;
  return add(link, kind, data, bytes);
}
CU_ALIAS(cuLinkAddData, cuLinkAddData_v2)

CU_API(cuLinkAddFile_v2)
(struct gs_link *link, int kind, const char *path, unsigned count, int *options, void **values) {
  ENTER(cuLinkAddFile_v2);
  if (!path || (count > 0 && (!options || !values))) return CUDA_ERROR_INVALID_VALUE;
  FILE *file = fopen(path, "re");
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  char *text = NULL;
  size_t room = 0;
  ssize_t got = getdelim(&text, &room, 0, file); /* PTX holds no NUL: the whole file */
  fclose(file);
  CUresult result = got > 0 ? add(link, kind, text, (size_t)got) : CUDA_ERROR_INVALID_IMAGE;
  free(text);
  return result;
}
CU_ALIAS(cuLinkAddFile, cuLinkAddFile_v2)

/* The image is the link's and goes with it. */
CU_API(cuLinkComplete)(struct gs_link *link, void **image, size_t *bytes) {
  ENTER(cuLinkComplete);
  if (!gs_object_alive(&links, link)) return CUDA_ERROR_INVALID_HANDLE;
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  if (!link->text) return CUDA_ERROR_INVALID_IMAGE;
  *image = link->text;
  if (bytes) *bytes = link->bytes + 1;
  return CUDA_SUCCESS;
}

static void destroy(void *object) {
  struct gs_link *link = object;
  free(link->text);
  link->text = NULL;
  gs_object_free(&links, link);
}

CU_API(cuLinkDestroy)(struct gs_link *link) {
  ENTER(cuLinkDestroy);
  if (!gs_object_alive(&links, link)) return CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&gs_driver.mutex);
  destroy(link);
  pthread_mutex_unlock(&gs_driver.mutex);
  return CUDA_SUCCESS;
}

void gs_links_release_context(struct gs_context *context) {
  gs_objects_of(&links, context, destroy);
}
