/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * core_pending.c - compiles the shim's own pending.c into this package.
 */
#include "../libvgpu/core/pending.c"
