/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * launch.c - kernels: their attributes, and launches, which put the kernel's simulated GPU time into a stream, with the
 * part of the card that the grid fills. Parameters are not looked at and nothing is computed.
 */
#include "copy.h"
#include "module.h"

enum { THREADS_PER_BLOCK = 1024, THREADS_IN_Z = 64, SHARED_BYTES = 49152, REGISTERS = 32, WARP = 32 };
enum { THREADS_PER_SM = 2048, BLOCKS_PER_SM = 32, SHARED_BYTES_PER_SM = 167936 };
enum { GRID_IN_X = INT32_MAX, GRID_IN_YZ = 65535 };
enum { CLUSTER_BLOCKS = 8, CLUSTER_MAJOR = 9 }; /* blocks in a cluster; compute capability from which there are any */

enum kernel_attribute {
  KERNEL_THREADS = 0,
  KERNEL_REGISTERS = 4,
  KERNEL_PTX = 5,
  KERNEL_BINARY = 6,
  KERNEL_DYNAMIC_SHARED = 8,
  KERNEL_CARVEOUT = 9,
  KERNEL_ATTRIBUTES = 16
};

static struct gs_kernel *kernel_of(const struct cu_kernel_node *launch) {
  return launch->function ? launch->function : launch->kernel;
}

CUresult gs_launch_check(const struct cu_kernel_node *launch) {
  const struct gs_kernel *kernel = kernel_of(launch);
  const unsigned sizes[] = {launch->grid_x,  launch->grid_y,  launch->grid_z,
                            launch->block_x, launch->block_y, launch->block_z};
  if (!gs_kernel_valid(kernel_of(launch))) return CUDA_ERROR_INVALID_HANDLE;
  if (launch->parameters && launch->extra) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (sizes[i] == 0) return CUDA_ERROR_INVALID_VALUE;
  if (launch->grid_x > GRID_IN_X || launch->grid_y > GRID_IN_YZ || launch->grid_z > GRID_IN_YZ)
    return CUDA_ERROR_INVALID_VALUE;
  if (launch->block_x > THREADS_PER_BLOCK || launch->block_y > THREADS_PER_BLOCK || launch->block_z > THREADS_IN_Z)
    return CUDA_ERROR_INVALID_VALUE;
  if (launch->block_x * launch->block_y * launch->block_z > THREADS_PER_BLOCK) return CUDA_ERROR_INVALID_VALUE;
  if (launch->shared_bytes > SHARED_BYTES && launch->shared_bytes > (unsigned)kernel->dynamic_shared_bytes)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

static uint64_t blocks_of(const struct cu_kernel_node *launch) {
  return (uint64_t)launch->grid_x * launch->grid_y * launch->grid_z;
}

static uint64_t threads_of(const struct cu_kernel_node *launch) {
  return (uint64_t)launch->block_x * launch->block_y * launch->block_z;
}

/* The part of the card that the grid's threads, in whole warps, fill. */
static uint32_t sm_permille(const struct gs_card *card, const struct cu_kernel_node *launch) {
  uint64_t room = (uint64_t)card->sms * THREADS_PER_SM;
  uint64_t blocks = blocks_of(launch);
  if (room == 0 || blocks >= room) return 1000;
  uint64_t permille = blocks * ((threads_of(launch) + WARP - 1) / WARP * WARP) * 1000 / room;
  return permille < 1 ? 1 : permille > 1000 ? 1000 : (uint32_t)permille;
}

/* Bytes in `ns` at a part of a bandwidth. */
static uint64_t bytes_in(uint64_t ns, uint32_t permille, uint64_t bytes_per_second) {
  return (uint64_t)((unsigned __int128)ns * permille * bytes_per_second / 1000000000000u);
}

/* What the kernel takes of memory and link. */
static void add_traffic(const struct gs_card *card, const struct gs_kernel *kernel, struct gs_work *work) {
  uint32_t dram =
      kernel->dram_permille == UINT16_MAX ? 10 * gs_driver.settings->kernel_dram_percent : kernel->dram_permille;
  if (kernel->cache_permille && kernel->dram_permille == UINT16_MAX) dram = 0; /* it lives in the cache */
  if ((dram | kernel->cache_permille | kernel->rx_permille | kernel->tx_permille) == 0) return;
  work->dram_bytes = bytes_in(work->ns, dram, card->dram_bytes_per_second);
  work->cache_permille = kernel->cache_permille;
  work->bound_permille = kernel->bound_permille;
  work->way = kernel->tx_permille ? GS_WAY_TX : GS_WAY_RX;
  work->link_bytes =
      bytes_in(work->ns, kernel->tx_permille ? kernel->tx_permille : kernel->rx_permille, card->pcie_bytes_per_second);
}

CUresult gs_launch_run(struct gs_context *context, CUstream stream, const struct cu_kernel_node *launch) {
  const struct gs_kernel *kernel = kernel_of(launch);
  if (!gs_kernel_valid(kernel_of(launch))) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t ns = kernel->duration_ns == UINT64_MAX ? gs_driver.settings->kernel_ns : kernel->duration_ns;
  if (ns == 0) return CUDA_SUCCESS;
  const struct gs_card *card = &gs_stream_device(context, stream)->gpu->card;
  struct gs_work work = {.kind = GS_WORK_KERNEL, .ns = ns, .sm_permille = sm_permille(card, launch)};
  add_traffic(card, kernel, &work);
  gs_stream_enqueue(context, stream, &work);
  return CUDA_SUCCESS;
}

/* Captured, a launch becomes a node. */
static CUresult capture(struct gs_branch *branch, struct gs_context *context, const struct cu_kernel_node *launch) {
  struct gs_action action = {.type = CU_NODE_KERNEL, .kernel = *launch};
  action.kernel.context = context;
  return gs_capture_add(branch, &action);
}

CUresult gs_launch(const struct cu_kernel_node *launch, CUstream stream) {
  NEED_CONTEXT(context);
  CUresult result = gs_launch_check(launch);
  if (result != CUDA_SUCCESS) return result;
  NEED_STREAM(stream);
  CAPTURE(context, stream, branch);
  return branch ? capture(branch, context, launch) : gs_launch_run(context, stream, launch);
}

CU_API(cuLaunchKernel)
(CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
 unsigned block_z, unsigned shared, CUstream stream, void **parameters, void **extra) {
  ENTER(cuLaunchKernel);
  const struct cu_kernel_node launch = {.function = kernel,
                                        .grid_x = grid_x,
                                        .grid_y = grid_y,
                                        .grid_z = grid_z,
                                        .block_x = block_x,
                                        .block_y = block_y,
                                        .block_z = block_z,
                                        .shared_bytes = shared,
                                        .parameters = parameters,
                                        .extra = extra};
  return gs_launch(&launch, stream);
}

/* The card of the current context. */
static const struct gs_card *current_card(void) {
  const struct gs_context *context = gs_thread.current;
  return &(context ? context->device : &gs_driver.devices[0])->gpu->card;
}

/* Blocks of a size that fit on one multiprocessor at once, by threads, blocks and shared memory. */
static int blocks_that_fit(int threads, size_t shared) {
  int blocks = threads > 0 && threads <= THREADS_PER_BLOCK ? THREADS_PER_SM / ((threads + WARP - 1) / WARP * WARP) : 0;
  if (blocks > BLOCKS_PER_SM) blocks = BLOCKS_PER_SM;
  if (shared > 0 && (size_t)blocks > SHARED_BYTES_PER_SM / shared) blocks = (int)(SHARED_BYTES_PER_SM / shared);
  return blocks;
}

/* All blocks of a cooperative launch must be on the card at once. */
static CUresult check_cooperative(const struct gs_card *card, const struct cu_kernel_node *launch) {
  uint64_t room = (uint64_t)card->sms * (uint64_t)blocks_that_fit((int)threads_of(launch), launch->shared_bytes);
  return blocks_of(launch) <= room ? CUDA_SUCCESS : CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

static CUresult check_cluster(const struct gs_card *card, const struct cu_kernel_node *launch, const unsigned *size) {
  if (size[0] == 1 && size[1] == 1 && size[2] == 1) return CUDA_SUCCESS;
  if (card->compute_major < CLUSTER_MAJOR) return CUDA_ERROR_NOT_SUPPORTED;
  for (int i = 0; i < 3; i++)
    if (size[i] == 0 || size[i] > CLUSTER_BLOCKS) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  if (size[0] * size[1] * size[2] > CLUSTER_BLOCKS) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  if (launch->grid_x % size[0] || launch->grid_y % size[1] || launch->grid_z % size[2])
    return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  return CUDA_SUCCESS;
}

/* Checks the attributes; an event that one of them asks to be recorded goes to `event`. Others change nothing here. */
static CUresult check_attributes(const struct cu_launch_config *config, const struct cu_kernel_node *launch,
                                 CUevent *event) {
  CUresult result = CUDA_SUCCESS;
  if (config->attribute_count > 0 && !config->attributes) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; result == CUDA_SUCCESS && i < config->attribute_count; i++) {
    const struct cu_launch_attribute *attribute = &config->attributes[i];
    if (attribute->id < 0 || attribute->id >= CU_LAUNCH_ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
    if (attribute->id == CU_LAUNCH_COOPERATIVE && attribute->value.number)
      result = check_cooperative(current_card(), launch);
    if (attribute->id == CU_LAUNCH_CLUSTER) result = check_cluster(current_card(), launch, attribute->value.cluster);
    if (attribute->id != CU_LAUNCH_PROGRAMMATIC_EVENT) continue;
    *event = attribute->value.event;
    if (!gs_event_valid(*event)) result = CUDA_ERROR_INVALID_HANDLE;
  }
  return result;
}

CU_API(cuLaunchKernelEx)(const struct cu_launch_config *config, CUfunction kernel, void **parameters, void **extra) {
  CUevent event = NULL;
  ENTER(cuLaunchKernelEx);
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  const struct cu_kernel_node launch = {.function = kernel,
                                        .grid_x = config->grid_x,
                                        .grid_y = config->grid_y,
                                        .grid_z = config->grid_z,
                                        .block_x = config->block_x,
                                        .block_y = config->block_y,
                                        .block_z = config->block_z,
                                        .shared_bytes = config->shared_bytes,
                                        .parameters = parameters,
                                        .extra = extra};
  CUresult result = gs_launch_check(&launch);
  if (result == CUDA_SUCCESS) result = check_attributes(config, &launch, &event);
  if (result == CUDA_SUCCESS) result = gs_launch(&launch, config->stream);
  return result == CUDA_SUCCESS && event ? gs_event_record(event, config->stream, 0) : result;
}

CU_API(cuLaunchCooperativeKernel)
(CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
 unsigned block_z, unsigned shared, CUstream stream, void **parameters) {
  ENTER(cuLaunchCooperativeKernel);
  const struct cu_kernel_node launch = {.function = kernel,
                                        .grid_x = grid_x,
                                        .grid_y = grid_y,
                                        .grid_z = grid_z,
                                        .block_x = block_x,
                                        .block_y = block_y,
                                        .block_z = block_z,
                                        .shared_bytes = shared,
                                        .parameters = parameters};
  CUresult result = gs_launch_check(&launch);
  if (result == CUDA_SUCCESS) result = check_cooperative(current_card(), &launch);
  return result == CUDA_SUCCESS ? gs_launch(&launch, stream) : result;
}

static struct cu_kernel_node on_device(const struct cu_device_launch *from) {
  return (struct cu_kernel_node){.function = from->function,
                                 .grid_x = from->grid_x,
                                 .grid_y = from->grid_y,
                                 .grid_z = from->grid_z,
                                 .block_x = from->block_x,
                                 .block_y = from->block_y,
                                 .block_z = from->block_z,
                                 .shared_bytes = from->shared_bytes,
                                 .parameters = from->parameters};
}

/* Whether one launch of several could be done: in a created stream, on a device that none before it uses. */
static CUresult check_on_device(struct gs_context *context, const struct cu_device_launch *launches, unsigned i) {
  const struct cu_kernel_node launch = on_device(&launches[i]);
  CUresult result = gs_launch_check(&launch);
  if (result != CUDA_SUCCESS) return result;
  if ((uintptr_t)launches[i].stream <= CU_STREAM_PER_THREAD) return CUDA_ERROR_INVALID_HANDLE;
  NEED_STREAM(launches[i].stream);
  const struct gs_device *device = gs_stream_device(context, launches[i].stream);
  for (unsigned j = 0; j < i; j++)
    if (gs_stream_device(context, launches[j].stream) == device) return CUDA_ERROR_INVALID_DEVICE;
  CAPTURE(context, launches[i].stream, branch);
  if (branch) return gs_capture_fail(branch, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  return check_cooperative(&device->gpu->card, &launch);
}

CU_API(cuLaunchCooperativeKernelMultiDevice)
(const struct cu_device_launch *launches, unsigned count, unsigned flags) {
  ENTER(cuLaunchCooperativeKernelMultiDevice);
  NEED_CONTEXT(context);
  CUresult result = CUDA_SUCCESS;
  if (!launches || count == 0 || count > (unsigned)gs_driver.device_count || flags > 3) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++)
    result = check_on_device(context, launches, i);
  for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++) {
    const struct cu_kernel_node launch = on_device(&launches[i]);
    result = gs_launch_run(context, launches[i].stream, &launch);
  }
  return result;
}

CUresult gs_kernel_attribute(const struct gs_card *card, const struct gs_kernel *kernel, int attribute, int *value) {
  if (!value || attribute < 0 || attribute >= KERNEL_ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
  case KERNEL_THREADS:
    *value = THREADS_PER_BLOCK;
    break;
  case KERNEL_REGISTERS:
    *value = REGISTERS;
    break;
  case KERNEL_PTX:
  case KERNEL_BINARY:
    *value = (int)(card->compute_major * 10 + card->compute_minor);
    break;
  case KERNEL_DYNAMIC_SHARED:
    *value = kernel->dynamic_shared_bytes ? kernel->dynamic_shared_bytes : SHARED_BYTES;
    break;
  case KERNEL_CARVEOUT:
    *value = kernel->carveout;
    break;
  default:
    *value = 0;
    break;
  }
  return CUDA_SUCCESS;
}

/* The card that a kernel is for: a library's is for that of the current context. */
static const struct gs_card *card_of(const struct gs_kernel *kernel) {
  return kernel->library ? current_card() : &kernel->object.context->device->gpu->card;
}

CU_API(cuFuncGetAttribute)(int *value, int attribute, CUfunction kernel) {
  ENTER(cuFuncGetAttribute);
  if (!value || attribute < 0 || attribute >= KERNEL_ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  return gs_kernel_attribute(card_of(kernel), kernel, attribute, value);
}

CUresult gs_kernel_set_attribute(struct gs_kernel *kernel, int attribute, int value) {
  if (attribute == KERNEL_DYNAMIC_SHARED && value >= 0)
    kernel->dynamic_shared_bytes = value;
  else if (attribute == KERNEL_CARVEOUT && value >= -1 && value <= 100)
    kernel->carveout = value;
  else if (attribute <= KERNEL_CARVEOUT || attribute >= KERNEL_ATTRIBUTES)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CU_API(cuFuncSetAttribute)(CUfunction kernel, int attribute, int value) {
  ENTER(cuFuncSetAttribute);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  return gs_kernel_set_attribute(kernel, attribute, value);
}

CU_API(cuFuncSetCacheConfig)(CUfunction kernel, int config) {
  ENTER(cuFuncSetCacheConfig);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  return config >= 0 && config <= 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API(cuFuncSetSharedMemConfig)(CUfunction kernel, int config) {
  ENTER(cuFuncSetSharedMemConfig);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  return config >= 0 && config <= 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API(cuOccupancyMaxActiveBlocksPerMultiprocessor)(int *blocks, CUfunction kernel, int threads, size_t shared) {
  ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (!blocks || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = blocks_that_fit(threads, shared);
  return CUDA_SUCCESS;
}

CU_API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
(int *blocks, CUfunction kernel, int threads, size_t shared, unsigned flags) {
  ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (!blocks || threads <= 0 || flags > 1) return CUDA_ERROR_INVALID_VALUE;
  *blocks = blocks_that_fit(threads, shared);
  return CUDA_SUCCESS;
}

CU_API(cuOccupancyMaxPotentialBlockSize)
(int *grid, int *threads, CUfunction kernel, size_t (*shared_of)(int), size_t shared, int limit) {
  ENTER(cuOccupancyMaxPotentialBlockSize);
  if (!gs_kernel_valid(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (!grid || !threads || limit < 0) return CUDA_ERROR_INVALID_VALUE;
  *threads = limit > 0 && limit < THREADS_PER_BLOCK ? limit : THREADS_PER_BLOCK;
  if (shared_of) shared = shared_of(*threads);
  *grid = blocks_that_fit(*threads, shared) * (int)card_of(kernel)->sms;
  return CUDA_SUCCESS;
}
