# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# Programs that change their surroundings, and two libvgpus in one program.
new_card memory=16384MiB
pages "$work/late" k1 "$(uuid_of 0)=$((1000 * MIB))"
cd "$work" || exit 1
run "a relative path of the library" env LD_PRELOAD=./late/libvgpu.so "$bin/late" chdir $((1000 * MIB))
cd "$OLDPWD" || exit 1
run "pages that were there at start" env LD_PRELOAD="$work/late/libvgpu.so" "$bin/late" gone "$work/late/alloc"
check "says so" -- grep -q '^vgpud: cannot open .*/late/alloc (error 2): nothing can be allocated' "$work/stderr"

# Limits chain, whichever library comes first, and whether a limit is in pages or in the environment.
rm -rf "$work/late"
pages "$work/small" k1 "$(uuid_of 0)=$((1000 * MIB))"
pages "$work/large" k2 "$(uuid_of 0)=$((8000 * MIB))"
mkdir "$work/copy"
for copy in copy small large; do # files of their own: the loader loads one file once
  cp --remove-destination "$lib" "$work/$copy/libvgpu.so"
done
for chain in "small/libvgpu.so:$work/large/libvgpu.so" "large/libvgpu.so:$work/small/libvgpu.so" \
  "copy/libvgpu.so:$work/small/libvgpu.so" "small/libvgpu.so:$work/copy/libvgpu.so"; do
  for app in "memory exact $((1000 * MIB))" "memory pool" "memory contexts" "memory capture" "nvml $((1000 * MIB))"; do
    # shellcheck disable=SC2086 # words
    run "$chain: $app" env LD_PRELOAD="$work/$chain" CUDA_DEVICE_MEMORY_LIMIT=20g "$bin/"$app
  done
  run "$chain: doors" env LD_PRELOAD="$work/$chain" CUDA_DEVICE_MEMORY_LIMIT=20g "$bin/doors" "$out/sim/libcuda.so.1" \
    "$bin/libneighbour.so"
done
mkdir "$work/link" && ln -s ../small/libvgpu.so "$work/link/libvgpu.so"
run "a link to the library" env LD_PRELOAD="$work/link/libvgpu.so" "$bin/memory" limit $((1000 * MIB))

# Programs in a pid namespace of their own, and programs that execve replaces at the same addresses.
pages "$work/spaces" k1 "$(uuid_of 0)=$((1000 * MIB))"
if unshare -rpf true 2>/dev/null; then
  for i in 1 2 3; do
    run "in a pid namespace of its own, $i" env LD_PRELOAD="$work/spaces/libvgpu.so" unshare -rpf "$bin/late" hold 900
  done
  run "and beside it" env LD_PRELOAD="$work/spaces/libvgpu.so" "$bin/late" hold 900
else
  skip unshare "pid namespaces: this machine gives none"
fi
if setarch -R true 2>/dev/null; then
  run "execve without address randomization" env LD_PRELOAD="$work/spaces/libvgpu.so" setarch -R "$bin/late" exec 3 900
else
  skip setarch "execve without address randomization: it cannot be switched off"
fi
