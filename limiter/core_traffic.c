/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * core_traffic.c - compiles the shim's own traffic.c into this package.
 */
#include "../libvgpu/core/traffic.c"
