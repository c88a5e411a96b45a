#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# Every check that needs no run of the product: each is named, all run to their end, and the last line counts them.
# A check whose tool is not installed is skipped with that reason; VGPU_TEST_REQUIRE (comma-separated, as for
# the tests) names tools whose absence is a failure. `scripts/check.sh NAME...` runs only those.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
OUT=${OUT:-$PWD/build}
export OUT
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=0

# Tracked files and new ones, never what git ignores.
sources() { git ls-files --cached --others --exclude-standard -- "$@" | while read -r f; do [ -f "$f" ] && echo "$f"; done; }
go_files() { sources '*.go'; }
c_files() { sources 'libvgpu/*.c' 'libvgpu/*.h' 'bpf/*.c' 'bpf/*.h'; }
shell_files() {
  sources | while read -r f; do
    case $(head -c 32 "$f" | tr -d '\0' | head -n 1) in '#!'*sh | '#!'*sh\ *) echo "$f" ;; esac
  done
}

required() { case ",${VGPU_TEST_REQUIRE:-}," in *",$1,"*) true ;; *) false ;; esac; }

check() { # check NAME FUNCTION [TOOL]
  local name=$1 run=$2 tool=${3:-}
  [ ${#only[@]} = 0 ] || [[ " ${only[*]} " == *" $name "* ]] || return 0
  if [ -n "$tool" ] && ! command -v "$tool" >/dev/null && ! required "$tool"; then
    echo "skip $name: $tool is not installed"
    skipped=$((skipped + 1))
  elif $run >"$log" 2>&1; then
    echo "ok   $name"
    passed=$((passed + 1))
  else
    echo "FAIL $name"
    sed 's/^/     /' "$log"
    failed=$((failed + 1))
  fi
}

gofmt_clean() {
  local changed
  changed=$(go_files | xargs gofmt -l) || return 1
  [ -z "$changed" ] || { printf 'make format would change:\n%s\n' "$changed" && false; }
}
vet() { go vet ./...; }
modules_tidy() { go mod tidy -diff; }
lint() { "$OUT/tools/golangci-lint" run --allow-parallel-runners ./...; }
clang_formatted() {
  local changed
  changed=$(c_files | xargs clang-format --dry-run 2>&1 | sed -n 's/^\([^ :]*\):.*clang-formatted.*/\1/p' | sort -u)
  [ -z "$changed" ] || { printf 'make format would change:\n%s\n' "$changed" && false; }
}
shellcheck_clean() { shell_files | xargs shellcheck; }
bpf_current() { scripts/gen-bpf.sh --check; }
layering() { go test -count=1 -run '^TestLayering' ./agent; }
docs_current() {
  local dir rc=0
  dir=$(mktemp -d) && scripts/gendocs.sh "$dir" || rc=1
  for f in "$dir"/*.md; do diff -u "docs/${f##*/}" "$f" || rc=1; done
  rm -rf "$dir"
  [ $rc = 0 ] || { echo "make docs writes them again"; false; }
}

PATH=$PATH:$OUT/e2e/tools/usr/bin # make e2e unpacks promtool there
# Every metric of an alert is one that is written, every alert has its time series, and they hold.
alerts_hold() {
  local rc=0 name
  while read -r name; do
    grep -q "\`$name\`" docs/metrics.md || { echo "docs/metrics.md has no $name"; rc=1; }
  done < <(grep -o 'vgpud_[a-z_]*' deploy/alerts.yaml | sort -u)
  while read -r name; do
    grep -q "alertname: $name\$" deploy/alerts_test.yaml || { echo "deploy/alerts_test.yaml has no $name"; rc=1; }
  done < <(sed -n 's/^ *- alert: //p' deploy/alerts.yaml)
  promtool check rules deploy/alerts.yaml || rc=1
  promtool test rules deploy/alerts_test.yaml || rc=1
  return $rc
}

only=("$@")
check gofmt gofmt_clean
check vet vet
check modules modules_tidy
check lint lint
check clang-format clang_formatted clang-format
check shellcheck shellcheck_clean shellcheck
check layering layering
check exports scripts/check-exports.sh
check hooks scripts/check-hooks.sh
check docs docs_current
check alerts alerts_hold promtool
check bpf bpf_current clang-19
check links scripts/check-links.sh
check hygiene scripts/check-hygiene.sh

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
