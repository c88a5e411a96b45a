/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * core_account.c - compiles the shim's own account.c into this package.
 */
#include "../libvgpu/core/account.c"
