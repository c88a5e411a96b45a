/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * core_rate.c - compiles the shim's own rate.c into this package.
 */
#include "../libvgpu/core/rate.c"
