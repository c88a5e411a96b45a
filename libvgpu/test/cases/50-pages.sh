# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# Limits from pages beside the library, as in a container.
with() { # with DIR NAME COMMAND...
  run "$2" env LD_PRELOAD="$1/libvgpu.so" "${@:3}"
}

new_card gpus=2 memory=16384MiB
first=$(uuid_of 0) second=$(uuid_of 1)
pages "$work/two" k1 "$first=$((1000 * MIB))" "$second=$((2000 * MIB))"
with "$work/two" "two devices" "$bin/memory" two $((1000 * MIB)) $((2000 * MIB))
with "$work/two" "devices swapped" CUDA_VISIBLE_DEVICES=1,0 "$bin/memory" two $((2000 * MIB)) $((1000 * MIB))
with "$work/two" "one device by its UUID" CUDA_VISIBLE_DEVICES="$second" "$bin/memory" limit $((2000 * MIB))
pages "$work/one" k1 "$second=$((500 * MIB))"
with "$work/one" "a device that is in no page" CUDA_VISIBLE_DEVICES=0 "$bin/memory" nothing
check "says so" -- grep -q '^vgpud: GPU 0 is not part of this allocation' "$work/stderr"
with "$work/one" "the one that is" CUDA_VISIBLE_DEVICES=1 "$bin/memory" limit $((500 * MIB))
pages "$work/sum" k1 "$first=$((500 * MIB))"
pages "$work/sum" k2 "$first=$((300 * MIB))" "$second=$((100 * MIB))"
with "$work/sum" "two allocations add up" "$bin/memory" exact-first $((800 * MIB)) $((500 * MIB))

rm -rf "$work/lower" && pages "$work/lower" k1 "$first=$((2000 * MIB))"
with "$work/lower" "the limit is lowered below the use" "$bin/memory" lowered "$work/lower/alloc/k1/limits"
rm -rf "$work/frozen" && pages "$work/frozen" k1 "$first=$((1000 * MIB))"
with "$work/frozen" "the allocation is frozen" "$bin/memory" frozen "$work/frozen/alloc/k1/limits"
check "says so once" -- [ "$(grep -c '^vgpud: .*the usage page was tampered with' "$work/stderr")" -eq 1 ]
rm -rf "$work/count" && pages "$work/count" k1 "$first=$((1000 * MIB))"
with "$work/count" "refusals are counted once" CUDA_VISIBLE_DEVICES=0 "$bin/memory" refusals \
  "$work/count/alloc/k1/usage"

# The environment lowers and never raises.
export CUDA_VISIBLE_DEVICES=1
with "$work/one" "the environment asks for more" CUDA_DEVICE_MEMORY_LIMIT=99g "$bin/memory" limit $((500 * MIB))
with "$work/one" "the environment asks for less" CUDA_DEVICE_MEMORY_LIMIT=100m "$bin/memory" limit $((100 * MIB))
with "$work/one" "and holds to the byte" CUDA_DEVICE_MEMORY_LIMIT=100m "$bin/memory" exact $((100 * MIB))
run "the environment is cleaned" env -i GPUSIM_DIR="$GPUSIM_DIR" LD_LIBRARY_PATH="$LD_LIBRARY_PATH" \
  CUDA_VISIBLE_DEVICES=1 LD_PRELOAD="$work/one/libvgpu.so" "$bin/memory" limit $((500 * MIB))
with "$work/one" "another state file" CUDA_DEVICE_MEMORY_SHARED_CACHE="$work/cache" "$bin/memory" limit $((500 * MIB))
with "$work/one" "an error in the environment" CUDA_DEVICE_MEMORY_LIMIT=4Gx "$bin/memory" nothing
unset CUDA_VISIBLE_DEVICES

# A kill between making the state file and writing its header leaves a page of zeros: the next process starts it.
CUDA_VISIBLE_DEVICES=0 CUDA_DEVICE_MEMORY_LIMIT=1m CUDA_DEVICE_MEMORY_SHARED_CACHE="$work/whole" LD_PRELOAD="$lib" \
  "$bin/memory" limit "$MIB" >/dev/null
truncate -s "$(stat -c %s "$work/whole")" "$work/zeros"
run "a state file that was never begun" env LD_PRELOAD="$lib" CUDA_VISIBLE_DEVICES=0 CUDA_DEVICE_MEMORY_LIMIT=300m \
  CUDA_DEVICE_MEMORY_SHARED_CACHE="$work/zeros" "$bin/memory" exact $((300 * MIB))

# Fail closed: whatever is wrong with a page, nothing can be allocated, and one line says why.
broken() { # broken NAME COMMAND: the pages, after COMMAND in the allocation's directory
  rm -rf "$work/broken"
  pages "$work/broken" k1 "$first=$((1000 * MIB))" "$second=$((1000 * MIB))"
  (cd "$work/broken/alloc/k1" && eval "$2") || fail "$1: cannot be set up"
  with "$work/broken" "$1" "$bin/memory" nothing
  check "$1: one clear line" -- [ "$(grep -c '^vgpud: .*nothing can be allocated' "$work/stderr")" -ge 1 ]
}
broken "no limits page" 'rm limits'
broken "no usage page" 'rm usage'
broken "an empty limits page" ': >limits'
broken "an empty usage page" ': >usage'
broken "random bytes in the limits page" 'head -c 4096 /dev/urandom >limits'
broken "random bytes in the usage page" 'head -c 65536 /dev/urandom >usage'
broken "a truncated usage page" 'truncate -s 8192 usage'
broken "a newer version" 'printf "\377" | dd of=limits bs=1 seek=8 conv=notrunc status=none'
broken "a link in place of a page" 'mv limits elsewhere && ln -s elsewhere limits'
broken "a directory in place of a page" 'rm usage && mkdir usage'
broken "a file in place of the allocation" 'cd .. && rm -r k1 && touch k1'
broken "no allocation at all" 'cd .. && rm -r k1'
broken "a second allocation that is not right" 'mkdir ../k2'
mkdir -p "$work/lost" && ln -sf "$lib" "$work/lost/libvgpu.so"
with "$work/lost" "an allocation without its pages" VGPUD_ALLOCATION=k1 "$bin/memory" nothing
