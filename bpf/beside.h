/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * What is counted beside calls: ends of processes, removals of control groups, ioctls on the driver's device nodes. And
 * which file is mapped where, which is asked for and not counted.
 */
#ifndef VGPUD_BPF_BESIDE_H
#define VGPUD_BPF_BESIDE_H

#include "groups.h"

/* A process ends. Only groups that have a row already are of interest. */
INLINE int process_exit(u64 cgroup) {
  u64 thread = get_current_pid_tgid();
  struct counts *counted;
  if (thread >> 32 != (thread & 0xffffffff)) {
    return 0;
  }
  counted = map_lookup(&groups, &cgroup);
  if (counted != 0) {
    ADD(counted->exits, 1);
  }
  return 0;
}

SEC("raw_tp/sched_process_exit") int exit_unified(void *context) {
  return process_exit(cgroup_unified());
}
SEC("raw_tp/sched_process_exit") int exit_legacy(void *context) {
  return process_exit(cgroup_legacy());
}

/* A control group's directory is removed: its row may go once it has been read. */
INLINE int group_gone(u64 *context, _Bool legacy) {
  struct cgroup *cgroup = (struct cgroup *)context[0];
  struct cgroup_root *root = 0;
  struct kernfs_node *node = 0;
  struct counts *counted;
  u64 id = 0;
  u32 mask = 0;
  int hierarchy = 0;
  READ(root, cgroup->root);
  READ(hierarchy, root->hierarchy_id);
  READ(mask, root->subsys_mask);
  if (legacy ? (mask >> (memory_controller() & 31) & 1) == 0 : hierarchy != 0) {
    return 0; /* numbers of another hierarchy */
  }
  READ(node, cgroup->kn);
  READ(id, node->id);
  counted = map_lookup(&groups, &id);
  if (counted != 0) {
    counted->gone = 1;
  }
  return 0;
}

SEC("raw_tp/cgroup_rmdir") int gone_unified(u64 *context) {
  return group_gone(context, 0);
}
SEC("raw_tp/cgroup_rmdir") int gone_legacy(u64 *context) {
  return group_gone(context, 1);
}

/* Device numbers whose ioctls count: major << 20 | minor, or minor 0xfffff for every one of a major. */
struct {
  MAP_UINT(type, BPF_MAP_TYPE_HASH);
  MAP_UINT(max_entries, 1024);
  MAP_TYPE(key, u32);
  MAP_TYPE(value, u8);
} devices SEC(".maps");

struct ioctl_arguments {
  u64 common, number, descriptor, command, argument;
};

/* An ioctl on a device node of the driver. */
INLINE struct inode *inode_of(u64 descriptor) {
  struct task_struct *task = (struct task_struct *)get_current_task();
  struct files_struct *files = 0;
  struct fdtable *table = 0;
  struct file *file = 0, **slots = 0;
  struct inode *inode = 0;
  u32 size = 0;
  READ(files, task->files);
  READ(table, files->fdt);
  READ(size, table->max_fds);
  if (descriptor >= size) {
    return 0;
  }
  READ(slots, table->fd);
  READ(file, slots[descriptor]);
  READ(inode, file->f_inode);
  return inode;
}

enum { S_IFMT = 0170000, S_IFCHR = 0020000, MINOR_BITS = 20, ANY_MINOR = 0xfffff };

INLINE _Bool is_device(u64 descriptor) {
  struct inode *inode = inode_of(descriptor);
  u32 number = 0;
  u16 mode = 0;
  READ(mode, inode->i_mode);
  if ((mode & S_IFMT) != S_IFCHR) {
    return 0;
  }
  READ(number, inode->i_rdev);
  if (map_lookup(&devices, &number) != 0) {
    return 1;
  }
  number |= ANY_MINOR;
  return map_lookup(&devices, &number) != 0;
}

INLINE int device_ioctl(u64 cgroup) {
  struct counts *counted = row(cgroup);
  if (counted != 0) {
    ADD(counted->ioctls, 1);
  }
  return 0;
}

SEC("tracepoint/syscalls/sys_enter_ioctl") int ioctl_unified(struct ioctl_arguments *call) {
  return is_device((u32)call->descriptor) ? device_ioctl(cgroup_unified()) : 0;
}
SEC("tracepoint/syscalls/sys_enter_ioctl") int ioctl_legacy(struct ioctl_arguments *call) {
  return is_device((u32)call->descriptor) ? device_ioctl(cgroup_legacy()) : 0;
}

/* Which file is truly mapped at an address of the process that runs this: below an overlay the kernel shows other
 * numbers everywhere else. It is run by user space (BPF_PROG_RUN) and hooked nowhere. */
struct identity {
  u32 device, generation;
  u64 inode;
  u64 found;
};

struct {
  MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
  MAP_UINT(max_entries, 1);
  MAP_TYPE(key, u32);
  MAP_TYPE(value, struct identity);
} identified SEC(".maps");

static long look_at_mapping(struct task_struct *task, struct vm_area_struct *area, struct identity *identity) {
  struct file *file = 0;
  struct inode *inode = 0;
  struct super_block *super = 0;
  unsigned long number = 0;
  READ(file, area->vm_file);
  READ(inode, file->f_inode);
  READ(super, inode->i_sb);
  READ(number, inode->i_ino);
  READ(identity->device, super->s_dev);
  READ(identity->generation, inode->i_generation);
  identity->inode = number;
  identity->found = inode != 0 && super != 0;
  return 0;
}

SEC("raw_tp") int identify(u64 *context) {
  u32 only = 0;
  struct identity identity = {0, 0, 0, 0};
  find_vma(get_current_task_btf(), context[0], look_at_mapping, &identity, 0);
  map_update(&identified, &only, &identity, BPF_ANY);
  return 0;
}

#endif
