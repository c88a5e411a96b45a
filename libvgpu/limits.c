/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * limits.c - parses limits; contract in limits.h.
 */
#include "limits.h"

#include "log.h"
#include "text.h"

enum { MAX_FRACTION_DIGITS = 6 };

static int is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

static int is_digit(char c) {
  return c >= '0' && c <= '9';
}

/* Takes a unit off `*at`: its shift, 0 when there is none, -EINVAL for a letter that is no unit. */
static int parse_unit(const char **at) {
  static const char units[] = "kmgt";
  for (int i = 0; units[i]; i++) {
    int is_capital = **at == units[i] - 'a' + 'A';
    if (**at != units[i] && !is_capital) continue;
    (*at)++;
    if (is_capital && **at == 'i') (*at)++;
    if (is_capital && **at == 'B') (*at)++;
    return 10 * (i + 1);
  }
  return 0;
}

int vgpu_parse_limit(const char *text, uint64_t *bytes) {
  uint64_t whole = 0, fraction = 0, scale = 1, part = 0;
  const char *at = text;
  int fraction_digits = 0;
  while (is_blank(*at))
    at++;
  if (!*at) return -ENOENT;
  if (!is_digit(*at)) return -EINVAL;
  for (; is_digit(*at); at++) {
    if (__builtin_mul_overflow(whole, 10, &whole) || __builtin_add_overflow(whole, *at - '0', &whole)) return -EINVAL;
  }
  if (*at == '.') {
    for (at++; is_digit(*at); at++, fraction_digits++) {
      if (fraction_digits == MAX_FRACTION_DIGITS) return -EINVAL;
      fraction = fraction * 10 + (uint64_t)(*at - '0');
      scale *= 10;
    }
    if (fraction_digits == 0) return -EINVAL;
  }
  int shift = parse_unit(&at);
  if (fraction_digits && shift == 0) return -EINVAL;
  while (is_blank(*at))
    at++;
  part = (fraction << shift) / scale; /* below 2^60: six digits and 40 bits */
  if (*at || __builtin_mul_overflow(whole, (uint64_t)1 << shift, &whole)) return -EINVAL;
  return __builtin_add_overflow(whole, part, bytes) ? -EINVAL : 0;
}

/* One or two decimal digits that end at `end`; -EINVAL. */
static int parse_index(const char *text, char end) {
  int value = 0, digits = 0;
  for (; is_digit(text[digits]) && digits < 3; digits++)
    value = value * 10 + text[digits] - '0';
  return digits > 0 && digits < 3 && text[digits] == end ? value : -EINVAL;
}

int vgpu_parse_percent(const char *text, uint32_t *percent) {
  enum { WHOLE = 100 };
  uint32_t value = 0;
  while (is_blank(*text))
    text++;
  if (!*text) return -ENOENT;
  if (!is_digit(*text)) return -EINVAL;
  for (; is_digit(*text); text++) {
    value = value * 10 + (uint32_t)(*text - '0');
    if (value > WHOLE) return -EINVAL;
  }
  while (is_blank(*text))
    text++;
  if (*text || value == 0) return -EINVAL;
  *percent = value;
  return 0;
}

/* A variable for all devices and those for each one, which win. */
struct setting {
  const char *prefix;
  uint64_t general;
  uint64_t by_index[VGPU_MAX_DEVICES];
  bool has_index[VGPU_MAX_DEVICES];
  bool limits; /* any of them limits something */
};

/* *limit as `value`, the end of `variable`, says; untouched when it is empty. */
static bool read_bytes(const char *variable, const char *value, uint64_t *limit) {
  int result = vgpu_parse_limit(value, limit);
  if (result == -ENOENT) return false;
  if (result == 0) return true;
  *limit = 0;
  vgpu_log("cannot read the memory limit %s: nothing can be allocated", variable);
  return true;
}

/* The same in millionths of the GPU's time. */
static bool read_share(const char *variable, const char *value, uint64_t *share_ppm) {
  uint32_t percent = 1;
  int result = vgpu_parse_percent(value, &percent);
  if (result == -ENOENT) return false;
  if (result != 0) vgpu_log("cannot read the compute limit %s: 1 percent holds", variable);
  *share_ppm = (uint64_t)percent * (VGPU_PPM / 100);
  return true;
}

/* Reads `variable` if it is one of the setting's. */
static void read_setting(struct setting *setting, const char *variable,
                         bool (*read)(const char *variable, const char *value, uint64_t *to), uint64_t none) {
  const char *rest = vgpu_text_starts(variable, setting->prefix);
  if (!rest) return;
  if (*rest == '=') setting->limits |= read(variable, rest + 1, &setting->general) && setting->general != none;
  int index = *rest == '_' ? parse_index(rest + 1, '=') : -EINVAL;
  if (index < 0 || index >= VGPU_MAX_DEVICES) return;
  while (*rest++ != '=') {
  }
  setting->by_index[index] = none;
  setting->has_index[index] = read(variable, rest, &setting->by_index[index]);
  setting->limits |= setting->has_index[index] && setting->by_index[index] != none;
}

void vgpu_environment_read(struct vgpu_environment *environment, char *const *variables) {
  struct setting memory = {.prefix = "CUDA_DEVICE_MEMORY_LIMIT", .general = VGPU_NO_LIMIT};
  struct setting compute = {.prefix = "CUDA_DEVICE_SM_LIMIT", .general = VGPU_PPM};
  const char *value;
  *environment = (struct vgpu_environment){.limited = false};
  for (; variables && *variables; variables++) {
    if ((value = vgpu_text_starts(*variables, "CUDA_DEVICE_MEMORY_SHARED_CACHE="))) environment->shared_cache = value;
    if ((value = vgpu_text_starts(*variables, "CUDA_VISIBLE_DEVICES="))) environment->visible_devices = value;
    if (vgpu_text_starts(*variables, "VGPUD_ALLOCATION=")) environment->has_allocation = true;
    read_setting(&memory, *variables, read_bytes, VGPU_NO_LIMIT);
    read_setting(&compute, *variables, read_share, VGPU_PPM);
  }
  environment->limited = memory.limits || compute.limits;
  for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
    environment->limit_bytes[i] = memory.has_index[i] ? memory.by_index[i] : memory.general;
    environment->share_ppm[i] = (uint32_t)(compute.has_index[i] ? compute.by_index[i] : compute.general);
  }
}

int vgpu_container_index(const char *visible_devices, int ordinal) {
  if (!visible_devices) return ordinal;
  const char *at = visible_devices;
  for (int i = 0;; i++) {
    const char *end = at;
    while (*end && *end != ',')
      end++;
    int index = parse_index(at, *end);
    if (index < 0 || index >= VGPU_MAX_DEVICES) return -ENOENT;
    if (i == ordinal) return index;
    if (!*end) return -ENOENT;
    at = end + 1;
  }
}
