/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * core_slot.c - compiles the shim's own slot.c into this package.
 */
#include "../libvgpu/core/slot.c"
