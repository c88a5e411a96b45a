# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# The ways in which a program finds the driver's functions.
new_card memory=16384MiB
run doors env LD_PRELOAD="$lib" CUDA_DEVICE_MEMORY_LIMIT=1000m "$bin/doors" "$out/sim/libcuda.so.1" "$bin/libneighbour.so"
run "doors behind another preload" env LD_PRELOAD="$lib $bin/libneighbour.so" CUDA_DEVICE_MEMORY_LIMIT=1000m \
  "$bin/doors" "$out/sim/libcuda.so.1" "$bin/libneighbour.so"
run "doors after another preload" env LD_PRELOAD="$bin/libneighbour.so $lib" CUDA_DEVICE_MEMORY_LIMIT=1000m \
  "$bin/doors" "$out/sim/libcuda.so.1" "$bin/libneighbour.so"
cp "$out/sim/libcuda.so.1" "$work/libmydriver.so"
# A private copy of the driver, opened by its own file name, is known by what it exports: limited by every door.
run "a driver under another name" env LD_PRELOAD="$lib" CUDA_DEVICE_MEMORY_LIMIT=1000m \
  "$bin/doors" "$work/libmydriver.so" "$bin/libneighbour.so"
