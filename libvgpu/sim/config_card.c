/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * config_card.c - keys of a card: the table of models, what a card is and how it is at present.
 */
#define _GNU_SOURCE
#include "config_parts.h"
#include "engine.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Public data-sheet figures. To add a model, add a line. */
struct model {
  const char *short_name, *name; /* either chooses it; name is what the driver calls it */
  uint64_t memory_mib;
  uint32_t sms, major, minor, sm_mhz, memory_mhz, bus_bits, l2_mib, watts, pci_id;
  uint64_t dram_gbps, pcie_gbps;
};
static const struct model models[] = {
    {"A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", 81920, 108, 8, 0, 1410, 1593, 5120, 40, 400, 0x20b210de, 2039, 25},
    {"A100-PCIE-40GB", "NVIDIA A100-PCIE-40GB", 40960, 108, 8, 0, 1410, 1215, 5120, 40, 250, 0x20f110de, 1555, 25},
    {"H100", "NVIDIA H100 80GB HBM3", 81559, 132, 9, 0, 1980, 2619, 5120, 50, 700, 0x233010de, 3350, 55},
    {"L40S", "NVIDIA L40S", 46068, 142, 8, 9, 2520, 9001, 384, 96, 350, 0x26b910de, 864, 25},
    {"L4", "NVIDIA L4", 23034, 58, 8, 9, 2040, 6251, 192, 48, 72, 0x27b810de, 300, 25},
    {"T4", "Tesla T4", 15360, 40, 7, 5, 1590, 5001, 256, 4, 70, 0x1eb810de, 320, 12},
    {"V100", "Tesla V100-SXM2-32GB", 32768, 80, 7, 0, 1530, 877, 4096, 6, 300, 0x1db510de, 900, 12},
};

void gs_complain_about_model(const char *value) {
  fprintf(stderr, "gpusim: model: there is no \"%s\", only", value);
  for (size_t i = 0; i < sizeof models / sizeof *models; i++)
    fprintf(stderr, "%s %s", i ? "," : "", models[i].short_name);
  fputc('\n', stderr);
}

static void apply_model(struct gs_card *card, const struct model *model) {
  snprintf(card->name, sizeof card->name, "%s", model->name);
  card->memory_bytes = model->memory_mib << 20;
  card->dram_bytes_per_second = model->dram_gbps * 1000000000u;
  card->pcie_bytes_per_second = model->pcie_gbps * 1000000000u;
  card->sms = model->sms;
  card->compute_major = model->major;
  card->compute_minor = model->minor;
  card->sm_clock_mhz = model->sm_mhz;
  card->memory_clock_mhz = model->memory_mhz;
  card->memory_bus_bits = model->bus_bits;
  card->l2_bytes = model->l2_mib << 20;
  card->power_limit_mw = model->watts * 1000;
  card->pci_device_id = model->pci_id;
}

/* A UUID of version 4 shape that depends on the index alone (splitmix64). */
static void default_uuid(struct gs_card *card, uint32_t index) {
  uint64_t state = 0x9e3779b97f4a7c15ull * (2 * index + 1);
  for (int half = 0; half < 2; half++) {
    uint64_t word = (state += 0x9e3779b97f4a7c15ull);
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ull;
    word = (word ^ word >> 27) * 0x94d049bb133111ebull;
    word ^= word >> 31;
    memcpy(card->uuid_bytes + 8 * half, &word, 8);
  }
  card->uuid_bytes[6] = (uint8_t)((card->uuid_bytes[6] & 0x0f) | 0x40);
  card->uuid_bytes[8] = (uint8_t)((card->uuid_bytes[8] & 0x3f) | 0x80);
  char *out = card->uuid + sprintf(card->uuid, "GPU-");
  for (int i = 0; i < 16; i++)
    out += sprintf(out, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", card->uuid_bytes[i]);
}

static bool set_uuid(struct gs_card *card, const char *text) {
  uint8_t bytes[16];
  int used = 0;
  if (strncmp(text, "GPU-", 4) != 0 || strlen(text) != 40) return false;
  const char *at = text + 4;
  for (int i = 0; i < 16; i++, at += 2) {
    unsigned value;
    if (*at == '-') at++;
    if (sscanf(at, "%2x%n", &value, &used) != 1 || used != 2) return false;
    bytes[i] = (uint8_t)value;
  }
  if (*at) return false;
  memcpy(card->uuid_bytes, bytes, sizeof bytes);
  snprintf(card->uuid, sizeof card->uuid, "%s", text);
  return true;
}

static bool set_model(struct gs_card *card, const char *value) {
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    if (strcmp(models[i].short_name, value) != 0 && strcmp(models[i].name, value) != 0) continue;
    apply_model(card, &models[i]);
    return true;
  }
  return false;
}

/* Ids of GPM metrics, "10,20", or "none". */
static bool set_missing(struct gs_live *live, const char *value) {
  uint64_t missing[sizeof live->gpm_missing / sizeof *live->gpm_missing] = {0};
  for (const char *at = value; strcmp(value, "none") != 0;) {
    char *end;
    unsigned long id = isdigit((unsigned char)*at) ? strtoul(at, &end, 10) : 0;
    if (id == 0 || id >= 64 * sizeof missing / sizeof *missing) return false;
    missing[id / 64] |= 1ull << id % 64;
    if (*end == 0) break;
    if (*end != ',') return false;
    at = end + 1;
  }
  memcpy(live->gpm_missing, missing, sizeof missing);
  return true;
}

int gs_set_live(struct gs_live *live, const char *key, const char *value) {
  uint64_t number = 0;
  if (strcmp(key, "clock_permille") == 0) return gs_set_part(&live->clock_permille, value);
  if (strcmp(key, "memory_clock_permille") == 0) return gs_set_part(&live->memory_clock_permille, value);
  if (strcmp(key, "dram_permille") == 0) return gs_set_part(&live->dram_permille, value);
  if (strcmp(key, "pcie_rx_permille") == 0) return gs_set_part(&live->rx_permille, value);
  if (strcmp(key, "pcie_tx_permille") == 0) return gs_set_part(&live->tx_permille, value);
  if (strcmp(key, "link_generation") == 0) return gs_set_small(&live->link_generation, value, 7);
  if (strcmp(key, "link_width") == 0) {
    bool good = gs_parse_number(value, &number) && number <= GS_LINK_WIDTH && (number & (number - 1)) == 0;
    live->link_width = (uint32_t)number;
    return good ? 1 : -1;
  }
  if (strcmp(key, "compute_mode") == 0) return gs_set_small(&live->compute_mode, value, 3);
  if (strcmp(key, "gpm") == 0) return gs_set_small(&live->gpm, value, 1);
  if (strcmp(key, "gpm_missing") == 0) return set_missing(live, value) ? 1 : -1;
  if (strcmp(key, "throttle") == 0) return gs_parse_number(value, &live->throttle) ? 1 : -1;
  return 0;
}

static int set_bandwidth(uint64_t *bytes_per_second, const char *value) {
  uint64_t number;
  if (!gs_parse_bytes(value, &number) || number == 0) return -1;
  *bytes_per_second = number;
  return 1;
}

int gs_set_card(struct gs_gpu *gpu, const char *key, const char *value) {
  struct gs_card *card = &gpu->card;
  uint64_t number = 0;
  if (strcmp(key, "model") == 0) return set_model(card, value) ? 1 : -1;
  if (strcmp(key, "name") == 0) return snprintf(card->name, sizeof card->name, "%s", value) > 0 ? 1 : -1;
  if (strcmp(key, "uuid") == 0) return set_uuid(card, value) ? 1 : -1;
  if (strcmp(key, "memory") == 0) return gs_parse_bytes(value, &card->memory_bytes) ? 1 : -1;
  if (strcmp(key, "reserved") == 0) return gs_parse_bytes(value, &card->reserved_bytes) ? 1 : -1;
  if (strcmp(key, "dram_bandwidth") == 0) return set_bandwidth(&card->dram_bytes_per_second, value);
  if (strcmp(key, "pcie_bandwidth") == 0) return set_bandwidth(&card->pcie_bytes_per_second, value);
  if (strcmp(key, "sms") == 0) {
    if (!gs_parse_number(value, &number) || number < 1 || number > 1024) return -1;
    card->sms = (uint32_t)number;
    return 1;
  }
  if (strcmp(key, "numa_node") == 0) {
    if (strcmp(value, "-1") != 0 && (!gs_parse_number(value, &number) || number > 1023)) return -1;
    card->numa_node = strcmp(value, "-1") == 0 ? -1 : (int32_t)number;
    return 1;
  }
  return gs_set_live(&gpu->live, key, value);
}

void gs_default_card(struct gs_gpu *gpu, uint32_t index) {
  apply_model(&gpu->card, &models[0]);
  default_uuid(&gpu->card, index);
  gpu->card.numa_node = -1;
  gpu->card.pci_bus = 7 + 8 * index;
  gpu->live = (struct gs_live){.clock_permille = 1000,
                               .memory_clock_permille = 1000,
                               .dram_permille = 1000,
                               .rx_permille = 1000,
                               .tx_permille = 1000,
                               .gpm = 2};
}
