/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * core_cost.c - compiles the shim's own cost.c into this package.
 */
#include "../libvgpu/core/cost.c"
