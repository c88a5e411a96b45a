#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# programs.sh DIR - unpacks (never installs) Debian's nvtop, nvidia-smi and libcuda1 into DIR, for the tests that run
# them on the simulated cards or compare with them. Uses the machine's own Debian source with the components contrib
# and non-free added in a private copy; the system's package lists stay as they are.
set -eu
dir=$1
source=/etc/apt/sources.list.d/debian.sources
[ -f "$source" ] || { echo "programs.sh: no $source on this machine" >&2; exit 1; }
mkdir -p "$dir/apt/lists/partial" "$dir/apt/cache/archives/partial" "$dir/apt/debs"
dir=$(cd "$dir" && pwd)
# Only the first stanza: the security and update sources are not needed.
awk '/^$/ { exit } { print }' "$source" | sed 's/^Components:.*/Components: main contrib non-free/' >"$dir/apt/debian.sources"
apt() {
  apt-get -q -o "Dir::State::lists=$dir/apt/lists" -o "Dir::Cache=$dir/apt/cache" -o Dir::Etc::sourcelist=/dev/null \
    -o "Dir::Etc::sourceparts=$dir/apt/parts" -o APT::Sandbox::User=root "$@"
}
mkdir -p "$dir/apt/parts"
mv "$dir/apt/debian.sources" "$dir/apt/parts/"
apt update
(cd "$dir/apt/debs" && apt download nvtop nvidia-smi libcuda1)
for package in "$dir"/apt/debs/*.deb; do dpkg -x "$package" "$dir/root"; done
rm -rf "$dir/apt"
mkdir -p "$dir/bin"
ln -sf ../root/usr/bin/nvtop "$dir/bin/nvtop"
ln -sf ../root/usr/lib/nvidia/current/nvidia-smi "$dir/bin/nvidia-smi"
ln -sf "$(cd "$dir/root/usr/lib/x86_64-linux-gnu/nvidia/current" && pwd)/libcuda.so.1" "$dir/libcuda.so.1"
