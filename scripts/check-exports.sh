#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# check-exports.sh [LIBRARY]: libvgpu.so exports the hooks of hooks.def, the doors and its mark, nothing else; it needs no
# library, no symbol version and no symbol of any libc but dl_iterate_phdr, weakly, and runs one function at load.
# Builds it first when no library is named, with the flags that it ships with.
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-$PWD/build}
library=${1:-$OUT/libvgpu.so}
[ $# -gt 0 ] || make -s -C libvgpu OUT="$OUT" all >/dev/null
bad=0
say() {
  echo "$1"
  bad=1
}

wanted=$({ sed -n 's/^HOOK(\([A-Za-z0-9_]*\),.*/\1/p' libvgpu/hooks.def && printf '%s\n' dlsym dlvsym vgpud_libvgpu; } | sort)
exported=$(nm -D --defined-only "$library" | awk '{print $3}' | sort)
while read -r name; do
  [ -z "$name" ] || say "hooks.def has $name, $library does not export it"
done < <(comm -23 <(echo "$wanted") <(echo "$exported"))
while read -r name; do
  [ -z "$name" ] || say "$library exports $name, hooks.def has no line for it"
done < <(comm -13 <(echo "$wanted") <(echo "$exported"))

foreign=$(nm -D --undefined-only "$library" | awk '{print $1, $2}')
[ "$foreign" = 'w dl_iterate_phdr' ] || say "$library refers to: $foreign"
if readelf -dW "$library" | grep -E '\((NEEDED|RPATH|RUNPATH|TEXTREL|INIT|FINI|FINI_ARRAY)\)'; then
  say "$library needs another library, or runs code when it is loaded or unloaded"
fi
# One function runs when it is loaded: it notes where the pages are (pages.c).
readelf -dW "$library" | grep -qE '\(INIT_ARRAYSZ\) +8 \(bytes\)' || say "$library does not run one function when it is loaded"
readelf -VW "$library" | grep -q 'No version information' || say "$library has symbol versions"
readelf -lW "$library" | grep -E 'GNU_STACK.*RWE|LOAD.*RWE|TLS' && say "$library has an executable stack or thread-locals"
exit $bad
