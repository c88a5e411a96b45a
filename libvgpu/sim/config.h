/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * config.h - reading the simulated machine's description.
 */
#ifndef GPUSIM_CONFIG_H
#define GPUSIM_CONFIG_H

#include "region.h"

/* "80GiB", "600MiB", "1000": a whole number with a unit of bytes. */
bool gs_parse_bytes(const char *text, uint64_t *bytes);

/* Applies the text of a config file to settings and cards that hold defaults. 0 or -EINVAL with a line on
 * stderr; `path` is for that line. */
int gs_config_apply(struct gs_region *region, const char *text, const char *path);

/* What can change while the cards are used, apart from the region. */
struct gs_changes {
  struct gs_settings settings;
  struct gs_live live[GS_MAX_GPUS];
};

/* Applies one pair, to the card or if it is negative to all. 1: done, 0: no such key, or none that can change while the
 * cards are used, -1: bad value. */
int gs_config_change(struct gs_changes *changes, int gpu, const char *key, const char *value);

/* Fills settings and cards with the defaults, then applies the file at `path`, which may be absent. */
int gs_config_load(struct gs_region *region, const char *path);

#endif
