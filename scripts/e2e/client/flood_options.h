/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * flood_options.h - what flood.c can be told, and which of it makes sense together. Included once, behind copies.h.
 *
 *   kernel=busy_1ms    what is launched; the simulated GPU reads from the name how long it takes; none: only copies
 *   path=launch        launch, ex, cooperative, multi (cooperative, many devices), old (cuLaunchGridAsync), grid
 *                      (cuLaunchGrid), ptsz (per-thread default stream), graph, rich (a graph with a child graph and
 *                      memsets), capture (a graph out of a captured stream), fresh (a new graph for each launch)
 *   kernels=1          that many kernels of the same length, launched in turn
 *   nodes=1            kernels in a graph
 *   other=KERNEL       a graph's kernels are changed to this one and back after each replay
 *   first=KERNEL       launched once before all else
 *   seconds=0 count=0  end after that time, or after so many launches by each thread; 0: not for this reason
 *   streams=1          streams of each thread, in turn
 *   threads=1          threads of each process
 *   processes=1        processes; the first one only waits for the others
 *   devices=1          devices, which the threads take in turn
 *   sync=none          none, each (wait for the GPU after each launch), stream (for the stream that it went to)
 *   pause_ms=0         rest between two launches
 *   period_ms=0        launch so often, if it can be done; 0: without end
 *   delay_ms=0         rest before the first launch
 *   on_ms=0 off_ms=0   launch for so long, then rest for so long, from the beginning; 0: always launch
 *   grid=1024 block=256
 *   bytes=0            device memory that is held meanwhile
 *   copy=none          before each launch, or instead: htod, dtoh, dtod (inside the device), both (htod and dtoh in turn)
 *   copy_bytes=1048576 of each copy
 *   copies=1           copies before each launch
 *   copy_sync=1        1: each is waited for: by a call without a stream, or with copy_streams=2 and more before the next
 *                      one in its stream; 0: they are only put into streams
 *   copy_streams=0     streams of their own, in turn; 0: the launches'
 *   pinned=1           0: the host memory is not pinned
 *   measure=0          so many launches, and copies that are not waited for, to one that is measured by events around it
 *   report_ms=0        a line of sums so often
 *   log=0              1: a line for each launch
 */
#ifndef CLIENT_FLOOD_OPTIONS_H
#define CLIENT_FLOOD_OPTIONS_H

#include "copies.h"

enum {
  MAX_STREAMS = 64,
  MAX_THREADS = 256,
  MAX_PROCESSES = 64,
  MAX_NODES = 100000,
  MAX_DEVICES = 16,
  MAX_KERNELS = 100000
};

static struct {
  const char *kernel, *path, *other, *first, *sync;
  double seconds, pause_ms, period_ms, delay_ms, on_ms, off_ms, report_ms;
  long count, kernels, nodes, streams, threads, processes, devices, grid, block, bytes, copy_bytes, copies, measure,
      log;
  struct copy_options copy;
} options = {.kernel = "busy_1ms",
             .path = "launch",
             .sync = "none",
             .kernels = 1,
             .nodes = 1,
             .streams = 1,
             .threads = 1,
             .processes = 1,
             .devices = 1,
             .grid = 1024,
             .block = 256,
             .copy_bytes = 1 << 20,
             .copies = 1,
             .copy = {.direction = "none", .wait = 1, .pinned = 1}};

static bool path_is(const char *name) {
  return strcmp(options.path, name) == 0;
}
static bool is_graph(void) {
  return path_is("graph") || path_is("rich") || path_is("capture") || path_is("fresh");
}

static void set_option(const char *text) {
  const struct {
    const char *name;
    const char **text;
    double *real;
    long *number;
  } known[] = {
      {"kernel", &options.kernel, NULL, NULL},
      {"path", &options.path, NULL, NULL},
      {"other", &options.other, NULL, NULL},
      {"first", &options.first, NULL, NULL},
      {"sync", &options.sync, NULL, NULL},
      {"seconds", NULL, &options.seconds, NULL},
      {"pause_ms", NULL, &options.pause_ms, NULL},
      {"count", NULL, NULL, &options.count},
      {"nodes", NULL, NULL, &options.nodes},
      {"streams", NULL, NULL, &options.streams},
      {"threads", NULL, NULL, &options.threads},
      {"processes", NULL, NULL, &options.processes},
      {"grid", NULL, NULL, &options.grid},
      {"block", NULL, NULL, &options.block},
      {"bytes", NULL, NULL, &options.bytes},
      {"log", NULL, NULL, &options.log},
      {"on_ms", NULL, &options.on_ms, NULL},
      {"off_ms", NULL, &options.off_ms, NULL},
      {"kernels", NULL, NULL, &options.kernels},
      {"devices", NULL, NULL, &options.devices},
      {"copy", &options.copy.direction, NULL, NULL},
      {"copy_bytes", NULL, NULL, &options.copy_bytes},
      {"copies", NULL, NULL, &options.copies},
      {"copy_sync", NULL, NULL, &options.copy.wait},
      {"copy_streams", NULL, NULL, &options.copy.streams},
      {"pinned", NULL, NULL, &options.copy.pinned},
      {"period_ms", NULL, &options.period_ms, NULL},
      {"delay_ms", NULL, &options.delay_ms, NULL},
      {"report_ms", NULL, &options.report_ms, NULL},
      {"measure", NULL, NULL, &options.measure},
  };
  const char *value = strchr(text, '=');
  for (size_t i = 0; value != NULL && i < sizeof known / sizeof known[0]; i++) {
    char *end = "";
    if (strncmp(text, known[i].name, (size_t)(value - text)) != 0 || known[i].name[value - text] != 0) continue;
    if (known[i].text != NULL) *known[i].text = value + 1;
    if (known[i].real != NULL) *known[i].real = strtod(value + 1, &end);
    if (known[i].number != NULL) *known[i].number = strtol(value + 1, &end, 10);
    if (*end == 0) return;
  }
  fprintf(stderr, "flood: unknown option or value: %s; flood_options.h lists what there is, such as seconds=3\n", text);
  exit(2);
}

static bool launches(void) {
  return strcmp(options.kernel, "none") != 0;
}

static void check_options(void) {
  options.copy.bytes = options.copy_bytes > 0 ? (size_t)options.copy_bytes : 0;
  if (!copy_options_good(&options.copy) || options.copies < 1 || options.measure < 0) {
    fprintf(stderr, "flood: an option of copies is out of range\n");
    exit(2);
  }
  if (!launches() && (!copies(&options.copy) || options.other != NULL || !path_is("launch"))) {
    fprintf(stderr, "flood: without kernels there must be copies, and nothing else to launch\n");
    exit(2);
  }
  if (options.streams < 1 || options.streams > MAX_STREAMS || options.threads < 1 || options.threads > MAX_THREADS ||
      options.processes < 1 || options.processes > MAX_PROCESSES || options.nodes < 1 || options.nodes > MAX_NODES ||
      options.kernels < 1 || options.kernels > MAX_KERNELS || options.devices < 1 || options.devices > MAX_DEVICES) {
    fprintf(stderr, "flood: a number is out of range\n");
    exit(2);
  }
}

#endif
