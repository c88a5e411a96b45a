/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * copy_time.c - what copies and fills take of a card where they take time (`copies = timed`). Alone, a copy takes the
 * latency, and its bytes at the bandwidth of the link, of pageable host memory a part of that; inside the card each byte is
 * read and written at that of DRAM, and a fill writes alone. The bytes themselves move in the call (copy.c): what is put
 * into the stream is time. Calls with a stream never wait for it; real drivers do for some copies of pageable memory.
 */
#include "copy.h"
#include "host.h"

static uint64_t time_of(uint64_t bytes, uint64_t bytes_per_second) {
  uint64_t ns = (uint64_t)((unsigned __int128)bytes * 1000000000u / bytes_per_second);
  return ns > 0 ? ns : 1;
}

static uint64_t spend(struct gs_context *context, CUstream stream, const struct gs_work *work) {
  struct gs_work timed = *work;
  timed.kind = GS_WORK_COPY;
  timed.bound_permille = GS_BOUND_AS_USED;
  timed.ns += gs_driver.settings->copy_latency_ns;
  return gs_stream_enqueue(context, stream, &timed);
}

/* Bytes that pass the other card's link too, or the only one's where nothing takes time. */
static void count(struct gs_gpu *gpu, enum gs_way way, uint64_t bytes) {
  struct gs_queue *queue = &gpu->queues[gs_self.slot];
  __atomic_fetch_add(way == GS_WAY_TX ? &gpu->tx_bytes : &gpu->rx_bytes, bytes, __ATOMIC_RELAXED);
  __atomic_fetch_add(way == GS_WAY_TX ? &queue->tx_bytes : &queue->rx_bytes, bytes, __ATOMIC_RELAXED);
}

static struct gs_device *device_of(uint64_t address, enum gs_side side) {
  struct gs_block *block = side == GS_SIDE_DEVICE ? gs_arena_find(address) : NULL;
  return block ? block->device : NULL;
}

static bool is_pinned(const struct gs_transfer *transfer) {
  struct gs_host_range range;
  return gs_host_find(transfer->from == GS_SIDE_HOST ? transfer->source : transfer->target, &range);
}

uint64_t gs_copy_spend(struct gs_context *context, CUstream stream, const struct gs_transfer *transfer) {
  struct gs_device *device = gs_stream_device(context, stream);
  struct gs_device *from = device_of(transfer->source, transfer->from);
  struct gs_device *to = device_of(transfer->target, transfer->to);
  if (from == to) from = to = NULL; /* inside one card, or in the host */
  bool on_link = transfer->from != transfer->to || from;
  if (!on_link && transfer->from == GS_SIDE_HOST) return 0;
  enum gs_way way = !on_link ? GS_WAY_DEVICE : transfer->to == GS_SIDE_HOST || from == device ? GS_WAY_TX : GS_WAY_RX;
  if (from && from != device) count(from->gpu, GS_WAY_TX, transfer->bytes);
  if (to && to != device && from) count(to->gpu, GS_WAY_RX, transfer->bytes);
  if (!gs_driver.settings->copies_timed) {
    if (on_link) count(device->gpu, way, transfer->bytes);
    return 0;
  }
  struct gs_work work = {.way = way, .dram_bytes = on_link ? transfer->bytes : 2 * transfer->bytes};
  if (on_link) {
    work.link_bytes = transfer->bytes;
    work.ns = time_of(transfer->bytes, device->gpu->card.pcie_bytes_per_second);
    bool pageable =
        gs_driver.settings->pageable_permille < 1000 && transfer->from != transfer->to && !is_pinned(transfer);
    if (pageable) work.ns = work.ns * 1000 / gs_driver.settings->pageable_permille;
  } else {
    work.ns = time_of(work.dram_bytes, device->gpu->card.dram_bytes_per_second);
  }
  return spend(context, stream, &work);
}

void gs_fill_spend(struct gs_context *context, CUstream stream, uint64_t bytes) {
  if (!gs_driver.settings->copies_timed) return;
  const struct gs_card *card = &gs_stream_device(context, stream)->gpu->card;
  const struct gs_work work = {
      .way = GS_WAY_DEVICE, .dram_bytes = bytes, .ns = time_of(bytes, card->dram_bytes_per_second)};
  spend(context, stream, &work);
}
