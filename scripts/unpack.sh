#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# unpack.sh DIR PACKAGE...: unpacks (never installs) Debian packages into DIR, for tests that run what is in them.
# Uses the machine's own Debian source with the components contrib and non-free added in a private copy; the system's
# package lists stay as they are.
set -eu
dir=$1
shift
source=/etc/apt/sources.list.d/debian.sources
[ -f "$source" ] || { echo "unpack.sh: no $source on this machine" >&2; exit 1; }
mkdir -p "$dir"
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/parts" "$apt/debs"
# Only the first stanza: the security and update sources are not needed.
awk '/^$/ { exit } { print }' "$source" |
  sed 's/^Components:.*/Components: main contrib non-free/' >"$apt/parts/debian.sources"
apt_get() {
  apt-get -q -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o Dir::Etc::sourcelist=/dev/null \
    -o "Dir::Etc::sourceparts=$apt/parts" -o APT::Sandbox::User=root "$@"
}
apt_get update >/dev/null
(cd "$apt/debs" && apt_get download "$@" >/dev/null)
for package in "$apt"/debs/*.deb; do dpkg -x "$package" "$dir"; done
