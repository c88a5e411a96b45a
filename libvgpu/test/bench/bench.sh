#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# bench.sh OUT: sets up a simulated card whose memory is addresses only, and runs the benchmark on it.
set -euo pipefail
out=$(realpath "$1")
GPUSIM_DIR=$(mktemp -d)
trap 'rm -rf "$GPUSIM_DIR"' EXIT
unset "${!CUDA_DEVICE_MEMORY_LIMIT@}" "${!CUDA_DEVICE_SM_LIMIT@}" CUDA_VISIBLE_DEVICES CUDA_DEVICE_MEMORY_SHARED_CACHE VGPUD_ALLOCATION LD_PRELOAD
export GPUSIM_DIR LD_LIBRARY_PATH=$out/sim
"$out/sim/gpusim" init --dir "$GPUSIM_DIR" --set memory=81920MiB --set memory_backing=none >/dev/null
"$out/libvgpu-test/bench" "$out"
