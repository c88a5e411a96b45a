/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * page.c - making, checking and reading the two pages; contract in page.h. vgpu_book_open, vgpu_register
 * and vgpu_usage_init are in quota.h.
 */
#include "page.h"

#include <errno.h>

#include "line.h"
#include "slot.h"

enum { READ_TRIES = 1000 };

/* Counters above this are not believed: a billion calls a second for half a century. */
#define COUNT_MAX ((uint64_t)1 << 60)

static void copy_text(uint8_t *to, size_t to_bytes, const uint8_t *from, size_t from_bytes) {
  for (size_t i = 0; i < to_bytes; i++) {
    vgpu_store_release(&to[i], i < from_bytes && i < to_bytes - 1 ? from[i] : (uint8_t)0);
  }
}

int vgpu_limits_init(struct vgpu_limits_page *page, const uint8_t *key, size_t key_bytes, uint32_t device_count) {
  if (device_count == 0 || device_count > VGPU_MAX_DEVICES) {
    return -EINVAL;
  }
  page->abi_version = VGPU_ABI_VERSION;
  page->page_bytes = VGPU_LIMITS_PAGE_BYTES;
  page->device_count = device_count;
  page->epoch = 1;
  copy_text(page->allocation_key, VGPU_KEY_BYTES, key, key_bytes);
  vgpu_store(&page->magic, VGPU_LIMITS_MAGIC);
  return 0;
}

/* Opens the group: readers that see the odd generation try again. Takes over from a writer that died. */
static uint32_t begin_write(struct vgpu_limits_device *device) {
  uint32_t generation = vgpu_load(&device->generation) | 1;
  vgpu_store(&device->generation, generation);
  return generation;
}

int vgpu_limits_write(struct vgpu_limits_page *page, uint32_t device, const uint8_t *uuid, size_t uuid_bytes,
                      uint32_t slice_count, uint64_t memory_limit_bytes) {
  if (device >= VGPU_MAX_DEVICES || device >= page->device_count) {
    return -EINVAL;
  }
  struct vgpu_limits_device *entry = &page->devices[device];
  uint32_t generation = begin_write(entry);
  copy_text(entry->uuid, VGPU_UUID_BYTES, uuid, uuid_bytes);
  vgpu_store(&entry->slice_count, slice_count);
  vgpu_store(&entry->memory_limit_bytes, memory_limit_bytes);
  vgpu_store(&entry->generation, generation + 1);
  return 0;
}

int vgpu_limits_set_memory(struct vgpu_limits_page *page, uint32_t device, uint64_t memory_limit_bytes) {
  if (device >= VGPU_MAX_DEVICES || device >= page->device_count) {
    return -EINVAL;
  }
  struct vgpu_limits_device *entry = &page->devices[device];
  uint32_t generation = begin_write(entry);
  vgpu_store(&entry->memory_limit_bytes, memory_limit_bytes);
  vgpu_store(&entry->generation, generation + 1);
  return 0;
}

int vgpu_limits_set_compute(struct vgpu_limits_page *page, uint32_t device, const struct vgpu_compute *compute,
                            uint64_t now_ns) {
  if (device >= VGPU_MAX_DEVICES || device >= page->device_count) {
    return -EINVAL;
  }
  struct vgpu_limits_device *entry = &page->devices[device];
  struct vgpu_line line;
  vgpu_line_read(entry, &line);
  uint32_t generation = begin_write(entry);
  vgpu_store(&entry->share_ppm, compute->share_ppm);
  vgpu_store(&entry->ceiling_ppm, compute->ceiling_ppm);
  vgpu_store(&entry->compute_mode, compute->mode);
  vgpu_store(&entry->generation, generation + 1);
  if (vgpu_load(&entry->rates[line.generation & 1].rate_ppm) == 0) {
    line.since_ns = now_ns; /* the first one */
  }
  vgpu_line_continue(&line, now_ns);
  line.rate_ppm = vgpu_share_bounded(compute->share_ppm);
  line.flags = 0;
  vgpu_line_publish(entry, &line);
  return 0;
}

void vgpu_limits_beat(struct vgpu_limits_page *page) {
  uint32_t beat = vgpu_load(&page->heartbeat) + 1;
  vgpu_store(&page->heartbeat, beat != 0 ? beat : 1);
}

uint32_t vgpu_limits_raise_epoch(struct vgpu_limits_page *page) {
  uint32_t epoch = vgpu_add(&page->epoch, 1);
  vgpu_store(&page->frozen, 0u);
  return epoch;
}

void vgpu_limits_freeze(struct vgpu_limits_page *page, uint32_t why) {
  vgpu_store(&page->frozen, why);
}

int vgpu_limits_check(const void *memory, size_t bytes) {
  const struct vgpu_limits_page *page = memory;
  if (bytes != VGPU_LIMITS_PAGE_BYTES) {
    return -EINVAL;
  }
  if (vgpu_load(&page->magic) != VGPU_LIMITS_MAGIC) {
    return -EPROTO;
  }
  if (page->abi_version < VGPU_ABI_NO_COMPUTE || page->abi_version > VGPU_ABI_VERSION) {
    return -ENOTSUP;
  }
  bool sane =
      page->page_bytes == VGPU_LIMITS_PAGE_BYTES && page->device_count >= 1 && page->device_count <= VGPU_MAX_DEVICES;
  return sane ? 0 : -EPROTO;
}

static struct vgpu_compute read_compute(const struct vgpu_limits_device *entry) {
  struct vgpu_compute compute = {.mode = vgpu_load(&entry->compute_mode)};
  if (compute.mode == VGPU_COMPUTE_NONE) {
    return compute;
  }
  compute.mode = compute.mode == VGPU_COMPUTE_ELASTIC ? VGPU_COMPUTE_ELASTIC : VGPU_COMPUTE_HARD;
  compute.share_ppm = vgpu_share_bounded(vgpu_load(&entry->share_ppm));
  compute.ceiling_ppm = vgpu_share_bounded(vgpu_load(&entry->ceiling_ppm));
  if (compute.mode == VGPU_COMPUTE_HARD || compute.ceiling_ppm < compute.share_ppm) {
    compute.ceiling_ppm = compute.share_ppm;
  }
  return compute;
}

int vgpu_limits_read(const struct vgpu_limits_page *page, uint32_t device, struct vgpu_limits_view *view) {
  if (device >= VGPU_MAX_DEVICES || device >= page->device_count) {
    return -EINVAL;
  }
  const struct vgpu_limits_device *entry = &page->devices[device];
  for (int tries = 0; tries < READ_TRIES; tries++) {
    uint32_t generation = vgpu_load(&entry->generation);
    for (int i = 0; i < VGPU_UUID_BYTES; i++) {
      view->uuid[i] = vgpu_load(&entry->uuid[i]);
    }
    view->uuid[VGPU_UUID_BYTES - 1] = 0;
    view->slice_count = vgpu_load(&entry->slice_count);
    view->memory_limit_bytes = vgpu_load(&entry->memory_limit_bytes);
    view->compute = read_compute(entry);
    if (generation % 2 == 0 && vgpu_load(&entry->generation) == generation) {
      return 0;
    }
  }
  return -EAGAIN;
}

void vgpu_usage_init(void *usage, uint32_t device_count) {
  vgpu_usage_repair(usage, device_count, VGPU_ABI_VERSION);
}

int vgpu_usage_check(const void *memory, size_t bytes, uint32_t device_count, uint32_t version) {
  const struct vgpu_usage_page *page = memory;
  if (version < VGPU_ABI_NO_TRAFFIC || version > VGPU_ABI_VERSION) {
    return -ENOTSUP;
  }
  if (device_count == 0 || device_count > VGPU_MAX_DEVICES || bytes != vgpu_usage_page_bytes(device_count, version)) {
    return -EINVAL;
  }
  if (vgpu_load(&page->magic) != VGPU_USAGE_MAGIC) {
    return -EPROTO;
  }
  if (vgpu_load_relaxed(&page->abi_version) != version) {
    return -ENOTSUP;
  }
  bool sane = vgpu_load_relaxed(&page->page_bytes) == bytes && vgpu_load_relaxed(&page->device_count) == device_count &&
              vgpu_load_relaxed(&page->slot_count) == VGPU_SLOT_COUNT &&
              vgpu_load_relaxed(&page->slot_high_water) <= VGPU_SLOT_COUNT;
  return sane ? 0 : -EPROTO;
}

static const struct vgpu_usage_slot *slot_of(const struct vgpu_usage_page *page, uint32_t index) {
  return (const struct vgpu_usage_slot *)((const char *)page + vgpu_usage_slot_offset(page->device_count, index));
}

void vgpu_usage_repair(void *memory, uint32_t device_count, uint32_t version) {
  struct vgpu_usage_page *page = memory;
  vgpu_store_relaxed(&page->abi_version, version);
  vgpu_store_relaxed(&page->page_bytes, (uint32_t)vgpu_usage_page_bytes(device_count, version));
  vgpu_store_relaxed(&page->device_count, device_count);
  vgpu_store_relaxed(&page->slot_count, (uint32_t)VGPU_SLOT_COUNT);
  uint32_t taken = 0;
  for (uint32_t i = 0; i < VGPU_SLOT_COUNT; i++) {
    taken = vgpu_load(&slot_of(page, i)->owner) != 0 ? i + 1 : taken;
  }
  uint32_t high_water = vgpu_load(&page->slot_high_water);
  if (high_water < taken || high_water > VGPU_SLOT_COUNT) {
    vgpu_store(&page->slot_high_water, (uint32_t)VGPU_SLOT_COUNT);
  }
  vgpu_store(&page->magic, VGPU_USAGE_MAGIC);
}

int vgpu_usage_read_process(const struct vgpu_usage_page *page, uint32_t index, uint32_t epoch,
                            struct vgpu_usage_process *process) {
  const struct vgpu_usage_slot *slot = slot_of(page, index);
  if (vgpu_slot_is_damaged((struct vgpu_usage_slot *)slot, page->device_count)) {
    return -EBADMSG;
  }
  if (slot->owner == 0 || slot->ready != slot->owner || (int32_t)(slot->epoch - epoch) < 0) {
    return 0;
  }
  if (index >= page->slot_high_water) {
    return -EBADMSG; /* it is raised before the slot is ready */
  }
  process->start_time = slot->start_time;
  process->pid_namespace = slot->pid_namespace;
  process->pid = (uint32_t)(slot->owner & VGPU_PID_MASK);
  process->index = index;
  return process->pid != 0 ? 1 : -EBADMSG;
}

int vgpu_usage_read_slot(const struct vgpu_usage_page *page, uint32_t index, uint32_t device,
                         struct vgpu_usage_view *view) {
  const struct vgpu_usage_slot_device *books = (const struct vgpu_usage_slot_device *)(slot_of(page, index) + 1);
  books += device;
  view->used_bytes = 0;
  for (int kind = 0; kind < VGPU_KIND_COUNT; kind++) {
    view->charged_bytes[kind] = books->charged_bytes[kind];
    if (books->charged_bytes[kind] > VGPU_BYTES_MAX) {
      return -EBADMSG;
    }
    view->used_bytes += books->charged_bytes[kind];
  }
  view->allocations = books->allocations;
  view->frees = books->frees;
  view->refusals = books->refusals;
  bool counts = view->allocations <= COUNT_MAX && view->frees <= COUNT_MAX && view->refusals <= COUNT_MAX;
  return counts && view->used_bytes <= VGPU_BYTES_MAX ? 0 : -EBADMSG;
}

/* Adds one slot to the device's sums. */
static int add_slot(const struct vgpu_usage_page *page, uint32_t index, uint32_t device, uint32_t epoch,
                    struct vgpu_usage_view *sums) {
  const struct vgpu_usage_slot *slot = slot_of(page, index);
  struct vgpu_usage_view view;
  if (slot->owner == 0 || slot->ready != slot->owner) {
    return 0;
  }
  int result = vgpu_usage_read_slot(page, index, device, &view);
  if (result != 0) {
    return result;
  }
  if ((int32_t)(slot->epoch - epoch) >= 0) {
    for (int kind = 0; kind < VGPU_KIND_COUNT; kind++) {
      sums->charged_bytes[kind] += view.charged_bytes[kind];
    }
    sums->used_bytes += view.used_bytes;
  }
  if (slot->folded != slot->owner) {
    sums->allocations += view.allocations;
    sums->frees += view.frees;
    sums->refusals += view.refusals;
  }
  bool counts = sums->allocations <= COUNT_MAX && sums->frees <= COUNT_MAX && sums->refusals <= COUNT_MAX;
  return counts && sums->used_bytes <= VGPU_BYTES_MAX ? 0 : -EBADMSG;
}

int vgpu_usage_read_device(const struct vgpu_usage_page *page, uint32_t device, uint32_t epoch,
                           struct vgpu_usage_view *view) {
  const struct vgpu_usage_device *gone = (const struct vgpu_usage_device *)(page + 1) + device;
  for (int kind = 0; kind < VGPU_KIND_COUNT; kind++) {
    view->charged_bytes[kind] = 0;
  }
  view->used_bytes = 0;
  view->allocations = gone->allocations;
  view->frees = gone->frees;
  view->refusals = gone->refusals;
  int result = view->allocations <= COUNT_MAX && view->frees <= COUNT_MAX && view->refusals <= COUNT_MAX ? 0 : -EBADMSG;
  for (uint32_t i = 0; i < VGPU_SLOT_COUNT && result == 0; i++) {
    result = add_slot(page, i, device, epoch, view);
  }
  return result;
}

int vgpu_book_open(struct vgpu_book *book, const void *limits, size_t limits_bytes, void *usage, size_t usage_bytes) {
  const struct vgpu_limits_page *page = limits;
  int result = vgpu_limits_check(limits, limits_bytes);
  if (result == 0) {
    result = vgpu_usage_check(usage, usage_bytes, page->device_count, page->abi_version);
  }
  if (result != 0) {
    return result == -ENOTSUP ? -EPROTO : result;
  }
  book->limits = page;
  book->usage = usage;
  book->file = -1;
  for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
    book->ceiling_bytes[i] = VGPU_BYTES_MAX;
  }
  book->device_count = page->device_count;
  book->slot_count = VGPU_SLOT_COUNT;
  book->has_traffic = page->abi_version != VGPU_ABI_NO_TRAFFIC;
  return 0;
}

int vgpu_register(struct vgpu_book *book) {
  int result = vgpu_slot_enter(book);
  if (result == 0) {
    result = vgpu_slot_ensure(book);
    vgpu_slot_leave(book);
  }
  return result;
}

void vgpu_usage_read_compute(const struct vgpu_usage_page *page, uint32_t device, struct vgpu_compute_view *view) {
  const struct vgpu_usage_device *book = (const struct vgpu_usage_device *)(page + 1) + device;
  const uint64_t *from = &book->spent_ns;
  uint64_t *to[] = {&view->spent_ns,     &view->charged_ns,  &view->wanted_ns, &view->waited_ns,
                    &view->throttled_ns, &view->degraded_ns, &view->launches};
  for (size_t i = 0; i < sizeof(to) / sizeof(to[0]); i++) {
    uint64_t word = vgpu_load_relaxed(&from[i]);
    *to[i] = word < VGPU_TIME_MAX ? word : VGPU_TIME_MAX;
  }
}
