/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * claim.c - contract in claim.h.
 */
#include "claim.h"

#include "log.h"
#include "pools.h"
#include "table.h"

/* One line now and then, so that somebody who looks for the reason finds it. */
__attribute__((noinline, cold)) static void log_refusal(const struct vgpu_device *device, uint64_t bytes) {
  static uint64_t next;
  if (!vgpu_log_is_due(&next)) return;
  for (uint32_t i = 0; i < device->place_count; i++) {
    if (!vgpu_is_tampered(device->places[i].book)) continue;
    vgpu_log("refused %lu bytes on GPU %d: the usage page was tampered with: nothing can be allocated until the "
             "container starts again",
             bytes, device->ordinal);
    return;
  }
  struct vgpu_view view = vgpu_device_view(device);
  vgpu_log("refused %lu bytes on GPU %d: %lu of %lu bytes are in use", bytes, device->ordinal, view.used_bytes,
           view.limit_bytes);
}

__attribute__((noinline, cold)) CUresult vgpu_refuse(const struct vgpu_claim *claim, uint64_t bytes) {
  vgpu_device_count_refusal(claim->device);
  log_refusal(claim->device, bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vgpu_claim_on(struct vgpu_claim *claim, struct vgpu_device *device, CUresult why, enum vgpu_kind kind,
                       uint64_t bytes) {
  if (!device) return why;
  *claim = (struct vgpu_claim){.device = device, .kind = kind, .bytes = bytes};
  if (vgpu_device_reserve(device, kind, bytes, &claim->place) == 0) return CUDA_SUCCESS;
  /* What pools keep unused is in the way: as a driver does before it says that memory is out. */
  if (vgpu_pools_make_room() && vgpu_device_reserve(device, kind, bytes, &claim->place) == 0) return CUDA_SUCCESS;
  return vgpu_refuse(claim, bytes);
}

CUresult vgpu_claim_begin(struct vgpu_claim *claim, enum vgpu_kind kind, uint64_t bytes) {
  CUresult why = CUDA_SUCCESS;
  claim->place.book = NULL;
  if (!vgpu_is_limiting()) return CUDA_SUCCESS;
  vgpu_check_fork();
  struct vgpu_device *device = vgpu_device_current(&why);
  return vgpu_claim_on(claim, device, why, kind, bytes);
}

bool vgpu_claim_resize(struct vgpu_claim *claim, uint64_t bytes) {
  if (!claim->place.book || bytes == claim->bytes) return true;
  if (bytes < claim->bytes) {
    vgpu_cancel(claim->place.book, claim->place.index, claim->kind, claim->bytes - bytes);
  } else if (vgpu_reserve(claim->place.book, claim->place.index, claim->kind, bytes - claim->bytes) != 0) {
    vgpu_refuse(claim, bytes);
    return false;
  }
  claim->bytes = bytes;
  return true;
}

void vgpu_claim_drop(struct vgpu_claim *claim) {
  if (claim->place.book) vgpu_cancel(claim->place.book, claim->place.index, claim->kind, claim->bytes);
  claim->place.book = NULL;
}

CUcontext vgpu_current_context(void) {
  CUcontext context = NULL;
  __typeof__(&cuCtxGetCurrent) get = VGPU_REAL(cuCtxGetCurrent);
  return get && get(&context) == CUDA_SUCCESS ? context : NULL;
}

bool vgpu_push_context_of(CUstream stream) {
  CUcontext context = NULL;
  __typeof__(&cuStreamGetCtx) get = VGPU_REAL(cuStreamGetCtx);
  __typeof__(&cuCtxPushCurrent_v2) push = VGPU_REAL(cuCtxPushCurrent_v2);
  if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD || !get || !push || !VGPU_REAL(cuCtxPopCurrent_v2))
    return false;
  return get(stream, &context) == CUDA_SUCCESS && context && context != vgpu_current_context() &&
         push(context) == CUDA_SUCCESS;
}

void vgpu_pop_context(void) {
  CUcontext context;
  VGPU_REAL(cuCtxPopCurrent_v2)(&context);
}

bool vgpu_claim_keep(struct vgpu_claim *claim, enum vgpu_block_class block_class, uint64_t key, CUcontext context) {
  if (!claim->place.book) return true;
  struct vgpu_block block = {.key = key,
                             .bytes = claim->bytes,
                             .context = context,
                             .references = 1,
                             .block_class = (uint8_t)block_class,
                             .kind = (uint8_t)claim->kind,
                             .book = vgpu_book_number(claim->place.book),
                             .index = (uint8_t)claim->place.index};
  struct vgpu_block old;
  if (vgpu_block_put_over(&block, &old) != 0) return false;
  /* The driver gives a pointer out again: what was there ended with a context that another thread is destroying. */
  if (__builtin_expect(old.block_class == VGPU_BLOCK_POINTER, 0)) vgpu_block_release(&old);
  return true;
}

void vgpu_block_release(const struct vgpu_block *block) {
  vgpu_release(vgpu_book_at(block->book), block->index, block->kind, block->bytes);
}

bool vgpu_free_begin(enum vgpu_block_class block_class, uint64_t key, struct vgpu_block *block) {
  if (!vgpu_is_limiting()) return false;
  vgpu_check_fork();
  return vgpu_block_take(block_class, key, block);
}

CUresult vgpu_free_end(bool is_ours, const struct vgpu_block *block, CUresult result) {
  if (!is_ours) return result;
  if (result == CUDA_SUCCESS) {
    vgpu_block_release(block);
  } else {
    vgpu_block_put(block); /* it was in the table: there is room */
  }
  return result;
}
