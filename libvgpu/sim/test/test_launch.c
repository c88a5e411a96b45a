/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_launch.c - all ways to launch a kernel: each takes its GPU time, and refuses what it cannot do.
 */
#include <string.h>

#include "api_graph.h"

const char graph_ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                         ".visible .global .align 4 .b8 table[4096];\n.visible .entry plain(.param .u64 p)\n{ ret; }\n"
                         ".visible .entry busy_1ms()\n{ ret; }\n.visible .entry busy_10ms()\n{ ret; }\n"
                         ".visible .entry busy_30ms()\n{ ret; }\n";

CUmodule load_graph_module(void) {
  CUmodule module;
  CHECK_EQUAL(cuModuleLoadData(&module, graph_ptx), CUDA_SUCCESS);
  return module;
}

CUfunction graph_kernel(const char *name) {
  static CUmodule module;
  CUfunction found;
  if (!module) module = load_graph_module();
  CHECK_EQUAL(cuModuleGetFunction(&found, module, name), CUDA_SUCCESS);
  return found;
}

CUresult launch_in(CUstream stream, const char *name) {
  return cuLaunchKernel(graph_kernel(name), 4, 1, 1, 128, 1, 1, 0, stream, NULL, NULL);
}

CUstream new_stream(unsigned flags) {
  CUstream stream;
  CHECK_EQUAL(cuStreamCreate(&stream, flags), CUDA_SUCCESS);
  return stream;
}

CUevent new_event(void) {
  CUevent event;
  CHECK_EQUAL(cuEventCreate(&event, 0), CUDA_SUCCESS);
  return event;
}

unsigned long long busy_ms(void) {
  CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
  return (status_number("busy_ns") + 500000) / 1000000;
}

void test_ways_to_launch(void) {
  begin_cuda();
  CUstream stream = new_stream(0);
  CUfunction busy = graph_kernel("busy_10ms");
  struct cu_launch_config config = {1, 1, 1, 32, 1, 1, 0, stream, NULL, 0};
  struct cu_device_launch many = {busy, 1, 1, 1, 32, 1, 1, 0, stream, NULL};
  CHECK_EQUAL(cuLaunchKernel(busy, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(busy_ms(), 10);
  CHECK_EQUAL(cuLaunchKernel_ptsz(busy, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(busy_ms(), 20);
  CHECK_EQUAL(cuLaunchKernelEx(&config, busy, NULL, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(busy_ms(), 30);
  CHECK_EQUAL(cuLaunchCooperativeKernel(busy, 1, 1, 1, 32, 1, 1, 0, stream, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(busy_ms(), 40);
  CHECK_EQUAL(cuLaunchCooperativeKernelMultiDevice(&many, 1, 0), CUDA_SUCCESS);
  CHECK_EQUAL(busy_ms(), 50);
  CHECK_EQUAL(status_number("cuLaunchKernel"), 2); /* the variant counts as the plain call */
  many.stream = NULL;
  CHECK_EQUAL(cuLaunchCooperativeKernelMultiDevice(&many, 1, 0), CUDA_ERROR_INVALID_HANDLE);
  CHECK_EQUAL(cuLaunchCooperativeKernelMultiDevice(&many, 2, 0), CUDA_ERROR_INVALID_VALUE); /* of one device */
  CHECK_EQUAL(cuLaunchCooperativeKernel(busy, 108 * 2 + 1, 1, 1, 1024, 1, 1, 0, stream, NULL),
              CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  CHECK_EQUAL(cuLaunchCooperativeKernel(busy, 108 * 2, 1, 1, 1024, 1, 1, 0, stream, NULL), CUDA_SUCCESS);
}

void test_launch_attributes(void) {
  begin_cuda();
  CUstream stream = new_stream(0);
  CUevent event = new_event();
  struct cu_launch_attribute attribute = {.id = CU_LAUNCH_CLUSTER, .value.cluster = {2, 1, 1}};
  struct cu_launch_config config = {4, 1, 1, 32, 1, 1, 0, stream, &attribute, 1};
  CUfunction busy = graph_kernel("busy_10ms");
  CHECK_EQUAL(cuLaunchKernelEx(&config, busy, NULL, NULL), CUDA_SUCCESS); /* an H100 */
  attribute.value.cluster[0] = 3;
  CHECK_EQUAL(cuLaunchKernelEx(&config, busy, NULL, NULL), CUDA_ERROR_INVALID_CLUSTER_SIZE);
  attribute.value.cluster[0] = 16;
  CHECK_EQUAL(cuLaunchKernelEx(&config, busy, NULL, NULL), CUDA_ERROR_INVALID_CLUSTER_SIZE);
  attribute.id = 6; /* programmatic stream serialization */
  CHECK_EQUAL(cuLaunchKernelEx(&config, busy, NULL, NULL), CUDA_SUCCESS);
  attribute.id = CU_LAUNCH_ATTRIBUTES;
  CHECK_EQUAL(cuLaunchKernelEx(&config, busy, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
  attribute = (struct cu_launch_attribute){.id = CU_LAUNCH_COOPERATIVE, .value.number = 1};
  config.grid_x = 1u << 20;
  CHECK_EQUAL(cuLaunchKernelEx(&config, busy, NULL, NULL), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  config.grid_x = 4;
  attribute = (struct cu_launch_attribute){.id = CU_LAUNCH_PROGRAMMATIC_EVENT, .value.event = event};
  CHECK_EQUAL(cuLaunchKernelEx(&config, busy, NULL, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  CHECK_EQUAL(cuEventSynchronize(event), CUDA_SUCCESS);
  CHECK_EQUAL(busy_ms(), 30);
  config.attributes = NULL;
  CHECK_EQUAL(cuLaunchKernelEx(&config, busy, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
}

void test_old_launches(void) {
  begin_cuda();
  CUstream stream = new_stream(0);
  CUfunction busy = graph_kernel("busy_10ms");
  int value = 0;
  CHECK_EQUAL(cuLaunch(busy), CUDA_ERROR_INVALID_VALUE); /* no block shape */
  CHECK_EQUAL(cuFuncSetBlockShape(busy, 0, 1, 1), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuFuncSetBlockShape(busy, 32, 1, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuFuncSetSharedSize(busy, 1024), CUDA_SUCCESS);
  CHECK_EQUAL(cuParamSetSize(busy, 16), CUDA_SUCCESS);
  CHECK_EQUAL(cuParamSeti(busy, 0, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuParamSetf(busy, 4, 1.0f), CUDA_SUCCESS);
  CHECK_EQUAL(cuParamSetv(busy, 8, &value, sizeof value), CUDA_SUCCESS);
  CHECK_EQUAL(cuParamSetv(busy, 4096, &value, sizeof value), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuLaunch(busy), CUDA_SUCCESS);
  CHECK_EQUAL(cuLaunchGrid(busy, 2, 2), CUDA_SUCCESS);
  CHECK_EQUAL(cuLaunchGridAsync(busy, 2, 2, stream), CUDA_SUCCESS);
  CHECK_EQUAL(cuLaunchGrid(busy, 0, 2), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuLaunchGrid(NULL, 1, 1), CUDA_ERROR_INVALID_HANDLE);
  CHECK_EQUAL(busy_ms(), 30);
}

void test_libraries(void) {
  CUlibrary library;
  CUkernel kernel;
  CUkernel again;
  CUfunction function;
  CUmodule module;
  CUmodule of_function;
  CUdeviceptr address;
  size_t bytes;
  int value;
  CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
  CHECK_EQUAL(cuLibraryLoadData(&library, graph_ptx, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS); /* no context */
  CHECK_EQUAL(cuLibraryGetKernel(&kernel, library, "busy_10ms"), CUDA_SUCCESS);
  CHECK_EQUAL(cuLibraryGetKernel(&again, library, "busy_10ms"), CUDA_SUCCESS);
  CHECK(kernel == again);
  CHECK_EQUAL(cuLibraryGetKernel(&again, library, "absent"), CUDA_ERROR_NOT_FOUND);
  CHECK_EQUAL(cuKernelGetFunction(&function, kernel), CUDA_ERROR_INVALID_CONTEXT);
  begin_cuda();
  CHECK_EQUAL(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuKernelGetFunction(&function, kernel), CUDA_SUCCESS);
  CHECK(function != kernel);
  CHECK_EQUAL(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(busy_ms(), 20);
  CHECK_EQUAL(cuLibraryGetModule(&module, library), CUDA_SUCCESS);
  CHECK_EQUAL(cuFuncGetModule(&of_function, function), CUDA_SUCCESS);
  CHECK(module == of_function);
  CHECK_EQUAL(cuFuncGetModule(&of_function, kernel), CUDA_SUCCESS);
  CHECK(module == of_function);
  CHECK_EQUAL(cuModuleGetFunction(&again, module, "busy_10ms"), CUDA_SUCCESS);
  CHECK(again == function); /* one handle per function */
  CHECK_EQUAL(cuLibraryGetGlobal(&address, &bytes, library, "table"), CUDA_SUCCESS);
  CHECK_EQUAL(bytes, 4096);
  CHECK_EQUAL(cuFuncGetAttribute(&value, 0, kernel), CUDA_SUCCESS);
  CHECK_EQUAL(cuKernelGetAttribute(&value, 0, kernel, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuKernelGetAttribute(&value, 0, function, 0), CUDA_ERROR_INVALID_HANDLE);
  CHECK_EQUAL(cuLibraryUnload(library), CUDA_SUCCESS);
  CHECK_EQUAL(cuLibraryUnload(library), CUDA_ERROR_INVALID_HANDLE);
  CHECK_EQUAL(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
  CHECK_EQUAL(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
}

void test_library_in_two_contexts(void) {
  CUcontext contexts[2];
  CUfunction functions[2];
  CUlibrary library;
  CUkernel kernel;
  begin_cuda();
  CHECK_EQUAL(cuLibraryLoadData(&library, graph_ptx, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuLibraryGetKernel(&kernel, library, "busy_10ms"), CUDA_SUCCESS);
  for (int i = 0; i < 2; i++) {
    CHECK_EQUAL(cuCtxCreate_v2(&contexts[i], 0, i), CUDA_SUCCESS);
    CHECK_EQUAL(cuKernelGetFunction(&functions[i], kernel), CUDA_SUCCESS);
    CHECK_EQUAL(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
  }
  CHECK(functions[0] != functions[1]);
  CHECK_EQUAL(cuCtxDestroy_v2(contexts[1]), CUDA_SUCCESS);
  CHECK_EQUAL(cuLaunchKernel(functions[1], 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
  CHECK_EQUAL(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
  CHECK_EQUAL(cuLibraryUnload(library), CUDA_SUCCESS);
}
