/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_surface.c - what the libraries look like from outside: exported names, first instructions, cuGetProcAddress.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

struct library {
  const char *bytes;
  const Elf64_Sym *symbols;
  const char *names;
  size_t count;
};

static struct library read_library(const char *file) {
  char path[PATH_MAX];
  struct stat status;
  struct library library = {0};
  snprintf(path, sizeof path, "%s/%s", sim_directory, file);
  int fd = open(path, O_RDONLY);
  CHECK(fd >= 0 && fstat(fd, &status) == 0);
  char *bytes = malloc((size_t)status.st_size); /* not mapped: who probes the library would have changed that */
  CHECK(bytes != NULL && read(fd, bytes, (size_t)status.st_size) == status.st_size);
  library.bytes = bytes;
  const Elf64_Ehdr *elf = (const void *)library.bytes;
  const Elf64_Shdr *sections = (const void *)(library.bytes + elf->e_shoff);
  for (int i = 0; i < elf->e_shnum; i++) {
    if (sections[i].sh_type != SHT_DYNSYM) continue;
    library.symbols = (const void *)(library.bytes + sections[i].sh_offset);
    library.count = sections[i].sh_size / sizeof(Elf64_Sym);
    library.names = library.bytes + sections[sections[i].sh_link].sh_offset;
  }
  CHECK(library.count > 0);
  return library;
}

static const Elf64_Sym *find_symbol(const struct library *library, const char *name) {
  for (size_t i = 0; i < library->count; i++)
    if (library->symbols[i].st_shndx != SHN_UNDEF && strcmp(library->names + library->symbols[i].st_name, name) == 0)
      return &library->symbols[i];
  return NULL;
}

static void check_names(const char *file, const char *list, size_t wanted) {
  struct library library = read_library(file);
  char line[256];
  size_t listed = 0;
  size_t defined = 0;
  FILE *names = fopen(list, "r");
  CHECK(names != NULL);
  while (fgets(line, sizeof line, names)) {
    if (line[0] == '#') continue;
    bool object = strstr(line, " data ") != NULL;
    line[strcspn(line, " \n")] = 0;
    const Elf64_Sym *symbol = find_symbol(&library, line);
    if (!symbol) fprintf(stderr, "%s lacks %s\n", file, line);
    CHECK(symbol != NULL);
    CHECK_EQUAL(ELF64_ST_TYPE(symbol->st_info), object ? STT_OBJECT : STT_FUNC);
    listed++;
  }
  fclose(names);
  for (size_t i = 0; i < library.count; i++)
    defined += library.symbols[i].st_shndx != SHN_UNDEF;
  CHECK_EQUAL(listed, wanted);
  CHECK_EQUAL(defined, wanted); /* nothing beyond the list */
}

void test_export_names(void) {
  check_names("libcuda.so.1", "../cuda.sym", 620);
  check_names("libnvidia-ml.so.1", "../nvml.sym", 332);
}

void test_prologues(void) {
#if defined(__x86_64__)
  static const unsigned char constant[] = {0x00, 0xba, 0x1c, 0x32};
  struct library cuda = read_library("libcuda.so.1");
  struct library nvml = read_library("libnvidia-ml.so.1");
  size_t compares = 0;
  for (size_t i = 0; i < cuda.count; i++) {
    const Elf64_Sym *symbol = &cuda.symbols[i];
    const unsigned char *code = (const unsigned char *)cuda.bytes + symbol->st_value;
    if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC) continue;
    /* cmpl $0x321cba00, mem(%rip): 10 bytes; a short je over the jump; jmp *table(%rip) */
    compares += code[0] == 0x81 && code[1] == 0x3d && memcmp(code + 6, constant, 4) == 0 && code[10] == 0x74 &&
                code[12] == 0xff && code[13] == 0x25;
  }
  CHECK_EQUAL(compares, 589);
  for (size_t i = 0; i < nvml.count; i++) {
    const Elf64_Sym *symbol = &nvml.symbols[i];
    if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC) continue;
    CHECK_EQUAL((unsigned char)nvml.bytes[symbol->st_value], 0x55); /* push %rbp */
  }
#else
  skip_without("x86_64", "the stubs of other architectures are plain branches");
#endif
}

void test_data_objects(void) {
  void *handle = dlopen("libcuda.so.1", RTLD_NOW);
  unsigned *flag = handle ? dlsym(handle, "cudbgIpcFlag") : NULL;
  char *path = handle ? dlsym(handle, "cudbgInjectionPath") : NULL;
  CHECK(flag && path);
  CHECK_EQUAL(*flag, 0);
  memset(path, 'x', 4096); /* as long as the driver's */
}

static void check_variant(const char *name, int version, uint64_t flags, const char *wanted) {
  void *got = NULL;
  int status = -1;
  CHECK_EQUAL(cuGetProcAddress_v2(name, &got, version, flags, &status), CUDA_SUCCESS);
  if (got != (wanted ? dlsym(RTLD_DEFAULT, wanted) : NULL))
    fprintf(stderr, "%s at %d, flags %d: not %s\n", name, version, (int)flags, wanted ? wanted : "absent");
  CHECK(got == (wanted ? dlsym(RTLD_DEFAULT, wanted) : NULL));
  CHECK_EQUAL(status == 0, wanted != NULL);
  CHECK_EQUAL(cuGetProcAddress(name, &got, version, flags), wanted ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

void test_proc_address_thresholds(void) {
  void *got;
  int status;
  CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != NULL);
  check_variant("cuMemAlloc", 3010, 0, "cuMemAlloc");
  check_variant("cuMemAlloc", 3020, 0, "cuMemAlloc_v2");
  check_variant("cuCtxDestroy", 3999, 0, "cuCtxDestroy");
  check_variant("cuCtxDestroy", 4000, 0, "cuCtxDestroy_v2");
  check_variant("cuCtxCreate", 11030, 0, "cuCtxCreate_v2");
  check_variant("cuCtxCreate", 11040, 0, "cuCtxCreate_v3");
  check_variant("cuDeviceGetUuid", 11030, 0, "cuDeviceGetUuid");
  check_variant("cuDeviceGetUuid", 12020, 0, "cuDeviceGetUuid_v2");
  check_variant("cuMemFreeAsync", 11010, 0, NULL);
  check_variant("cuMemFreeAsync", 11020, 0, "cuMemFreeAsync");
  check_variant("cuMemFreeAsync", 11020, 1, "cuMemFreeAsync");
  check_variant("cuMemFreeAsync", 11020, 2, "cuMemFreeAsync_ptsz");
  check_variant("cuMemcpyHtoD", 12000, 2, "cuMemcpyHtoD_v2_ptds");
  check_variant("cuLaunchKernel", 4000, 2, NULL);
  check_variant("cuLaunchKernel", 7000, 2, "cuLaunchKernel_ptsz");
  check_variant("cuGetProcAddress", 11030, 0, "cuGetProcAddress");
  check_variant("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2");
  check_variant("cuMemAlloc_v2", 12000, 0, NULL);
  check_variant("cuEGLApiInit", 12000, 0, NULL);
  check_variant("", 12000, 0, NULL);
  CHECK_EQUAL(cuGetProcAddress_v2("cuNoSuchCall", &got, 12000, 0, &status), CUDA_SUCCESS);
  CHECK_EQUAL(status, 1);
  CHECK_EQUAL(cuGetProcAddress_v2("cuMemAlloc", &got, 1000, 0, &status), CUDA_SUCCESS);
  CHECK_EQUAL(status, 2);
  CHECK_EQUAL(cuGetProcAddress_v2("cuInit", &got, 12000, 4, &status), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuGetProcAddress_v2(NULL, &got, 12000, 0, &status), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuGetProcAddress_v2("cuInit", NULL, 12000, 0, NULL), CUDA_ERROR_INVALID_VALUE);
}

typedef CUresult (*proc_address_v2)(const char *, void **, int, uint64_t, int *);

static const char *symbol_at(void *address) {
  Dl_info info;
  return address && dladdr(address, &info) && info.dli_saddr == address ? info.dli_sname : "";
}

static void compare_with(proc_address_v2 real, const char *name, int version) {
  for (uint64_t flags = 0; flags <= 2; flags++) {
    void *ours = NULL;
    void *theirs = NULL;
    int our_status = -1;
    int their_status = -1;
    CHECK_EQUAL(real(name, &theirs, version, flags, &their_status),
                cuGetProcAddress_v2(name, &ours, version, flags, &our_status));
    CHECK_EQUAL(our_status, their_status);
    CHECK(strcmp(symbol_at(ours), symbol_at(theirs)) == 0);
  }
}

/* The real library answers without a card and before cuInit. Nothing else of it is called. Versions: all in which
 * anything appeared, and those just before. */
void test_proc_address_like_the_real_driver(void) {
  const char *path = getenv("GPUSIM_REAL_LIBCUDA");
  char line[256];
  if (!path || !*path) skip_without("real-libcuda", "GPUSIM_REAL_LIBCUDA does not name a libcuda.so of NVIDIA's");
  void *real_library = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
  CHECK(real_library != NULL);
  proc_address_v2 real = (proc_address_v2)dlsym(real_library, "cuGetProcAddress_v2");
  FILE *names = fopen("../cuda.sym", "r");
  CHECK(real && names);
  while (fgets(line, sizeof line, names)) {
    if (line[0] == '#') continue;
    line[strcspn(line, " \n")] = 0;
    for (int major = 1; major <= 13; major++)
      for (int minor = 0; minor <= 8; minor++)
        compare_with(real, line, major * 1000 + minor * 10);
  }
  fclose(names);
}

void test_not_supported_is_counted(void) {
  const void *table = &table;
  CUuuid id = {{0}};
  nvmlDevice_t device;
  unsigned number;
  void *texture;
  begin_cuda();
  CHECK_EQUAL(cuTexRefCreate(&texture), CUDA_ERROR_NOT_SUPPORTED);
  CHECK_EQUAL(cuTexRefCreate(&texture), CUDA_ERROR_NOT_SUPPORTED);
  CHECK_EQUAL(status_number("cuTexRefCreate"), 2);
  CHECK_EQUAL(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_SUPPORTED);
  CHECK(table == NULL);
  CHECK_EQUAL(nvmlInit_v2(), 0);
  CHECK_EQUAL(nvmlDeviceGetHandleByIndex_v2(0, &device), 0);
  CHECK_EQUAL(nvmlDeviceGetGpuInstanceId(device, &number), 3);
  CHECK_EQUAL(status_number("nvmlDeviceGetGpuInstanceId"), 1);
}

void test_version_and_errors_before_init(void) {
  const char *text = NULL;
  int version = 0;
  CHECK_EQUAL(cuDriverGetVersion(&version), CUDA_SUCCESS);
  CHECK_EQUAL(version, 12020);
  CHECK_EQUAL(cuDriverGetVersion(NULL), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuDeviceGetCount(&version), CUDA_ERROR_NOT_INITIALIZED);
  CHECK_EQUAL(cuInit(1), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuGetErrorName(2, &text), CUDA_SUCCESS);
  CHECK(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
  CHECK_EQUAL(cuGetErrorString(2, &text), CUDA_SUCCESS);
  CHECK(strcmp(text, "out of memory") == 0);
  CHECK_EQUAL(cuGetErrorName(12345, &text), CUDA_ERROR_INVALID_VALUE);
  CHECK(strcmp(nvmlErrorString(15), "GPU is lost") == 0);
}
