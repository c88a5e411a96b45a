#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# gendocs.sh DIRECTORY: writes the generated pages of docs/ into it.
set -euo pipefail
dir=$(realpath "$1")
cd "$(dirname "$0")/.."
go run ./scripts/gendocs "$dir"
