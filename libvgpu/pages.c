/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * pages.c - contract in pages.h. Fails towards the limit: whatever is not as it should be leaves no book, and
 * without a book nothing can be allocated.
 */
#include "pages.h"

#include <errno.h>

#include "core/page.h"
#include "core/sys.h"
#include "modules.h"
#include "log.h"
#include "text.h"

enum {
  PATH_BYTES = 4096,
  NAME_BYTES = 256,
  ENTRY_BYTES = 4096,
  PAGE_BYTES = 4096,
  SEEK_TO_END = 2,
  MAX_LINKS = 8,
  LOCK_EXCLUSIVE = 2,
  LOCK_RELEASE = 8
};

/* The kernel's struct linux_dirent64. */
struct entry {
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[];
};

static bool is_error(const void *mapping) {
  return (uintptr_t)mapping >= (uintptr_t)-4095;
}

uint32_t *vgpu_pages_canary(struct vgpu_pages *pages) {
  uint32_t *page =
      vgpu_sys_mmap(NULL, PAGE_BYTES, VGPU_PROT_READ | VGPU_PROT_WRITE, VGPU_MAP_PRIVATE | VGPU_MAP_ANONYMOUS, -1, 0);
  if (is_error(page)) return NULL;
  if (vgpu_sys_madvise(page, PAGE_BYTES, VGPU_MADV_WIPEONFORK) != 0) {
    vgpu_sys_munmap(page, PAGE_BYTES);
    return NULL;
  }
  pages->canaries = page;
  return &page[VGPU_MAX_BOOKS];
}

/* Maps all of a file of the directory; its size goes to *bytes, and its descriptor to *file if that is wanted. A
 * negative errno as an address. */
static void *map_file(int directory, const char *name, int flags, int protection, size_t *bytes, int *file) {
  long fd = vgpu_sys_openat(directory, name, flags | VGPU_O_CLOEXEC | VGPU_O_NOFOLLOW | VGPU_O_NONBLOCK, 0);
  if (fd < 0) return (void *)fd;
  long size = vgpu_sys_lseek((int)fd, 0, SEEK_TO_END);
  void *mapping = (void *)(size < 0 ? size : (long)-EINVAL);
  if (size > 0) mapping = vgpu_sys_mmap(NULL, (size_t)size, protection, VGPU_MAP_SHARED, (int)fd, 0);
  *bytes = (size_t)size;
  if (file && !is_error(mapping)) {
    *file = (int)fd;
  } else {
    vgpu_sys_close((int)fd);
  }
  return mapping;
}

/* `file` is that of the usage page, -1: none. */
static int open_book(struct vgpu_pages *pages, const void *limits, size_t limits_bytes, void *usage, size_t usage_bytes,
                     int file) {
  struct vgpu_book *book = &pages->books[pages->count];
  int result = vgpu_book_open(book, limits, limits_bytes, usage, usage_bytes);
  if (result != 0 && file >= 0) vgpu_sys_close(file);
  if (result != 0) return result;
  if (file >= 0) vgpu_book_use_file(book, file);
  if (pages->canaries) book->fork_canary = &pages->canaries[pages->count];
  pages->count++;
  return 0;
}

static int open_pair(struct vgpu_pages *pages, int directory, const char *name) {
  long pair = vgpu_sys_openat(directory, name, VGPU_O_RDONLY | VGPU_O_DIRECTORY | VGPU_O_CLOEXEC | VGPU_O_NOFOLLOW, 0);
  if (pair < 0) return (int)pair;
  size_t limits_bytes = 0, usage_bytes = 0;
  int file = -1;
  void *limits = map_file((int)pair, "limits", VGPU_O_RDONLY, VGPU_PROT_READ, &limits_bytes, NULL);
  void *usage = map_file((int)pair, "usage", VGPU_O_RDWR, VGPU_PROT_READ | VGPU_PROT_WRITE, &usage_bytes, &file);
  vgpu_sys_close((int)pair);
  if (is_error(limits)) return (int)(intptr_t)limits;
  if (is_error(usage)) return (int)(intptr_t)usage;
  if (pages->count == VGPU_MAX_BOOKS) return -E2BIG;
  return open_book(pages, limits, limits_bytes, usage, usage_bytes, file);
}

/* Opens the pairs of one buffer full of entries. */
static int open_entries(struct vgpu_pages *pages, int directory, const char *buffer, long bytes) {
  for (long at = 0; at < bytes;) {
    const struct entry *entry = (const struct entry *)(buffer + at);
    at += entry->length;
    if (vgpu_text_equal(entry->name, ".") || vgpu_text_equal(entry->name, "..")) continue;
    int result = open_pair(pages, directory, entry->name);
    if (result == 0) continue;
    vgpu_log("allocation %s: page missing, damaged or of an unknown version (error %d): nothing can be allocated",
             entry->name, -result);
    return result;
  }
  return 0;
}

static int open_all(struct vgpu_pages *pages, int directory) {
  char buffer[ENTRY_BYTES] __attribute__((aligned(8)));
  for (;;) {
    long bytes = vgpu_sys_getdents64(directory, buffer, sizeof(buffer));
    if (bytes < 0) return (int)bytes;
    if (bytes == 0) break;
    int result = open_entries(pages, directory, buffer, bytes);
    if (result != 0) return result;
  }
  if (pages->count > 0) return 0;
  vgpu_log("no pages beside the library: nothing can be allocated");
  return -ESRCH;
}

/* Where the pages are, as it was when the library was loaded. */
static struct {
  bool is_known;
  bool promised;         /* the directory was there, or could not be looked at */
  int error;             /* of finding its path */
  char path[PATH_BYTES]; /* "<directory of the library>/alloc" */
} place;

/* The loader may have been given a relative path: makes it one from the root. */
static int make_absolute(char path[PATH_BYTES]) {
  char given[PATH_BYTES];
  if (path[0] == '/') return 0;
  vgpu_text_copy(given, sizeof(given), path);
  long bytes = vgpu_syscall2(__NR_getcwd, (long)path, PATH_BYTES - 1);
  if (bytes <= 1 || path[0] != '/') return vgpu_text_copy(path, PATH_BYTES, given); /* as good as it gets */
  path[bytes - 1] = '/';
  return vgpu_text_copy(path + bytes, PATH_BYTES - (size_t)bytes, given);
}

/* `name` in place of the last part of `path`, or of all of it when it begins at the root. */
static int put_beside(char path[PATH_BYTES], const char *name) {
  size_t length = *name == '/' ? 0 : vgpu_text_length(path);
  while (length > 0 && path[length - 1] != '/')
    length--;
  return vgpu_text_copy(path + length, PATH_BYTES - length, name);
}

/* Beside the library by the name that the loader was given; else, where that is a link, beside what it points to. */
static int find_place(void) {
  char library[PATH_BYTES], target[PATH_BYTES];
  int result = vgpu_own_path(library, sizeof(library));
  if (result == 0) result = make_absolute(library);
  for (int links = 0; result == 0 && links <= MAX_LINKS; links++) {
    vgpu_text_copy(place.path, PATH_BYTES, library);
    result = put_beside(place.path, "alloc");
    if (result != 0) break;
    place.promised = vgpu_syscall3(__NR_faccessat, VGPU_AT_FDCWD, (long)place.path, 0) != -ENOENT;
    long bytes = place.promised ? 0 : vgpu_sys_readlink(library, target, PATH_BYTES - 1);
    if (bytes <= 0) break;
    target[bytes] = 0;
    result = put_beside(library, target);
  }
  return result;
}

/* The only thing that runs when the library is loaded: a program may change its directory, its root and its
 * environment before its first call, and is limited all the same. */
__attribute__((constructor)) static void note_place(void) {
  if (place.is_known) return;
  place.is_known = true;
  place.error = find_place();
}

int vgpu_pages_open(struct vgpu_pages *pages) {
  note_place(); /* a library before us may call the driver when it is loaded */
  if (place.error != 0) return place.error == -ENOENT ? -EINVAL : place.error;
  long directory = vgpu_sys_openat(VGPU_AT_FDCWD, place.path, VGPU_O_RDONLY | VGPU_O_DIRECTORY | VGPU_O_CLOEXEC, 0);
  if (directory == -ENOENT && !place.promised) return -ENOENT;
  if (directory < 0) {
    vgpu_log("cannot open %s (error %d): nothing can be allocated", place.path, (int)-directory);
    return 0;
  }
  if (open_all(pages, (int)directory) != 0) pages->count = 0;
  vgpu_sys_close((int)directory);
  return 0;
}

/* Opens, and where it is new makes, the usage file of CUDA_DEVICE_MEMORY_SHARED_CACHE. One that an older library made, which
 * others may be using, stays as it is: its size says so. */
static void *map_shared_cache(const char *path, size_t *bytes, int *file) {
  int flags = VGPU_O_RDWR | VGPU_O_CREAT | VGPU_O_CLOEXEC | VGPU_O_NOFOLLOW | VGPU_O_NONBLOCK;
  long fd = vgpu_sys_openat(VGPU_AT_FDCWD, path, flags, 0600);
  if (fd < 0) return (void *)fd;
  vgpu_syscall2(__NR_flock, fd, LOCK_EXCLUSIVE); /* the kernel takes it back when its holder dies */
  long size = vgpu_sys_lseek((int)fd, 0, SEEK_TO_END);
  bool is_older = size == (long)vgpu_usage_page_bytes(VGPU_MAX_DEVICES, VGPU_ABI_NO_TRAFFIC);
  size_t wanted = vgpu_usage_page_bytes(VGPU_MAX_DEVICES, is_older ? VGPU_ABI_NO_TRAFFIC : VGPU_ABI_VERSION);
  long result = size == 0 ? vgpu_syscall4(__NR_fallocate, fd, 0, 0, (long)wanted) : 0;
  if (result == -EOPNOTSUPP) result = vgpu_sys_ftruncate((int)fd, (long)wanted);
  void *mapping = (void *)(result != 0 ? result : (long)-EINVAL);
  if (result == 0 && (size == 0 || size == (long)wanted)) {
    mapping = vgpu_sys_mmap(NULL, wanted, VGPU_PROT_READ | VGPU_PROT_WRITE, VGPU_MAP_SHARED, (int)fd, 0);
    /* Also where somebody was killed between making the file and writing its header: it is still all zero. */
    bool is_empty = !is_error(mapping) && *(uint64_t *)mapping == 0;
    if (is_empty) vgpu_usage_repair(mapping, VGPU_MAX_DEVICES, is_older ? VGPU_ABI_NO_TRAFFIC : VGPU_ABI_VERSION);
  }
  vgpu_syscall2(__NR_flock, fd, LOCK_RELEASE); /* a mapping keeps the lock beyond close */
  *file = (int)fd;
  *bytes = wanted;
  return mapping;
}

static void begin_limits(struct vgpu_limits_page *page, uint32_t device_count) {
  page->magic = VGPU_LIMITS_MAGIC;
  page->abi_version = VGPU_ABI_VERSION;
  page->page_bytes = VGPU_LIMITS_PAGE_BYTES;
  page->device_count = device_count;
}

/* A line that all processes with the same share have in common, whenever they began: from the start of the clock on. */
static void set_share(struct vgpu_limits_device *device, uint32_t share_ppm) {
  device->share_ppm = share_ppm;
  device->ceiling_ppm = share_ppm;
  device->compute_mode = share_ppm < VGPU_PPM ? VGPU_COMPUTE_HARD : VGPU_COMPUTE_NONE;
  for (int i = 0; i < 2; i++)
    device->rates[i] = (struct vgpu_rate){.rate_ppm = share_ppm, .scale_ppm = VGPU_PPM};
}

struct vgpu_book *vgpu_pages_barred(struct vgpu_pages *pages) {
  static union {
    struct vgpu_limits_page page;
    uint8_t bytes[VGPU_LIMITS_PAGE_BYTES];
  } limits;
  size_t bytes = vgpu_usage_page_bytes(1, VGPU_ABI_VERSION);
  if (pages->barred.limits) return &pages->barred;
  void *usage =
      vgpu_sys_mmap(NULL, bytes, VGPU_PROT_READ | VGPU_PROT_WRITE, VGPU_MAP_SHARED | VGPU_MAP_ANONYMOUS, -1, 0);
  if (is_error(usage)) return NULL;
  vgpu_usage_init(usage, 1);
  begin_limits(&limits.page, 1);
  set_share(&limits.page.devices[0], VGPU_SHARE_MIN_PPM);
  if (vgpu_book_open(&pages->barred, &limits, sizeof(limits), usage, bytes) != 0) return NULL;
  if (pages->canaries) pages->barred.fork_canary = &pages->canaries[VGPU_MAX_BOOKS + 1];
  return &pages->barred;
}

void vgpu_pages_standalone(struct vgpu_pages *pages, const struct vgpu_environment *environment) {
  static union {
    struct vgpu_limits_page page;
    uint8_t bytes[VGPU_LIMITS_PAGE_BYTES];
  } limits;
  size_t usage_bytes = vgpu_usage_page_bytes(VGPU_MAX_DEVICES, VGPU_ABI_VERSION);
  int file = -1;
  void *usage;
  begin_limits(&limits.page, VGPU_MAX_DEVICES);
  for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
    limits.page.devices[i].uuid[0] = (uint8_t)('0' + i); /* no UUID: devices are found by index */
    limits.page.devices[i].slice_count = 1;
    limits.page.devices[i].memory_limit_bytes = environment->limit_bytes[i];
    set_share(&limits.page.devices[i], environment->share_ppm[i]);
  }
  pages->is_standalone = true;
  if (environment->shared_cache && *environment->shared_cache) {
    usage = map_shared_cache(environment->shared_cache, &usage_bytes, &file);
    if (usage_bytes != vgpu_usage_page_bytes(VGPU_MAX_DEVICES, VGPU_ABI_VERSION)) {
      limits.page.abi_version = VGPU_ABI_NO_TRAFFIC;
    }
  } else {
    usage =
        vgpu_sys_mmap(NULL, usage_bytes, VGPU_PROT_READ | VGPU_PROT_WRITE, VGPU_MAP_SHARED | VGPU_MAP_ANONYMOUS, -1, 0);
    if (!is_error(usage)) vgpu_usage_init(usage, VGPU_MAX_DEVICES);
  }
  int result = (int)(intptr_t)usage;
  if (!is_error(usage)) result = open_book(pages, &limits, sizeof(limits), usage, usage_bytes, file);
  if (result != 0) vgpu_log("cannot use the usage page (error %d): nothing can be allocated", -result);
}
