/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * books.c - the GPU lock, who holds how much memory of a card, and what happens to the books of the dead.
 *
 * The lock word holds the owner's slot (11 bits, plus one) and the low 20 bits of the slot's generation, and
 * a waiter flag. A waiter that slept too long looks whether the owner still lives; if not it takes the word
 * over and adds the books up anew. No step of an update is trusted: the sum of held_bytes is the truth.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"
#include "region.h"

enum { SPINS = 60, LOOK_AFTER_NS = 5000000 };
static const uint32_t waiter_flag = 0x80000000u;

static void pause_cpu(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static bool holder_dead(uint32_t word) {
  uint32_t slot = (word & 0x7ffu) - 1;
  uint32_t generation = word >> 11 & 0xfffffu;
  if (slot >= GS_SLOTS) return true;
  struct gs_client *client = &gs_self.region->clients[slot];
  if ((__atomic_load_n(&client->generation, __ATOMIC_ACQUIRE) & 0xfffffu) != generation) return true;
  return !gs_slot_alive(slot);
}

/* After the holder died in the middle of an update. */
static void repair_books(struct gs_gpu *gpu) {
  uint64_t used = 0;
  for (uint32_t slot = 0; slot < GS_CUDA_SLOTS; slot++)
    used += gpu->held_bytes[slot];
  gpu->used_bytes = used;
  gs_engine_repair(gpu);
}

static void lock_slowly(struct gs_gpu *gpu) {
  const struct timespec patience = {.tv_nsec = LOOK_AFTER_NS};
  uint32_t mine = gs_self.lock_id;
  for (int i = 0; i < SPINS; i++) {
    uint32_t none = 0;
    if (__atomic_compare_exchange_n(&gpu->lock, &none, mine, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
    pause_cpu();
  }
  for (;;) {
    uint32_t word = __atomic_load_n(&gpu->lock, __ATOMIC_RELAXED);
    if (word == 0) {
      if (__atomic_compare_exchange_n(&gpu->lock, &word, mine | waiter_flag, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
      continue;
    }
    if (!(word & waiter_flag) &&
        !__atomic_compare_exchange_n(&gpu->lock, &word, word | waiter_flag, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      continue;
    word |= waiter_flag;
    long slept = syscall(SYS_futex, &gpu->lock, FUTEX_WAIT, word, &patience, NULL, 0);
    if (slept == 0 || errno != ETIMEDOUT || !holder_dead(word & ~waiter_flag)) continue;
    if (__atomic_compare_exchange_n(&gpu->lock, &word, mine | waiter_flag, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      repair_books(gpu);
      return;
    }
  }
}

void gs_lock(struct gs_gpu *gpu) {
  uint32_t none = 0;
  if (__atomic_compare_exchange_n(&gpu->lock, &none, gs_self.lock_id, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    return;
  int saved = errno; /* a call that had to wait and succeeded leaves the program's errno alone */
  lock_slowly(gpu);
  errno = saved;
}

void gs_unlock(struct gs_gpu *gpu) {
  uint32_t word = __atomic_exchange_n(&gpu->lock, 0, __ATOMIC_RELEASE);
  if (word & waiter_flag) syscall(SYS_futex, &gpu->lock, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void gs_reap_gpu_locked(struct gs_gpu *gpu) {
  uint32_t slots = __atomic_load_n(&gs_self.region->slot_high[GS_KIND_CUDA], __ATOMIC_SEQ_CST);
  for (uint32_t slot = 0; slot < slots; slot++) {
    if (slot == gs_self.slot) continue;
    if (gpu->held_bytes[slot] == 0 && !gs_engine_busy(gpu, slot)) continue;
    if (gs_slot_alive(slot)) continue;
    gpu->used_bytes -= gpu->held_bytes[slot];
    gpu->held_bytes[slot] = 0;
    gs_engine_drop(gpu, slot);
  }
}

int gs_memory_take(struct gs_gpu *gpu, uint64_t bytes) {
  uint64_t capacity = gpu->card.memory_bytes - gpu->card.reserved_bytes;
  uint64_t *held = &gpu->held_bytes[gs_self.slot];
  gs_lock(gpu);
  if (bytes > capacity - gpu->used_bytes) gs_reap_gpu_locked(gpu);
  if (bytes > capacity - gpu->used_bytes) {
    gs_unlock(gpu);
    return -ENOMEM;
  }
  *held += bytes;
  gpu->used_bytes += bytes;
  if (gpu->used_bytes > gpu->high_water_bytes) {
    if (gpu->used_bytes != *held) gs_reap_gpu_locked(gpu); /* never let the dead raise the mark */
    if (gpu->used_bytes > gpu->high_water_bytes) gpu->high_water_bytes = gpu->used_bytes;
  }
  gs_unlock(gpu);
  return 0;
}

void gs_memory_give(struct gs_gpu *gpu, uint64_t bytes) {
  gs_lock(gpu);
  gpu->held_bytes[gs_self.slot] -= bytes;
  gpu->used_bytes -= bytes;
  gs_unlock(gpu);
}

uint64_t gs_memory_used(struct gs_gpu *gpu) {
  uint64_t used = __atomic_load_n(&gpu->used_bytes, __ATOMIC_RELAXED);
  if (used == __atomic_load_n(&gpu->held_bytes[gs_self.slot], __ATOMIC_RELAXED)) return used;
  gs_lock(gpu);
  gs_reap_gpu_locked(gpu);
  used = gpu->used_bytes;
  gs_unlock(gpu);
  return used;
}
