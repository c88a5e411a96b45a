/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * config.c - what the simulated machine is made of: the table of models, the defaults and the text file
 * `config` ("key = value" lines, # starts a comment). `gpusim --help` lists the keys.
 */
#define _GNU_SOURCE
#include "config.h"

#include "engine.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where copies take time: what NVML's PCIe throughput is a mean over, and what it shows of a link that nobody uses. */
enum { PCIE_WINDOW_NS = 20000000, PCIE_FLOOR_BYTES = 20000000 };

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

static int complain(const char *where, const char *what) {
  fprintf(stderr, "gpusim: %s: %s\n", where, what);
  return -EINVAL;
}

static int complain_about_model(const char *value) {
  fprintf(stderr, "gpusim: model: there is no \"%s\", only", value);
  for (size_t i = 0; i < sizeof models / sizeof *models; i++)
    fprintf(stderr, "%s %s", i ? "," : "", models[i].short_name);
  fputc('\n', stderr);
  return -EINVAL;
}

bool gs_parse_bytes(const char *text, uint64_t *bytes) {
  static const struct {
    const char *suffix;
    uint64_t unit;
  } units[] = {{"", 1},
               {"B", 1},
               {"KiB", 1ull << 10},
               {"MiB", 1ull << 20},
               {"GiB", 1ull << 30},
               {"TiB", 1ull << 40},
               {"KB", 1000},
               {"MB", 1000000},
               {"GB", 1000000000},
               {"TB", 1000000000000}};
  char *end;
  errno = 0;
  if (!isdigit((unsigned char)*text)) return false;
  uint64_t number = strtoull(text, &end, 10);
  for (size_t i = 0; errno == 0 && i < sizeof units / sizeof *units; i++)
    if (strcmp(end, units[i].suffix) == 0) return !__builtin_mul_overflow(number, units[i].unit, bytes);
  return false;
}

static bool parse_number(const char *text, uint64_t *number) {
  char *end;
  errno = 0;
  if (!isdigit((unsigned char)*text)) return false;
  *number = strtoull(text, &end, 0);
  return errno == 0 && *end == 0;
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

/* A whole number of `unit` ns from `low` to `high`. */
static int set_time(uint64_t *ns, const char *value, uint64_t unit, uint64_t low, uint64_t high) {
  uint64_t number = 0;
  if (!parse_number(value, &number) || number < low || number > high) return -1;
  *ns = number * unit;
  return 1;
}

static int set_small(uint32_t *setting, const char *value, uint32_t high) {
  uint64_t number = 0;
  if (!parse_number(value, &number) || number > high) return -1;
  *setting = (uint32_t)number;
  return 1;
}

/* A part of a whole, in thousandths: not none of it. */
static int set_part(uint32_t *setting, const char *value) {
  uint64_t number = 0;
  if (!parse_number(value, &number) || number < 1 || number > 1000) return -1;
  *setting = (uint32_t)number;
  return 1;
}

/* Whole ticks of the counters, in ms, at least `low` and not more than are kept. */
static int set_ticks(uint64_t *ns, const char *value, uint64_t low) {
  uint64_t number = 0;
  if (set_time(&number, value, 1000000, 0, 1000) < 0 || number % GS_TICK_NS || number < low * GS_TICK_NS) return -1;
  *ns = number;
  return 1;
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

/* One key of how a card is at present. 1: set, 0: no such key, -1: bad value. */
static int set_live(struct gs_live *live, const char *key, const char *value) {
  uint64_t number = 0;
  if (strcmp(key, "clock_permille") == 0) return set_part(&live->clock_permille, value);
  if (strcmp(key, "memory_clock_permille") == 0) return set_part(&live->memory_clock_permille, value);
  if (strcmp(key, "dram_permille") == 0) return set_part(&live->dram_permille, value);
  if (strcmp(key, "pcie_rx_permille") == 0) return set_part(&live->rx_permille, value);
  if (strcmp(key, "pcie_tx_permille") == 0) return set_part(&live->tx_permille, value);
  if (strcmp(key, "link_generation") == 0) return set_small(&live->link_generation, value, 7);
  if (strcmp(key, "link_width") == 0) {
    bool good = parse_number(value, &number) && number <= GS_LINK_WIDTH && (number & (number - 1)) == 0;
    live->link_width = (uint32_t)number;
    return good ? 1 : -1;
  }
  if (strcmp(key, "compute_mode") == 0) return set_small(&live->compute_mode, value, 3);
  if (strcmp(key, "gpm") == 0) return set_small(&live->gpm, value, 1);
  if (strcmp(key, "gpm_missing") == 0) return set_missing(live, value) ? 1 : -1;
  if (strcmp(key, "throttle") == 0) return parse_number(value, &live->throttle) ? 1 : -1;
  return 0;
}

/* One key of a card. 1: set, 0: not a card's key, -1: bad value. */
static int set_card(struct gs_gpu *gpu, const char *key, const char *value) {
  struct gs_card *card = &gpu->card;
  uint64_t number = 0;
  if (strcmp(key, "model") == 0) return set_model(card, value) ? 1 : -1;
  if (strcmp(key, "name") == 0) return snprintf(card->name, sizeof card->name, "%s", value) > 0 ? 1 : -1;
  if (strcmp(key, "uuid") == 0) return set_uuid(card, value) ? 1 : -1;
  if (strcmp(key, "memory") == 0) return gs_parse_bytes(value, &card->memory_bytes) ? 1 : -1;
  if (strcmp(key, "reserved") == 0) return gs_parse_bytes(value, &card->reserved_bytes) ? 1 : -1;
  if (strcmp(key, "dram_bandwidth") == 0) return gs_parse_bytes(value, &card->dram_bytes_per_second) ? 1 : -1;
  if (strcmp(key, "pcie_bandwidth") == 0) return gs_parse_bytes(value, &card->pcie_bytes_per_second) ? 1 : -1;
  if (strcmp(key, "sms") == 0) {
    if (!parse_number(value, &number) || number < 1 || number > 1024) return -1;
    card->sms = (uint32_t)number;
    return 1;
  }
  if (strcmp(key, "numa_node") == 0) {
    if (strcmp(value, "-1") != 0 && (!parse_number(value, &number) || number > 1023)) return -1;
    card->numa_node = strcmp(value, "-1") == 0 ? -1 : (int32_t)number;
    return 1;
  }
  return set_live(&gpu->live, key, value);
}

/* One key of how copies and memory take time, and of the counters of them. 1: set, 0: unknown, -1: bad value. */
static int set_traffic(struct gs_settings *settings, const char *key, const char *value) {
  if (strcmp(key, "copies") == 0) {
    settings->copies_timed = strcmp(value, "timed") == 0;
    return settings->copies_timed || strcmp(value, "instant") == 0 ? 1 : -1;
  }
  if (strcmp(key, "copy_engines") == 0) {
    int set = set_small(&settings->copy_engines, value, GS_WAYS);
    return settings->copy_engines > 0 ? set : -1;
  }
  if (strcmp(key, "copy_latency_ns") == 0) return set_time(&settings->copy_latency_ns, value, 1, 0, 1000000000);
  if (strcmp(key, "pageable_permille") == 0) return set_part(&settings->pageable_permille, value);
  if (strcmp(key, "dram_reach_permille") == 0) return set_part(&settings->dram_reach_permille, value);
  if (strcmp(key, "kernel_dram_percent") == 0) return set_small(&settings->kernel_dram_percent, value, 100);
  if (strcmp(key, "l2_dram_permille") == 0) return set_small(&settings->cache_dram_permille, value, 1000);
  if (strcmp(key, "counter_noise_permille") == 0) return set_small(&settings->noise_permille, value, 1000);
  if (strcmp(key, "pcie_window_ms") == 0) return set_ticks(&settings->pcie_window_ns, value, 0);
  if (strcmp(key, "counter_lag_ms") == 0) return set_ticks(&settings->counter_lag_ns, value, 0);
  if (strcmp(key, "gpm_refresh_ms") == 0) return set_ticks(&settings->gpm_refresh_ns, value, 1);
  if (strcmp(key, "pcie_floor") == 0) return gs_parse_bytes(value, &settings->pcie_floor_bytes) ? 1 : -1;
  return 0;
}

/* One key of how GPU time passes and is shown. 1: set, 0: unknown, -1: bad value. */
static int set_time_model(struct gs_settings *settings, const char *key, const char *value) {
  if (strcmp(key, "sharing") == 0) {
    settings->sharing = strcmp(value, "mps") == 0 ? GS_SHARING_MPS : GS_SHARING_TIME_SLICE;
    return strcmp(value, "mps") == 0 || strcmp(value, "time-slice") == 0 ? 1 : -1;
  }
  if (strcmp(key, "timeslice_us") == 0) return set_time(&settings->timeslice_ns, value, 1000, 10, 1000000);
  if (strcmp(key, "kernel_ns") == 0) return set_time(&settings->kernel_ns, value, 1, 0, UINT64_MAX);
  if (strcmp(key, "kernel_jitter_permille") == 0) return set_small(&settings->jitter_permille, value, 900);
  if (strcmp(key, "event_scale_permille") == 0) return set_small(&settings->event_scale_permille, value, 10000);
  if (strcmp(key, "nvml_sample_ms") == 0) return set_time(&settings->sample_ns, value, 1000000, 10, 10000);
  if (strcmp(key, "nvml_lag_ms") == 0) return set_time(&settings->sample_lag_ns, value, 1000000, 0, 100000);
  if (strcmp(key, "nvml_missing_percent") == 0) return set_small(&settings->missing_percent, value, 100);
  return set_traffic(settings, key, value);
}

/* One key of the machine. 1: set, 0: unknown, -1: bad value. */
static int set_machine(struct gs_settings *settings, const char *key, const char *value) {
  uint64_t number = 0;
  if (strcmp(key, "driver_version") == 0)
    return snprintf(settings->driver_version, sizeof settings->driver_version, "%s", value) > 0 ? 1 : -1;
  if (strcmp(key, "context_overhead") == 0) return gs_parse_bytes(value, &settings->context_overhead_bytes) ? 1 : -1;
  if (strcmp(key, "pitch_alignment") == 0) {
    bool good = gs_parse_bytes(value, &number) && number > 0 && (number & (number - 1)) == 0;
    settings->pitch_alignment_bytes = number;
    return good ? 1 : -1;
  }
  if (strcmp(key, "memory_backing") == 0) {
    settings->backing = strcmp(value, "none") == 0 ? GS_BACKING_NONE : GS_BACKING_REAL;
    return strcmp(value, "none") == 0 || strcmp(value, "real") == 0 ? 1 : -1;
  }
  if (strcmp(key, "gpus") == 0) {
    settings->gpu_count = parse_number(value, &number) ? (uint32_t)number : UINT32_MAX;
    return settings->gpu_count <= GS_MAX_GPUS ? 1 : -1;
  }
  if (strcmp(key, "cuda_version") == 0) {
    settings->cuda_version = parse_number(value, &number) ? (uint32_t)number : 0;
    return number >= 11000 && number < 20000 ? 1 : -1;
  }
  if (strcmp(key, "device_nodes") == 0) {
    settings->device_nodes = parse_number(value, &number) ? (uint32_t)number : 2;
    return settings->device_nodes <= 1 ? 1 : -1;
  }
  return set_time_model(settings, key, value);
}

/* Applies one pair. Card keys go to all cards, "gpu.N.key" and "uuid.N" to one. */
static int apply(struct gs_region *region, const char *key, const char *value) {
  char name[64];
  unsigned index;
  int used = 0;
  if (sscanf(key, "gpu.%u.%63[a-z_]%n", &index, name, &used) == 2 && key[used] == 0)
    return index < GS_MAX_GPUS ? set_card(&region->gpus[index], name, value) : -1;
  if (sscanf(key, "uuid.%u%n", &index, &used) == 1 && key[used] == 0)
    return index < GS_MAX_GPUS ? set_card(&region->gpus[index], "uuid", value) : -1;
  int result = strcmp(key, "uuid") == 0 ? 0 : set_machine(&region->settings, key, value);
  for (int i = 0; result == 0 && i < GS_MAX_GPUS; i++) {
    int set = strcmp(key, "uuid") == 0 ? 0 : set_card(&region->gpus[i], key, value);
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
    if (result < 0) return is_model ? complain_about_model(value) : complain(key, "bad value");
  }
  return 0;
}

static void defaults(struct gs_region *region) {
  struct gs_settings *settings = &region->settings;
  settings->gpu_count = 1;
  settings->cuda_version = 12020;
  settings->pitch_alignment_bytes = 512;
  settings->timeslice_ns = 2000000;
  settings->event_scale_permille = 1000;
  settings->sample_ns = 200000000;
  settings->copy_engines = 2;
  settings->pageable_permille = 1000;
  settings->dram_reach_permille = 1000;
  settings->pcie_window_ns = settings->pcie_floor_bytes = UINT64_MAX; /* not said */
  settings->gpm_refresh_ns = 10 * GS_TICK_NS;
  snprintf(settings->driver_version, sizeof settings->driver_version, "535.261.03");
  for (uint32_t i = 0; i < GS_MAX_GPUS; i++) {
    struct gs_card *card = &region->gpus[i].card;
    apply_model(card, &models[0]);
    default_uuid(card, i);
    card->numa_node = -1;
    card->pci_bus = 7 + 8 * i;
    region->gpus[i].live = (struct gs_live){.clock_permille = 1000,
                                            .memory_clock_permille = 1000,
                                            .dram_permille = 1000,
                                            .rx_permille = 1000,
                                            .tx_permille = 1000,
                                            .gpm = 2};
  }
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
  struct gs_settings *settings = &region->settings;
  if (settings->pcie_window_ns == UINT64_MAX) settings->pcie_window_ns = settings->copies_timed ? PCIE_WINDOW_NS : 0;
  if (settings->pcie_floor_bytes == UINT64_MAX) settings->pcie_floor_bytes = settings->copies_timed ? PCIE_FLOOR_BYTES : 0;
  for (uint32_t i = 0; settings->copies_timed && i < settings->gpu_count; i++)
    if (region->gpus[i].card.pcie_bytes_per_second == 0 || region->gpus[i].card.dram_bytes_per_second == 0)
      return complain("copies", "cannot take time without pcie_bandwidth and dram_bandwidth");
  if (region->settings.sample_lag_ns > (GS_PERIODS - 2) * region->settings.sample_ns)
    return complain("nvml_lag_ms", "more than 14 sample periods");
  return 0;
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
