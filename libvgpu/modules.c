/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * modules.c - symbol look-up through dl_iterate_phdr, DT_GNU_HASH and DT_HASH.
 *
 * dl_iterate_phdr is the one libc function that libvgpu refers to, weakly and without a version: old and new
 * glibc and musl all export it.
 */
#include "modules.h"

#include <errno.h>
#include <link.h>
#include <stdbool.h>

#include "include/vgpu_abi.h"
#include "text.h"

extern const char __ehdr_start[] __attribute__((visibility("hidden"))); /* made by the linker: our own base */

/* By this export one libvgpu knows another; the value is the version of the pages that it reads. */
extern const uint32_t vgpud_libvgpu;
__attribute__((visibility("default"), used)) const uint32_t vgpud_libvgpu = VGPU_ABI_VERSION;

extern int dl_iterate_phdr(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data) __attribute__((weak));

struct module {
  uintptr_t base;
  const ElfW(Sym) * symbols;
  const char *strings;
  const uint32_t *gnu_hash;
  const ElfW(Word) * sysv_hash;
};

/* glibc writes the loaded address into d_ptr, musl leaves the offset. */
static const void *absolute(uintptr_t base, ElfW(Addr) value) {
  return (const void *)(value < base ? base + value : value);
}

static int module_open(struct module *module, const struct dl_phdr_info *info) {
  *module = (struct module){.base = info->dlpi_addr};
  const ElfW(Dyn) *dynamic = NULL;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) dynamic = (const void *)(module->base + info->dlpi_phdr[i].p_vaddr);
  }
  for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
    const void *pointer = absolute(module->base, dynamic->d_un.d_ptr);
    if (dynamic->d_tag == DT_SYMTAB) module->symbols = pointer;
    if (dynamic->d_tag == DT_STRTAB) module->strings = pointer;
    if (dynamic->d_tag == DT_GNU_HASH) module->gnu_hash = pointer;
    if (dynamic->d_tag == DT_HASH) module->sysv_hash = pointer;
  }
  return module->symbols && module->strings && (module->gnu_hash || module->sysv_hash);
}

static void *symbol_address(const struct module *module, uint32_t index, const char *name) {
  const ElfW(Sym) *symbol = &module->symbols[index];
  unsigned type = ELF64_ST_TYPE(symbol->st_info);
  unsigned binding = ELF64_ST_BIND(symbol->st_info);
  if (symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0 || binding == STB_LOCAL) return NULL;
  if (type != STT_FUNC && type != STT_OBJECT && type != STT_NOTYPE) return NULL;
  if (!vgpu_text_equal(module->strings + symbol->st_name, name)) return NULL;
  return (void *)(module->base + symbol->st_value);
}

static void *find_by_gnu_hash(const struct module *module, const char *name) {
  const uint32_t *table = module->gnu_hash;
  uint32_t bucket_count = table[0], first = table[1], bloom_words = table[2], hash = 5381;
  const uint32_t *buckets = (const uint32_t *)((const ElfW(Addr) *)(table + 4) + bloom_words);
  const uint32_t *chain = buckets + bucket_count;
  for (const char *c = name; *c; c++)
    hash = hash * 33 + (uint8_t)*c;
  const ElfW(Addr) *bloom = (const ElfW(Addr) *)(table + 4);
  unsigned bits = 8 * sizeof(ElfW(Addr));
  ElfW(Addr) word = bloom_words ? bloom[hash / bits % bloom_words] : 0;
  if (bucket_count == 0 || !(word >> hash % bits & 1) || !(word >> (hash >> table[3]) % bits & 1)) return NULL;
  uint32_t index = buckets[hash % bucket_count];
  if (index < first) return NULL;
  for (;; index++) {
    uint32_t entry = chain[index - first];
    void *address = (entry | 1) == (hash | 1) ? symbol_address(module, index, name) : NULL;
    if (address || entry & 1) return address;
  }
}

static void *find_by_sysv_hash(const struct module *module, const char *name) {
  const ElfW(Word) *table = module->sysv_hash;
  uint32_t hash = 0;
  for (const char *c = name; *c; c++) {
    hash = (hash << 4) + (uint8_t)*c;
    hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
  }
  if (table[0] == 0) return NULL;
  for (uint32_t index = table[2 + hash % table[0]]; index != 0; index = table[2 + table[0] + index]) {
    void *address = symbol_address(module, index, name);
    if (address) return address;
  }
  return NULL;
}

static void *find_in_module(const struct module *module, const char *name) {
  return module->gnu_hash ? find_by_gnu_hash(module, name) : find_by_sysv_hash(module, name);
}

static const char *const driver_names[] = {"libcuda.so", "libnvidia-ml.so"};
static const char *const driver_markers[][2] = {{"cuInit", "cuDriverGetVersion"}, {"nvmlInit_v2", "nvmlShutdown"}};

/* 2: named like the driver and exports its markers, 1: exports them, 0: neither. */
static int driver_rank(enum vgpu_library library, const struct module *module, const char *path) {
  for (int i = 0; i < 2; i++) {
    if (!find_in_module(module, driver_markers[library][i])) return 0;
  }
  const char *file = path ? path : "";
  for (const char *c = file; *c; c++) {
    if (*c == '/') file = c + 1;
  }
  return vgpu_text_starts(file, driver_names[library]) ? 2 : 1;
}

static int is_libvgpu(const struct module *module) {
  return find_in_module(module, "vgpud_libvgpu") != NULL;
}

static int is_self(const struct dl_phdr_info *info) {
  return info->dlpi_addr == (uintptr_t)__ehdr_start;
}

static int contains(const struct dl_phdr_info *info, uintptr_t address) {
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    if (segment->p_type == PT_LOAD && address - info->dlpi_addr - segment->p_vaddr < segment->p_memsz) return 1;
  }
  return 0;
}

struct search {
  enum vgpu_library library;
  const char *const *names;
  void **found;
  size_t count;
  int rank; /* of the driver that `found` was filled from */
  int passed_self;
};

static int visit_search(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  struct search *search = data;
  struct module module;
  if (is_self(info)) {
    search->passed_self = 1;
    return 0;
  }
  bool is_later = search->library == VGPU_LIBRARY_NEXT || search->library == VGPU_LIBRARY_VGPU;
  if ((is_later && !search->passed_self) || !module_open(&module, info)) return 0;
  if (search->library == VGPU_LIBRARY_VGPU && !is_libvgpu(&module)) return 0;
  if (search->library == VGPU_LIBRARY_CUDA || search->library == VGPU_LIBRARY_NVML) {
    int rank = driver_rank(search->library, &module, info->dlpi_name);
    if (rank <= search->rank) return 0;
    search->rank = rank;
  }
  for (size_t i = 0; i < search->count; i++)
    search->found[i] = find_in_module(&module, search->names[i]);
  return search->library == VGPU_LIBRARY_VGPU || search->rank == 2 || (search->rank == 0 && search->found[0] != NULL);
}

void vgpu_find_symbols(enum vgpu_library library, const char *const *names, void **found, size_t count) {
  struct search search = {.library = library, .names = names, .found = found, .count = count};
  for (size_t i = 0; i < count; i++)
    found[i] = NULL;
  if (dl_iterate_phdr) dl_iterate_phdr(visit_search, &search);
}

void *vgpu_find_symbol(enum vgpu_library library, const char *name) {
  void *found;
  vgpu_find_symbols(library, &name, &found, 1);
  return found;
}

struct place {
  enum vgpu_library library;
  uintptr_t address;
  int is_driver;
  int is_libvgpu;
};

static int visit_place(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  struct place *place = data;
  struct module module;
  if (!contains(info, place->address)) return 0;
  if (is_self(info) || !module_open(&module, info)) return 1;
  place->is_driver = driver_rank(place->library, &module, info->dlpi_name) != 0;
  place->is_libvgpu = is_libvgpu(&module);
  return 1;
}

int vgpu_is_in_driver(enum vgpu_library library, const void *address) {
  struct place place = {.library = library, .address = (uintptr_t)address};
  if (dl_iterate_phdr) dl_iterate_phdr(visit_place, &place);
  return place.is_driver;
}

int vgpu_is_in_libvgpu(const void *address) {
  struct place place = {.library = VGPU_LIBRARY_CUDA, .address = (uintptr_t)address};
  if (dl_iterate_phdr) dl_iterate_phdr(visit_place, &place);
  return place.is_libvgpu;
}

struct path_copy {
  char *path;
  size_t size;
  int result;
};

static int visit_self(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  struct path_copy *copy = data;
  if (!is_self(info) || !info->dlpi_name) return 0;
  copy->result = vgpu_text_copy(copy->path, copy->size, info->dlpi_name);
  return 1;
}

int vgpu_own_path(char *path, size_t size) {
  struct path_copy copy = {.path = path, .size = size, .result = -ENOENT};
  if (dl_iterate_phdr) dl_iterate_phdr(visit_self, &copy);
  return copy.result;
}
