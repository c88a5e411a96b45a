# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# What the simulated GPU does not model, on a driver that only counts.
counted() { # counted NAME LIMIT CASE
  run "$1" env LD_LIBRARY_PATH="$bin/fake" LD_PRELOAD="$lib" CUDA_DEVICE_MEMORY_LIMIT="$2" "$bin/extras" "$3"
}
counted "virtual memory management" 500m vmm
counted "arrays" 1536m arrays
counted "pools of large chunks" 100m chunks
counted "the first API, a wide pitch" 100m old
counted "missing functions" 100m missing
check "REQUIRED ones are named" -- grep -q '^vgpud: this driver has no cu' "$work/stderr"
