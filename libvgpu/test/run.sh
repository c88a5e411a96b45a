#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# run.sh OUT: runs the test programs of libvgpu: unit tests as they are, clients under the preloaded library on a
# simulated card of their own. Closes with "N passed, N failed, N skipped", the sum of all. Needs OUT/libvgpu.so,
# OUT/sim and OUT/libvgpu-test.
set -uo pipefail
out=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
bin=$out/libvgpu-test
export PATH=$out/sim:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0
export MIB=1048576
unset LD_PRELOAD CUDA_VISIBLE_DEVICES VGPUD_ALLOCATION CUDA_DEVICE_MEMORY_SHARED_CACHE "${!CUDA_DEVICE_MEMORY_LIMIT@}" "${!CUDA_DEVICE_SM_LIMIT@}"
export LD_LIBRARY_PATH=$out/sim

ok() { passed=$((passed + 1)); }
fail() {
  failed=$((failed + 1))
  echo "FAIL $*"
}
skip() { # skip NEED WHY: VGPU_TEST_REQUIRE makes it a failure
  case ",${VGPU_TEST_REQUIRE:-}," in
  *",$1,"*) fail "$2 (required)" ;;
  *) skipped=$((skipped + 1)) && echo "skip $2" ;;
  esac
}
check() { # check WORDS... -- COMMAND...
  local words=()
  while [ "$1" != -- ]; do words+=("$1") && shift; done
  shift
  if "$@"; then ok; else fail "${words[*]}: $*"; fi
}

# adds the counts of a test program's closing line; no such line is a failure
add() { # add NAME LOG
  local line
  line=$(tail -n 1 "$2")
  if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((skipped + BASH_REMATCH[3]))
    [ "${BASH_REMATCH[2]}" = 0 ] && echo "ok   $1: $line" && return
  else
    failed=$((failed + 1))
  fi
  echo "FAIL $1:"
  sed 's/^/     /' "$2"
}
run() { # run NAME COMMAND...: stdout must be the program's own, stderr is kept in $work/stderr
  local name=$1
  shift
  timeout 120 "$@" >"$work/stdout" 2>"$work/stderr"
  local rc=$?
  [ $rc = 0 ] || [ $rc = 1 ] || { fail "$name: exit code $rc" && sed 's/^/     /' "$work/stderr"; }
  add "$name" "$work/stdout"
}
new_card() { # new_card [key=value...]: a fresh simulated machine
  GPUSIM_DIR=$(mktemp -d -p "$work")
  export GPUSIM_DIR
  local options=()
  for o in "$@"; do options+=(--set "$o"); done
  gpusim init --dir "$GPUSIM_DIR" "${options[@]}" >/dev/null || fail "gpusim init $*"
}
preload() { env LD_PRELOAD="$lib" "$@"; }
high_water() { gpusim status --json | sed -n 's/.*"high_water_bytes": *\([0-9]*\).*/\1/p' | head -n 1; }
uuid_of() { gpusim status --json | grep -o '"uuid": *"[^"]*"' | sed -n "$(($1 + 1))s/.*\"\(GPU-[^\"]*\)\"/\1/p"; }
pages() { # pages DIR KEY UUID=BYTES...: adds an allocation beside DIR/libvgpu.so
  mkdir -p "$1/alloc" && ln -sf "$out/libvgpu.so" "$1/libvgpu.so" && "$bin/mkpages" "$1/alloc/$2" "$2" "${@:3}"
}

lib=$out/libvgpu.so
for part in "$here"/cases/*.sh; do
  # shellcheck source=/dev/null
  . "$part"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
