/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * tool_set.c - gpusim set: changes to cards that are in use.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "config.h"
#include "engine_parts.h"
#include "tool.h"

/* Applies one KEY=VALUE to the changes. 0, or the exit code. */
static int note(struct gs_changes *changes, int gpu, const char *argument) {
  char key[64];
  unsigned index;
  int used = 0;
  const char *equals = strchr(argument, '=');
  if (!equals || equals == argument || (size_t)(equals - argument) >= sizeof key)
    return tool_misuse("is not KEY=VALUE", argument);
  snprintf(key, sizeof key, "%.*s", (int)(equals - argument), argument);
  const char *name = key;
  if (sscanf(key, "gpu.%u.%n", &index, &used) == 1 && used > 0) {
    if (index >= gs_self.region->settings.gpu_count) return tool_misuse("there is no such card", argument);
    gpu = (int)index;
    name = key + used;
  }
  int result = gs_config_change(changes, gpu, name, equals + 1);
  if (result == 0) return tool_misuse("no such key, or none that can change while cards are used", argument);
  return result < 0 ? tool_misuse("bad value", argument) : 0;
}

/* All at once, as of now: what happened until now was with the old. */
static void make(const struct gs_changes *changes) {
  struct gs_region *region = gs_self.region;
  for (uint32_t i = 0; i < region->settings.gpu_count; i++) {
    gs_lock(&region->gpus[i]);
    gs_look(&region->gpus[i]);
  }
  region->settings = changes->settings;
  for (uint32_t i = 0; i < region->settings.gpu_count; i++) {
    uint32_t made = region->gpus[i].live.changes + 1;
    region->gpus[i].live = changes->live[i];
    region->gpus[i].live.changes = made;
    gs_unlock(&region->gpus[i]);
  }
}

int tool_set(int count, char **arguments) {
  struct gs_changes changes;
  long long gpu = -1;
  int pairs = 0;
  if (!tool_attach()) return 1;
  changes.settings = gs_self.region->settings;
  for (uint32_t i = 0; i < GS_MAX_GPUS; i++)
    changes.live[i] = gs_self.region->gpus[i].live;
  for (int i = 0; i < count; i++) {
    const char *argument = arguments[i];
    const char *value = tool_option(count, arguments, &i, "--gpu");
    if (value && tool_number(value, 0, gs_self.region->settings.gpu_count - 1ll, &gpu)) continue;
    if (value) return tool_misuse("there is no such card", argument);
    int wrong = note(&changes, (int)gpu, argument);
    if (wrong) return wrong;
    pairs++;
  }
  if (pairs == 0) return tool_misuse("needs KEY=VALUE", "set");
  make(&changes);
  return 0;
}
