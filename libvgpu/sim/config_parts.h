/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * config_parts.h - what the parts of the configuration have of each other. A setter answers 1: set, 0: not one of its
 * keys, -1: bad value; what it was to set may have changed then.
 */
#ifndef GPUSIM_CONFIG_PARTS_H
#define GPUSIM_CONFIG_PARTS_H

#include "config.h"

/* config_values.c */
bool gs_parse_number(const char *text, uint64_t *number);
int gs_set_time(uint64_t *ns, const char *value, uint64_t unit, uint64_t low, uint64_t high);
int gs_set_small(uint32_t *setting, const char *value, uint32_t high);
int gs_set_part(uint32_t *setting, const char *value);
int gs_set_ticks(uint64_t *ns, const char *value, uint64_t low);

/* config_card.c: any key of a card; one of how it is at present; says on stderr which models there are. */
int gs_set_card(struct gs_gpu *gpu, const char *key, const char *value);
int gs_set_live(struct gs_live *live, const char *key, const char *value);
void gs_default_card(struct gs_gpu *gpu, uint32_t index);
void gs_complain_about_model(const char *value);

/* config_machine.c: any key of the machine; one of how time passes and is shown. */
int gs_set_machine(struct gs_settings *settings, const char *key, const char *value);
int gs_set_time_model(struct gs_settings *settings, const char *key, const char *value);
void gs_default_machine(struct gs_settings *settings);
void gs_complete_machine(struct gs_settings *settings); /* what depends on others and was not said */

#endif
