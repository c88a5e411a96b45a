/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * virtual_engine.c - the parts that the engine needs of a process, for tests in virtual time.
 */
#define _GNU_SOURCE
#include "virtual_engine.h"

#include <sys/mman.h>

enum { ENTRIES_APART = 128 };

struct gs_self gs_self;
uint64_t clock_ns;
int sleeps;
static bool locked;

uint64_t gs_now_ns(void) {
  return clock_ns;
}

void gs_sleep_until(uint64_t time_ns) {
  CHECK(!locked);
  sleeps++;
  if (time_ns > clock_ns) clock_ns = time_ns;
}

void gs_lock(struct gs_gpu *gpu) {
  (void)gpu;
  CHECK(!locked);
  locked = true;
}

void gs_unlock(struct gs_gpu *gpu) {
  (void)gpu;
  CHECK(locked);
  locked = false;
}

void gs_reap_gpu_locked(struct gs_gpu *gpu) {
  (void)gpu;
}

struct gs_gpu *begin_engine(enum gs_sharing sharing) {
  size_t bytes = sizeof(struct gs_region) + GS_CUDA_SLOTS * GS_QUEUE_DEPTH * sizeof(struct gs_entry);
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(memory != MAP_FAILED);
  gs_self.region = memory;
  gs_self.slot = 0;
  gs_self.region->slot_high[GS_KIND_CUDA] = 8;
  struct gs_settings *settings = &gs_self.region->settings;
  settings->gpu_count = 1;
  settings->sharing = sharing;
  settings->timeslice_ns = 2 * MS;
  settings->sample_ns = 10 * MS;
  settings->copy_engines = 2;
  settings->dram_reach_permille = 1000;
  struct gs_gpu *gpu = &gs_self.region->gpus[0];
  gpu->card.dram_bytes_per_second = 1000000000000;
  gpu->card.pcie_bytes_per_second = 20000000000;
  gpu->card.compute_major = 8;
  gpu->live = (struct gs_live){.clock_permille = 1000,
                               .memory_clock_permille = 1000,
                               .dram_permille = 1000,
                               .rx_permille = 1000,
                               .tx_permille = 1000};
  clock_ns = 1000 * MS;
  /* Where times of events go is private to a process, by index of the entry: here they all are one. */
  for (uint32_t slot = 0; slot < 8; slot++)
    gpu->queues[slot].used = (uint16_t)(slot * ENTRIES_APART);
  return gpu;
}
