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

/* Fills settings and cards with the defaults, then applies the file at `path`, which may be absent. */
int gs_config_load(struct gs_region *region, const char *path);

#endif
