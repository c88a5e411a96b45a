#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# Every relative link of the Markdown pages leads to a file that exists; so does every path in `code` that looks
# like one of ours (it has a folder of this tree in front); and every test in `code` is one that runs.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

# shellcheck disable=SC2016 # the backquotes are Markdown's
code='`\K(agent|limiter|libvgpu|plugin|internal|scripts|docs|bpf|deploy)/[^`\s:]+(?=`)'

# shellcheck disable=SC2016
test_name='`\K(Test|Fuzz)[A-Z]\w*(?=`)'
tests=$(git ls-files --cached --others --exclude-standard -- '*_test.go' | xargs grep -hoP '^func \K(Test|Fuzz)\w+')

git ls-files --cached --others --exclude-standard -- '*.md' | {
  bad=0
  while read -r page; do
    [ -f "$page" ] || continue
    dir=$(dirname "$page")
    while read -r target; do
      path=${target%%#*}
      case $target in http://* | https://* | mailto:* | '#'*) continue ;; esac
      [ -e "$dir/$path" ] || { echo "$page: link to $target leads nowhere"; bad=1; }
    done < <(grep -oP '\]\(\K[^)\s]+' "$page")
    while read -r path; do
      # A glob stands for its files; build/ and placeholders are not in the tree.
      case $path in *[\<\{…]*) continue ;; esac
      compgen -G "$path" >/dev/null || { echo "$page: names $path, which is not there"; bad=1; }
    done < <(grep -oP "$code" "$page")
    while read -r name; do
      grep -qx "$name" <<<"$tests" || { echo "$page: names the test $name, which is not there"; bad=1; }
    done < <(grep -oP "$test_name" "$page")
  done
  exit $bad
}
