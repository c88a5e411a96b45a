#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# build.sh OUT: builds into OUT what the end-to-end tests run: OUT/bin (Kubernetes and containerd, from their Go
# modules; minutes when cold), OUT/client (programs of the test image) and OUT/e2e.test (the tests). What has not
# changed is not built again.
set -euo pipefail

mkdir -p "$1"
out=$(cd "$1" && pwd) # where the builds in other folders find it, too
cd "$(dirname "$0")"
export GOFLAGS=-buildvcs=false CGO_ENABLED=1 # the flags of all builds of the project: one build cache serves all
started=$SECONDS
say() { echo "[$((SECONDS - started)) s] $*"; }

kubernetes=(kubelet kube-apiserver kube-scheduler kube-controller-manager)
containerd=(containerd containerd-shim-runc-v2 ctr)

# up_to_date STAMP WORD...: the programs are there and were built from this input
up_to_date() {
  local name
  for name in "${@:2}"; do [ -x "$out/bin/$name" ] || return 1; done
  [ "$(cat "$1" 2>/dev/null)" = "$stamp" ]
}

mkdir -p "$out/bin" "$out/client"
stamp=$(cat go.mod go.sum containerd/go.mod containerd/go.sum "$0" | sha256sum; go version)
if ! up_to_date "$out/bin.stamp" "${kubernetes[@]}" "${containerd[@]}"; then
  version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
  minor=${version#v1.} minor=${minor%%.*}
  info=k8s.io/component-base/version
  say "building Kubernetes $version (about 10 minutes on two idle cores when nothing is cached)"
  nice go build -o "$out/bin/" \
    -ldflags "-s -w -X $info.gitVersion=$version -X $info.gitMajor=1 -X $info.gitMinor=$minor" \
    "${kubernetes[@]/#/k8s.io/kubernetes/cmd/}"
  (
    cd containerd
    module=github.com/containerd/containerd/v2
    version=$(go list -m -f '{{.Version}}' $module)
    say "building containerd $version"
    nice go build -o "$out/bin/" -tags "no_btrfs no_devmapper no_zfs" \
      -ldflags "-s -w -X $module/version.Version=$version" "${containerd[@]/#/$module/cmd/}"
  )
  echo "$stamp" >"$out/bin.stamp"
  say "Kubernetes and containerd built"
fi

cc=${CC:-gcc}
flags=(-std=gnu11 -O2 -Wall -Wextra -Werror -Wshadow -Wconversion)
build_c() { # build_c NAME SOURCE COMPILER [FLAG...]
  local built=$out/client/$1 changed=
  for file in "client/$2" client/*.h build.sh; do [ "$built" -nt "$file" ] || changed=1; done
  [ -n "$changed" ] || return 0
  "${@:3}" "${flags[@]}" -o "$built" "client/$2" -ldl
}
build_c client client.c "$cc"
build_c flood flood.c "$cc" -pthread
build_c pause pause.c "$cc" -static
sim=../../build/sim
make -C ../../libvgpu/sim --no-print-directory -s static
if [ "$sim/libcuda.a" -nt "$out/client/rogue" ] || [ client/rogue.c -nt "$out/client/rogue" ]; then
  "$cc" "${flags[@]}" -static -pthread -o "$out/client/rogue" client/rogue.c "$sim/libcuda.a"
fi
if command -v musl-gcc >/dev/null; then build_c hello-musl hello.c musl-gcc; fi
if echo '#include <stdio.h>' | "$cc" -m32 -E - >/dev/null 2>&1; then build_c hello-32 hello.c "$cc" -m32; fi

go test -c -o "$out/e2e.test" .
say "tests built"
