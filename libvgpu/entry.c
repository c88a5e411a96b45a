/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * entry.c - the doors through which a program finds the drivers' functions: dlsym, dlvsym and cuGetProcAddress.
 * (The exported hooks are the fourth.) Nothing is remembered about callers.
 *
 * dlsym and dlvsym are jumped into with the caller's registers and stack as they were, so that the real function
 * finds the caller's own return address and RTLD_NEXT means what it meant. Only for a hooked name is the real
 * function called from here; the answer is replaced when it is a driver's, and what is missing stays missing.
 * The drivers themselves always get their own functions.
 */
#include "modules.h"
#include "log.h"
#include "table.h"

#define LIKE_DEFAULT ((void *)0) /* RTLD_DEFAULT */
#define LIKE_NEXT ((void *)-1L)  /* RTLD_NEXT */

/* What a door does: jump to `address` with the caller's arguments, or return it. */
struct verdict {
  void *address;
  uintptr_t is_answer;
};

typedef void *(*dlsym_function)(void *handle, const char *name);
typedef void *(*dlvsym_function)(void *handle, const char *name, const char *version);

static void *real_dlsym;
static void *real_dlvsym;

static void *real_of(void **slot, const char *name) {
  void *address = __atomic_load_n(slot, __ATOMIC_RELAXED);
  if (!address) {
    address = vgpu_find_symbol(VGPU_LIBRARY_NEXT, name);
    __atomic_store_n(slot, address, __ATOMIC_RELAXED);
  }
  return address;
}

/* A hooked name, looked for in the caller's scope. Ours comes first there, so whether it would be found without
 * us is what the modules after us have; or a driver that only the caller's own scope has. */
static void *answer_in_scope(int index, const char *name) {
  dlsym_function real = (dlsym_function)real_of(&real_dlsym, "dlsym");
  void *behind = real ? real(LIKE_NEXT, name) : NULL; /* the caller is us: RTLD_NEXT starts behind us */
  return behind || vgpu_real_address((enum vgpu_name)index) ? vgpu_hook_function(index) : NULL;
}

/* Called by the doors below, with the caller's return address. */
__attribute__((used)) struct verdict vgpu_pick_dlsym(void *handle, const char *name, const void *caller) {
  struct verdict jump = {real_of(&real_dlsym, "dlsym"), 0};
  int index = name ? vgpu_hook_by_name(name) : -1;
  if (index < 0 || !jump.address || vgpu_is_driver_code(caller)) return (struct verdict){jump.address, !jump.address};
  if (handle == LIKE_DEFAULT || handle == LIKE_NEXT) return (struct verdict){answer_in_scope(index, name), 1};
  return (struct verdict){vgpu_hook_for_answer(index, ((dlsym_function)jump.address)(handle, name)), 1};
}

__attribute__((used)) struct verdict vgpu_pick_dlvsym(void *handle, const char *name, const char *version,
                                                      const void *caller) {
  struct verdict jump = {real_of(&real_dlvsym, "dlvsym"), 0};
  int index = name ? vgpu_hook_by_name(name) : -1;
  if (index < 0 || !jump.address || vgpu_is_driver_code(caller)) return (struct verdict){jump.address, !jump.address};
  if (handle == LIKE_DEFAULT || handle == LIKE_NEXT) return (struct verdict){answer_in_scope(index, name), 1};
  void *found = ((dlvsym_function)jump.address)(handle, name, version);
  dlsym_function unversioned = (dlsym_function)real_of(&real_dlsym, "dlsym");
  if (!found && unversioned) found = unversioned(handle, name); /* drivers give their functions no version */
  return (struct verdict){vgpu_hook_for_answer(index, found), 1};
}

/* The picker returns the verdict in two registers. */
#if defined(__x86_64__)
#define DOOR(name, caller_register)                                                      \
  __asm__(".text\n.globl " #name "\n.type " #name ",@function\n.p2align 4\n" #name ":\n" \
          ".cfi_startproc\nendbr64\n"                                                    \
          "push %rdi\n.cfi_adjust_cfa_offset 8\n"                                        \
          "push %rsi\n.cfi_adjust_cfa_offset 8\n"                                        \
          "push %rdx\n.cfi_adjust_cfa_offset 8\n"                                        \
          "mov 24(%rsp), " caller_register "\n"                                          \
          "call vgpu_pick_" #name "\n"                                                   \
          "mov %rdx, %rcx\n"                                                             \
          "pop %rdx\n.cfi_adjust_cfa_offset -8\n"                                        \
          "pop %rsi\n.cfi_adjust_cfa_offset -8\n"                                        \
          "pop %rdi\n.cfi_adjust_cfa_offset -8\n"                                        \
          "test %rcx, %rcx\njz 1f\nret\n1: jmp *%rax\n.cfi_endproc\n.size " #name ", . - " #name "\n")
DOOR(dlsym, "%rdx");
DOOR(dlvsym, "%rcx");
#elif defined(__aarch64__)
#define DOOR(name, caller_register)                                                                       \
  __asm__(".text\n.globl " #name "\n.type " #name ",%function\n.p2align 4\n" #name ":\n"                  \
          ".cfi_startproc\nhint #34\n"                                                                    \
          "stp x29, x30, [sp, #-48]!\n.cfi_def_cfa_offset 48\n.cfi_offset 29, -48\n.cfi_offset 30, -40\n" \
          "mov x29, sp\n"                                                                                 \
          "stp x0, x1, [sp, #16]\nstr x2, [sp, #32]\n"                                                    \
          "mov " caller_register ", x30\n"                                                                \
          "bl vgpu_pick_" #name "\n"                                                                      \
          "mov x16, x0\nmov x17, x1\n"                                                                    \
          "ldp x0, x1, [sp, #16]\nldr x2, [sp, #32]\n"                                                    \
          "ldp x29, x30, [sp], #48\n.cfi_def_cfa_offset 0\n.cfi_restore 29\n.cfi_restore 30\n"            \
          "cbz x17, 1f\nmov x0, x16\nret\n1: br x16\n.cfi_endproc\n.size " #name ", . - " #name "\n")
DOOR(dlsym, "x2");
DOOR(dlvsym, "x3");
#endif

/* The driver's own door answered with its own function: if that is a hooked one, the hook takes its place. */
static void replace(const char *symbol, void **function) {
  void *hook = vgpu_hook_by_address(*function, symbol);
  if (hook) *function = hook;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version, uint64_t flags) {
  __typeof__(&cuGetProcAddress) real = VGPU_REAL(cuGetProcAddress);
  CUresult result = real ? real(symbol, function, cuda_version, flags) : CUDA_ERROR_NOT_INITIALIZED;
  if (result == CUDA_SUCCESS && symbol && function && *function) replace(symbol, function);
  return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, uint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  __typeof__(&cuGetProcAddress_v2) real = VGPU_REAL(cuGetProcAddress_v2);
  CUresult result = real ? real(symbol, function, cuda_version, flags, status) : CUDA_ERROR_NOT_INITIALIZED;
  if (result == CUDA_SUCCESS && symbol && function && *function) replace(symbol, function);
  return result;
}
