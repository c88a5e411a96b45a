# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# What the traffic book says: every call that copies, captures, threads, processes, kills, two GPUs, durations; on the
# driver that logs its calls.
card0=GPU-a0000000-0000-0000-0000-000000000000 card1=GPU-a1000000-0000-0000-0000-000000000000
traffic() { # traffic NAME PROGRAM CASE [,SHARE [VARIABLE=VALUE...]]: in a container of its own, with one GPU
  rm -rf "$work/traffic"
  pages "$work/traffic" k1 "$card0=$((1000 * MIB))${4:-}"
  run "$1" env LD_LIBRARY_PATH="$bin/gpu" CUDA_VISIBLE_DEVICES=0 LD_PRELOAD="$work/traffic/libvgpu.so" "${@:5}" \
    "$bin/$2" "$3"
}
traffic "every copy is counted" copies all
traffic "every copy is counted, under a share" copies all ,50
traffic "copies and captures" copies capture
traffic "copies of threads and processes" copies together
traffic "kills during copies" copies kill
traffic "durations of copies" measured durations
traffic "kernels that are not limited are sampled" measured kernels
traffic "kernels that are limited are sampled" measured kernels ,30
traffic "copies and contexts that end" measured contexts
ABI=2 traffic "pages without traffic books" copies older
rm -rf "$work/traffic"
pages "$work/traffic" k1 "$card0=$((1000 * MIB))" "$card1=$((1000 * MIB))"
run "copies between two GPUs" env LD_LIBRARY_PATH="$bin/gpu" LD_PRELOAD="$work/traffic/libvgpu.so" "$bin/copies" two

# On the simulated GPU, whose copies take time: 25 GB a second each way. The card counts by itself.
new_card copies=timed memory=4096MiB memory_backing=none
rm -rf "$work/traffic"
pages "$work/traffic" k1 "$(uuid_of 0)=$((1000 * MIB))"
run "copies that take time" env LD_PRELOAD="$work/traffic/libvgpu.so" "$bin/moves" 60 40 335.5
check "the card counted the same" -- \
  [ "$(gpusim status --json | grep -o '"rx_bytes": [0-9]*, "tx_bytes": [0-9]*' | head -n 1)" = \
  "\"rx_bytes\": $((60 * 8 * MIB)), \"tx_bytes\": $((40 * 8 * MIB))" ]
