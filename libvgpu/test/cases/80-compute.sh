# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# Shares of a GPU's time: every way to launch, long kernels, threads, processes, signals, kills, captures; on the simulated
# GPU, and where calls are counted on a driver that logs them.
share() { # share NAME PROGRAM CASE PERCENT [VARIABLE=VALUE...]: on the simulated GPU
  run "$1" env LD_PRELOAD="$lib" CUDA_DEVICE_SM_LIMIT="$4" "${@:5}" "$bin/$2" "$3" "$4"
}
logged() { # logged NAME PROGRAM CASE PERCENT [VARIABLE=VALUE...]: on the logging driver, as its only GPU
  run "$1" env LD_LIBRARY_PATH="$bin/gpu" CUDA_VISIBLE_DEVICES=0 LD_PRELOAD="$lib" CUDA_DEVICE_SM_LIMIT="$4" "${@:5}" \
    "$bin/$2" "$3" "$4"
}

new_card memory=16384MiB
share "every way to launch" compute paths 30
share "graphs of 100 kernels" compute graphs 30
share "kernels of 100 ms" compute long 20
share "signals during a wait" compute signals 20
share "processes that launch once" processes once 20 CUDA_DEVICE_MEMORY_SHARED_CACHE="$work/once-cache"
share "threads share" compute threads 30
share "processes share" processes processes 30 CUDA_DEVICE_MEMORY_SHARED_CACHE="$work/compute-cache"
share "kills during waits" processes kill 30 CUDA_DEVICE_MEMORY_SHARED_CACHE="$work/compute-cache"

# What people write, and what only lowers.
run "a share that cannot be read is 1 percent" env LD_PRELOAD="$lib" CUDA_DEVICE_SM_LIMIT=30% "$bin/compute" plain 1
check "says so once" -- \
  [ "$(grep -c '^vgpud: cannot read the compute limit CUDA_DEVICE_SM_LIMIT=30%: 1 percent holds' "$work/stderr")" = 1 ]
first=$(uuid_of 0)
pages "$work/share" k1 "$first=$((1000 * MIB)),40"
run "a share from pages" env LD_PRELOAD="$work/share/libvgpu.so" "$bin/compute" plain 40
run "the environment asks for more" env LD_PRELOAD="$work/share/libvgpu.so" CUDA_DEVICE_SM_LIMIT=90 "$bin/compute" plain 40
run "the environment asks for less" env LD_PRELOAD="$work/share/libvgpu.so" CUDA_DEVICE_SM_LIMIT=20 "$bin/compute" plain 20
pages "$work/shares" k1 "$first=$((1000 * MIB)),10"
pages "$work/shares" k2 "$first=$((1000 * MIB)),30"
run "two allocations of one GPU add up" env LD_PRELOAD="$work/shares/libvgpu.so" "$bin/compute" plain 40
run "the environment lowers their sum" env LD_PRELOAD="$work/shares/libvgpu.so" CUDA_DEVICE_SM_LIMIT=20 "$bin/compute" \
  plain 20

pages "$work/small-share" k1 "$first=$((1000 * MIB)),2"
run "the rate is raised during a wait" env LD_PRELOAD="$work/small-share/libvgpu.so" "$bin/ledger" change 2
pages "$work/told" k1 "$first=$((1000 * MIB)),40"
run "what the usage page tells" env LD_PRELOAD="$work/told/libvgpu.so" "$bin/ledger" told 40
pages "$work/garbage" k1 "$first=$((1000 * MIB)),40"
run "garbage in the usage page" env LD_PRELOAD="$work/garbage/libvgpu.so" "$bin/ledger" garbage 40
rm -rf "$work/lost/alloc" && mkdir -p "$work/lost/alloc" && ln -sf "$lib" "$work/lost/libvgpu.so"
run "a GPU that is in no page gets 1 percent" env LD_PRELOAD="$work/lost/libvgpu.so" "$bin/compute" plain 1

logged "every way to launch, counted" compute paths 30
logged "a forked child" processes fork 30
logged "captures in three modes" captures capture 30
logged "a capture that is held open" captures held 30
logged "refused launches" counts refused 30
logged "collectives" counts collectives 30
logged "collectives of an older driver" counts collectives 30 FAKE_OLD_DRIVER=1
logged "kernels of libraries" counts kernels 30
logged "code that is loaded at the first launch" counts loading 30
logged "contexts that end" endings contexts 30
logged "what ends with its context" endings last 30
logged "a driver that cannot measure" endings failing 30
logged "launches that never end" endings blocked 30
logged "a first launch that never ends" endings blocked-first 30
logged "children that end" endings children 30
pages "$work/usual" k1 GPU-a0000000-0000-0000-0000-000000000000=$((1000 * MIB)),99
run "the usual launch" env LD_LIBRARY_PATH="$bin/gpu" CUDA_VISIBLE_DEVICES=0 LD_PRELOAD="$work/usual/libvgpu.so" \
  "$bin/counts" usual
pages "$work/pair" k1 GPU-a0000000-0000-0000-0000-000000000000=$((1000 * MIB)),20 \
  GPU-a1000000-0000-0000-0000-000000000000=$((1000 * MIB)),40
run "two GPUs" env LD_LIBRARY_PATH="$bin/gpu" LD_PRELOAD="$work/pair/libvgpu.so" "$bin/counts" two
run "a stream of the other GPU" env LD_LIBRARY_PATH="$bin/gpu" LD_PRELOAD="$work/pair/libvgpu.so" "$bin/counts" elsewhere

# One page, processes whose clocks differ.
if unshare --time --monotonic 1000 --fork true 2>/dev/null; then
  pages "$work/clocks" k1 GPU-a0000000-0000-0000-0000-000000000000=$((1000 * MIB)),40
  for from in "unshare --time --monotonic 1000 --fork" env "unshare --time --monotonic -500 --fork"; do
    # shellcheck disable=SC2086 # words
    run "clocks of time namespaces: $from" $from env LD_LIBRARY_PATH="$bin/gpu" CUDA_VISIBLE_DEVICES=0 \
      LD_PRELOAD="$work/clocks/libvgpu.so" "$bin/compute" plain 40
  done
else
  skip unshare "clocks of time namespaces: this machine gives none"
fi
