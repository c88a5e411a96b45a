/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * state.c - building the view once, and finding devices in it; contract in state.h.
 */
#include "state.h"

#include <errno.h>

#include "blocks.h"
#include "capture.h"
#include "clock.h"
#include "holds.h"
#include "core/sys.h"
#include "launches.h"
#include "limits.h"
#include "log.h"
#include "marks.h"
#include "modules.h"
#include "names.h"
#include "pages.h"
#include "pools.h"
#include "spin.h"
#include "table.h"
#include "text.h"

uint32_t vgpu_mode_word;
uint32_t *vgpu_fork_canary;
struct vgpu_device *vgpu_only_device;
const uint32_t *vgpu_only_compute_mode;

static struct vgpu_pages pages;
static struct vgpu_environment environment;
static struct vgpu_device devices[VGPU_MAX_DEVICES]; /* by CUDA ordinal */
static int device_total;                             /* atomic; what the driver said; 0: not asked yet */
static uint32_t filling;                             /* spin flag of filling a device */
static uint32_t owner_pid; /* atomic; who is building, or has built, the view and the private tables */

static enum vgpu_mode build(void) {
  char *const **variables = vgpu_find_symbol(VGPU_LIBRARY_ANY, "environ");
  vgpu_environment_read(&environment, variables ? *variables : NULL);
  vgpu_fork_canary = vgpu_pages_canary(&pages);
  int found = vgpu_pages_open(&pages);
  if (found != -ENOENT) return VGPU_MODE_LIMIT;
  if (environment.has_allocation) {
    vgpu_log("the pages of this allocation are not beside the library: nothing can be allocated");
    return VGPU_MODE_LIMIT;
  }
  if (!environment.limited) return VGPU_MODE_PASS;
  vgpu_pages_standalone(&pages, &environment);
  return VGPU_MODE_LIMIT;
}

__attribute__((noinline, cold)) enum vgpu_mode vgpu_mode_slow(void) {
  uint32_t self = (uint32_t)vgpu_sys_getpid();
  for (;;) {
    uint32_t mode = __atomic_load_n(&vgpu_mode_word, __ATOMIC_ACQUIRE);
    if (mode != VGPU_MODE_UNKNOWN) return mode;
    uint32_t owner = __atomic_load_n(&owner_pid, __ATOMIC_RELAXED);
    if (owner == self) {
      vgpu_sys_sched_yield();
    } else if (__atomic_compare_exchange_n(&owner_pid, &owner, self, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      break; /* nobody builds, or the thread that did was left behind in our parent */
    }
  }
  enum vgpu_mode mode = build();
  if (vgpu_fork_canary) __atomic_store_n(vgpu_fork_canary, 1, __ATOMIC_RELAXED);
  static const uint32_t none = VGPU_COMPUTE_NONE;
  if (mode == VGPU_MODE_PASS) __atomic_store_n(&vgpu_only_compute_mode, &none, __ATOMIC_RELEASE);
  __atomic_store_n(&vgpu_mode_word, mode, __ATOMIC_RELEASE);
  return mode;
}

/* The environment's share of the container's device `index`; the least of all when the index is unknown. */
static uint32_t share_of(int index) {
  if (index >= 0 && index < VGPU_MAX_DEVICES) return environment.share_ppm[index];
  uint32_t least = VGPU_PPM;
  for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
    if (environment.share_ppm[i] < least) least = environment.share_ppm[i];
  }
  return least;
}

/* A GPU that is in no book. */
static void bar(struct vgpu_device *device) {
  struct vgpu_book *book = vgpu_pages_barred(&pages);
  if (!book) return;
  device->pacers[0] = (struct vgpu_pacer){.credit_ns = 0};
  vgpu_rate_open(&device->pacers[0].rate, book, 0, VGPU_PPM);
  device->pacer_count = 1;
}

/* The environment's share lowers what this process may use, beside the pages. Where several books hold the device, each
 * may be used up to what those before it leave, and one that is left nothing is not used. */
static void open_pacers(struct vgpu_device *device) {
  bool is_in_page = pages.is_standalone && device->container_index >= 0; /* the page says it already */
  uint32_t left = is_in_page ? VGPU_PPM : share_of(device->container_index);
  device->pacer_count = 0;
  if (device->place_count == 0) bar(device);
  for (uint32_t i = 0; i < device->place_count && left > 0; i++) {
    const struct vgpu_place *place = &device->places[i];
    struct vgpu_pacer *pacer = &device->pacers[device->pacer_count++];
    uint32_t share = __atomic_load_n(&place->book->limits->devices[place->index].share_ppm, __ATOMIC_RELAXED);
    bool is_last = i + 1 == device->place_count || left == VGPU_PPM;
    uint32_t part = is_last || left < share ? left : share;
    *pacer = (struct vgpu_pacer){.credit_ns = 0};
    vgpu_rate_open(&pacer->rate, place->book, place->index, part);
    if (left < VGPU_PPM) left -= part;
  }
}

/* A forked child has bought and learnt nothing yet. */
static void forget_launches(void) {
  filling = 0; /* another thread of the parent may have been inside */
  vgpu_clock_forget();
  vgpu_marks_forget();
  vgpu_holds_forget();
  vgpu_capture_forget();
  vgpu_names_forget();
  vgpu_launches_forget();
  for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
    if (devices[i].ready) open_pacers(&devices[i]);
  }
}

bool vgpu_is_forked_slow(void) {
  return __atomic_load_n(&owner_pid, __ATOMIC_ACQUIRE) != (uint32_t)vgpu_sys_getpid();
}

/* Threads of the child that come here together: one claims the word and cleans, the others wait for it. The
 * word is the canary, or owner_pid where the kernel wipes no canary. */
__attribute__((noinline, cold)) void vgpu_after_fork(void) {
  uint32_t self = (uint32_t)vgpu_sys_getpid();
  uint32_t *word = vgpu_fork_canary ? vgpu_fork_canary : &owner_pid;
  uint32_t done = vgpu_fork_canary ? 1 : self, busy = done | 1u << 31;
  for (;;) {
    uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    if (seen == done) return;
    if (seen == busy) {
      vgpu_sys_sched_yield();
    } else if (__atomic_compare_exchange_n(word, &seen, busy, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
      break;
    }
  }
  vgpu_blocks_forget();
  vgpu_pools_forget();
  forget_launches();
  __atomic_store_n(&owner_pid, self, __ATOMIC_RELAXED);
  __atomic_store_n(word, done, __ATOMIC_RELEASE);
}

/* "GPU-8-4-4-4-12" as the driver's bytes; false for another form. */
static bool uuid_matches(const uint8_t *text, const uint8_t bytes[16]) {
  static const char digits[] = "0123456789abcdef";
  unsigned at = 4;
  if ((text[0] != 'G' && text[0] != 'M') || text[3] != '-') return false;
  for (unsigned i = 0; i < 16; i++) {
    if (i == 4 || i == 6 || i == 8 || i == 10) at += text[at] == '-';
    uint8_t high = text[at++] | 0x20, low = text[at++] | 0x20;
    if (high != (uint8_t)digits[bytes[i] >> 4] || low != (uint8_t)digits[bytes[i] & 15]) return false;
  }
  return text[at] == 0;
}

static bool uuid_equal(const uint8_t *text, const char *other) {
  for (unsigned i = 0; i < VGPU_UUID_BYTES; i++) {
    if (text[i] != (uint8_t)other[i]) return false;
    if (!text[i]) return true;
  }
  return false;
}

/* The environment's limit for the container's device `index`; the smallest of all when the index is unknown. */
static uint64_t ceiling_of(int index) {
  if (index >= 0 && index < VGPU_MAX_DEVICES) return environment.limit_bytes[index];
  uint64_t smallest = VGPU_NO_LIMIT;
  for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
    if (environment.limit_bytes[i] < smallest) smallest = environment.limit_bytes[i];
  }
  return smallest;
}

/* Fills places from `bytes`, or `uuid` when that is NULL. */
static void fill_device(struct vgpu_device *device, const uint8_t *bytes, const char *uuid, int container_index) {
  device->place_count = 0;
  device->container_index = container_index;
  bool is_in_page = pages.is_standalone && container_index >= 0; /* the page says it already */
  device->ceiling_bytes = is_in_page ? VGPU_NO_LIMIT : ceiling_of(container_index);
  device->pitch_alignment = VGPU_DEFAULT_PITCH_ALIGNMENT;
  device->pool_chunk_bytes = VGPU_POOL_CHUNK_BYTES;
  for (uint32_t i = 0; i < pages.count; i++) {
    struct vgpu_book *book = &pages.books[i];
    for (uint32_t j = 0; j < book->device_count && device->place_count < VGPU_MAX_PLACES; j++) {
      const uint8_t *text = book->limits->devices[j].uuid;
      bool is_it = pages.is_standalone ? (int)j == (container_index >= 0 ? container_index : device->ordinal)
                                       : (bytes ? uuid_matches(text, bytes) : uuid_equal(text, uuid));
      if (is_it) device->places[device->place_count++] = (struct vgpu_place){book, j};
    }
  }
  const struct vgpu_place *first = &device->places[0];
  device->traffic = device->place_count > 0 ? vgpu_traffic_of(first->book, first->index) : NULL;
}

void vgpu_device_find(struct vgpu_device *device, const char *uuid, int container_index) {
  device->ordinal = container_index;
  fill_device(device, NULL, uuid, container_index);
}

/* Puts the environment's limit into the books, so that they themselves decide between racers. Where several books
 * hold the device, each may be filled up to what those before it leave. */
static void lower_books(const struct vgpu_device *device) {
  uint64_t left = device->ceiling_bytes;
  for (uint32_t i = 0; i < device->place_count && device->ceiling_bytes < VGPU_BYTES_MAX; i++) {
    const struct vgpu_place *place = &device->places[i];
    uint64_t limit = vgpu_limit_bytes(place->book, place->index);
    bool is_last = i + 1 == device->place_count;
    uint64_t part = is_last || left < limit ? left : limit;
    place->book->ceiling_bytes[place->index] = part;
    left -= part;
  }
}

static struct vgpu_device *prepare(struct vgpu_device *device, CUdevice ordinal, CUresult *why) {
  CUuuid uuid = {{0}};
  __typeof__(&cuDeviceGetUuid) get = VGPU_REAL(cuDeviceGetUuid_v2);
  if (!get) get = VGPU_REAL(cuDeviceGetUuid);
  *why = get ? get(&uuid, ordinal) : CUDA_ERROR_NOT_INITIALIZED;
  if (*why != CUDA_SUCCESS) return NULL;
  int alignment = 0;
  __typeof__(&cuDeviceGetAttribute) ask = VGPU_REAL(cuDeviceGetAttribute);
  if (ask) ask(&alignment, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, ordinal); /* pitches are multiples of it */
  vgpu_spin_lock(&filling);
  if (!device->ready) {
    device->ordinal = ordinal;
    fill_device(device, uuid.bytes, NULL, vgpu_container_index(environment.visible_devices, ordinal));
    if (alignment > VGPU_DEFAULT_PITCH_ALIGNMENT) device->pitch_alignment = (uint64_t)alignment;
    lower_books(device);
    open_pacers(device);
    if (device->place_count == 0) vgpu_log("GPU %d is not part of this allocation: nothing can be allocated", ordinal);
    __atomic_store_n(&device->ready, 1, __ATOMIC_RELEASE);
  }
  vgpu_spin_unlock(&filling);
  return device;
}

/* More devices than pages can hold: no place, limit 0. */
static struct vgpu_device *device_beyond(void) {
  static struct vgpu_device beyond;
  vgpu_spin_lock(&filling);
  if (beyond.pacer_count == 0) bar(&beyond);
  vgpu_spin_unlock(&filling);
  return &beyond;
}

struct vgpu_device *vgpu_device_at(CUdevice ordinal, CUresult *why) {
  if (ordinal < 0 || ordinal >= VGPU_MAX_DEVICES) return device_beyond();
  struct vgpu_device *device = &devices[ordinal];
  return __atomic_load_n(&device->ready, __ATOMIC_ACQUIRE) ? device : prepare(device, ordinal, why);
}

bool vgpu_has_one_device(void) {
  int total = __atomic_load_n(&device_total, __ATOMIC_RELAXED);
  if (total == 0) {
    __typeof__(&cuDeviceGetCount) count = VGPU_REAL(cuDeviceGetCount);
    if (!count || count(&total) != CUDA_SUCCESS) return false;
    __atomic_store_n(&device_total, total, __ATOMIC_RELAXED);
  }
  return total == 1;
}

/* There is no other device to be asked about from now on. */
static void note_only(struct vgpu_device *device) {
  const struct vgpu_place *place = &device->places[0];
  bool decides = device->pacer_count == 1 && device->place_count == 1 && device->pacers[0].rate.ceiling_ppm == VGPU_PPM;
  const uint32_t *mode = decides ? &place->book->limits->devices[place->index].compute_mode : NULL;
  __atomic_store_n(&vgpu_only_compute_mode, mode, __ATOMIC_RELEASE);
  __atomic_store_n(&vgpu_only_device, device, __ATOMIC_RELEASE);
}

__attribute__((noinline)) struct vgpu_device *vgpu_device_current_slow(CUresult *why) {
  CUdevice ordinal = 0;
  bool is_only = vgpu_has_one_device();
  if (!is_only) {
    __typeof__(&cuCtxGetDevice) get = VGPU_REAL(cuCtxGetDevice);
    *why = get ? get(&ordinal) : CUDA_ERROR_NOT_INITIALIZED;
    if (*why != CUDA_SUCCESS) return NULL;
  }
  struct vgpu_device *device = vgpu_device_at(ordinal, why);
  if (is_only && device) note_only(device);
  return device;
}

struct vgpu_book *vgpu_book_at(uint8_t number) {
  return &pages.books[number];
}

uint8_t vgpu_book_number(const struct vgpu_book *book) {
  return (uint8_t)(book - pages.books);
}

bool vgpu_register_process(void) {
  bool is_registered = pages.count == 0;
  for (uint32_t i = 0; i < pages.count; i++) {
    is_registered |= vgpu_register(&pages.books[i]) == 0;
  }
  return is_registered;
}

struct vgpu_view vgpu_device_view(const struct vgpu_device *device) {
  uint64_t limit_sum = 0, used_sum = 0;
  for (uint32_t i = 0; i < device->place_count; i++) {
    const struct vgpu_place *place = &device->places[i];
    uint64_t limit = vgpu_limit_bytes(place->book, place->index);
    uint64_t used = vgpu_used_bytes(place->book, place->index);
    if (__builtin_add_overflow(limit_sum, limit, &limit_sum)) limit_sum = VGPU_NO_LIMIT;
    if (__builtin_add_overflow(used_sum, used, &used_sum)) used_sum = UINT64_MAX;
  }
  uint64_t ceiling = device->ceiling_bytes;
  return (struct vgpu_view){.limit_bytes = ceiling < limit_sum ? ceiling : limit_sum, .used_bytes = used_sum};
}

int vgpu_device_reserve(const struct vgpu_device *device, enum vgpu_kind kind, uint64_t bytes,
                        struct vgpu_place *place) {
  int result = -ENOMEM;
  for (uint32_t i = 0; i < device->place_count && result != 0; i++) {
    *place = device->places[i];
    result = vgpu_reserve(place->book, place->index, kind, bytes);
  }
  if (result != 0) place->book = NULL;
  return result;
}

void vgpu_device_count_refusal(const struct vgpu_device *device) {
  if (device->place_count > 0) vgpu_count_refusal(device->places[0].book, device->places[0].index);
}
