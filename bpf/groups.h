/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * The rows of counts, one for each control group, and how a control group is known. Each comes twice: …_unified takes it
 * from a helper and needs no type information of the kernel; …_legacy takes the one of the memory controller.
 */
#ifndef VGPUD_BPF_GROUPS_H
#define VGPUD_BPF_GROUPS_H

#include "calls.h"

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

#endif
