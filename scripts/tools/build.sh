#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# Builds the tools that scripts/tools/go.mod pins into $OUT/tools, and again only when that file changes.
set -euo pipefail
cd "$(dirname "$0")"
out=${OUT:-$PWD/../../build}/tools
mkdir -p "$out"

if [ -x "$out/golangci-lint" ] && [ "$out/golangci-lint" -nt go.mod ] && [ "$out/golangci-lint" -nt go.sum ]; then
  exit 0
fi
echo "building golangci-lint (a few minutes, once)"
nice -n 5 go build -o "$out/golangci-lint" github.com/golangci/golangci-lint/v2/cmd/golangci-lint
touch "$out/golangci-lint"
