/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * settings.c - what can be asked of a context and set in it. Settings are kept and answered; they change nothing
 * else on a simulated card.
 */
#include "driver.h"

static const size_t default_limits[GS_LIMITS] = {1024, 1048576, 8388608, 2, 2048, 128, 0};

/* The context given, or the current one for NULL. */
static struct gs_context *chosen(struct gs_context *context) {
  if (!context) context = gs_thread.current;
  return context && gs_context_valid(context) && context->alive ? context : NULL;
}

CU_API(cuCtxGetLimit)(size_t *value, int limit) {
  ENTER(cuCtxGetLimit);
  NEED_CONTEXT(context);
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (limit < 0 || limit >= GS_LIMITS) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *value = context->limit_set >> limit & 1 ? context->limits[limit] : default_limits[limit];
  return CUDA_SUCCESS;
}

CU_API(cuCtxSetLimit)(int limit, size_t value) {
  ENTER(cuCtxSetLimit);
  NEED_CONTEXT(context);
  if (limit < 0 || limit >= GS_LIMITS) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  context->limits[limit] = value;
  context->limit_set |= 1u << limit;
  return CUDA_SUCCESS;
}

CU_API(cuCtxGetApiVersion)(CUcontext context, unsigned *version) {
  ENTER(cuCtxGetApiVersion);
  struct gs_context *of = chosen(context);
  if (!of) return CUDA_ERROR_INVALID_CONTEXT;
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = of->api_version;
  return CUDA_SUCCESS;
}

CU_API(cuCtxGetFlags)(unsigned *flags) {
  ENTER(cuCtxGetFlags);
  NEED_CONTEXT(context);
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags;
  return CUDA_SUCCESS;
}

CU_API(cuCtxSetFlags)(unsigned flags) {
  ENTER(cuCtxSetFlags);
  NEED_CONTEXT(context);
  context->flags = flags;
  return CUDA_SUCCESS;
}

CU_API(cuCtxGetId)(CUcontext context, unsigned long long *id) {
  ENTER(cuCtxGetId);
  struct gs_context *of = chosen(context);
  if (!of) return CUDA_ERROR_INVALID_CONTEXT;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = of->id;
  return CUDA_SUCCESS;
}

CU_API(cuCtxGetCacheConfig)(int *config) {
  ENTER(cuCtxGetCacheConfig);
  NEED_CONTEXT(context);
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  *config = context->cache_config;
  return CUDA_SUCCESS;
}

CU_API(cuCtxSetCacheConfig)(int config) {
  ENTER(cuCtxSetCacheConfig);
  NEED_CONTEXT(context);
  if (config < 0 || config > 3) return CUDA_ERROR_INVALID_VALUE;
  context->cache_config = config;
  return CUDA_SUCCESS;
}

CU_API(cuCtxGetSharedMemConfig)(int *config) {
  ENTER(cuCtxGetSharedMemConfig);
  NEED_CONTEXT(context);
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  *config = context->shared_config;
  return CUDA_SUCCESS;
}

CU_API(cuCtxSetSharedMemConfig)(int config) {
  ENTER(cuCtxSetSharedMemConfig);
  NEED_CONTEXT(context);
  if (config < 0 || config > 2) return CUDA_ERROR_INVALID_VALUE;
  context->shared_config = config;
  return CUDA_SUCCESS;
}

CU_API(cuCtxResetPersistingL2Cache)(void) {
  ENTER(cuCtxResetPersistingL2Cache);
  NEED_CONTEXT(context);
  (void)context;
  return CUDA_SUCCESS;
}

CU_API(cuCtxEnablePeerAccess)(CUcontext peer, unsigned flags) {
  ENTER(cuCtxEnablePeerAccess);
  NEED_CONTEXT(context);
  (void)context;
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  return chosen(peer) ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED : CUDA_ERROR_INVALID_CONTEXT;
}

CU_API(cuCtxDisablePeerAccess)(CUcontext peer) {
  ENTER(cuCtxDisablePeerAccess);
  NEED_CONTEXT(context);
  (void)context;
  return chosen(peer) ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED : CUDA_ERROR_INVALID_CONTEXT;
}

CU_API(cuModuleGetLoadingMode)(int *mode) {
  ENTER(cuModuleGetLoadingMode);
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  *mode = 1; /* eager */
  return CUDA_SUCCESS;
}
