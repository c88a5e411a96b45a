#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# gendocs.sh DIRECTORY: writes the generated pages of docs/ into it. Those of the agent's own tables come from the
# agent, the others from scripts/gendocs.
set -euo pipefail
dir=$(realpath "$1")
cd "$(dirname "$0")/.."
tool=$(mktemp)
trap 'rm -f "$tool"' EXIT
go run ./scripts/gendocs "$dir"
go build -o "$tool" ./agent
"$tool" docs config >"$dir/config.md"
"$tool" docs metrics >"$dir/metrics.md"
