/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * core_pace.c - compiles the shim's own pace.c into this package.
 */
#include "../libvgpu/core/pace.c"
