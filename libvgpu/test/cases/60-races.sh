# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# Many processes and threads under one limit, and processes that die.
new_card memory=16384MiB
pages "$work/race" k1 "$(uuid_of 0)=$((1000 * MIB))"
race() { run "$1" env LD_PRELOAD="$work/race/libvgpu.so" "${@:2}"; }

gpusim fault set --call cuMemAlloc_v2 --result 0 --delay 50 >/dev/null
race "8 processes, 300 MiB each" "$bin/race" burst 8 300 3 10
gpusim fault clear >/dev/null
race "8 processes, 300 MiB each, a fast driver" "$bin/race" burst 8 300 3 50
check "high-water mark is never above the limit" -- [ "$(high_water)" -le $((1000 * MIB)) ]
gpusim reset-high-water >/dev/null
race "8 processes, 4 threads each" "$bin/race" churn 8 4 3125 $((60 * MIB)) 500
check "high-water mark is never above the limit" -- [ "$(high_water)" -le $((1000 * MIB)) ]
check "and gets there" -- [ "$(high_water)" = $((960 * MIB)) ]
race "fork" "$bin/race" fork
race "fork before the first call" "$bin/race" fork-before
gpusim reset-high-water >/dev/null
race "1000 kills" "$bin/race" kill 1000 8 $((1000 * MIB))
check "high-water mark is never above the limit" -- [ "$(high_water)" -le $((1000 * MIB)) ]
check "and gets there" -- [ "$(high_water)" = $((1000 * MIB)) ]
pages "$work/lowered" k1 "$(uuid_of 0)=$((4000 * MIB))"
run "the environment lowers it for racers" env LD_PRELOAD="$work/lowered/libvgpu.so" CUDA_DEVICE_MEMORY_LIMIT=1000m \
  "$bin/race" burst 8 300 3 50
# Standalone processes that share a state file share the limit.
run "a shared state file" env LD_PRELOAD="$lib" CUDA_DEVICE_MEMORY_LIMIT=1000m \
  CUDA_DEVICE_MEMORY_SHARED_CACHE="$work/shared-cache" "$bin/race" burst 8 300 3 20
check "of mode 0600" -- [ "$(stat -c %a "$work/shared-cache")" = 600 ]
