# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# NVML's view of the slice.
new_card memory=24576MiB
run nvml env LD_PRELOAD="$lib" CUDA_DEVICE_MEMORY_LIMIT=3000m "$bin/nvml" $((3000 * MIB))
pages "$work/nvml" k1 "$(uuid_of 0)=$((3000 * MIB))"
run "nvml with pages" env LD_PRELOAD="$work/nvml/libvgpu.so" "$bin/nvml" $((3000 * MIB))
