/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * tool_fault.c - gpusim fault and gpusim xid: arms, lists and clears injected faults, raises XIDs.
 */
#include <stdio.h>
#include <string.h>

#include "functions.h"
#include "region.h"
#include "tool.h"

/* Marks the functions that `call` names; a final * matches any ending. Answers how many. */
static int mark(struct gs_fault *fault, const char *call) {
  size_t length = strlen(call);
  bool open_end = length > 0 && call[length - 1] == '*';
  int marked = 0;
  for (int i = 0; gs_functions[i].name; i++) {
    bool match =
        open_end ? strncmp(gs_functions[i].name, call, length - 1) == 0 : strcmp(gs_functions[i].name, call) == 0;
    if (!match) continue;
    fault->functions[i / 8] |= (uint8_t)(1u << (i % 8));
    marked++;
  }
  return marked;
}

/* Says that `call` has a newer variant, which is what programs call that are compiled with today's headers. */
static void hint(const char *call) {
  size_t length = strlen(call);
  for (int i = 0; gs_functions[i].name; i++) {
    const char *name = gs_functions[i].name;
    if (strncmp(name, call, length) != 0 || strncmp(name + length, "_v", 2) != 0 || strchr(name + length + 2, '_'))
      continue;
    fprintf(stderr, "gpusim: this is about %s alone; programs usually call %s\n", call, name);
    return;
  }
}

static int parse(int count, char **arguments, struct gs_fault *fault) {
  bool has_result = false;
  for (int i = 0; i < count; i++) {
    const char *argument = arguments[i];
    const char *value;
    long long number = 0;
    if ((value = tool_option(count, arguments, &i, "--call"))) {
      if (!mark(fault, value)) return tool_misuse("no such function", value);
      snprintf(fault->call, sizeof fault->call, "%s", value);
    } else if ((value = tool_option(count, arguments, &i, "--result")) && tool_number(value, 0, 99999, &number)) {
      fault->result = (int32_t)number;
      has_result = true;
    } else if ((value = tool_option(count, arguments, &i, "--gpu")) &&
               tool_number(value, 0, GS_MAX_GPUS - 1, &number)) {
      fault->gpu = (int32_t)number;
    } else if ((value = tool_option(count, arguments, &i, "--pid")) && tool_number(value, 1, INT32_MAX, &number)) {
      fault->pid = (int32_t)number;
    } else if ((value = tool_option(count, arguments, &i, "--count")) && tool_number(value, 1, INT64_MAX, &number)) {
      fault->count = (uint64_t)number;
    } else if ((value = tool_option(count, arguments, &i, "--after")) && tool_number(value, 0, INT64_MAX, &number)) {
      fault->after = (uint64_t)number;
    } else if ((value = tool_option(count, arguments, &i, "--delay")) && tool_number(value, 0, 3600000, &number)) {
      fault->delay_ms = (uint32_t)number;
    } else {
      return tool_misuse("unknown option or bad value", argument);
    }
  }
  if (fault->call[0] == 0) return tool_misuse("is needed", "--call");
  if (!has_result && fault->delay_ms == 0) return tool_misuse("is needed (or --delay)", "--result");
  return 0;
}

static int set(int count, char **arguments) {
  struct gs_fault fault = {.gpu = -1, .count = UINT64_MAX};
  int wrong = parse(count, arguments, &fault);
  if (wrong) return wrong;
  if (!tool_attach()) return 1;
  hint(fault.call);
  for (int i = 0; i < GS_MAX_FAULTS; i++) {
    struct gs_fault *place = &gs_self.region->faults[i];
    if (place->armed) continue;
    *place = fault;
    __atomic_store_n(&place->armed, 1, __ATOMIC_RELEASE);
    __atomic_fetch_add(&gs_self.region->fault_count, 1, __ATOMIC_RELEASE);
    return 0;
  }
  fprintf(stderr, "gpusim: %d faults are armed already\n", GS_MAX_FAULTS);
  return 1;
}

static int clear(int count, char **arguments) {
  const char *call = NULL;
  for (int i = 0; i < count; i++)
    if (!(call = tool_option(count, arguments, &i, "--call"))) return tool_misuse("unknown option", arguments[i]);
  if (!tool_attach()) return 1;
  for (int i = 0; i < GS_MAX_FAULTS; i++) {
    struct gs_fault *fault = &gs_self.region->faults[i];
    if (!fault->armed || (call && strcmp(fault->call, call) != 0)) continue;
    __atomic_store_n(&fault->armed, 0, __ATOMIC_RELEASE);
    __atomic_fetch_sub(&gs_self.region->fault_count, 1, __ATOMIC_RELEASE);
  }
  return 0;
}

static int list(void) {
  if (!tool_attach()) return 1;
  for (int i = 0; i < GS_MAX_FAULTS; i++) {
    const struct gs_fault *fault = &gs_self.region->faults[i];
    if (!fault->armed) continue;
    printf("%s result %d gpu %d pid %d delay %u ms after %llu count ", fault->call, fault->result, fault->gpu,
           fault->pid, fault->delay_ms, (unsigned long long)fault->after);
    if (fault->count == UINT64_MAX)
      printf("unlimited\n");
    else
      printf("%llu\n", (unsigned long long)fault->count);
  }
  return 0;
}

int tool_fault(int count, char **arguments) {
  if (count > 0 && strcmp(arguments[0], "set") == 0) return set(count - 1, arguments + 1);
  if (count > 0 && strcmp(arguments[0], "clear") == 0) return clear(count - 1, arguments + 1);
  if (count == 1 && strcmp(arguments[0], "list") == 0) return list();
  return tool_misuse("needs set, list or clear", "fault");
}

int tool_xid(int count, char **arguments) {
  long long gpu = 0;
  long long xid = -1;
  for (int i = 0; i < count; i++) {
    const char *argument = arguments[i];
    const char *value;
    if ((value = tool_option(count, arguments, &i, "--gpu")) && tool_number(value, 0, GS_MAX_GPUS - 1, &gpu)) continue;
    if (tool_number(argument, 1, 9999, &xid)) continue;
    return tool_misuse("unknown option or bad value", argument);
  }
  if (xid < 0) return tool_misuse("needs a number", "xid");
  if (!tool_attach()) return 1;
  struct gs_gpu *card = &gs_self.region->gpus[gpu];
  gs_lock(card);
  card->xids[card->xid_count % GS_XIDS] = (uint64_t)xid;
  __atomic_store_n(&card->xid_count, card->xid_count + 1, __ATOMIC_RELEASE);
  gs_unlock(card);
  return 0;
}
