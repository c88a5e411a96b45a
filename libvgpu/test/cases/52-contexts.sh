# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# A process has a slot in its usage pages before it has a context: the driver names it to the agent from then on.
made() { # made NAME CASE PAGES VARIABLE=VALUE...: on the simulated GPU, with the pages beside PAGES/libvgpu.so
  run "$1" env LD_PRELOAD="$3/libvgpu.so" "${@:4}" "$bin/contexts" "$2" "$3"/alloc/*/usage
}

new_card memory=16384MiB
first=$(uuid_of 0)
pages "$work/none" k1 "$first=$((1000 * MIB)),100,0"
made "a context, GPU time not limited" makers "$work/none"
pages "$work/hard" k1 "$first=$((1000 * MIB)),30"
made "a context, GPU time limited" makers "$work/hard"
ABI=2 pages "$work/older" k1 "$first=$((1000 * MIB))"
made "a context, pages of an older version" makers "$work/older"
pages "$work/several" k1 "$first=$((1000 * MIB))"
pages "$work/several" k2 "GPU-of-another-card=$((1000 * MIB))"
made "a context, several allocations" makers "$work/several"
pages "$work/gpu-driver" k1 "GPU-a0000000-0000-0000-0000-000000000000=$((1000 * MIB))"
made "a context, on a newer driver" makers "$work/gpu-driver" LD_LIBRARY_PATH="$bin/gpu"
pages "$work/hidden" k1 "GPU-a0000000-0000-0000-0000-000000000000=$((1000 * MIB)),100,0"
made "a context that nobody saw being made" hidden "$work/hidden" LD_LIBRARY_PATH="$bin/gpu" CUDA_VISIBLE_DEVICES=0
pages "$work/forks" k1 "$first=$((1000 * MIB))"
made "a child of a process with a context" fork "$work/forks"
gpusim fault set --call cuCtxCreate_v2 --result 999 --count 1 >/dev/null
pages "$work/refusing" k1 "$first=$((1000 * MIB))"
made "a context that the driver refuses" refused "$work/refusing"
gpusim fault clear >/dev/null
pages "$work/full" k1 "$first=$((1000 * MIB))"
made "no slot is left" full "$work/full"
check "says so once" -- [ "$(grep -c '^vgpud: refused a context' "$work/stderr")" = 1 ]
