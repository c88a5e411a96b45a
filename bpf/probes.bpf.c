//go:build ignore
/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * The kernel's side of package bpf: counts of calls of the driver's library by control group. It only looks: nothing
 * here changes what a process does. Launches of kernels are never probed.
 *
 * In:  cookies that tell what a probed function is (calls.h); `devices`; the rate cap.
 * Out: `groups`, one row per control group, read and deleted by user space; `lost`.
 *
 * Each program comes twice: …_unified takes the control group from a helper and needs no type information of the
 * kernel; …_legacy takes the one of the memory controller, where control groups are of version 1 or hybrid.
 */

#include "calls.h"

char terms[] SEC("license") = "Dual MIT/GPL";

struct count {
  u64 calls, bytes, time_ns;
};

/* What one control group did, ever. */
struct counts {
  struct count classes[COUNTED_CLASSES];
  u64 created, retained, destroyed; /* contexts: made, primary ones retained, either given up */
  u64 failed;                       /* copies, allocations and contexts that the driver refused; counted nowhere else */
  u64 missed;                       /* calls over the rate cap; counted nowhere else */
  u64 ioctls, exits;
  u64 due_ns; /* the bucket: when the next call is due at the capped rate */
  u64 gone;   /* its directory has been removed */
};

struct {
  MAP_UINT(type, BPF_MAP_TYPE_HASH);
  MAP_UINT(max_entries, 4096);
  MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
  MAP_TYPE(key, u64);
  MAP_TYPE(value, struct counts);
} groups SEC(".maps");

/* Calls under way, where the kernel does not keep eight bytes for us: by thread. */
struct {
  MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
  MAP_UINT(max_entries, 16384);
  MAP_TYPE(key, u64);
  MAP_TYPE(value, u64);
} under_way SEC(".maps");

/* Device numbers whose ioctls count: major << 20 | minor, or minor 0xfffff for every one of a major. */
struct {
  MAP_UINT(type, BPF_MAP_TYPE_HASH);
  MAP_UINT(max_entries, 1024);
  MAP_TYPE(key, u32);
  MAP_TYPE(value, u8);
} devices SEC(".maps");

/* The cap of counted calls per control group: one in interval_ns, and burst_ns worth of them at once. 0: none. */
volatile u64 interval_ns;
volatile u64 burst_ns;

/* Hits without a row, because `groups` is full. */
volatile u64 lost;

static const struct counts no_counts;

INLINE u64 cgroup_unified(void) {
  return get_current_cgroup_id();
}

INLINE u32 memory_controller(void) {
  return (u32)__builtin_preserve_enum_value(*(enum cgroup_subsys_id *)memory_cgrp_id, 1);
}

INLINE u64 cgroup_legacy(void) {
  struct task_struct *task = (struct task_struct *)get_current_task();
  struct css_set *set = 0;
  struct cgroup_subsys_state *state = 0, **states = 0;
  struct cgroup *cgroup = 0;
  struct kernfs_node *node = 0;
  u64 id = 0;
  READ(set, task->cgroups);
  states = &set->subsys[0];
  READ(state, states[memory_controller()]);
  READ(cgroup, state->cgroup);
  READ(node, cgroup->kn);
  READ(id, node->id);
  return id;
}

INLINE struct counts *row(u64 cgroup) {
  struct counts *counted = map_lookup(&groups, &cgroup);
  if (counted == 0) {
    map_update(&groups, &cgroup, &no_counts, BPF_NOEXIST);
    counted = map_lookup(&groups, &cgroup);
    if (counted == 0) {
      __sync_fetch_and_add(&lost, 1);
    }
  }
  return counted;
}

#define ADD(field, n) __sync_fetch_and_add(&(field), (n))

/* over_rate takes one call out of the group's bucket, or says that it is empty. Two CPUs at once can take one too many. */
INLINE _Bool over_rate(struct counts *counted, u64 now_ns) {
  u64 interval = interval_ns, burst = burst_ns, due = counted->due_ns;
  if (interval == 0) {
    return 0;
  }
  if (due > now_ns + burst) {
    ADD(counted->missed, 1);
    return 1;
  }
  if (due < now_ns) {
    counted->due_ns = now_ns + interval;
  } else {
    ADD(counted->due_ns, interval);
  }
  return 0;
}

struct size {
  u32 direction;
  u64 bytes;
};

INLINE u64 at_least_1(u64 n) {
  return n == 0 ? 1 : n;
}

/* size_of finds how much a call moves or takes, and for copies which way. What cannot be read is 0 bytes. */
INLINE void size_of(struct size *size, const struct arguments *given, u64 cookie) {
  union {
    struct rectangle rectangle;
    struct box box;
    struct array array;
    struct array_3d array_3d;
  } told;
  u32 form = COOKIE_FORM(cookie);
  size->direction = COOKIE_CLASS(cookie);
  size->bytes = 0;
  switch (form) {
  case FORM_ARGUMENT:
    size->bytes = argument(given, COOKIE_ARGUMENT(cookie));
    break;
  case FORM_ARGUMENT_32:
    size->bytes = (u32)argument(given, COOKIE_ARGUMENT(cookie));
    break;
  case FORM_PITCH:
    size->bytes = given->third * given->fourth;
    break;
  case FORM_RECTANGLE:
    if (probe_read_user(&told.rectangle, sizeof(told.rectangle), (void *)given->first) == 0) {
      size->bytes = told.rectangle.width * told.rectangle.height;
      size->direction = direction_of(told.rectangle.from_type, told.rectangle.to_type);
    }
    break;
  case FORM_BOX:
  case FORM_BOX_PEER:
    if (probe_read_user(&told.box, sizeof(told.box), (void *)given->first) == 0) {
      size->bytes = told.box.width * told.box.height * told.box.depth;
      if (form == FORM_BOX) {
        size->direction = direction_of(told.box.from.type, told.box.to.type);
      }
    }
    break;
  case FORM_ARRAY:
    if (probe_read_user(&told.array, sizeof(told.array), (void *)given->second) == 0) {
      size->bytes =
          told.array.width * at_least_1(told.array.height) * told.array.channels * format_bytes(told.array.format);
    }
    break;
  case FORM_ARRAY_3D:
    if (probe_read_user(&told.array_3d, sizeof(told.array_3d), (void *)given->second) == 0) {
      size->bytes = told.array_3d.width * at_least_1(told.array_3d.height) * at_least_1(told.array_3d.depth) *
                    told.array_3d.channels * format_bytes(told.array_3d.format);
    }
    break;
  default:
    break;
  }
}

/* enter looks at a call; it returns false where the call is not to be counted, else what its return has to know. */
INLINE _Bool enter(struct pt_regs *regs, u64 cgroup, u64 *known) {
  struct counts *counted = row(cgroup);
  u64 now_ns, cookie = get_attach_cookie(regs);
  u32 class = COOKIE_CLASS(cookie);
  struct arguments given = ARGUMENTS(regs);
  struct size size;
  if (counted == 0) {
    return 0;
  }
  now_ns = ktime_get_ns();
  if (over_rate(counted, now_ns)) {
    return 0;
  }
  *known = now_ns;
  if (class <= CLASS_ALLOCATION) {
    size_of(&size, &given, cookie);
    *known = class == CLASS_ALLOCATION ? size.bytes : pack_copy(size.direction, size.bytes, now_ns);
  }
  return 1;
}

/* leave counts a call that returns. */
INLINE void leave(struct pt_regs *regs, u64 cgroup, u64 known) {
  struct counts *counted = map_lookup(&groups, &cgroup);
  u32 class = COOKIE_CLASS(get_attach_cookie(regs));
  struct count *count;
  struct copy copy;
  if (counted == 0) {
    return; /* removed meanwhile */
  }
  if (class == CLASS_STALL) { /* it waited, whatever came of it */
    count = &counted->classes[CLASS_STALL];
    ADD(count->calls, 1);
    ADD(count->time_ns, ktime_get_ns() - known);
    return;
  }
  if (RESULT(regs) != 0) {
    ADD(counted->failed, 1);
    return;
  }
  switch (class) {
  case CLASS_ALLOCATION:
    ADD(counted->classes[CLASS_ALLOCATION].calls, 1);
    ADD(counted->classes[CLASS_ALLOCATION].bytes, known);
    return;
  case CLASS_CREATE:
    ADD(counted->created, 1);
    return;
  case CLASS_RETAIN:
    ADD(counted->retained, 1);
    return;
  case CLASS_DESTROY:
    ADD(counted->destroyed, 1);
    return;
  default:
    break;
  }
  unpack_copy(&copy, known, ktime_get_ns());
  if (copy.direction > CLASS_UNTOLD) {
    return;
  }
  count = &counted->classes[copy.direction];
  ADD(count->calls, 1);
  ADD(count->bytes, copy.bytes);
  ADD(count->time_ns, copy.time_ns);
}

/* Entry and return in one, with the kernel's eight bytes between them. An entry that answers 1 has no return. */
INLINE int session(struct pt_regs *regs, u64 cgroup) {
  u64 *known = bpf_session_cookie();
  if (bpf_session_is_return()) {
    leave(regs, cgroup, *known);
    return 0;
  }
  return enter(regs, cgroup, known) ? 0 : 1;
}

INLINE int entry(struct pt_regs *regs, u64 cgroup) {
  u64 known, thread = get_current_pid_tgid();
  if (enter(regs, cgroup, &known)) {
    map_update(&under_way, &thread, &known, BPF_ANY);
  }
  return 0;
}

INLINE int back(struct pt_regs *regs, u64 cgroup) {
  u64 thread = get_current_pid_tgid(), *known = map_lookup(&under_way, &thread);
  if (known != 0) {
    leave(regs, cgroup, *known);
    map_delete(&under_way, &thread);
  }
  return 0;
}

SEC("uprobe.session") int session_unified(struct pt_regs *regs) {
  return session(regs, cgroup_unified());
}
SEC("uprobe.session") int session_legacy(struct pt_regs *regs) {
  return session(regs, cgroup_legacy());
}
SEC("uprobe.multi") int entry_unified(struct pt_regs *regs) {
  return entry(regs, cgroup_unified());
}
SEC("uprobe.multi") int entry_legacy(struct pt_regs *regs) {
  return entry(regs, cgroup_legacy());
}
SEC("uretprobe.multi") int return_unified(struct pt_regs *regs) {
  return back(regs, cgroup_unified());
}
SEC("uretprobe.multi") int return_legacy(struct pt_regs *regs) {
  return back(regs, cgroup_legacy());
}

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
