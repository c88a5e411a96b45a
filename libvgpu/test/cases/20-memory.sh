# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# The memory limit of one process on one card, standalone.
limited() { # limited NAME LIMIT COMMAND...
  run "$1" env LD_PRELOAD="$lib" CUDA_DEVICE_MEMORY_LIMIT="$2" "${@:3}"
}

new_card memory=16384MiB
limited "to the byte" 1000m "$bin/memory" exact 1048576000
check "high-water mark is the limit" -- [ "$(high_water)" = 1048576000 ]
limited "to an odd byte" 1000003 "$bin/memory" exact 1000003
new_card memory=16384MiB
eval "$("$bin/memory" bare)"
limited "arguments, wild pointers" 1000m "$bin/memory" arguments
limited "pitch over the limit" 400m "$bin/memory" pitch-refused
check "nothing was taken" -- [ "$(high_water)" = 0 ]
limited "pitch within the limit" 490m "$bin/memory" pitch-fits
limited "pitch that fits exactly" 1m "$bin/memory" pitch-exact
new_card memory=16384MiB
limited managed 1000m "$bin/memory" managed
new_card memory=16384MiB
limited pools 1000m "$bin/memory" pool
check "high-water mark within the limit" -- [ "$(high_water)" -le 1048576000 ]
new_card memory=16384MiB
limited contexts 1000m "$bin/memory" contexts

new_card memory=16384MiB
gpusim fault set --call cuMemAlloc_v2 --result 2 --count 1 >/dev/null
gpusim fault set --call cuMemAllocPitch_v2 --result 999 --count 1 >/dev/null
gpusim fault set --call cuMemFree_v2 --result 999 --count 1 >/dev/null
limited "a driver that fails" 1000m "$bin/memory" fault
gpusim fault clear >/dev/null

new_card memory=16384MiB
limited capture 1000m "$bin/memory" capture

new_card memory=14917MiB
limited "a limit above the card" 15360MB "$bin/memory" above 15641608192

# Neither pages nor a limit in the environment: nobody promised one, and the library stands aside.
new_card memory=16384MiB
run "no limit was promised" env LD_PRELOAD="$lib" "$bin/memory" limit $((16384 * MIB))
