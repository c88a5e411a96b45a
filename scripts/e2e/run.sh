#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# run.sh [TEST FLAGS]: everything that `make e2e` does once vgpud, libvgpu and the simulated GPU are built: packages,
# builds, cluster, tests, count. Flags go to the test binary, e.g. -test.run Restart, or -e2e.keep.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
build=$(dirname "$(dirname "$here")")/build
out=$build/e2e

[ "$(id -u)" = 0 ] || { echo "e2e: root is needed (namespaces, mounts, cgroups)" >&2; exit 1; }
for file in vgpud libvgpu.so sim/gpusim sim/libcuda.so.1 sim/libnvidia-ml.so.1; do
  [ -e "$build/$file" ] || { echo "e2e: build/$file is missing: run make build" >&2; exit 1; }
done
mkdir -p "$out"
exec 9>"$out/lock"
flock -n 9 || { echo "e2e: another run in this tree is under way" >&2; exit 1; }

"$here/packages.sh" "$out/tools"
"$here/build.sh" "$out"

cd "$here"
log=$out/tests.log
test_pid=
# Ends the tests if we are ended first, and removes what they could not.
# shellcheck disable=SC2317 # called by trap
finish() {
  trap - EXIT INT TERM
  if [ -n "$test_pid" ]; then kill -TERM "$test_pid" 2>/dev/null && wait "$test_pid"; fi
  "$out/e2e.test" -e2e.clean
}
trap finish EXIT
trap 'exit 130' INT TERM

started=$SECONDS
# The lock's descriptor is not for the tests: what they start must not hold the lock.
"$out/e2e.test" -test.v -test.count=1 -test.timeout=15m -test.parallel=4 "$@" 9>&- > >(tee "$log") 2>&1 &
test_pid=$!
code=0
wait "$test_pid" || code=$?
test_pid=
wait # for tee
echo "end-to-end tests took $((SECONDS - started)) s; logs are in build/e2e/run/logs"
(cd "$here/../.." && go build -o "$out/tally" ./scripts/tally)
go tool test2json -p e2e <"$log" | "$out/tally" -go || code=${code/#0/1}
exit "$code"
