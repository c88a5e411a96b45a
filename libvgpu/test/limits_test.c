/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * limits_test.c - the parsers of limits against testdata/limits.txt and cores.txt, and the environment's rules.
 */
#include <errno.h>

#include "../limits.h"
#include "check.h"

/* Decodes a quoted Go string (the escapes that the table uses) up to its closing quote; returns what follows. */
static const char *unquote(const char *from, char *to) {
  for (from++; *from && *from != '"'; from++) {
    if (*from != '\\') {
      *to++ = *from;
      continue;
    }
    from++;
    if (*from == 'n') *to++ = '\n';
    if (*from == 'r') *to++ = '\r';
    if (*from == 't') *to++ = '\t';
    if (*from == 'v') *to++ = '\v';
    if (*from == 'f') *to++ = '\f';
    if (*from == '"' || *from == '\\') *to++ = *from;
    if (*from == 'u') {
      unsigned rune = 0;
      sscanf(from + 1, "%4x", &rune);
      from += 4;
      *to++ = (char)(0xc0 | rune >> 6); /* two-byte runes are enough here */
      *to++ = (char)(0x80 | (rune & 0x3f));
    }
  }
  *to = 0;
  return from + 1;
}

/* One row: `text` and what it means. */
static void check_bytes(const char *line, const char *text, const char *want) {
  uint64_t bytes = 1234567;
  int result = vgpu_parse_limit(text, &bytes);
  if (strcmp(want, "error") == 0) {
    CHECK(result == -EINVAL, "%s: got %d (%llu), want an error", line, result, (unsigned long long)bytes);
  } else if (strcmp(want, "unset") == 0) {
    CHECK(result == -ENOENT, "%s: got %d, want unset", line, result);
  } else {
    unsigned long long expected = strtoull(want, NULL, 10);
    CHECK(result == 0 && bytes == expected, "%s: got %d (%llu)", line, result, (unsigned long long)bytes);
  }
}

static void check_percent(const char *line, const char *text, const char *want) {
  uint32_t percent = 1234567;
  int result = vgpu_parse_percent(text, &percent);
  if (strcmp(want, "error") == 0) {
    CHECK(result == -EINVAL, "%s: got %d (%u), want an error", line, result, percent);
  } else if (strcmp(want, "unset") == 0) {
    CHECK(result == -ENOENT, "%s: got %d, want unset", line, result);
  } else {
    CHECK(result == 0 && percent == strtoul(want, NULL, 10), "%s: got %d (%u)", line, result, percent);
  }
}

static int test_table(const char *path, void (*check)(const char *line, const char *text, const char *want)) {
  char line[512], text[512], want[64];
  int rows = 0;
  FILE *file = fopen(path, "r");
  CHECK(file != NULL, "cannot open %s", path);
  while (file && fgets(line, sizeof(line), file)) {
    if (line[0] != '"' || strstr(line, "\\x00")) continue; /* no variable holds a NUL */
    const char *rest = unquote(line, text);
    CHECK(sscanf(rest, " %63s", want) == 1, "row is not understood: %s", line);
    check(line, text, want);
    rows++;
  }
  if (file) fclose(file);
  return rows;
}

static void test_environment(void) {
  struct vgpu_environment environment;
  char *none[] = {"PATH=/bin", "CUDA_DEVICE_MEMORY_LIMITS=1g", "CUDA_DEVICE_MEMORY_LIMIT_x=1g", NULL};
  vgpu_environment_read(&environment, none);
  CHECK(!environment.limited, "names that only look alike limit nothing");
  vgpu_environment_read(&environment, NULL);
  CHECK(!environment.limited, "no environment at all limits nothing");

  char *both[] = {"CUDA_DEVICE_MEMORY_LIMIT_0=3000m", "CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DEVICE_MEMORY_LIMIT_11=2g",
                  "CUDA_DEVICE_MEMORY_LIMIT_16=9g",   "CUDA_DEVICE_MEMORY_LIMIT_2=", NULL};
  vgpu_environment_read(&environment, both);
  CHECK_EQUAL(environment.limit_bytes[0], 3145728000, "the device's own value wins");
  CHECK_EQUAL(environment.limit_bytes[1], 1073741824, "the general value for the others");
  CHECK_EQUAL(environment.limit_bytes[2], 1073741824, "an empty value is as unset");
  CHECK_EQUAL(environment.limit_bytes[11], 2147483648, "two digits");

  char *padded[] = {"CUDA_DEVICE_MEMORY_LIMIT_07=64Mi", "CUDA_DEVICE_MEMORY_LIMIT_007=1Mi", NULL};
  vgpu_environment_read(&environment, padded);
  CHECK_EQUAL(environment.limit_bytes[7], 67108864, "an index with a leading zero");

  char *wrong[] = {"CUDA_DEVICE_MEMORY_LIMIT_1=-1", NULL};
  vgpu_environment_read(&environment, wrong);
  CHECK(environment.limited, "an error is a limit");
  CHECK_EQUAL(environment.limit_bytes[1], 0, "an error means nothing can be allocated");
  CHECK(environment.limit_bytes[0] == VGPU_NO_LIMIT, "other devices are not concerned");

  char *empty[] = {"CUDA_DEVICE_MEMORY_LIMIT=", NULL};
  vgpu_environment_read(&environment, empty);
  CHECK(!environment.limited, "an empty general value is as unset");
}

static void test_share(void) {
  struct vgpu_environment environment;
  char *none[] = {"CUDA_DEVICE_SM_LIMIT=100", "CUDA_DEVICE_SM_LIMIT_1=100", "CUDA_DEVICE_SM_LIMITS=5", NULL};
  vgpu_environment_read(&environment, none);
  CHECK(!environment.limited, "100 percent limits nothing");
  CHECK_EQUAL(environment.share_ppm[1], VGPU_PPM, "all of the GPU's time");
  CHECK(environment.limit_bytes[0] == VGPU_NO_LIMIT, "nor its memory");

  char *some[] = {"CUDA_DEVICE_SM_LIMIT_2=70",   "CUDA_DEVICE_SM_LIMIT= 30 ",  "CUDA_DEVICE_SM_LIMIT_3=",
                  "CUDA_DEVICE_SM_LIMIT_4=12.5", "CUDA_DEVICE_SM_LIMIT_5=100", NULL};
  vgpu_environment_read(&environment, some);
  CHECK(environment.limited, "30 percent is a limit");
  CHECK_EQUAL(environment.share_ppm[0], 300000, "the general value");
  CHECK_EQUAL(environment.share_ppm[2], 700000, "the device's own value wins");
  CHECK_EQUAL(environment.share_ppm[3], 300000, "an empty value is as unset");
  CHECK_EQUAL(environment.share_ppm[4], 10000, "what cannot be read is 1 percent");
  CHECK_EQUAL(environment.share_ppm[5], VGPU_PPM, "100 is a value");
  CHECK(environment.limit_bytes[0] == VGPU_NO_LIMIT, "memory is not concerned");
}

static void test_container_index(void) {
  CHECK_EQUAL(vgpu_container_index(NULL, 3), 3, "no variable: the same number");
  CHECK_EQUAL(vgpu_container_index("1,0", 0), 1, "swapped");
  CHECK_EQUAL(vgpu_container_index("1,0", 1), 0, "swapped");
  CHECK_EQUAL(vgpu_container_index("15", 0), 15, "one");
  CHECK_EQUAL(vgpu_container_index("0,1", 2), -ENOENT, "beyond the list");
  CHECK_EQUAL(vgpu_container_index("GPU-12345678", 0), -ENOENT, "a UUID cannot be told");
  CHECK_EQUAL(vgpu_container_index("", 0), -ENOENT, "an empty list");
  CHECK_EQUAL(vgpu_container_index("16", 0), -ENOENT, "more than a page holds");
}

int main(int argc, char **argv) {
  int rows = argc > 2 ? test_table(argv[1], check_bytes) : 0;
  CHECK(rows > 50, "the table of limits has its rows (%d)", rows);
  rows = argc > 2 ? test_table(argv[2], check_percent) : 0;
  CHECK(rows > 40, "the table of shares has its rows (%d)", rows);
  test_share();
  test_environment();
  test_container_index();
  return check_done();
}
