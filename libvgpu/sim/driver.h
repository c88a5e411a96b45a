/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * driver.h - what the parts of the simulated libcuda share: this process' devices, contexts and objects, and
 * how an entry point begins.
 *
 * Every entry point is written CU_API(name)(parameters) and begins with ENTER(name) (or ENTER_ANY before
 * cuInit): that counts the call and applies an injected fault. Locks: gs_driver.mutex guards contexts, modules,
 * streams and pools; the arena has its own, taken inside it; a GPU's lock is innermost.
 */
#ifndef GPUSIM_DRIVER_H
#define GPUSIM_DRIVER_H

#include <pthread.h>
#include <sys/single_threaded.h>

#include "arena.h"
#include "cuda_types.h"
#include "engine.h"
#include "fault.h"
#include "functions.h"
#include "region.h"

#define CU_API(name) CUresult impl_##name
/* Defines name_ptsz, which takes the same parameters and calls `name` with these arguments; read by generate.sh. */
#define CU_PTSZ(name, parameters, arguments) \
  CU_API(name) parameters;                   \
  CU_API(name##_ptsz) parameters {           \
    return impl_##name arguments;            \
  }
#define CU_ALIAS(name, other) /* read by generate.sh: `name` has the same interface as `other` */

enum { GS_STACK_DEPTH = 30, GS_LIMITS = 7 };

struct gs_object {
  struct gs_object *next_free;
  struct gs_context *context; /* NULL: not alive */
};

struct gs_pool {
  struct gs_object object;
  struct gs_device *device;
  uint64_t reserved_bytes, reserved_high_bytes, used_bytes, used_high_bytes, release_threshold_bytes;
  uint64_t reuse_policy[3];
  bool is_default;
};

struct gs_context {
  struct gs_object object;
  struct gs_device *device;
  struct gs_block *blocks; /* what was allocated in it; the arena's */
  uint64_t overhead_bytes;
  uint64_t id;
  unsigned flags;
  unsigned api_version;
  unsigned attached;  /* cuCtxAttach */
  unsigned limit_set; /* one bit per limit that was set */
  size_t limits[GS_LIMITS];
  int cache_config, shared_config;
  bool alive;
  bool primary;
};

struct gs_device {
  struct gs_gpu *gpu;
  int gpu_index; /* in the region */
  int ordinal;   /* as the process counts */
  struct gs_context *primary;
  unsigned primary_retained;
  unsigned primary_flags;
  struct gs_pool default_pool;
  struct gs_pool *pool; /* the current one */
};

struct gs_driver {
  pthread_mutex_t mutex;
  uint32_t initialized; /* atomic: 0 no, 1 yes, 2 in a child of an initialised process */
  int device_count;
  struct gs_device devices[GS_MAX_GPUS];
  const struct gs_settings *settings;
};
extern struct gs_driver gs_driver;

/* The calling thread's contexts; the innermost is current. */
struct gs_thread {
  struct gs_context *current;
  unsigned depth;
  struct gs_context *below[GS_STACK_DEPTH];
};
extern __thread struct gs_thread gs_thread __attribute__((tls_model("initial-exec")));

/* Attaches to the region if that has not been done yet. False: there is no simulated machine. */
bool gs_driver_attach(void);

/* An atomic addition costs more than all the rest of a small call, so it is saved while there is one thread. */
static inline void gs_count(enum gs_function_number function) {
  if (__libc_single_threaded)
    gs_self.calls[function]++;
  else
    __atomic_fetch_add(&gs_self.calls[function], 1, __ATOMIC_RELAXED);
}

/* Begins an entry point: counts, then faults. */
static inline CUresult gs_enter(enum gs_function_number function) {
  if (__builtin_expect(!gs_self.client, 0)) (void)gs_driver_attach();
  gs_count(function);
  if (__builtin_expect(gs_self.region && __atomic_load_n(&gs_self.region->fault_count, __ATOMIC_RELAXED), 0)) {
    struct gs_context *context = gs_thread.current;
    return gs_fault_apply(function, context ? context->device->gpu_index : -1);
  }
  return CUDA_SUCCESS;
}

#define ENTER_ANY(name)                          \
  do {                                           \
    CUresult entered = gs_enter(FN_##name);      \
    if (entered != CUDA_SUCCESS) return entered; \
  } while (0)

#define ENTER(name)                                                                          \
  do {                                                                                       \
    CUresult entered = gs_enter(FN_##name);                                                  \
    if (entered != CUDA_SUCCESS) return entered;                                             \
    if (__builtin_expect(__atomic_load_n(&gs_driver.initialized, __ATOMIC_RELAXED) != 1, 0)) \
      return CUDA_ERROR_NOT_INITIALIZED;                                                     \
  } while (0)

/* Answers the current context in `variable`, or returns the driver's error. */
#define NEED_CONTEXT(variable)                      \
  struct gs_context *variable = gs_thread.current;  \
  if (!variable) return CUDA_ERROR_INVALID_CONTEXT; \
  if (!variable->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED

/* devices.c */
struct gs_device *gs_device_of(CUdevice ordinal); /* NULL: no such device */

/* context.c: makes the device's primary context alive; the caller holds gs_driver.mutex. */
bool gs_context_valid(const struct gs_context *context);

/* memory.c */
CUresult gs_memory_allocate(struct gs_context *context, CUdeviceptr *out, uint64_t bytes);
CUresult gs_memory_free(CUdeviceptr pointer);
/* Frees the memory of a context that ends. */
void gs_memory_release_context(struct gs_context *context);

/* pool.c */
void gs_pool_init(struct gs_device *device);
void gs_pool_trim_device(struct gs_device *device); /* at a synchronisation */
void gs_pool_release(struct gs_pool *pool, uint64_t bytes);
void gs_pool_empty_device(struct gs_device *device); /* gives back all that its pools keep unused */
void gs_pool_reset_device(struct gs_device *device); /* likewise; the caller holds gs_driver.mutex */

/* graph_memory.c */
/* Frees memory that a graph allocated, with the result of that; false: the address is not a graph's. */
bool gs_graph_memory_free(CUdeviceptr address, CUresult *result);
void gs_graph_memory_reset_device(struct gs_device *device); /* frees it all; the caller holds gs_driver.mutex */

/* stream.c */
bool gs_stream_valid(CUstream stream);
struct gs_device *gs_stream_device(struct gs_context *context, CUstream stream); /* on which its work runs */
/* Adds work to the stream, in the order that default streams keep with others. Sleeps while the process' queue is full, so
 * the caller holds no lock. Answers the work's mark, see engine.h. */
uint64_t gs_stream_enqueue(struct gs_context *context, CUstream stream, const struct gs_work *work);
/* Waits for all that was given to the stream; for a default stream that is also what blocking ones were given. */
void gs_stream_finish(struct gs_context *context, CUstream stream);

/* event.c: what cuEventRecord and cuStreamWaitEvent do with good arguments, without regard to captures. */
void gs_event_record_now(CUevent event, struct gs_context *context, CUstream stream);
void gs_event_wait_now(CUevent event, struct gs_context *context, CUstream stream);
CUresult gs_event_record(CUevent event, CUstream stream, unsigned flags); /* all of cuEventRecordWithFlags */
bool gs_event_valid(CUevent event);

/* stream.c, event.c, module.c: objects of a context that ends. */
void gs_streams_release_context(struct gs_context *context);
void gs_events_release_context(struct gs_context *context);
void gs_modules_release_context(struct gs_context *context);
void gs_links_release_context(struct gs_context *context); /* link.c */

/* objects.c: objects of one type, at addresses that stay readable after they were freed. */
struct gs_objects {
  size_t object_bytes;
  size_t capacity;
  char *base;
  size_t used;
  struct gs_object *free_list, *free_tail;
};
void *gs_object_new(struct gs_objects *objects, struct gs_context *context); /* zeroed; NULL: no room */
bool gs_object_alive(const struct gs_objects *objects, const void *object);
void gs_object_free(struct gs_objects *objects, void *object);
/* Calls `release` for each living object of the context. */
void gs_objects_of(struct gs_objects *objects, struct gs_context *context, void (*release)(void *object));

#endif
