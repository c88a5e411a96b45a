/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * tool_status.c - gpusim status, reset-high-water and wait.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine.h"
#include "functions.h"
#include "region.h"
#include "tool.h"

static uint32_t client_slots(void) {
  return __atomic_load_n(&gs_self.region->slot_high[GS_KIND_CUDA], __ATOMIC_SEQ_CST);
}

static uint64_t calls_of(int function) {
  struct gs_region *region = gs_self.region;
  uint64_t sum = __atomic_load_n(&region->past_calls[function], __ATOMIC_RELAXED);
  for (uint32_t slot = 0; slot < GS_SLOTS; slot++)
    if (__atomic_load_n(&region->clients[slot].state, __ATOMIC_ACQUIRE) == GS_SLOT_READY)
      sum += __atomic_load_n(&region->clients[slot].calls[function], __ATOMIC_RELAXED);
  return sum;
}

/* JSON text; names in config are the user's. */
static void print_text(const char *text) {
  putchar('"');
  for (; *text; text++) {
    if (*text == '"' || *text == '\\')
      printf("\\%c", *text);
    else if ((unsigned char)*text < 32)
      printf("\\u%04x", *text);
    else
      putchar(*text);
  }
  putchar('"');
}

/* For people: whole MiB where it is that, else as exact as it has to be. */
static void print_size(const char *label, uint64_t bytes) {
  if (bytes >= 1 << 20 && bytes % (1 << 20) != 0)
    printf("%s %.2f MiB", label, (double)bytes / (1 << 20));
  else if (bytes % (1 << 20) == 0)
    printf("%s %llu MiB", label, (unsigned long long)bytes >> 20);
  else
    printf("%s %llu bytes", label, (unsigned long long)bytes);
}

/* What passed DRAM and the link, and how long copies ran: ever. */
static void print_traffic(uint64_t dram, uint64_t rx, uint64_t tx, const uint64_t copy_ns[GS_WAYS]) {
  printf("\"dram_bytes\": %llu, \"rx_bytes\": %llu, \"tx_bytes\": %llu, ", (unsigned long long)dram,
         (unsigned long long)rx, (unsigned long long)tx);
  printf("\"copy_ns\": {\"rx\": %llu, \"tx\": %llu, \"device\": %llu}", (unsigned long long)copy_ns[GS_WAY_RX],
         (unsigned long long)copy_ns[GS_WAY_TX], (unsigned long long)copy_ns[GS_WAY_DEVICE]);
}

/* Of one slot: what it has and what it had of a card. False: nothing, or it is dead. */
static bool print_client(struct gs_gpu *gpu, uint32_t slot, bool json, const char *separator) {
  uint64_t held = __atomic_load_n(&gpu->held_bytes[slot], __ATOMIC_RELAXED);
  const struct gs_queue *queue = &gpu->queues[slot];
  uint64_t busy = __atomic_load_n(&queue->busy_ns, __ATOMIC_RELAXED);
  bool worked = __atomic_load_n(&queue->numbers, __ATOMIC_RELAXED) > 0;
  if ((held == 0 && !worked) || !gs_slot_alive(slot)) return false;
  if (json) {
    printf("%s{\"pid\": %d, \"used_bytes\": %llu, \"busy_ns\": %llu, \"queued\": %u, ", separator, gs_slot_pid(slot),
           (unsigned long long)held, (unsigned long long)busy, __atomic_load_n(&queue->count, __ATOMIC_RELAXED));
    print_traffic(queue->dram_bytes, queue->rx_bytes, queue->tx_bytes, queue->copy_ns);
    printf("}");
    return true;
  }
  printf("       pid %d", gs_slot_pid(slot));
  print_size(" holds", held);
  if (worked) printf(", ran %.3f s", (double)busy / 1e9);
  putchar('\n');
  return true;
}

static void print_clients(struct gs_gpu *gpu, bool json) {
  const char *separator = "";
  for (uint32_t slot = 0; slot < client_slots(); slot++)
    if (print_client(gpu, slot, json, separator)) separator = ", ";
}

static void print_calls(const char *title, int modelled) {
  const char *separator = "";
  printf("  \"%s\": {", title);
  for (int i = 0; gs_functions[i].name; i++) {
    uint64_t calls = gs_functions[i].modelled == modelled ? calls_of(i) : 0;
    if (calls == 0) continue;
    printf("%s\"%s\": %llu", separator, gs_functions[i].name, (unsigned long long)calls);
    separator = ", ";
  }
  printf("}");
}

static void print_json(void) {
  struct gs_region *region = gs_self.region;
  for (uint32_t i = 0; i < region->settings.gpu_count; i++)
    gs_engine_update(&region->gpus[i]);
  printf("{\n  \"monotonic_ns\": %llu,\n  \"gpus\": [", (unsigned long long)gs_now_ns());
  for (uint32_t i = 0; i < region->settings.gpu_count; i++) {
    struct gs_gpu *gpu = &region->gpus[i];
    uint64_t used = gs_memory_used(gpu);
    printf("%s\n    {\"index\": %u, \"uuid\": \"%s\", \"model\": ", i ? "," : "", i, gpu->card.uuid);
    print_text(gpu->card.name);
    printf(", \"total_bytes\": %llu, \"reserved_bytes\": %llu, \"used_bytes\": %llu, \"high_water_bytes\": %llu, ",
           (unsigned long long)gpu->card.memory_bytes, (unsigned long long)gpu->card.reserved_bytes,
           (unsigned long long)used, (unsigned long long)gpu->high_water_bytes);
    printf("\"busy_ns\": %llu, \"memory_ns\": %llu, \"sm_ns\": %llu, ", (unsigned long long)gpu->busy_ns,
           (unsigned long long)gpu->memory_ns, (unsigned long long)gpu->sm_work / 1000);
    print_traffic(gpu->dram_bytes, gpu->rx_bytes, gpu->tx_bytes, gpu->copy_ns);
    printf(", \"clients\": [");
    print_clients(gpu, true);
    printf("]}");
  }
  printf("],\n");
  print_calls("calls", 1);
  printf(",\n");
  print_calls("unsupported", 0);
  printf("\n}\n");
}

void tool_print_cards(void) {
  struct gs_region *region = gs_self.region;
  for (uint32_t i = 0; i < region->settings.gpu_count; i++) {
    struct gs_gpu *gpu = &region->gpus[i];
    uint64_t used = gs_memory_used(gpu);
    printf("GPU %u  %s  %s\n", i, gpu->card.name, gpu->card.uuid);
    print_size("       total", gpu->card.memory_bytes);
    print_size(", reserved", gpu->card.reserved_bytes);
    print_size(", used", used);
    print_size(", high water", gpu->high_water_bytes);
    gs_engine_update(gpu);
    if (gpu->busy_ns) printf(", busy %.3f s, now %u %%", (double)gpu->busy_ns / 1e9, gs_engine_sample(gpu, -1).percent);
    putchar('\n');
    print_clients(gpu, false);
  }
}

static void print_plain(void) {
  tool_print_cards();
  for (int i = 0; gs_functions[i].name; i++) {
    uint64_t calls = calls_of(i);
    if (calls == 0) continue;
    printf("%12llu %s%s\n", (unsigned long long)calls, gs_functions[i].name,
           gs_functions[i].modelled ? "" : " (not modelled)");
  }
}

int tool_status(int count, char **arguments) {
  bool json = count == 1 && strcmp(arguments[0], "--json") == 0;
  if (count > 0 && !json) return tool_misuse("unknown option", arguments[0]);
  if (!tool_attach()) return 1;
  if (json)
    print_json();
  else
    print_plain();
  return 0;
}

int tool_reset(int count, char **arguments) {
  if (count > 0) return tool_misuse("unknown option", arguments[0]);
  if (!tool_attach()) return 1;
  for (uint32_t i = 0; i < gs_self.region->settings.gpu_count; i++) {
    struct gs_gpu *gpu = &gs_self.region->gpus[i];
    gs_lock(gpu);
    gs_reap_gpu_locked(gpu);
    gpu->high_water_bytes = gpu->used_bytes;
    gs_unlock(gpu);
  }
  return 0;
}

/* Living processes that hold memory of some card. */
static long long holders(void) {
  long long number = 0;
  for (uint32_t slot = 0; slot < client_slots(); slot++) {
    bool holds = false;
    for (uint32_t i = 0; i < gs_self.region->settings.gpu_count; i++)
      holds = holds || __atomic_load_n(&gs_self.region->gpus[i].held_bytes[slot], __ATOMIC_RELAXED) > 0;
    if (holds && gs_slot_alive(slot)) number++;
  }
  return number;
}

int tool_wait(int count, char **arguments) {
  const struct timespec pause = {.tv_nsec = 5000000};
  long long clients = 0;
  long long seconds = 10;
  for (int i = 0; i < count; i++) {
    const char *argument = arguments[i];
    const char *value = tool_option(count, arguments, &i, "--clients");
    if (value ? tool_number(value, 0, GS_CUDA_SLOTS, &clients)
              : (value = tool_option(count, arguments, &i, "--timeout")) && tool_number(value, 0, 86400, &seconds))
      continue;
    return tool_misuse("unknown option or bad value", argument);
  }
  if (!tool_attach()) return 1;
  uint64_t deadline = gs_now_ns() + (uint64_t)seconds * 1000000000u;
  while (clients > 0 ? holders() < clients : holders() > 0) {
    if (gs_now_ns() > deadline) {
      fprintf(stderr, "gpusim: wait: timed out with %lld processes holding memory\n", holders());
      return 1;
    }
    nanosleep(&pause, NULL);
  }
  return 0;
}
