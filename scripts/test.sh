#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# Runs the tests of every part, each to its end, and closes with one line: N passed, N failed, N skipped.
# The parts' full output is kept in $OUT/test/*.log. Expects what `make build` builds. V=1 shows the compilers' lines.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
OUT=${OUT:-$PWD/build}
logs=$OUT/test
rm -rf "$logs"
mkdir -p "$logs"
go build -o "$OUT/tally" ./scripts/tally || exit 1

part() { # part NAME COMMAND...: shows the output and keeps it
  local name=$1
  shift
  echo "== $name"
  # The logs are judged by their closing line; a part that dies leaves none, and that is a failure.
  "$@" 2>&1 | tee "$logs/$name.log"
}

go_tests() { go test -race -json ./... | "$OUT/tally" -go; }

quiet=-s
[ -z "${V:-}" ] || quiet=
part core make $quiet -C libvgpu/core OUT="$OUT" test
part libvgpu make $quiet -C libvgpu OUT="$OUT" test
part sim make $quiet -C libvgpu/sim OUT="$OUT" test
part go go_tests

echo "== all parts"
"$OUT/tally" core="$logs/core.log" libvgpu="$logs/libvgpu.log" sim="$logs/sim.log" go="$logs/go.log"
