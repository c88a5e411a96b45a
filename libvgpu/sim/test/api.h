/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * api.h - the calls that the tests make, as a program that is linked with the driver sees them.
 */
#ifndef GPUSIM_TEST_API_H
#define GPUSIM_TEST_API_H

#include "../cuda_types.h"

CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGet(CUdevice *out, int ordinal);
CUresult cuDeviceGetName(char *name, int bytes, CUdevice device);
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CUresult cuDeviceGetPCIBusId(char *text, int bytes, CUdevice device);
CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text);
CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);
CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v3(CUcontext *out, const void *affinities, int count, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext *out);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *out);
CUresult cuCtxGetDevice(CUdevice *out);
CUresult cuCtxSynchronize(void);
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes);
CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element);
CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer);
CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void *pointer);
CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags);
CUresult cuMemHostUnregister(void *pointer);
CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device);
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);
CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr pointer);
CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void *source, size_t bytes);
CUresult cuMemcpyDtoH_v2(void *target, CUdeviceptr source, size_t bytes);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream);
CUresult cuMemcpyPeerAsync(CUdeviceptr target, CUcontext to, CUdeviceptr source, CUcontext from, size_t bytes,
                           CUstream stream);
CUresult cuMemcpyDtoD_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes);
CUresult cuMemcpy2D_v2(const struct cu_memcpy2d *copy);
CUresult cuMemcpy3D_v2(const struct cu_memcpy3d *copy);
CUresult cuMemsetD8_v2(CUdeviceptr target, unsigned char value, size_t count);
CUresult cuMemsetD32_v2(CUdeviceptr target, unsigned value, size_t count);
CUresult cuMemsetD2D16_v2(CUdeviceptr target, size_t pitch, unsigned short value, size_t width, size_t height);
CUresult cuStreamCreate(CUstream *out, unsigned flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuEventCreate(CUevent *out, unsigned flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
CUresult cuModuleLoadData(CUmodule *out, const void *image);
CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name);
CUresult cuModuleGetGlobal_v2(CUdeviceptr *out, size_t *bytes, CUmodule module, const char *name);
CUresult cuLinkCreate_v2(unsigned count, int *options, void **values, void **out);
CUresult cuLinkAddData_v2(void *link, int kind, void *data, size_t bytes, const char *name, unsigned count,
                          int *options, void **values);
CUresult cuLinkComplete(void *link, void **image, size_t *bytes);
CUresult cuLinkDestroy(void *link);
CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction kernel);
CUresult cuLaunchKernel(CUfunction kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **parameters, void **extra);
CUresult cuGetErrorName(CUresult code, const char **name);
CUresult cuGetErrorString(CUresult code, const char **text);
CUresult cuGetProcAddress(const char *name, void **symbol, int version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *name, void **symbol, int version, uint64_t flags, int *status);
CUresult cuGetExportTable(const void **table, const CUuuid *id);
CUresult cuTexRefCreate(void **out);

typedef struct nv_device *nvmlDevice_t;
int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out);
int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out);
int nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned bytes);
int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, void *memory);
int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, void *memory);
int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, void *rates);
int nvmlDeviceGetProcessUtilization(nvmlDevice_t device, void *samples, unsigned *count, unsigned long long since_us);
int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, void *out);
int nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, void *out);
int nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned *count, void *out);
int nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, void *out);
int nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode);
int nvmlDeviceGetPcieThroughput(nvmlDevice_t device, int counter, unsigned *kilobytes_per_second);
int nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *generation);
int nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *generation);
int nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned *width);
int nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned *width);
int nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned *speed);
int nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned *mhz);
int nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned *mhz);
int nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons);
int nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons);
int nvmlGpmQueryDeviceSupport(nvmlDevice_t device, void *support);
int nvmlGpmSampleAlloc(void **out);
int nvmlGpmSampleFree(void *sample);
int nvmlGpmSampleGet(nvmlDevice_t device, void *sample);
int nvmlGpmMetricsGet(void *metrics);
int nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending);
int nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id);
const char *nvmlErrorString(int code);
int nvmlEventSetCreate(void **out);
int nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, void *set);
int nvmlEventSetWait_v2(void *set, void *data, unsigned timeout_ms);

#endif
