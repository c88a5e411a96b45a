/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * core_trust.c - compiles the shim's own trust.c into this package.
 */
#include "../libvgpu/core/trust.c"
