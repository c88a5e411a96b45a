#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# packages.sh TOOLS_DIR: makes sure that the programs which the cluster and the tests run are there. Does nothing
# where they are. On Debian as root it installs what lacks; servers that would start as services when installed are
# unpacked into TOOLS_DIR instead. Programs that only some tests want may stay away: these tests are skipped then.
set -euo pipefail

tools=$1
sbin=/usr/sbin:/sbin
has() { PATH=$PATH:$sbin command -v "$1" >/dev/null; }

install=() unpack=() optional=()
has runc || install+=(runc)
has ip || install+=(iproute2)
[ -x /usr/lib/cni/bridge ] || install+=(containernetworking-plugins)
has etcd || [ -x "$tools/usr/bin/etcd" ] || unpack+=(etcd-server)
has ffmpeg || optional+=(ffmpeg)
has musl-gcc || optional+=(musl-tools)
has promtool || [ -x "$tools/usr/bin/promtool" ] || unpack+=(prometheus)
has prometheus-node-exporter || [ -x "$tools/usr/bin/prometheus-node-exporter" ] ||
  unpack+=(prometheus-node-exporter)
[ ${#install[@]} -gt 0 ] || [ ${#unpack[@]} -gt 0 ] || [ ${#optional[@]} -gt 0 ] || exit 0

if ! has apt-get || [ "$(id -u)" != 0 ]; then
  echo "e2e: missing, and not to be installed from here: ${install[*]} ${unpack[*]} ${optional[*]}" >&2
  [ ${#install[@]} -eq 0 ] && [[ " ${unpack[*]} " != *" etcd-server "* ]]
  exit
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >/dev/null || echo "e2e: apt-get update failed; trying with the lists that are here" >&2
if [ ${#install[@]} -gt 0 ]; then
  echo "e2e: installing ${install[*]}"
  apt-get install -q -y --no-install-recommends "${install[@]}" >/dev/null
fi
for package in "${optional[@]}"; do
  echo "e2e: installing $package"
  apt-get install -q -y --no-install-recommends "$package" >/dev/null ||
    echo "e2e: could not install $package; tests that want it are skipped" >&2
done
mkdir -p "$tools"
for package in "${unpack[@]}"; do
  echo "e2e: unpacking $package"
  (cd "$tools" && apt-get download -q "$package" >/dev/null && dpkg -x "$package"_*.deb . && rm "$package"_*.deb) ||
    echo "e2e: could not fetch $package" >&2
done
has etcd || [ -x "$tools/usr/bin/etcd" ] || { echo "e2e: etcd is needed" >&2; exit 1; }
