/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * region.c - opens or creates the shared region, gives this process its slot, tells who is alive and takes
 * back what the dead left. The rules are in region.h.
 */
#define _GNU_SOURCE
#include "region.h"

#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Bytes of the region file that are only ever locked, never read: far behind its end. */
enum { LOCK_BASE_SHIFT = 40 };
static const off_t LOCK_BASE = (off_t)1 << LOCK_BASE_SHIFT;
static const off_t LOCK_CREATE = ((off_t)1 << LOCK_BASE_SHIFT) - 1;
static const off_t LOCK_CLAIM = ((off_t)1 << LOCK_BASE_SHIFT) - 8; /* one byte per kind */

/* Of one card; behind struct gs_region, see engine_queue.c. */
enum { RINGS_BYTES = GS_CUDA_SLOTS * GS_QUEUE_DEPTH * sizeof(struct gs_entry) };

static uint64_t detached_calls[GS_MAX_FUNCTIONS];
struct gs_self gs_self = {.calls = detached_calls, .fd = -1};
static pthread_mutex_t attach_mutex = PTHREAD_MUTEX_INITIALIZER;

uint64_t gs_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void gs_sleep_until(uint64_t time_ns) {
  const struct timespec at = {.tv_sec = (time_t)(time_ns / 1000000000u), .tv_nsec = (long)(time_ns % 1000000000u)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

const char *gs_directory(void) {
  const char *directory = getenv("GPUSIM_DIR");
  return directory && *directory ? directory : "/run/gpusim";
}

/* One record lock operation on one byte; retries when a signal interrupts the wait. */
static int byte_lock(int fd, int command, short type, off_t at) {
  struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
  int result;
  do {
    result = fcntl(fd, command, &range);
  } while (result < 0 && errno == EINTR);
  return result < 0 ? -errno : 0;
}

/* A number that differs between program images, also when one replaces the other in the same process. */
static uint64_t own_image(void) {
  uint64_t image = 0;
  const void *random_bytes = (const void *)getauxval(AT_RANDOM);
  if (random_bytes) memcpy(&image, random_bytes, sizeof image);
  return image;
}

bool gs_slot_alive(uint32_t slot) {
  if (gs_self.client && slot == gs_self.slot) return true;
  struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_BASE + slot, .l_len = 1};
  if (fcntl(gs_self.fd, F_GETLK, &range) < 0) return true; /* cannot tell: keep its memory */
  if (range.l_type != F_UNLCK) return true;
  /* A process' own locks are never reported: the slot may belong to another copy of these libraries here. */
  return gs_self.region->clients[slot].pid == getpid() && gs_self.region->clients[slot].image == own_image();
}

int gs_slot_pid(uint32_t slot) {
  if (gs_self.client && slot == gs_self.slot) return getpid();
  struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_BASE + slot, .l_len = 1};
  if (fcntl(gs_self.fd, F_GETLK, &range) < 0) return 0;
  if (range.l_type != F_UNLCK) return range.l_pid > 0 ? range.l_pid : 0;
  return gs_slot_alive(slot) ? getpid() : 0;
}

static int fill_region(int fd) {
  char path[4096];
  if (snprintf(path, sizeof path, "%s/config", gs_directory()) >= (int)sizeof path) return -ENAMETOOLONG;
  if (ftruncate(fd, 0) < 0 || ftruncate(fd, (off_t)sizeof(struct gs_region)) < 0) return -errno;
  (void)fchmod(fd, 0666); /* whatever the umask: clients run under many users */
  struct gs_region *region = mmap(NULL, sizeof(struct gs_region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (region == MAP_FAILED) return -errno;
  int result = gs_config_load(region, path);
  uint64_t bytes = sizeof(struct gs_region) + region->settings.gpu_count * (uint64_t)RINGS_BYTES;
  if (result == 0 && ftruncate(fd, (off_t)bytes) < 0) result = -errno;
  if (result == 0) {
    region->layout_version = GS_LAYOUT_VERSION;
    region->region_bytes = bytes;
    region->created_ns = gs_now_ns();
    __atomic_store_n(&region->magic, GS_MAGIC, __ATOMIC_RELEASE);
  }
  munmap(region, sizeof(struct gs_region));
  return result;
}

/* Opens the region file and makes sure that it is filled. The descriptor stays open for good, see region.h. */
static int open_region(void) {
  char path[4096];
  if (gs_self.fd >= 0) return 0;
  if (snprintf(path, sizeof path, "%s/region", gs_directory()) >= (int)sizeof path) return -ENAMETOOLONG;
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return -errno;
  gs_self.fd = fd;
  return 0;
}

static int map_region(void) {
  int result = open_region();
  if (result < 0) return result;
  result = byte_lock(gs_self.fd, F_SETLKW, F_WRLCK, LOCK_CREATE);
  if (result < 0) return result;
  uint64_t magic = 0;
  struct stat status;
  if (fstat(gs_self.fd, &status) < 0) {
    result = -errno;
  } else if (pread(gs_self.fd, &magic, sizeof magic, 0) < (ssize_t)sizeof magic || magic == 0) {
    result = fill_region(gs_self.fd);
  } else if (magic != GS_MAGIC || status.st_size < (off_t)sizeof(struct gs_region)) {
    result = -EPROTO;
  }
  if (result == 0 && fstat(gs_self.fd, &status) < 0) result = -errno;
  (void)byte_lock(gs_self.fd, F_SETLK, F_UNLCK, LOCK_CREATE);
  if (result < 0) return result;
  size_t bytes = (size_t)status.st_size;
  struct gs_region *region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, gs_self.fd, 0);
  if (region == MAP_FAILED) return -errno;
  uint64_t wanted = sizeof(struct gs_region) + region->settings.gpu_count * (uint64_t)RINGS_BYTES;
  if (region->layout_version != GS_LAYOUT_VERSION || region->region_bytes != bytes || bytes != wanted) {
    munmap(region, bytes);
    return -EPROTO;
  }
  gs_self.region = region;
  return 0;
}

/* Makes this process the owner of a slot whose byte it has locked and which is FREE. */
static void take_slot(uint32_t slot) {
  struct gs_client *client = &gs_self.region->clients[slot];
  __atomic_fetch_add(&client->generation, 1, __ATOMIC_RELEASE);
  client->pid = getpid();
  client->image = own_image();
  gs_self.slot = slot;
  gs_self.lock_id = (slot + 1) | (client->generation & 0xfffffu) << 11;
  gs_self.client = client;
  __atomic_store_n(&client->state, GS_SLOT_READY, __ATOMIC_RELEASE);
}

/* Finds a FREE slot of the kind. The caller holds the kind's claim lock. */
static int claim_slot(enum gs_slot_kind kind) {
  uint32_t base = kind == GS_KIND_CUDA ? 0 : GS_CUDA_SLOTS;
  uint32_t count = kind == GS_KIND_CUDA ? GS_CUDA_SLOTS : GS_WATCH_SLOTS;
  for (uint32_t i = 0; i < count; i++) {
    struct gs_client *client = &gs_self.region->clients[base + i];
    if (__atomic_load_n(&client->state, __ATOMIC_ACQUIRE) != GS_SLOT_FREE) continue;
    if (byte_lock(gs_self.fd, F_SETLK, F_WRLCK, LOCK_BASE + base + i) < 0) continue;
    if (__atomic_load_n(&gs_self.region->slot_high[kind], __ATOMIC_RELAXED) < i + 1)
      __atomic_store_n(&gs_self.region->slot_high[kind], i + 1, __ATOMIC_SEQ_CST);
    take_slot(base + i);
    return 0;
  }
  return -EUSERS;
}

/* Takes back what a dead client held and counted, then lets its slot be used again. */
static void free_dead_slot(uint32_t slot) {
  struct gs_region *region = gs_self.region;
  struct gs_client *client = &region->clients[slot];
  for (uint32_t i = 0; i < region->settings.gpu_count && slot < GS_CUDA_SLOTS; i++) {
    gs_lock(&region->gpus[i]);
    gs_reap_gpu_locked(&region->gpus[i]);
    gs_unlock(&region->gpus[i]);
    __atomic_store_n(&region->gpus[i].contexts[slot], 0, __ATOMIC_RELAXED);
  }
  for (int i = 0; i < GS_MAX_FUNCTIONS; i++) {
    uint64_t count = __atomic_exchange_n(&client->calls[i], 0, __ATOMIC_RELAXED);
    if (count) __atomic_fetch_add(&region->past_calls[i], count, __ATOMIC_RELAXED);
  }
  __atomic_store_n(&client->state, GS_SLOT_FREE, __ATOMIC_RELEASE);
}

/* Frees the slots of the kind's dead. The caller holds the kind's claim lock and a slot. */
static void sweep(enum gs_slot_kind kind) {
  struct gs_region *region = gs_self.region;
  uint32_t base = kind == GS_KIND_CUDA ? 0 : GS_CUDA_SLOTS;
  uint32_t end = base + __atomic_load_n(&region->slot_high[kind], __ATOMIC_SEQ_CST);
  for (uint32_t slot = base; slot < end; slot++) {
    if (__atomic_load_n(&region->clients[slot].state, __ATOMIC_ACQUIRE) != GS_SLOT_READY) continue;
    if (!gs_slot_alive(slot)) free_dead_slot(slot);
  }
}

/* When every slot is taken: becomes the janitor for a moment, so as to have an identity to lock with. */
static void sweep_as_janitor(enum gs_slot_kind kind) {
  uint32_t slot = GS_JANITOR_SLOT + (uint32_t)kind;
  if (byte_lock(gs_self.fd, F_SETLKW, F_WRLCK, LOCK_BASE + slot) < 0) return;
  take_slot(slot);
  sweep(kind);
  __atomic_store_n(&gs_self.region->clients[slot].state, GS_SLOT_FREE, __ATOMIC_RELEASE);
  gs_self.client = NULL;
  (void)byte_lock(gs_self.fd, F_SETLK, F_UNLCK, LOCK_BASE + slot);
}

static int claim(enum gs_slot_kind kind) {
  int result = byte_lock(gs_self.fd, F_SETLKW, F_WRLCK, LOCK_CLAIM + (off_t)kind);
  if (result < 0) return result;
  result = claim_slot(kind);
  if (result == -EUSERS) {
    sweep_as_janitor(kind);
    result = claim_slot(kind);
  }
  if (result == 0) sweep(kind);
  (void)byte_lock(gs_self.fd, F_SETLK, F_UNLCK, LOCK_CLAIM + (off_t)kind);
  return result;
}

static void lock_before_fork(void) {
  pthread_mutex_lock(&attach_mutex);
}

static void unlock_after_fork(void) {
  pthread_mutex_unlock(&attach_mutex);
}

/* Record locks are not inherited: the child is nobody until it attaches. */
static void detach_child(void) {
  gs_self.client = NULL;
  gs_self.calls = detached_calls;
  pthread_mutex_unlock(&attach_mutex);
}

int gs_attach(enum gs_slot_kind kind) {
  static bool fork_handled;
  int result = 0;
  if (__atomic_load_n(&gs_self.client, __ATOMIC_ACQUIRE)) return 0;
  pthread_mutex_lock(&attach_mutex);
  if (!gs_self.client) {
    if (!gs_self.region) result = map_region();
    if (result == 0) result = claim(kind);
    if (result == 0) {
      gs_self.calls = gs_self.client->calls;
      if (!fork_handled) pthread_atfork(lock_before_fork, unlock_after_fork, detach_child);
      fork_handled = true;
    }
  }
  pthread_mutex_unlock(&attach_mutex);
  return result;
}
