#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# gen-bpf.sh [--check] [DIRECTORY]: compile bpf/probes.bpf.c for x86-64 and arm64 and write the objects and their Go
# sides into DIRECTORY (default: bpf, where they are committed). --check: write nothing, and fail where the committed ones
# are not what the source gives. Needs clang and llvm-strip of the version below: others give other objects.
set -euo pipefail
cd "$(dirname "$0")/../bpf"
version=19

for tool in clang-$version llvm-strip-$version; do
  command -v "$tool" >/dev/null || { echo "$tool is not installed (apt-get install clang-$version llvm-$version)" && exit 1; }
done

generate() { # generate DIRECTORY
  # -mcpu=v3, of kernel 5.1: jumps by 32-bit comparison, and additions that no other processor comes between.
  GOPACKAGE=bpf go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-$version -strip llvm-strip-$version \
    -target amd64,arm64 -output-dir "$1" -no-global-types -type counts -type identity \
    -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Wno-unused-parameter -Werror" probes probes.bpf.c
  sed -i '1a // SPDX-License-Identifier: Apache-2.0\n// Copyright The vgpud Authors\n' "$1"/probes_*_bpfel.go
}

if [ "${1:-}" != --check ]; then
  generate "${1:-.}"
  exit
fi
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
generate "$fresh"
bad=0
for file in "$fresh"/*; do
  cmp "$file" "${file##*/}" || bad=1
done
[ $bad = 0 ] || { echo "scripts/gen-bpf.sh writes them again" && exit 1; }
