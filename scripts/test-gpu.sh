#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# test-gpu.sh [--driver DIR] [RESULTS]: what can only be seen on a real GPU and driver, within 6 minutes: the driver's
# exports against the hook table, the cap to the byte, one slice shared by processes, what programs and nvidia-smi
# see, and what libvgpu adds to a call. Needs `make build bench-shim` done before (here or elsewhere: build/ may be
# carried over) and a GPU with 2 GiB free. Changes no setting of the card. Prints PASS or FAIL per check and figures,
# writes them to RESULTS (default build/gpu-results.txt), and ends with the counts.
#
# --driver DIR: the libraries there instead of the machine's driver, and no nvidia-smi: tries this script on the
# simulated GPU (build/sim).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
out=$PWD/build
driver=
if [ "${1:-}" = --driver ]; then
  driver=$(realpath "${2:?--driver needs a directory}") || exit 2
  shift 2
fi
results=${1:-$out/gpu-results.txt}
client=$out/sim/client
limit=$((1 << 30))
passed=0 failed=0

say() { echo "$*" | tee -a "$results"; }
check() { # check NAME CONDITION...: the condition is a command
  local name=$1
  shift
  if "$@"; then
    say "PASS $name"
    passed=$((passed + 1))
  else
    say "FAIL $name"
    failed=$((failed + 1))
  fi
}
slice() { timeout 60 "$out/vgpud" exec --memory $limit -- "$@"; }
value() { grep "^$1=" <<<"$3" | sed -n "s/.*\b$2=\([^ ]*\).*/\1/p" | head -1; } # value LINE KEY TEXT

for file in "$out/vgpud" "$out/libvgpu.so" "$client" "$out/libvgpu-test/bench"; do
  [ -e "$file" ] || {
    echo "test-gpu.sh: $file is missing: run 'make build bench-shim' first" >&2
    exit 2
  }
done
unset LD_PRELOAD LD_LIBRARY_PATH "${!CUDA_DEVICE_MEMORY_LIMIT@}" CUDA_DEVICE_MEMORY_SHARED_CACHE
: >"$results"
say "date: $(date -u +%FT%TZ)"
if [ -n "$driver" ]; then
  export LD_LIBRARY_PATH=$driver
  cuda=$driver/libcuda.so.1 nvml=$driver/libnvidia-ml.so.1
else
  command -v nvidia-smi >/dev/null || {
    echo "test-gpu.sh: nvidia-smi is not here: this wants a machine with an NVIDIA GPU and its driver" >&2
    exit 2
  }
  unset GPUSIM_DIR
  say "card: $(nvidia-smi --query-gpu=name,memory.total,driver_version,mig.mode.current --format=csv,noheader | head -1)"
  cuda=$(ldconfig -p | awk '/libcuda\.so\.1 .*x86-64/ {print $NF; exit}')
  nvml=$(ldconfig -p | awk '/libnvidia-ml\.so\.1 .*x86-64/ {print $NF; exit}')
fi
say "driver: $cuda $nvml"

names=$(scripts/check-hooks.sh "$cuda" "$nvml" 2>&1)
check "every export that may move memory is in the hook table" test $? -eq 0
[ -z "$names" ] || say "$names"

bare=$("$client" info)
seen=$(slice "$client" info)
say "bare:"$'\n'"$bare"
say "slice:"$'\n'"$seen"
check "the slice is what the driver tells" test "$(value cuda total "$seen")" = $limit
check "the slice is what NVML tells" test "$(value nvml total "$seen")" = $limit
check "without a slice it is the card" test "$(value cuda total "$bare")" -gt $limit

filled=$(slice "$client" fill)
check "the cap is exact to the byte" test "$(value filled filled "$filled")" = $limit
door=$(CLIENT_DOOR=getproc slice "$client" fill)
check "the cap is exact for functions fetched by cuGetProcAddress" test "$(value filled filled "$door")" = $limit

half=$((limit / 2))
# shellcheck disable=SC2016 # expanded by the inner shell
shared=$(slice bash -c 'coproc "$0" hold "$1"; read -r <&"${COPROC[0]}"; "$0" fill; kill "$COPROC_PID"; wait' "$client" $half)
check "two processes share one slice" test "$(value filled filled "$shared")" = $half
check "bytes arrive as they were sent" slice "$client" copy-check $((64 << 20))

if [ -z "$driver" ]; then
  smi=$(slice nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -1)
  check "nvidia-smi shows the slice ($smi MiB)" test "$smi" = $((limit >> 20))
fi

timeout 150 "$out/libvgpu-test/bench" "$out" 5 2>&1 | tee -a "$results"
check "the costs were measured" test "${PIPESTATUS[0]}" -eq 0
say "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
