/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * core_line.c - compiles the shim's own line.c into this package.
 */
#include "../libvgpu/core/line.c"
