/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * What the probes need of the kernel, and no more: fixed-width types, the helpers that are called, by their number
 * (include/uapi/linux/bpf.h), registers of a system call or probe, and the few fields of kernel structures that are
 * followed. Structures that say `relocated` have their fields' places put in at load from the running kernel's own type
 * information (CO-RE), so what stands around the fields here does not matter.
 */
#ifndef VGPUD_BPF_KERNEL_H
#define VGPUD_BPF_KERNEL_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline)) inline
#define relocated __attribute__((preserve_access_index))
#define KSYM __attribute__((section(".ksyms"))) __attribute__((weak))

/* Maps in the notation that loaders read from the object's type information. */
#define MAP_UINT(name, value) int(*name)[value]
#define MAP_TYPE(name, value) typeof(value) *name

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_LRU_HASH = 9 };
enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_F_NO_PREALLOC = 1 };

struct task_struct;

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const map_delete)(void *map, const void *key) = (void *)3;
static u64 (*const ktime_get_ns)(void) = (void *)5;
static u64 (*const get_current_pid_tgid)(void) = (void *)14;
static u64 (*const get_current_task)(void) = (void *)35;
static u64 (*const get_current_cgroup_id)(void) = (void *)80;
static long (*const probe_read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*const probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static struct task_struct *(*const get_current_task_btf)(void) = (void *)158;
static u64 (*const get_attach_cookie)(void *context) = (void *)174;
static long (*const find_vma)(struct task_struct *task, u64 address, void *each, void *context,
                              u64 flags) = (void *)180;

/* Of a session program: whether this run is the function's return, and eight bytes that its entry left. Kernel 6.13. */
extern _Bool bpf_session_is_return(void) KSYM;
extern u64 *bpf_session_cookie(void) KSYM;

/* Registers at a probe, as the kernel hands them to user space too, hence fixed. */
#if defined(__TARGET_ARCH_x86)
struct pt_regs {
  u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#define RESULT(context) ((u32)(context)->ax)
#define ARGUMENTS(context) \
  { (context)->di, (context)->si, (context)->dx, (context)->cx, (context)->r8 }
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
  u64 regs[31], sp, pc, pstate;
};
#define RESULT(context) ((u32)(context)->regs[0])
#define ARGUMENTS(context) \
  { (context)->regs[0], (context)->regs[1], (context)->regs[2], (context)->regs[3], (context)->regs[4] }
#else
#error "registers of this architecture are not described"
#endif

/* The first arguments of a call. They are all read, each from its own place: the verifier allows no other. */
struct arguments {
  u64 first, second, third, fourth, fifth;
};

INLINE u64 argument(const struct arguments *given, u32 index) {
  switch (index) {
  case 0:
    return given->first;
  case 1:
    return given->second;
  case 2:
    return given->third;
  case 3:
    return given->fourth;
  default:
    return given->fifth;
  }
}

struct kernfs_node {
  u64 id; /* of a control group's directory: its inode number */
} relocated;

struct cgroup_root {
  int hierarchy_id; /* 0: version 2 */
  u32 subsys_mask;
} relocated;

struct cgroup {
  struct kernfs_node *kn;
  struct cgroup_root *root;
} relocated;

struct cgroup_subsys_state {
  struct cgroup *cgroup;
} relocated;

struct css_set {
  struct cgroup_subsys_state *subsys[1]; /* as many as the kernel has controllers */
} relocated;

enum cgroup_subsys_id { memory_cgrp_id = 4 }; /* relocated where it is read */

struct super_block {
  u32 s_dev;
} relocated;

struct inode {
  u16 i_mode;
  u32 i_rdev, i_generation;
  unsigned long i_ino;
  struct super_block *i_sb;
} relocated;

struct file {
  struct inode *f_inode;
} relocated;

struct vm_area_struct {
  struct file *vm_file;
} relocated;

struct fdtable {
  u32 max_fds;
  struct file **fd;
} relocated;

struct files_struct {
  struct fdtable *fdt;
} relocated;

struct task_struct {
  struct css_set *cgroups;
  struct files_struct *files;
} relocated;

/* READ sets to from a kernel structure's field; an address that is no address gives 0. */
#define READ(to, field)                                                \
  do {                                                                 \
    if (probe_read_kernel(&(to), sizeof(to), &(field)) != 0) (to) = 0; \
  } while (0)

#endif
