/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * graph_exec.h - executable graphs, as those who change them see them.
 */
#ifndef GPUSIM_GRAPH_EXEC_H
#define GPUSIM_GRAPH_EXEC_H

#include "graph.h"

struct gs_exec {
  struct gs_object object;
  struct gs_graph *origin; /* what it was made of; may be gone */
  struct gs_graph *graph;  /* its own copy */
  uint64_t flags;
};

bool gs_exec_valid(const struct gs_exec *exec);

#endif
