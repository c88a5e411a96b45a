#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# What a reader of the tree should never meet: paths of somebody's machine, loose ends without an issue,
# files without a licence line or past their size budget, build output, packages without a comment.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
bad=0
say() { echo "$*"; bad=1; }
sources() { git ls-files --cached --others --exclude-standard -- "$@" | while read -r f; do [ -f "$f" ] && echo "$f"; done; }
# search PATTERN PATHSPEC...: matches in text files, this script aside (it names what it looks for).
search() { sources "${@:2}" | grep -vx 'scripts/check-hygiene.sh' | tr '\n' '\0' | xargs -0 -r grep -nIE -e "$1" --; }

# The tree names no home, nor the folder that it happens to lie in (unless that is one that every machine has).
homes='/home/[a-z]|/Users/[A-Za-z]|/root/go'
parent=$(dirname "$(git rev-parse --show-toplevel)")
case $parent in / | /tmp | /tmp/* | /var/tmp* | /root | /src | /usr/src | /go*) ;; *) homes+="|$parent/" ;; esac
found=$(search "$homes") && say "paths of one machine:"$'\n'"$found"

found=$(search '\b(TODO|FIXME|XXX)\b' ':!*.md' | grep -vE '(TODO|FIXME)\(#[0-9]+\)') && say "loose ends without an issue number (write TODO(#12)):"$'\n'"$found"

# Numbers of test cases in a list that is not part of the tree. A language standard is written "ISO C11".
found=$(search '\bC[0-9]{2}\b' '*.go' '*.[chS]' '*.sh' '*.def' '*.md' '*.yml' '*Makefile' | grep -vE 'ISO C[0-9]{2}') &&
  say "case numbers that a reader cannot look up:"$'\n'"$found"

found=$(search '^(<<<<<<<|>>>>>>>|=======$)') && say "conflict markers:"$'\n'"$found"
found=$(search '[[:blank:]]+$' '*.go' '*.c' '*.h' '*.sh' '*.md' '*.def' '*Makefile' '*.yml') && say "blanks at the end of a line:"$'\n'"$found"

# Licence header in the first three lines; test data and generated lists of names are data.
while read -r f; do
  case $f in */testdata/*) continue ;; esac
  head -n 3 "$f" | grep -q 'SPDX-License-Identifier: Apache-2.0' || say "$f: no SPDX line at its top"
done < <(sources '*.go' '*.c' '*.h' '*.S' '*.sh' '*.def' '*Makefile' '.ci/run')

# Budgets of CONTRIBUTING.md. A file that is better whole says so in a line "size: why".
budget() { # budget LINES PATHSPEC...
  local limit=$1 f lines
  while read -r f; do
    case $f in *_test.go | */testdata/* | *_generated.* ) continue ;; esac
    lines=$(wc -l <"$f")
    [ "$lines" -le "$limit" ] || grep -qE '^(//| \*) size: ' "$f" ||
      say "$f: $lines lines, budget $limit (split it, or say why in a line 'size: ...')"
  done < <(sources "${@:2}")
}
budget 400 '*.go'
budget 350 'libvgpu/*.c' 'libvgpu/*.h'

# Nothing that is written by hand or generated to be read is that large: a build wrote it, and git keeps it for ever.
while read -r f; do
  [ "$(wc -c <"$f")" -le $((1 << 20)) ] || say "$f: more than 1 MiB; build output does not belong here"
done < <(sources .)

# One package comment each, test-only packages aside.
while read -r dir; do
  grep -lqE '^(// Package |// Command |/\* Package )' "$dir"/*.go || say "$dir: no package comment"
done < <(sources '*.go' | grep -v '_test\.go$' | grep -v /testdata/ | xargs -r -n 1 dirname | sort -u)

exit $bad
