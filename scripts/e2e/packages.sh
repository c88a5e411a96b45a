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

# What PyCUDA imports. PyCUDA itself is unpacked: installed, it would bring NVIDIA's driver and toolkit along.
python_packages=(python3-numpy python3-pytools python3-mako python3-appdirs python3-decorator
  libboost-python1.74.0 libboost-thread1.74.0)
pycuda=("$tools/usr/lib/python3/dist-packages/pycuda" "$tools/usr/lib/x86_64-linux-gnu/libcurand.so.10")

install=() unpack=() optional=() foreign=()
has runc || install+=(runc)
has ip || install+=(iproute2)
[ -x /usr/lib/cni/bridge ] || install+=(containernetworking-plugins)
has etcd || [ -x "$tools/usr/bin/etcd" ] || unpack+=(etcd-server)
has ffmpeg || optional+=(ffmpeg)
has musl-gcc || optional+=(musl-tools)
has promtool || [ -x "$tools/usr/bin/promtool" ] || unpack+=(prometheus)
has prometheus-node-exporter || [ -x "$tools/usr/bin/prometheus-node-exporter" ] ||
  unpack+=(prometheus-node-exporter)
dpkg -s "${python_packages[@]}" >/dev/null 2>&1 || optional+=("${python_packages[@]}")
[ -e "${pycuda[0]}" ] && [ -e "${pycuda[1]}" ] || foreign+=(python3-pycuda libcurand10)
[ ${#install[@]} -gt 0 ] || [ ${#unpack[@]} -gt 0 ] || [ ${#optional[@]} -gt 0 ] || [ ${#foreign[@]} -gt 0 ] || exit 0

if ! has apt-get || [ "$(id -u)" != 0 ]; then
  echo "e2e: missing, and not to be installed from here: ${install[*]} ${unpack[*]} ${optional[*]} ${foreign[*]}" >&2
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
if [ ${#foreign[@]} -gt 0 ]; then
  echo "e2e: unpacking ${foreign[*]}"
  "$(dirname "$0")/../unpack.sh" "$tools" "${foreign[@]}" ||
    echo "e2e: could not fetch ${foreign[*]}; tests that want them are skipped" >&2
fi
has etcd || [ -x "$tools/usr/bin/etcd" ] || { echo "e2e: etcd is needed" >&2; exit 1; }
