/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * core_process.c - compiles the shim's own process.c into this package.
 */
#include "../libvgpu/core/process.c"
