/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * graph.h - graphs of work: their nodes, and what can be launched of them. gs_driver.mutex guards all of it, except
 * that a launch reads its executable graph without: a program must not change one while it launches it.
 */
#ifndef GPUSIM_GRAPH_H
#define GPUSIM_GRAPH_H

#include "driver.h"

struct gs_graph_memory; /* see below */

/* What one node does. */
struct gs_action {
  int type; /* enum cu_node_type */
  union {
    struct cu_kernel_node kernel;
    struct cu_memcpy3d copy;
    struct cu_memset_node fill;
    struct cu_host_node host;
    struct gs_graph *child; /* the node's own copy */
    CUevent event;
    struct gs_graph_memory *memory;
  };
};

struct gs_node {
  struct gs_object object;
  struct gs_graph *graph;
  struct gs_node *origin; /* what it was copied from, or NULL */
  struct gs_node **dependencies;
  size_t dependency_count;
  size_t number; /* place in the graph's list */
  struct gs_action action;
  struct cu_launch_attribute *attributes; /* of a kernel, by id; NULL: none were set */
  bool disabled;                          /* in an executable graph */
};

struct gs_graph {
  struct gs_object object;
  struct gs_graph *origin; /* what it was copied from, or NULL */
  struct gs_node **nodes;  /* in the order they were added */
  size_t count, room;
  struct gs_user_reference *references;
  size_t executables; /* living ones that were made of it */
  bool owned;         /* by a node, an executable graph or a capture: programs cannot destroy it */
};

/* graph.c; the caller holds gs_driver.mutex. */
bool gs_graph_valid(const struct gs_graph *graph);
bool gs_node_valid(const struct gs_node *node);
struct gs_graph *gs_graph_new(void); /* NULL: no room */
void gs_graph_free(struct gs_graph *graph);

/* A copy with copies of all nodes and embedded graphs, which name their origins. NULL: no room. */
struct gs_graph *gs_graph_copy(struct gs_graph *graph);

/* Whether memory is allocated or freed in it; such a graph cannot be copied by programs. */
bool gs_graph_has_memory(const struct gs_graph *graph);

/* Whether all of them are nodes of the graph. */
bool gs_graph_has_nodes(const struct gs_graph *graph, struct gs_node *const *nodes, size_t count);

bool gs_node_depends(const struct gs_node *node, const struct gs_node *on); /* directly */

/* Adds a node; takes what the action names as it is. NULL: no room. */
struct gs_node *gs_graph_add(struct gs_graph *graph, struct gs_node *const *dependencies, size_t count,
                             const struct gs_action *action);

/* The nodes in an order in which each comes after what it depends on; the caller frees the list. NULL: there is none, with
 * a node of a cycle in `culprit`, or no room. */
struct gs_node **gs_graph_order(const struct gs_graph *graph, struct gs_node **culprit);

/* graph_action.c: whether the action could be carried out. The caller holds no lock. */
CUresult gs_action_check(const struct gs_action *action);
/* Gives the action's work to the stream; all types but CU_NODE_GRAPH. The caller holds no lock. */
CUresult gs_action_run(struct gs_context *context, CUstream stream, const struct gs_action *action);

/* Makes a child graph that the action names a copy of its own. The caller holds gs_driver.mutex. */
CUresult gs_action_own(struct gs_action *action);

/* What a call's parameters state, not checked yet: a kernel, of which `bytes` are there (the first interface's structure is
 * shorter), or a node of any type; NOT_SUPPORTED for types that are not modelled. */
struct gs_action gs_kernel_action(const struct cu_kernel_node *parameters, size_t bytes);
CUresult gs_action_of(const struct cu_node *node, struct gs_action *action);

/* Whether a node of the graph frees the memory; the caller holds gs_driver.mutex. */
bool gs_graph_frees(const struct gs_graph *graph, const struct gs_graph_memory *memory);

/* graph_memory.c: memory that graphs allocate. The caller holds gs_driver.mutex, except for the last three. */
/* Takes an address for `bytes` on the device; nothing of the card yet. NULL: no addresses left. */
struct gs_graph_memory *gs_graph_memory_new(struct gs_device *device, uint64_t bytes);
struct gs_graph_memory *gs_graph_memory_find(CUdeviceptr address); /* NULL: not a graph's */
CUdeviceptr gs_graph_memory_address(const struct gs_graph_memory *memory);
uint64_t gs_graph_memory_bytes(const struct gs_graph_memory *memory);
struct gs_device *gs_graph_memory_device(const struct gs_graph_memory *memory);
void gs_graph_memory_hold(struct gs_graph_memory *memory); /* one more node names it */
void gs_graph_memory_drop(struct gs_graph_memory *memory);

/* Makes the card hold what the nodes will need at most at one time. `launching`: it fails if something that they allocate is
 * allocated already, unless that is to be freed first. */
CUresult gs_graph_memory_reserve(struct gs_node *const *order, size_t count, bool launching, bool free_first);
/* What the nodes do. Allocating fails if the memory has been allocated and not freed. */
CUresult gs_graph_memory_allocate(struct gs_graph_memory *memory);
CUresult gs_graph_memory_release(struct gs_graph_memory *memory);

/* user_object.c; the caller holds gs_driver.mutex. */
bool gs_user_references_copy(struct gs_graph *to, const struct gs_graph *from);
void gs_user_references_drop(struct gs_graph *graph);

#endif
