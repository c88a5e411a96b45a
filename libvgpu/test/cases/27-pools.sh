# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# Pools that a program makes and destroys.
new_card memory=16384MiB
for case in many destroyed current failed; do
  limited "pools: $case" 1000m "$bin/pools" $case
done
check "high-water mark within the limit" -- [ "$(high_water)" -le $((1000 * MIB)) ]
new_card gpus=2 memory=16384MiB
run "pools: of another device" env LD_PRELOAD="$lib" CUDA_DEVICE_MEMORY_LIMIT=1000m CUDA_DEVICE_MEMORY_LIMIT_1=100m \
  "$bin/pools" other-device
