/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * core_page.c - compiles the shim's own page.c into this package.
 */
#include "../libvgpu/core/page.c"
