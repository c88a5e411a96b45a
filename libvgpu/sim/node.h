/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * node.h - device nodes, for device_nodes = 1: a card is there for a process that can open /dev/nvidiaN, whoever
 * uses it keeps the node open, and an ioctl goes to it for each context and each growth of memory. In tests the
 * nodes are null devices under NVIDIA's names.
 */
#ifndef GPUSIM_NODE_H
#define GPUSIM_NODE_H

#include <stdbool.h>

/* Opens the card's node and keeps it open. True without doing anything if device_nodes = 0. */
bool gs_node_open(int gpu);

/* Says to the card's node that something was allocated. */
void gs_node_touch(int gpu);

#endif
