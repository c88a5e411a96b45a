/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * copy.c - copies of one range. Real bytes move, at once, also in the calls with a stream: nothing that runs on
 * a simulated card could change them later. The time that they take on the card
 * (copy_time.c) passes meanwhile. Calls without a stream first wait for the work before them, and in the end for that time.
 */
#include "copy.h"

#include <string.h>

enum gs_side gs_side_of(uint64_t address, uint64_t bytes) {
  if (address == 0) return GS_SIDE_BAD;
  if (!gs_arena_covers(address)) return GS_SIDE_HOST;
  struct gs_block *block = gs_arena_find(address);
  if (!block) return GS_SIDE_BAD;
  uint64_t left = gs_arena_address(block) + block->bytes - address;
  return bytes <= left ? GS_SIDE_DEVICE : GS_SIDE_BAD;
}

void gs_wait_all(struct gs_context *context) {
  gs_engine_wait_channels(context->device->gpu, GS_ALL_CHANNELS);
}

void gs_move(const struct gs_transfer *transfer) {
  bool real = gs_arena_accessible() || (transfer->to == GS_SIDE_HOST && transfer->from == GS_SIDE_HOST);
  if (transfer->to == GS_SIDE_DEVICE) gs_arena_touch(transfer->target);
  if (real) memmove((void *)(uintptr_t)transfer->target, (const void *)(uintptr_t)transfer->source, transfer->bytes);
}

static struct gs_transfer transfer_of(uint64_t target, uint64_t source, uint64_t bytes) {
  return (struct gs_transfer){target, source, bytes, gs_side_of(target, bytes), gs_side_of(source, bytes)};
}

/* A copy between addresses of any kind by a call without a stream. */
static CUresult copy(uint64_t target, uint64_t source, uint64_t bytes) {
  NEED_CONTEXT(context);
  NOT_CAPTURED(gs_capture_legacy(context, true));
  if (bytes == 0) return CUDA_SUCCESS;
  const struct gs_transfer transfer = transfer_of(target, source, bytes);
  if (transfer.to == GS_SIDE_BAD || transfer.from == GS_SIDE_BAD) return CUDA_ERROR_INVALID_VALUE;
  gs_wait_all(context);
  uint64_t mark = gs_copy_spend(context, NULL, &transfer);
  gs_move(&transfer);
  gs_engine_wait(context->device->gpu, mark);
  return CUDA_SUCCESS;
}

/* One by a call with a stream. */
static CUresult copy_in(CUstream stream, uint64_t target, uint64_t source, uint64_t bytes) {
  NEED_CONTEXT(context);
  NEED_STREAM(stream);
  CAPTURE(context, stream, branch);
  if (bytes == 0) return CUDA_SUCCESS;
  const struct gs_transfer transfer = transfer_of(target, source, bytes);
  enum gs_side to = transfer.to;
  enum gs_side from = transfer.from;
  if (to == GS_SIDE_BAD || from == GS_SIDE_BAD) return CUDA_ERROR_INVALID_VALUE;
  if (!branch) {
    gs_copy_spend(context, stream, &transfer);
    gs_move(&transfer);
    return CUDA_SUCCESS;
  }
  const struct gs_action action = {
      .type = CU_NODE_MEMCPY,
      .copy = {.src_type = from == GS_SIDE_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
               .src_host = from == GS_SIDE_HOST ? (const void *)(uintptr_t)source : NULL,
               .src_device = from == GS_SIDE_HOST ? 0 : source,
               .dst_type = to == GS_SIDE_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
               .dst_host = to == GS_SIDE_HOST ? (void *)(uintptr_t)target : NULL,
               .dst_device = to == GS_SIDE_HOST ? 0 : target,
               .width_bytes = bytes,
               .height = 1,
               .depth = 1}};
  return gs_capture_add(branch, &action);
}

CU_API(cuMemcpy)(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
  ENTER(cuMemcpy);
  return copy(target, source, bytes);
}

CU_API(cuMemcpyAsync)(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  ENTER(cuMemcpyAsync);
  return copy_in(stream, target, source, bytes);
}

CU_API(cuMemcpyHtoD_v2)(CUdeviceptr target, const void *source, size_t bytes) {
  ENTER(cuMemcpyHtoD_v2);
  return copy(target, (uintptr_t)source, bytes);
}

CU_API(cuMemcpyHtoDAsync_v2)(CUdeviceptr target, const void *source, size_t bytes, CUstream stream) {
  ENTER(cuMemcpyHtoDAsync_v2);
  return copy_in(stream, target, (uintptr_t)source, bytes);
}

CU_API(cuMemcpyDtoH_v2)(void *target, CUdeviceptr source, size_t bytes) {
  ENTER(cuMemcpyDtoH_v2);
  return copy((uintptr_t)target, source, bytes);
}

CU_API(cuMemcpyDtoHAsync_v2)(void *target, CUdeviceptr source, size_t bytes, CUstream stream) {
  ENTER(cuMemcpyDtoHAsync_v2);
  return copy_in(stream, (uintptr_t)target, source, bytes);
}

CU_API(cuMemcpyDtoD_v2)(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
  ENTER(cuMemcpyDtoD_v2);
  return copy(target, source, bytes);
}

CU_API(cuMemcpyDtoDAsync_v2)(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  ENTER(cuMemcpyDtoDAsync_v2);
  return copy_in(stream, target, source, bytes);
}

CU_API(cuMemcpyPeer)(CUdeviceptr target, CUcontext to, CUdeviceptr source, CUcontext from, size_t bytes) {
  ENTER(cuMemcpyPeer);
  if (!gs_context_valid(to) || !gs_context_valid(from)) return CUDA_ERROR_INVALID_CONTEXT;
  return copy(target, source, bytes);
}

CU_API(cuMemcpyPeerAsync)
(CUdeviceptr target, CUcontext to, CUdeviceptr source, CUcontext from, size_t bytes, CUstream stream) {
  ENTER(cuMemcpyPeerAsync);
  if (!gs_context_valid(to) || !gs_context_valid(from)) return CUDA_ERROR_INVALID_CONTEXT;
  return copy_in(stream, target, source, bytes);
}
