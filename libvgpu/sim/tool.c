/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * tool.c - gpusim: makes, shows and disturbs simulated cards.
 */
#define _GNU_SOURCE
#include "tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "region.h"

static const char help[] =
    "gpusim - control the simulated NVIDIA cards of libcuda.so.1 and libnvidia-ml.so.1\n"
    "\n"
    "  gpusim [--dir DIR] COMMAND ...        DIR: default $GPUSIM_DIR, else /run/gpusim\n"
    "\n"
    "  init [--gpus N] [--memory SIZE] [--set KEY=VALUE]...\n"
    "      Makes DIR, writes DIR/config, starts afresh and prints the cards. Processes that use the old cards keep\n"
    "      them.\n"
    "      Keys of the machine: gpus (1), driver_version (535.261.03), cuda_version (12020), context_overhead (0),\n"
    "        pitch_alignment (512), kernel_ns (0: duration of kernels whose name states none),\n"
    "        memory_backing (real; none: addresses only, for benchmarks), device_nodes (0; 1: /dev/nvidiaN needed)\n"
    "      How GPU time passes: sharing (time-slice; mps: kernels of all processes run at once), timeslice_us (2000),\n"
    "        kernel_jitter_permille (0: kernels take exactly what they state), event_scale_permille (1000: part of\n"
    "        the time between two events that is told), nvml_sample_ms (200: period of NVML's utilisation),\n"
    "        nvml_lag_ms (0: how much later it appears), nvml_missing_percent (0: samples of processes that never do)\n"
    "      Copies and memory: copies (instant; timed: copies and fills take time), copy_engines (2 that a process\n"
    "        has: one to the card and inside it, one from it; 1: one for all; 3: one each), copy_latency_ns (0),\n"
    "        pageable_permille (1000: speed of copies of memory that is not pinned, of that of others),\n"
    "        dram_reach_permille (1000: part of its bandwidth that DRAM can be brought to), kernel_dram_percent\n"
    "        (0: what kernels take of it whose name says nothing), l2_dram_permille (0: part of the L2 cache's\n"
    "        bandwidth that DRAM traffic takes, at all of DRAM's)\n"
    "      Counters: pcie_window_ms (20 if copies are timed: NVML's PCIe throughput blocks and is a mean for so\n"
    "        long; 0: since it was asked last), pcie_floor (20MB if copies are timed: bytes per second that are\n"
    "        always shown), dram_floor_permille (0: likewise, of DRAM's bandwidth), counter_lag_ms (0; of PCIe\n"
    "        and GPM), counter_noise_permille (0; likewise), gpm_refresh_ms (100)\n"
    "      Names of kernels say what they take alone, in any order: _250us (of time), _dram60 (percent of DRAM's\n"
    "        bandwidth), _l2 or _cache50 (of the L2 cache's), _rx30 or _tx30 (of the link's, to or from the\n"
    "        card), _bound80 (percent of the time waiting for memory; else as much as of its bandwidth)\n"
    "      Keys of all cards, or of card N as gpu.N.KEY: model (A100-SXM4-80GB; A100-PCIE-40GB, H100, L40S, L4, T4,\n"
    "        V100), name, memory, reserved (0: bytes that the driver keeps), sms, dram_bandwidth, pcie_bandwidth\n"
    "        (bytes per second), numa_node (-1), uuid (also as uuid.N = GPU-...); and what `set` can change\n"
    "      Sizes: 1000, 600MiB, 80GiB, 12GB\n"
    "  set [--gpu N] KEY=VALUE...\n"
    "      Changes cards that are in use, all of them or one (also gpu.N.KEY): clock_permille,\n"
    "        memory_clock_permille, dram_permille, pcie_rx_permille, pcie_tx_permille (1000: of the card's best),\n"
    "        link_generation, link_width (0: the card's own), throttle (0: NVML's bits, like 0x4), compute_mode\n"
    "        (0), gpm (1 from compute capability 9 on, else 0), gpm_missing (none; ids of metrics, like 10,20).\n"
    "        And keys of how time passes, of copies and memory and of counters, but for nvml_sample_ms.\n"
    "  status [--json]\n"
    "      Cards, who holds how much of them (pids as seen from here) and how long its kernels ran, counts of calls,\n"
    "      calls that are not modelled. JSON: busy_ns at monotonic_ns, pieces of work queued,\n"
    "      bytes through DRAM and link (rx: to the card) and the time that copies ran.\n"
    "  reset-high-water\n"
    "      The highest memory use ever seen becomes the present one.\n"
    "  fault set --call NAME --result CODE [--gpu N] [--pid P] [--count N] [--after K] [--delay MS]\n"
    "      Makes calls fail. NAME: an exported function, cuMemAlloc_v2 for what C programs write as cuMemAlloc; "
    "\"nvml*\"\n"
    "      matches by its beginning; a _ptsz or _ptds variant counts as its plain namesake. CODE: what the call "
    "returns instead of doing its work; 0 only delays it.\n"
    "      gpu: only calls about that card; pid: only that process (as it sees itself); count: so many times\n"
    "      (default: until cleared); after: let K matching calls through first.\n"
    "  fault list | fault clear [--call NAME]\n"
    "  xid [--gpu N] NUMBER\n"
    "      Raises an XID event (79: fallen off the bus) for those who wait on NVML's event sets.\n"
    "  wait [--clients N] [--timeout SECONDS]\n"
    "      Waits until at least N processes hold memory; without --clients: until none does. Exit code 1 after the\n"
    "      timeout (default 10).\n"
    "\n"
    "Try it:\n"
    "  gpusim --dir /tmp/cards init --gpus 2 --memory 80GiB --set model=H100\n"
    "  GPUSIM_DIR=/tmp/cards LD_LIBRARY_PATH=build/sim ffmpeg -init_hw_device cuda ...\n"
    "  gpusim --dir /tmp/cards status\n";

bool tool_attach(void) {
  int result = gs_attach(GS_KIND_WATCH);
  if (result == 0) return true;
  if (result != -EINVAL) /* a bad config was said already */
    fprintf(stderr, "gpusim: %s: %s\n", gs_directory(),
            result == -EPROTO ? "a region of another version; run init" : strerror(-result));
  return false;
}

int tool_misuse(const char *what, const char *argument) {
  fprintf(stderr, "gpusim: %s: %s (see gpusim --help)\n", argument, what);
  return 2;
}

bool tool_number(const char *text, long long low, long long high, long long *number) {
  char *end;
  errno = 0;
  *number = strtoll(text, &end, 10);
  return errno == 0 && end != text && *end == 0 && *number >= low && *number <= high;
}

const char *tool_option(int count, char **arguments, int *at, const char *name) {
  if (strcmp(arguments[*at], name) != 0 || *at + 1 >= count) return NULL;
  return arguments[++*at];
}

int main(int count, char **arguments) {
  static const struct {
    const char *name;
    int (*run)(int count, char **arguments);
  } commands[] = {{"init", tool_init}, {"set", tool_set},   {"status", tool_status},         {"fault", tool_fault},
                  {"xid", tool_xid},   {"wait", tool_wait}, {"reset-high-water", tool_reset}};
  int at = 1;
  while (at < count && strcmp(arguments[at], "--dir") == 0) {
    if (at + 1 >= count) return tool_misuse("needs a value", "--dir");
    setenv("GPUSIM_DIR", arguments[at + 1], 1);
    at += 2;
  }
  if (at >= count || strcmp(arguments[at], "--help") == 0 || strcmp(arguments[at], "help") == 0) {
    fputs(help, at >= count ? stderr : stdout);
    return at >= count ? 2 : 0;
  }
  if (strcmp(arguments[count - 1], "--help") == 0) { /* gpusim COMMAND --help */
    fputs(help, stdout);
    return 0;
  }
  /* --dir is also taken behind the command, where people put it. */
  for (int i = at + 1; i + 1 < count; i++) {
    if (strcmp(arguments[i], "--dir") != 0) continue;
    setenv("GPUSIM_DIR", arguments[i + 1], 1);
    memmove(&arguments[i], &arguments[i + 2], (size_t)(count - i - 2) * sizeof *arguments);
    count -= 2;
    i--;
  }
  for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
    if (strcmp(arguments[at], commands[i].name) == 0) return commands[i].run(count - at - 1, arguments + at + 1);
  return tool_misuse("unknown command", arguments[at]);
}
