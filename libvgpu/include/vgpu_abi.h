/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * vgpu_abi.h - THE layout of the two pages that the agent and libvgpu share. Nothing else defines it:
 * the shim compiles it, and Go compiles it through cgo (package limiter).
 *
 *   limits page  written by the agent, mounted read-only into the container, read by the shim.
 *   usage page   written by the processes of the container, read by the agent, which believes nothing in it.
 *
 * Rules: fixed-width integers, text as uint8_t padded with NULs, explicit padding, no pointers, no libc types.
 * Fields marked "atomic" are only touched through the __atomic builtins. Each field has one writer, named
 * beside it. Bytes called reserved are written as zero and ignored by readers of this version. A change of
 * layout or meaning needs a new VGPU_ABI_VERSION; readers refuse a version that they do not know.
 *
 * This header includes nothing but <stdint.h> and <stddef.h>, so it compiles for any libc or none.
 */
#ifndef VGPU_ABI_H
#define VGPU_ABI_H

#include <stddef.h>
#include <stdint.h>

enum {
  VGPU_ABI_VERSION = 3,
  VGPU_ABI_NO_TRAFFIC = 2, /* pages of this version are the same without traffic books, and still used */
  VGPU_ABI_NO_COMPUTE = 1, /* limits pages of this version are the same without a compute book, and still read */
  VGPU_MAX_DEVICES = 16,   /* devices in one allocation */
  VGPU_UUID_BYTES = 64,    /* "GPU-<36>", "MIG-<36>" or "MIG-GPU-<36>/<gi>/<ci>", NUL padded */
  VGPU_KEY_BYTES = 40,     /* allocation key, text, NUL padded */
  VGPU_LIMITS_PAGE_BYTES = 4096,
  VGPU_SLOT_COUNT = 256,  /* live processes of one container that may use GPUs at once */
  VGPU_CLASS_COUNT = 24,  /* classes of operations of a device that are kept */
  VGPU_CLASS_RECENT = 28, /* durations that a class remembers */
  VGPU_CACHE_LINE_BYTES = 64,
  VGPU_LIFE_LOCKED = 1 /* value of life_lock */
};

#define VGPU_LIMITS_MAGIC 0x314d494c55504756ULL /* "VGPULIM1", little endian */
#define VGPU_USAGE_MAGIC 0x3147535555504756ULL  /* "VGPUUSG1", little endian */

/* What a charge is for. The shim's sum runs over all VGPU_KIND_COUNT words, also those that this version
 * gives no name, so that a newer process beside an older one is still counted by it. */
enum vgpu_kind {
  VGPU_KIND_DEVICE = 0,  /* linear and pitched memory */
  VGPU_KIND_MANAGED = 1, /* managed memory, charged in full */
  VGPU_KIND_POOL = 2,    /* what stream-ordered pools hold from the driver */
  VGPU_KIND_COUNT = 8
};

/* Why an allocation is frozen. Readers take every value but 0 for frozen. */
enum vgpu_frozen {
  VGPU_FROZEN_HEADER = 1,   /* the header of the usage page was changed */
  VGPU_FROZEN_CUT = 2,      /* the usage page was made shorter */
  VGPU_FROZEN_REPLACED = 3, /* the usage page was removed, or something else put in its place */
  VGPU_FROZEN_SLOTS = 4     /* the usage page had slots or sums that no process writes */
};

/* How the GPU time of a device is limited. Readers take an unknown value for HARD. */
enum vgpu_compute_mode {
  VGPU_COMPUTE_NONE = 0,   /* not limited */
  VGPU_COMPUTE_HARD = 1,   /* share_ppm is a cap */
  VGPU_COMPUTE_ELASTIC = 2 /* share_ppm is a promise and a weight; what others leave is lent, up to ceiling_ppm */
};

/* Shares, rates and scales are in millionths of the whole. */
enum { VGPU_PPM = 1000000 };

/* What a line says beside its rate. */
enum vgpu_rate_flags {
  VGPU_RATE_ALONE = 1 /* nobody else has used the GPU of late: what launches take by the clock is their own time */
};

/* What an allocation may use of a GPU's time, as a line: at CLOCK_MONOTONIC time t (of the node's first time
 * namespace), entitled_ns + (t - since_ns) * rate_ppm / VGPU_PPM nanoseconds of GPU time in all. The line goes on for as
 * long as nobody writes a new one, so a writer that is gone changes nothing. */
struct vgpu_rate {
  uint64_t since_ns;
  uint64_t entitled_ns;
  uint32_t rate_ppm;
  uint32_t scale_ppm; /* GPU time that is really used per nanosecond of estimated cost: charges are multiplied by it */
  uint32_t flags;     /* enum vgpu_rate_flags */
  uint32_t reserved;
};

/* One device of an allocation. Writer: the agent. Two groups: what is granted (through the ledger) is published under
 * `generation` (odd while it is being written), and each word of it is also atomic by itself; the rate (steering, many
 * times a second) is written to the copy that is not in force, then rate_generation is raised, whose low bit says which
 * one is: readers never wait for a writer, nor for one that died. */
struct vgpu_limits_device {
  uint8_t uuid[VGPU_UUID_BYTES];
  uint32_t generation;         /* atomic */
  uint32_t slice_count;        /* slices of this device that the allocation holds */
  uint64_t memory_limit_bytes; /* atomic; 0 means nothing may be allocated */
  uint32_t share_ppm;          /* atomic; GPU time granted, 1..VGPU_PPM; readers take 0 for the least there is */
  uint32_t ceiling_ppm;        /* atomic; most that is lent, share included, 1..VGPU_PPM; of ELASTIC only */
  uint32_t compute_mode;       /* atomic; enum vgpu_compute_mode */
  uint32_t rate_generation;    /* atomic; a futex word: those who wait for GPU time are woken when it changes */
  uint8_t reserved[32];
  struct vgpu_rate rates[2]; /* in force: rates[rate_generation & 1] */
};

/* The limits page. Writer: the agent. Readers: every process of the container (read-only mapping). */
struct vgpu_limits_page {
  uint64_t magic;
  uint32_t abi_version;
  uint32_t page_bytes;   /* VGPU_LIMITS_PAGE_BYTES */
  uint32_t device_count; /* 1..VGPU_MAX_DEVICES; fixed at creation */
  uint32_t epoch;        /* atomic; raised at each container start: slots of an older epoch are dead */
  uint8_t allocation_key[VGPU_KEY_BYTES];
  uint32_t frozen;    /* atomic; enum vgpu_frozen, 0: not. Nonzero: nothing more may be allocated, what is held stays.
                      Set by the agent's tick, cleared at a container start, after the epoch was raised */
  uint32_t heartbeat; /* atomic; changes at least twice a second while an agent steers the rates; 0: none ever did */
  uint8_t reserved[56];
  struct vgpu_limits_device devices[VGPU_MAX_DEVICES];
};

/* One device of the container as a whole. The first three words count for processes that are gone; writers: processes
 * of the container that take over a dead slot (atomic add). Statistics only: a kill in the middle of folding may lose one
 * process's counts. The second cache line is the compute book that all processes of the container share; writers: each
 * of them, by single atomic operations, never once per launch. Times are CLOCK_MONOTONIC of the node's first time
 * namespace. */
struct vgpu_usage_device {
  uint64_t allocations; /* atomic */
  uint64_t frees;       /* atomic */
  uint64_t refusals;    /* atomic */
  uint8_t reserved[40];
  uint64_t spent_ns;   /* atomic, compare-and-swap; GPU time bought, to be held against the line of struct vgpu_rate */
  uint64_t charged_ns; /* atomic add; estimated cost of all launches, as the processes measured it (not scaled) */
  uint64_t wanted_ns;  /* atomic; when a process last asked for GPU time */
  uint64_t waited_ns;  /* atomic; when a thread last was kept waiting; renewed at least every 100 ms while it waits */
  uint64_t throttled_ns; /* atomic add; how long threads were kept waiting, summed over threads */
  uint64_t degraded_ns;  /* atomic add; time in which launches went on although no agent steered any more */
  uint64_t launches;     /* atomic add; kernels and graphs, in lots */
  uint64_t
      bought_ns; /* atomic; when a process last got GPU time: tells who is kept waiting for nothing from who queues */
  uint64_t first_ns; /* atomic; what the first launches of functions take of late, for those that are not known yet */
  uint64_t
      even_ns; /* atomic; when spent_ns was last seen not to be ahead of the line; bounds what is booked by the clock */
  uint8_t reserved2[112];
};

/* One device of one process. Writer: the owner of the slot, one thread at a time, by whole atomic stores.
 * A reader that sums charges loads trying_bytes BEFORE charged_bytes: a reservation is put into
 * charged_bytes before it is taken out of trying_bytes, so it is never missed. */
struct vgpu_usage_slot_device {
  uint64_t charged_bytes[VGPU_KIND_COUNT]; /* atomic; reserved or committed, by enum vgpu_kind */
  uint64_t trying_bytes;                   /* atomic; asked for, not yet admitted */
  uint64_t allocations;                    /* atomic; admitted */
  uint64_t frees;                          /* atomic */
  uint64_t refusals;                       /* atomic */
  uint64_t served_ns;                      /* atomic; GPU time bought, by which waiting processes take turns */
  uint64_t
      waiting_ns; /* atomic; until when a thread of it will wait for GPU time; in the past: when one last asked; 0: never */
  uint64_t launches;         /* atomic; in lots */
  uint64_t throttled_ns;     /* atomic; how long its threads were kept waiting */
  uint64_t unknown;          /* atomic; launches under way of which nothing is known yet */
  uint64_t under_way_ns;     /* atomic; charged for launches that are being measured, by estimate */
  uint64_t unknown_since_ns; /* atomic; when the first of `unknown` was launched; 0: there is none */
  uint8_t reserved[104];
};

/* One process. `owner` is taken by compare-and-swap from 0 by the process that claims the slot and put
 * back to 0 by whoever finds it dead; every other field has the owner as its only writer. A slot counts
 * only while ready == owner: the claimer clears its fields first, and nobody clears them for it. */
struct vgpu_usage_slot {
  uint64_t owner;         /* atomic; random token of one registration, 0: free; the low 22 bits are the pid */
  uint64_t ready;         /* atomic; equal to owner once the fields below are valid */
  uint64_t start_time;    /* /proc/PID/stat field 22: clock ticks after boot; 0: unknown */
  uint64_t pid_namespace; /* inode of /proc/self/ns/pid; 0: unknown */
  uint32_t epoch;         /* of the limits page, when the slot was taken */
  uint32_t life_lock;     /* VGPU_LIFE_LOCKED: while the owner lives it holds an open file description's write lock
                           (fcntl F_OFD_SETLK) on byte `owner & INT64_MAX` of this file; 0: it has none */
  uint64_t start_stack;   /* /proc/PID/stat field 28: tells a program that execve replaced; 0: unknown */
  uint64_t folded;        /* atomic; token whose counters went into vgpu_usage_device already */
  uint64_t reserved2;
};

/* Where a copy goes. */
enum vgpu_direction {
  VGPU_HOST_TO_DEVICE = 0,
  VGPU_DEVICE_TO_HOST = 1,
  VGPU_WITHIN_DEVICE = 2,
  VGPU_BETWEEN_DEVICES = 3, /* counted on both */
  VGPU_DIRECTION_COUNT = 4
};

/* What kind of work a class of operations is. Readers drop a class of a kind that they do not know. */
enum vgpu_class_kind {
  VGPU_CLASS_KERNEL = 1,
  VGPU_CLASS_GRAPH = 2,
  VGPU_CLASS_HOST_TO_DEVICE = 3,
  VGPU_CLASS_DEVICE_TO_HOST = 4,
  VGPU_CLASS_DEVICE_COPY = 5, /* within the device or between two */
  VGPU_CLASS_KIND_LAST = 5
};

/* Durations in `recent` are in units of so many ns. */
enum { VGPU_CLASS_UNIT_NS = 16 };

/* How often something happened, ever. A cache line each, so that the directions do not meet. Writers: every process of the
 * container, by atomic adds. */
struct vgpu_count {
  uint64_t calls;  /* atomic; that went well */
  uint64_t amount; /* atomic; bytes of copies, ns of stalls */
  uint8_t reserved[48];
};

/* One class of operations: launches of one function of one process with about the same grid, replays of one graph, copies
 * of about the same size one way. Those that take the most time are kept. Writers: every process of the container, by
 * single atomic operations. It is replaced by one that sets claimed_ns by compare-and-swap, then both ids to 0, then
 * writes the rest, id_again and last id; one that was killed meanwhile is replaced after a second. A reader drops a class
 * whose ids differ: it is being replaced, or was while it was read. An id that comes back has begun anew. */
struct vgpu_class {
  uint64_t id;         /* atomic; 0: none */
  uint64_t claimed_ns; /* atomic; when somebody began to replace it; 0: nobody does */
  uint64_t
      score_ns; /* atomic; time of its operations by estimate, that of what it replaced included: who has least goes */
  uint64_t seen_ns; /* atomic; when the last sample was taken; the score is halved for each 8 s since then */
  uint32_t kind;    /* atomic; enum vgpu_class_kind */
  uint32_t reserved;
  uint64_t samples;    /* atomic add; measured since it is kept */
  uint64_t operations; /* atomic add; that the samples stand for */
  uint64_t bytes;      /* atomic add; of the sampled copies */
  uint64_t time_ns;    /* atomic add; what the samples took on the GPU */
  uint32_t
      recent[VGPU_CLASS_RECENT]; /* atomic; what sample number n took is at n % VGPU_CLASS_RECENT, from 1 unit on */
  uint64_t id_again;             /* atomic; equal to id */
};

/* The traffic book of one device of the container. Statistics only, and the container's own claim: nothing is limited by
 * it. */
struct vgpu_usage_traffic {
  struct vgpu_count copies[VGPU_DIRECTION_COUNT];
  struct vgpu_count stalls; /* calls that waited for the GPU (cuCtxSynchronize and the like), and for how long */
  uint8_t reserved[64];
  struct vgpu_class classes[VGPU_CLASS_COUNT];
  uint8_t reserved2[128];
};

/* Start of the usage page; device_count vgpu_usage_device follow, then slot_count slots, each a
 * vgpu_usage_slot followed by device_count vgpu_usage_slot_device; then, from the next multiple of 4096 on, device_count
 * vgpu_usage_traffic. Writer of this header: the agent at
 * creation (or the first process, standalone); only slot_high_water is changed later, by the processes. */
struct vgpu_usage_page {
  uint64_t magic;
  uint32_t abi_version;
  uint32_t page_bytes;      /* whole file, a multiple of 4096 */
  uint32_t device_count;    /* equal to that of the limits page */
  uint32_t slot_count;      /* VGPU_SLOT_COUNT */
  uint32_t slot_high_water; /* atomic; slots at and above this index were never taken */
  uint32_t reserved0;
  uint8_t reserved[32];
};

/* Offset of slot `index` from the start of a usage page with `device_count` devices. */
static inline size_t vgpu_usage_slot_offset(uint32_t device_count, uint32_t index) {
  size_t slot_bytes = sizeof(struct vgpu_usage_slot) + device_count * sizeof(struct vgpu_usage_slot_device);
  return sizeof(struct vgpu_usage_page) + device_count * sizeof(struct vgpu_usage_device) + index * slot_bytes;
}

/* Offset of the traffic book of `device`. The size, too, of a usage page file of version VGPU_ABI_NO_TRAFFIC, for device 0. */
static inline size_t vgpu_usage_traffic_offset(uint32_t device_count, uint32_t device) {
  size_t slots_end = (vgpu_usage_slot_offset(device_count, VGPU_SLOT_COUNT) + 4095) & ~(size_t)4095;
  return slots_end + device * sizeof(struct vgpu_usage_traffic);
}

/* Size of a usage page file of `version`: rounded up to whole 4096-byte pages. */
static inline size_t vgpu_usage_page_bytes(uint32_t device_count, uint32_t version) {
  uint32_t books = version == VGPU_ABI_NO_TRAFFIC ? 0 : device_count;
  return (vgpu_usage_traffic_offset(device_count, books) + 4095) & ~(size_t)4095;
}

#define VGPU_LAYOUT(condition) _Static_assert(condition, "layout change needs a new ABI version")
VGPU_LAYOUT(sizeof(struct vgpu_limits_device) == 192);
VGPU_LAYOUT(offsetof(struct vgpu_limits_device, generation) == 64);
VGPU_LAYOUT(offsetof(struct vgpu_limits_device, memory_limit_bytes) == 72);
VGPU_LAYOUT(offsetof(struct vgpu_limits_device, share_ppm) == 80);
VGPU_LAYOUT(offsetof(struct vgpu_limits_device, rate_generation) == 92);
VGPU_LAYOUT(offsetof(struct vgpu_limits_device, rates) == 128);
VGPU_LAYOUT(sizeof(struct vgpu_rate) == 32);
VGPU_LAYOUT(offsetof(struct vgpu_limits_page, heartbeat) == 68);
VGPU_LAYOUT(offsetof(struct vgpu_limits_page, epoch) == 20);
VGPU_LAYOUT(offsetof(struct vgpu_limits_page, allocation_key) == 24);
VGPU_LAYOUT(offsetof(struct vgpu_limits_page, frozen) == 64);
VGPU_LAYOUT(offsetof(struct vgpu_limits_page, devices) == 128);
VGPU_LAYOUT(sizeof(struct vgpu_limits_page) == 3200);
VGPU_LAYOUT(sizeof(struct vgpu_usage_page) == 64);
VGPU_LAYOUT(offsetof(struct vgpu_usage_page, slot_high_water) == 24);
VGPU_LAYOUT(sizeof(struct vgpu_usage_device) == 256);
VGPU_LAYOUT(offsetof(struct vgpu_usage_device, spent_ns) == 64);
VGPU_LAYOUT(sizeof(struct vgpu_count) == 64);
VGPU_LAYOUT(sizeof(struct vgpu_class) == 192);
VGPU_LAYOUT(offsetof(struct vgpu_class, samples) == 40);
VGPU_LAYOUT(offsetof(struct vgpu_class, recent) == 72);
VGPU_LAYOUT(offsetof(struct vgpu_class, id_again) == 184);
VGPU_LAYOUT(sizeof(struct vgpu_usage_traffic) == 5120);
VGPU_LAYOUT(offsetof(struct vgpu_usage_traffic, stalls) == 256);
VGPU_LAYOUT(offsetof(struct vgpu_usage_traffic, classes) == 384);
VGPU_LAYOUT(sizeof(struct vgpu_usage_slot) == 64);
VGPU_LAYOUT(offsetof(struct vgpu_usage_slot, epoch) == 32);
VGPU_LAYOUT(offsetof(struct vgpu_usage_slot, life_lock) == 36);
VGPU_LAYOUT(offsetof(struct vgpu_usage_slot, folded) == 48);
VGPU_LAYOUT(sizeof(struct vgpu_usage_slot_device) == 256);
VGPU_LAYOUT(offsetof(struct vgpu_usage_slot_device, served_ns) == 96);
VGPU_LAYOUT(offsetof(struct vgpu_usage_slot_device, trying_bytes) == 64);

#endif
