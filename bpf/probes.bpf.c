//go:build ignore
/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * The kernel's side of package bpf: counts of calls of the driver's library by control group. It only looks: nothing
 * here changes what a process does. Launches of kernels are never probed.
 *
 * In:  cookies that tell what a probed function is (calls.h); `devices`; the rate cap.
 * Out: `groups`, one row per control group, read and deleted by user space; `overrun`; `lost`.
 *
 * Each program comes twice: …_unified takes the control group from a helper and needs no type information of the
 * kernel; …_legacy takes the one of the memory controller, where control groups are of version 1 or hybrid.
 */

#include "beside.h"
#include "calls.h"
#include "groups.h"

char terms[] SEC("license") = "Dual MIT/GPL";

/* Calls under way, where the kernel does not keep eight bytes for us: by thread. */
struct {
  MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
  MAP_UINT(max_entries, 16384);
  MAP_TYPE(key, u64);
  MAP_TYPE(value, u64);
} under_way SEC(".maps");

/* Copies and waits over the cap, by the file that is probed. */
struct {
  MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
  MAP_UINT(max_entries, 256);
  MAP_TYPE(key, u32);
  MAP_TYPE(value, u64);
} overrun SEC(".maps");

/* The cap of counted calls per control group: one in interval_ns, and burst_ns worth of them at once. 0: none. */
volatile u64 interval_ns;
volatile u64 burst_ns;

/* over_rate takes one call out of the group's bucket, or says that it is empty. Two CPUs at once can take one too many. */
INLINE _Bool over_rate(struct counts *counted, u64 cookie, u64 now_ns) {
  u64 interval = interval_ns, burst = burst_ns, due = counted->due_ns;
  u32 class = COOKIE_CLASS(cookie), file = COOKIE_FILE(cookie);
  if (interval == 0) {
    return 0;
  }
  if (due > now_ns + burst) {
    u64 *of_file = class < CLASS_ALLOCATION || class == CLASS_STALL ? map_lookup(&overrun, &file) : 0;
    ADD(counted->missed, 1);
    if (of_file != 0) {
      ADD(*of_file, 1);
    }
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
  if (over_rate(counted, cookie, now_ns)) {
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
  } else {
    map_delete(&under_way, &thread); /* of a call whose return was not probed any more */
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
