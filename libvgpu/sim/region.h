/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * region.h - the state that all processes using the simulated cards share: one memory-mapped file,
 * $GPUSIM_DIR/region, created by its first user from $GPUSIM_DIR/config. The file is sparse: what no process used has no
 * pages.
 *
 * Who writes what: a client's slot is written by that client, or by a reaper once the client is dead. A GPU's
 * books (used, high water, held[], engine) are written under that GPU's lock only.
 *
 * Liveness: each client holds a POSIX record lock on one byte of the region file for as long as it lives. The
 * kernel drops it when the process ends, however it ends, and it can be asked about from any pid namespace.
 * Closing any descriptor of the region file drops all of a process' locks, so no descriptor is ever closed.
 *
 * A slot goes FREE -> READY by its new owner and READY -> FREE by a reaper that saw its byte unlocked, both under
 * the claim lock of the slot's kind; the owner locks the byte before the slot is READY. So "READY and unlocked"
 * means dead, and memory held by a slot always belongs to the process that is named in it.
 */
#ifndef GPUSIM_REGION_H
#define GPUSIM_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  GS_MAX_GPUS = 16,
  GS_CUDA_SLOTS = 1024,                             /* processes with libcuda loaded and used */
  GS_WATCH_SLOTS = 254,                             /* users of NVML and of the control tool */
  GS_JANITOR_SLOT = GS_CUDA_SLOTS + GS_WATCH_SLOTS, /* two: who cleans up when a kind has no slot left */
  GS_SLOTS = GS_JANITOR_SLOT + 2,
  GS_MAX_FUNCTIONS = 1024, /* 620 of libcuda, then 332 of libnvidia-ml; see generate.sh */
  GS_MAX_FAULTS = 32,
  GS_NAME_BYTES = 96,
  GS_XIDS = 16,          /* XIDs kept per card */
  GS_PERIODS = 16,       /* sample periods kept of a GPU's busy time */
  GS_TICKS = 256,        /* ticks of which a card's counters are kept */
  GS_QUEUE_DEPTH = 1024, /* pieces of work that one process may have on one card; a power of two */
  GS_CHANNELS = 32       /* that these are sorted into */
};

#define GS_MAGIC 0x314d495355504753ULL /* "SGPUSIM1" */
#define GS_LAYOUT_VERSION 4u

enum gs_slot_state { GS_SLOT_FREE = 0, GS_SLOT_READY = 1 };
enum gs_slot_kind { GS_KIND_CUDA = 0, GS_KIND_WATCH = 1 };
enum gs_backing { GS_BACKING_REAL = 0, GS_BACKING_NONE = 1 };
enum gs_sharing { GS_SHARING_TIME_SLICE = 0, GS_SHARING_MPS = 1 };

/* Which way a copy goes, and what it takes on the way: a direction of the link, or only the card's memory. */
enum gs_way { GS_WAY_RX = 0, GS_WAY_TX = 1, GS_WAY_DEVICE = 2, GS_WAYS = 3 };

/* What a card is; fixed when the region is created. */
struct gs_card {
  char name[GS_NAME_BYTES];
  char uuid[48]; /* "GPU-" and 36 characters, NUL terminated */
  uint8_t uuid_bytes[16];
  uint64_t memory_bytes;   /* what NVML calls total */
  uint64_t reserved_bytes; /* part of memory_bytes that the driver keeps */
  uint64_t dram_bytes_per_second;
  uint64_t pcie_bytes_per_second;
  uint32_t sms;
  uint32_t compute_major, compute_minor;
  uint32_t sm_clock_mhz, memory_clock_mhz, memory_bus_bits, l2_bytes, power_limit_mw;
  uint32_t pci_domain, pci_bus, pci_device, pci_device_id; /* pci_device_id: device << 16 | vendor */
  int32_t numa_node;
};

/* How a card is at present: changed by `gpusim set`, under the card's lock. */
struct gs_live {
  uint32_t clock_permille, memory_clock_permille;   /* of the card's highest */
  uint32_t dram_permille, rx_permille, tx_permille; /* bandwidth that there is, of the card's */
  uint32_t link_generation, link_width;             /* 0: the card's own */
  uint32_t compute_mode;                            /* NVML's number */
  uint32_t gpm;                                     /* 0 no, 1 yes, 2 if the card's architecture has it */
  uint32_t changes;                                 /* how often any of this changed */
  uint64_t throttle;                                /* NVML's bits */
  uint64_t gpm_missing[8];                          /* bits: ids of metrics that there are no figures of */
};

struct gs_settings {
  uint32_t gpu_count;
  uint32_t device_nodes;
  uint32_t cuda_version;
  uint32_t backing; /* enum gs_backing */
  uint64_t context_overhead_bytes;
  uint64_t pitch_alignment_bytes;
  uint64_t kernel_ns; /* duration of a kernel whose name states none */
  char driver_version[32];
  uint32_t sharing;              /* enum gs_sharing */
  uint32_t jitter_permille;      /* kernels take so much more or less than stated */
  uint32_t event_scale_permille; /* of what passed between two events, cuEventElapsedTime tells this much */
  uint64_t timeslice_ns;
  uint64_t sample_ns;         /* NVML's sample period */
  uint64_t sample_lag_ns;     /* a sample appears so long after the end of its period */
  uint32_t missing_percent;   /* samples that never appear */
  uint32_t copies_timed;      /* 0: copies and fills take no time */
  uint32_t copy_engines;      /* 1: one for all ways, 2: one for what is sent and one for the rest, 3: one each */
  uint32_t pageable_permille; /* speed of copies of memory that is not pinned, of that of others */
  uint64_t copy_latency_ns;
  uint32_t dram_reach_permille; /* of its bandwidth that DRAM can be brought to */
  uint32_t kernel_dram_percent; /* of DRAM's bandwidth that kernels take whose name says nothing */
  uint32_t cache_dram_permille; /* of the L2 cache's bandwidth that DRAM traffic takes, at all of DRAM's */
  uint32_t noise_permille;      /* of the counters of PCIe and GPM */
  uint64_t pcie_window_ns;      /* that PCIe throughput is a mean over; 0: since it was asked last */
  uint32_t dram_floor_permille; /* of DRAM's bandwidth, that nobody uses but the counters show */
  uint32_t pad;
  uint64_t pcie_floor_bytes;               /* per second and direction, that nobody copies but the counters show */
  uint64_t counter_lag_ns, gpm_refresh_ns; /* whole ticks */
};

/* Busy time by sample period, see engine_periods.c. */
struct gs_periods {
  uint64_t busy_ns[GS_PERIODS];
  uint64_t index[GS_PERIODS];
};

/* What a card's counters have come to. */
struct gs_totals {
  uint64_t busy_ns;   /* a kernel ran */
  uint64_t memory_ns; /* DRAM was used */
  uint64_t sm_work;   /* thousandths of the multiprocessors that kernels filled, times ns */
  uint64_t dram_bytes, rx_bytes, tx_bytes;
};

/* What they were at a tick, see engine_totals.c. */
struct gs_tick {
  uint64_t index;
  struct gs_totals totals;
};

enum gs_entry_state {
  GS_ENTRY_FREE = 0,
  GS_ENTRY_QUEUED = 1,
  GS_ENTRY_REACHED = 2 /* an event whose time its owner has not fetched yet */
};

/* A piece of work in a process' ring; see engine_queue.c. Links and places are indices plus one, 0 is none. */
struct gs_entry {
  uint64_t mark;     /* number << 10 | index */
  uint64_t end_work; /* work of the channel up to and with this piece, in ns; REACHED: when */
  uint64_t wait_mark;
  uint64_t ns;         /* its time alone on the card */
  uint64_t dram_bytes; /* that it moves in all */
  uint64_t link_bytes;
  uint32_t after_channels;
  uint16_t sm_permille, cache_permille, bound_permille; /* see struct gs_work */
  uint16_t next;
  uint8_t kind; /* enum gs_work_kind */
  uint8_t channel : 6;
  uint8_t after_copy : 1; /* what was put into the channel before it is a copy */
  uint8_t state;          /* enum gs_entry_state; atomic */
  uint8_t way;            /* enum gs_way */
};

struct gs_channel {
  uint64_t given_work, done_work; /* ns ever */
  uint64_t last_mark;
  uint16_t head, tail;
  uint32_t rate;   /* of what runs, see engine_rates.c */
  uint32_t rest;   /* of what runs: work done that is less than a ns, in the same unit */
  uint32_t copied; /* the last work put in is a copy */
};

/* A process' work on one GPU. Its ring of entries lies behind struct gs_region. */
struct gs_queue {
  uint64_t numbers;  /* pieces ever enqueued */
  uint64_t busy_ns;  /* time in which its kernels ran */
  uint32_t channels; /* bits: those that are not empty; atomic */
  uint32_t running;  /* bits: those whose first piece runs, while the engine advances */
  uint32_t kernels;  /* those of them in which a kernel runs */
  uint32_t copies;   /* copies queued */
  uint32_t count;    /* entries that are not free */
  uint16_t used;     /* entries that were ever used */
  uint16_t free, reached;
  uint16_t pad[3];
  uint64_t copying[GS_WAYS]; /* marks of the copies that have the process' copy engines */
  uint64_t copy_ns[GS_WAYS]; /* time in which its copies ran */
  uint64_t dram_bytes, rx_bytes, tx_bytes;
  struct gs_periods periods, memory;
  struct gs_channel channel[GS_CHANNELS];
};

struct gs_gpu {
  struct gs_card card;
  uint8_t pad0[64];
  uint32_t lock; /* lock.c */
  uint32_t pad1;
  uint64_t used_bytes; /* sum of held_bytes */
  uint64_t high_water_bytes;
  uint64_t updated_ns;   /* engine.c from here: up to when the GPU's past is worked out */
  uint64_t slice_end_ns; /* of the slice of slot `current` */
  uint64_t reaped_ns;
  uint64_t work_rest; /* thousandths of a ns of shared work, times what is shared */
  uint64_t busy_ns;
  uint32_t current;
  uint32_t ready_words;               /* bits: words of `ready` that are not 0 */
  uint64_t ready[GS_CUDA_SLOTS / 64]; /* bits: slots whose queue is not empty */
  struct gs_periods periods, memory;
  struct gs_live live;
  uint32_t copies; /* copies queued */
  uint32_t pad2;
  uint64_t rates_of;     /* what the channels' rates were worked out for */
  uint64_t next_tick_ns; /* later than updated_ns */
  uint64_t memory_ns, sm_work, dram_bytes;
  uint64_t copy_ns[GS_WAYS];
  struct gs_tick ticks[GS_TICKS];
  uint64_t xid_count; /* XIDs ever raised; the last GS_XIDS are in xids */
  uint64_t xids[GS_XIDS];
  uint64_t rx_bytes, tx_bytes; /* copied host to device, device to host */
  uint64_t held_bytes[GS_SLOTS];
  uint32_t contexts[GS_CUDA_SLOTS]; /* that live; written by the slot's owner, atomic */
  struct gs_queue queues[GS_CUDA_SLOTS];
};

struct gs_client {
  uint32_t state;      /* enum gs_slot_state, atomic */
  uint32_t generation; /* one more with each owner */
  int32_t pid;         /* in the client's own namespace */
  uint32_t pad;
  uint64_t image; /* random number that the kernel gives each program image: tells a process from what it execs */
  uint64_t calls[GS_MAX_FUNCTIONS];
};

struct gs_fault {
  uint32_t armed; /* atomic */
  int32_t gpu;    /* index, -1 any */
  int32_t pid;    /* as the process sees itself, 0 any */
  int32_t result; /* 0: only the delay */
  uint32_t delay_ms;
  uint32_t pad;
  uint64_t after; /* matching calls let through first; atomic */
  uint64_t count; /* calls left to fail; UINT64_MAX without end; atomic */
  char call[64];
  uint8_t functions[GS_MAX_FUNCTIONS / 8];
};

struct gs_region {
  uint64_t magic; /* written last */
  uint32_t layout_version;
  uint32_t pad;
  uint64_t region_bytes;
  struct gs_settings settings;
  uint32_t fault_count;  /* armed faults, atomic */
  uint32_t slot_high[2]; /* per kind: slots ever used; only grows */
  uint64_t created_ns;
  struct gs_fault faults[GS_MAX_FAULTS];
  uint64_t past_calls[GS_MAX_FUNCTIONS]; /* of clients that are gone */
  struct gs_gpu gpus[GS_MAX_GPUS];
  struct gs_client clients[GS_SLOTS];
};

/* This process' (this library's) place in the region. */
struct gs_self {
  struct gs_region *region; /* NULL: not attached */
  uint64_t *calls;          /* own counters; a private array while not attached */
  struct gs_client *client;
  uint32_t slot;
  uint32_t lock_id;
  int fd;
};
extern struct gs_self gs_self;

/* Attaches as `kind`, creating the region if there is none. 0, or -errno: -ENOENT no directory (no simulated
 * card on this machine), -EINVAL bad configuration, -EPROTO unknown layout, -EUSERS no slot. Idempotent.
 * After a fork the child is detached and attaches as a client of its own. */
int gs_attach(enum gs_slot_kind kind);

/* Directory of region and config: $GPUSIM_DIR or /run/gpusim. */
const char *gs_directory(void);

/* Says whether the owner of `slot` still lives. The caller must know that the slot is READY. */
bool gs_slot_alive(uint32_t slot);

/* Pid of the slot's owner as seen from the caller's pid namespace; 0 if dead or not visible. */
int gs_slot_pid(uint32_t slot);

/* Takes back what dead clients hold on one GPU. The caller holds the GPU's lock. */
void gs_reap_gpu_locked(struct gs_gpu *gpu);

/* GPU lock; survives the death of its holder. Not recursive. */
void gs_lock(struct gs_gpu *gpu);
void gs_unlock(struct gs_gpu *gpu);

/* Books bytes of device memory to this process. 0 or -ENOMEM. The high-water mark moves with it. */
int gs_memory_take(struct gs_gpu *gpu, uint64_t bytes);
void gs_memory_give(struct gs_gpu *gpu, uint64_t bytes);

/* Bytes that living clients hold on the GPU now. */
uint64_t gs_memory_used(struct gs_gpu *gpu);

uint64_t gs_now_ns(void);              /* CLOCK_MONOTONIC */
void gs_sleep_until(uint64_t time_ns); /* of CLOCK_MONOTONIC; a signal may end it early */

#endif
