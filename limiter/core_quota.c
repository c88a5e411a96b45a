/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * core_quota.c - compiles the shim's own quota.c into this package.
 */
#include "../libvgpu/core/quota.c"
