#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# need.sh build|check: makes sure that what a target needs is there, and does nothing where it is.
# On Debian as root it installs what lacks; elsewhere it says what to install, and fails.
set -euo pipefail

has() { command -v "$1" >/dev/null; }
# A compiler without the C library's headers is what `apt-get install --no-install-recommends gcc` leaves.
has_headers() { echo '#include <stdio.h>' | ${CC:-cc} -E - >/dev/null 2>&1; }

missing=()
need() { # need PACKAGE COMMAND...: PACKAGE is missing unless the command succeeds
  local package=$1
  shift
  "$@" || missing+=("$package")
}

build_needs() {
  has go || { echo "need.sh: Go is not installed: https://go.dev/dl/ (go.mod names the version)" >&2; exit 1; }
  need gcc has "${CC:-cc}"
  need libc6-dev has_headers
}

check_needs() {
  build_needs
  need git has git
  need clang-format has clang-format
  need shellcheck has shellcheck
}

case ${1:-} in
  build) build_needs ;;
  check) check_needs ;;
  *) echo "usage: need.sh build|check" >&2; exit 2 ;;
esac
[ ${#missing[@]} -gt 0 ] || exit 0

if has apt-get && [ "$(id -u)" = 0 ]; then
  echo "need.sh: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q >/dev/null || echo "need.sh: apt-get update failed; trying with the lists that are here" >&2
  apt-get install -q -y --no-install-recommends "${missing[@]}" >/dev/null
else
  echo "need.sh: install these packages first: ${missing[*]}" >&2
  exit 1
fi
