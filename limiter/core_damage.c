/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * core_damage.c - compiles the shim's own damage.c into this package.
 */
#include "../libvgpu/core/damage.c"
