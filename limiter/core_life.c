/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * core_life.c - compiles the shim's own life.c into this package.
 */
#include "../libvgpu/core/life.c"
