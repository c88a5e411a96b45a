/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * cuda_types.h - the types of the CUDA driver API that the simulator speaks, as its binary interface lays them
 * out on 64-bit Linux. Source of fact: CUDA's public driver API reference.
 */
#ifndef GPUSIM_CUDA_TYPES_H
#define GPUSIM_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct gs_context *CUcontext;
typedef struct gs_stream *CUstream;
typedef struct gs_event *CUevent;
typedef struct gs_module *CUmodule;
typedef struct gs_kernel *CUfunction;
typedef struct gs_pool *CUmemoryPool;
typedef struct gs_array *CUarray;
typedef struct gs_library *CUlibrary;
typedef struct gs_kernel *CUkernel; /* may stand where a CUfunction is asked for */
typedef struct gs_graph *CUgraph;
typedef struct gs_node *CUgraphNode;
typedef struct gs_exec *CUgraphExec;
typedef struct gs_user_object *CUuserObject;
typedef struct {
  unsigned char bytes[16];
} CUuuid;

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_UNSUPPORTED_LIMIT = 215,
  CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
  CUDA_ERROR_FILE_NOT_FOUND = 301,
  CUDA_ERROR_OPERATING_SYSTEM = 304,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_ILLEGAL_STATE = 401,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
  CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
  CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
  CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
  CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
  CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
  CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_CAPTURED_EVENT = 907,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
  CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
  CUDA_ERROR_INVALID_CLUSTER_SIZE = 912,
  CUDA_ERROR_UNKNOWN = 999
};

enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2, CU_MEMORYTYPE_ARRAY = 3, CU_MEMORYTYPE_UNIFIED = 4 };

/* The first handles of streams are names, not addresses. */
enum { CU_STREAM_LEGACY = 1, CU_STREAM_PER_THREAD = 2 };

struct cu_memcpy2d {
  size_t src_x_bytes, src_y;
  unsigned src_type;
  const void *src_host;
  CUdeviceptr src_device;
  CUarray src_array;
  size_t src_pitch;
  size_t dst_x_bytes, dst_y;
  unsigned dst_type;
  void *dst_host;
  CUdeviceptr dst_device;
  CUarray dst_array;
  size_t dst_pitch;
  size_t width_bytes, height;
};

struct cu_memcpy3d {
  size_t src_x_bytes, src_y, src_z, src_lod;
  unsigned src_type;
  const void *src_host;
  CUdeviceptr src_device;
  CUarray src_array;
  void *src_context; /* reserved in the plain call, a context in the peer call */
  size_t src_pitch, src_height;
  size_t dst_x_bytes, dst_y, dst_z, dst_lod;
  unsigned dst_type;
  void *dst_host;
  CUdeviceptr dst_device;
  CUarray dst_array;
  void *dst_context;
  size_t dst_pitch, dst_height;
  size_t width_bytes, height, depth;
};

enum cu_launch_attribute_id {
  CU_LAUNCH_COOPERATIVE = 2,
  CU_LAUNCH_CLUSTER = 4,
  CU_LAUNCH_PROGRAMMATIC_EVENT = 7,
  CU_LAUNCH_PRIORITY = 8,
  CU_LAUNCH_ATTRIBUTES = 11 /* one more than the last */
};

struct cu_launch_attribute {
  int id; /* enum cu_launch_attribute_id */
  int pad;
  union {
    unsigned char bytes[64];
    int number;
    unsigned cluster[3];
    CUevent event; /* the first member of CU_LAUNCH_PROGRAMMATIC_EVENT's value */
  } value;
};

struct cu_launch_config {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  CUstream stream;
  const struct cu_launch_attribute *attributes;
  unsigned attribute_count;
};

/* One launch of cuLaunchCooperativeKernelMultiDevice. */
struct cu_device_launch {
  CUfunction function;
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  CUstream stream;
  void **parameters;
};

/* What nodes of graphs do. */
enum cu_node_type {
  CU_NODE_KERNEL = 0,
  CU_NODE_MEMCPY = 1,
  CU_NODE_MEMSET = 2,
  CU_NODE_HOST = 3,
  CU_NODE_GRAPH = 4,
  CU_NODE_EMPTY = 5,
  CU_NODE_WAIT_EVENT = 6,
  CU_NODE_EVENT_RECORD = 7,
  CU_NODE_MEM_ALLOC = 10,
  CU_NODE_MEM_FREE = 11
};

/* The first interface's structure ends before `kernel`. */
struct cu_kernel_node {
  CUfunction function;
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void **parameters;
  void **extra;
  CUkernel kernel; /* instead of `function` */
  CUcontext context;
};

/* The first interface's structure has no context; cuGraphAddNode's ends with one. */
struct cu_memset_node {
  CUdeviceptr target;
  size_t pitch;
  unsigned value, element_bytes;
  size_t width, height;
};

struct cu_host_node {
  void (*function)(void *data);
  void *data;
};

struct cu_mem_location {
  int type; /* 1: device */
  int id;
};

struct cu_pool_properties {
  int allocation_type, handle_types;
  struct cu_mem_location location;
  void *win32_security;
  size_t max_bytes;
  unsigned char reserved[56];
};

struct cu_mem_alloc_node {
  struct cu_pool_properties pool;
  const void *access;
  size_t access_count, bytes;
  CUdeviceptr address; /* an answer */
};

struct cu_memcpy_node {
  int flags, reserved;
  CUcontext context;
  struct cu_memcpy3d copy;
};

/* For cuGraphAddNode and its like: a node of any type. */
struct cu_node {
  int type; /* enum cu_node_type */
  int reserved[3];
  union {
    struct cu_kernel_node kernel;
    struct cu_memcpy_node memcpy;
    struct cu_memset_node memset;
    struct cu_host_node host;
    CUgraph graph;
    CUevent event;
    struct cu_mem_alloc_node alloc;
    CUdeviceptr free;
    long long words[29];
  };
  long long reserved_end;
};

struct cu_instantiation {
  unsigned long long flags;
  CUstream upload_stream;
  CUgraphNode error_node; /* answers from here */
  int result;
};

struct cu_update_result {
  int result;
  CUgraphNode error_node, error_from_node;
};

struct cu_device_properties {
  int max_threads_per_block, max_threads_dim[3], max_grid[3], shared_bytes_per_block, constant_bytes, simd_width,
      pitch_bytes, registers_per_block, clock_khz, texture_align;
};

#endif
