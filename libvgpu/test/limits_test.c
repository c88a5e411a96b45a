/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * limits_test.c - the parser of memory limits against testdata/limits.txt, and the environment's rules.
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

static int test_table(const char *path) {
  char line[512], text[512], want[64];
  int rows = 0;
  FILE *file = fopen(path, "r");
  CHECK(file != NULL, "cannot open %s", path);
  while (file && fgets(line, sizeof(line), file)) {
    if (line[0] != '"') continue;
    const char *rest = unquote(line, text);
    CHECK(sscanf(rest, " %63s", want) == 1, "row is not understood: %s", line);
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
  int rows = argc > 1 ? test_table(argv[1]) : 0;
  CHECK(rows > 50, "the table has its rows (%d)", rows);
  test_environment();
  test_container_index();
  return check_done();
}
