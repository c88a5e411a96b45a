/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * tool_init.c - gpusim init: a fresh directory with a config file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config.h"
#include "tool.h"

/* Turns the arguments into the text of a config file. */
static int compose(int count, char **arguments, FILE *text) {
  for (int i = 0; i < count; i++) {
    const char *argument = arguments[i];
    const char *value = tool_option(count, arguments, &i, "--gpus");
    if (value) {
      fprintf(text, "gpus = %s\n", value);
    } else if ((value = tool_option(count, arguments, &i, "--memory"))) {
      fprintf(text, "memory = %s\n", value);
    } else if ((value = tool_option(count, arguments, &i, "--set"))) {
      if (!strchr(value, '=')) return tool_misuse("is not KEY=VALUE", value);
      fprintf(text, "%.*s = %s\n", (int)strcspn(value, "="), value, strchr(value, '=') + 1);
    } else {
      return tool_misuse("unknown or incomplete option", argument);
    }
  }
  return 0;
}

static int fail(const char *path) {
  fprintf(stderr, "gpusim: %s: %s\n", path, strerror(errno));
  return 1;
}

/* Writes beside and renames, so that nobody reads half a config. */
static int publish(const char *text) {
  char path[4096];
  char beside[4096 + 8];
  char region[4096];
  const char *directory = gs_directory();
  if (mkdir(directory, 0755) < 0 && errno != EEXIST) return fail(directory);
  if (snprintf(path, sizeof path, "%s/config", directory) >= (int)sizeof path) return fail(directory);
  snprintf(beside, sizeof beside, "%s.new", path);
  if (snprintf(region, sizeof region, "%s/region", directory) >= (int)sizeof region) return fail(directory);
  FILE *file = fopen(beside, "we");
  if (!file) return fail(beside);
  fputs(text, file);
  if (fclose(file) != 0 || rename(beside, path) < 0) return fail(path);
  if (unlink(region) < 0 && errno != ENOENT) return fail(region);
  return 0;
}

int tool_init(int count, char **arguments) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *memory = open_memstream(&text, &bytes);
  if (!memory) return fail("memory");
  int result = compose(count, arguments, memory);
  fclose(memory);
  if (result == 0) result = publish(text);
  free(text);
  if (result != 0) return result;
  if (!tool_attach()) return 1;
  tool_print_cards();
  return 0;
}
