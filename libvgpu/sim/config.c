/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * config.c - what the simulated machine is made of: the text file `config` ("key = value" lines, # starts a comment), and
 * changes to it while it is used. `gpusim --help` lists the keys.
 */
#define _GNU_SOURCE
#include "config_parts.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int complain(const char *where, const char *what) {
  fprintf(stderr, "gpusim: %s: %s\n", where, what);
  return -EINVAL;
}

/* Applies one pair. Card keys go to all cards, "gpu.N.key" and "uuid.N" to one. */
static int apply(struct gs_region *region, const char *key, const char *value) {
  char name[64];
  unsigned index;
  int used = 0;
  if (sscanf(key, "gpu.%u.%63[a-z_]%n", &index, name, &used) == 2 && key[used] == 0)
    return index < GS_MAX_GPUS ? gs_set_card(&region->gpus[index], name, value) : -1;
  if (sscanf(key, "uuid.%u%n", &index, &used) == 1 && key[used] == 0)
    return index < GS_MAX_GPUS ? gs_set_card(&region->gpus[index], "uuid", value) : -1;
  int result = strcmp(key, "uuid") == 0 ? 0 : gs_set_machine(&region->settings, key, value);
  for (int i = 0; result == 0 && i < GS_MAX_GPUS; i++) {
    int set = strcmp(key, "uuid") == 0 ? 0 : gs_set_card(&region->gpus[i], key, value);
    if (set <= 0) return set;
    if (i == GS_MAX_GPUS - 1) return set;
  }
  return result;
}

static char *trim(char *text) {
  while (isspace((unsigned char)*text))
    text++;
  char *end = text + strlen(text);
  while (end > text && isspace((unsigned char)end[-1]))
    *--end = 0;
  return text;
}

/* Order: `model` first wherever it stands, since it resets what other keys of the card set. */
static int apply_lines(struct gs_region *region, char *text, const char *path, bool models_only) {
  char *rest = text;
  char *line;
  while ((line = strsep(&rest, "\n"))) {
    char copy[512];
    snprintf(copy, sizeof copy, "%s", line);
    copy[strcspn(copy, "#")] = 0;
    char *key = trim(copy);
    if (*key == 0) continue;
    char *equals = strchr(key, '=');
    if (!equals) return complain(path, "a line is not \"key = value\"");
    *equals = 0;
    key = trim(key);
    bool is_model = strcmp(key, "model") == 0 || (strncmp(key, "gpu.", 4) == 0 && strstr(key, ".model"));
    if (is_model != models_only) continue;
    char *value = trim(equals + 1);
    int result = apply(region, key, value);
    if (result == 0) return complain(key, "unknown key");
    if (result < 0 && is_model) gs_complain_about_model(value);
    if (result < 0) return is_model ? -EINVAL : complain(key, "bad value");
  }
  return 0;
}

static void defaults(struct gs_region *region) {
  gs_default_machine(&region->settings);
  for (uint32_t i = 0; i < GS_MAX_GPUS; i++)
    gs_default_card(&region->gpus[i], i);
}

int gs_config_apply(struct gs_region *region, const char *text, const char *path) {
  for (int pass = 0; pass < 2; pass++) {
    char *copy = strdup(text);
    if (!copy) return -ENOMEM;
    int result = apply_lines(region, copy, path, pass == 0);
    free(copy);
    if (result < 0) return result;
  }
  for (uint32_t i = 0; i < region->settings.gpu_count; i++)
    if (region->gpus[i].card.reserved_bytes > region->gpus[i].card.memory_bytes)
      return complain("reserved", "more than the card has");
  gs_complete_machine(&region->settings);
  if (region->settings.sample_lag_ns > (GS_PERIODS - 2) * region->settings.sample_ns)
    return complain("nvml_lag_ms", "more than 14 sample periods");
  return 0;
}

int gs_config_change(struct gs_changes *changes, int gpu, const char *key, const char *value) {
  struct gs_settings *settings = &changes->settings;
  bool of_machine = gpu < 0 && strcmp(key, "nvml_sample_ms") != 0;
  int result = of_machine ? gs_set_time_model(settings, key, value) : 0;
  if (settings->sample_lag_ns > (GS_PERIODS - 2) * settings->sample_ns) return -1;
  for (int i = 0; result == 0 && i < GS_MAX_GPUS; i++) {
    if (gpu >= 0 && gpu != i) continue;
    int set = gs_set_live(&changes->live[i], key, value);
    if (set <= 0) return set;
    if (gpu >= 0 || i == GS_MAX_GPUS - 1) return set;
  }
  return result;
}

int gs_config_load(struct gs_region *region, const char *path) {
  static const size_t most = 65536;
  defaults(region);
  FILE *file = fopen(path, "re");
  if (!file) return errno == ENOENT ? 0 : complain(path, "cannot be read");
  char *text = calloc(1, most + 1);
  size_t got = text ? fread(text, 1, most, file) : 0;
  fclose(file);
  int result = text && got < most ? gs_config_apply(region, text, path) : complain(path, "too long");
  free(text);
  return result;
}
