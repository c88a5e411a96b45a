/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * core_turn.c - compiles the shim's own turn.c into this package.
 */
#include "../libvgpu/core/turn.c"
