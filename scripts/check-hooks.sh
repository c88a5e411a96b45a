#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# check-hooks.sh [LIBRARY...]: every function of the drivers that by its name may take, give back, move, map or tell of
# memory, launch or capture work, or make a context, is a HOOK or a SKIP with a reason in libvgpu/hooks.def, and every name
# there is one that a driver exports. Judged by the lists of exported names that the simulated GPU is made from, by
# libvgpu/newer.sym, and by the libraries named (real drivers, say): what they export beyond the lists is judged the same.
set -euo pipefail
cd "$(dirname "$0")/.."
def=libvgpu/hooks.def
pattern='Mem|mem|Alloc|Free[^z]|Free$|Pool|Array|Map[^p]|Map$|Mapped|Info[^r]|Info$|Launch|Ipc|Import|Export|CtxCreate'
pattern+='|CtxDestroy|GreenCtx$|CtxDetach|CtxAttach|PrimaryCtx|CtxSetLimit|GetProcAddress|GraphInstantiate|GraphUpload|GraphExecUpdate'
pattern+='|GraphAddNode|NodeSetParams$|ModuleLoad|LibraryLoad|LinkCreate|GraphicsGL|GraphicsEGL|GraphicsVDPAU|GLRegister'
pattern+='|Captur|GraphExec|NodeSetEnabled|EventRecord|RecordEvent|WaitEvent|StreamDestroy|StreamAddCallback'
pattern+='|GetFunction$|GetKernel$|EnumerateKernels|EnumerateFunctions|(Func|Kernel)GetName'
pattern+='|RunningProcess|FieldValues|Attributes|Fb[A-Z]|Framebuffer|TexObjectCreate|SurfObjectCreate|Multicast'
bad=0
say() {
  echo "$1"
  bad=1
}

known=$(cat libvgpu/sim/cuda.sym libvgpu/sim/nvml.sym libvgpu/newer.sym | sed 's/#.*//' | awk 'NF {print $1}' | sort -u)
names=$known
for library in "$@"; do
  exported=$(nm -D --defined-only "$library" | awk '$2 ~ /[TW]/ {sub(/@.*/, "", $3); print $3}' | grep -E '^(cu|nvml)')
  names=$(printf '%s\n' "$names" "$exported" | sort -u)
done
covered=$(sed -n 's/^\(HOOK\|SKIP\)(\([A-Za-z0-9_]*\),.*/\2/p' $def | sort)
called=$(sed -n 's/^CALL(\([A-Za-z0-9_]*\)).*/\1/p' $def | sort)

while read -r name; do
  [ -z "$name" ] || say "$def: $name is neither HOOK nor SKIP"
done < <(grep -E '^(cu[A-Z]|nvml)' <<<"$names" | grep -E "$pattern" | comm -23 - <(sort -u <<<"$covered"))
while read -r name; do
  [ -z "$name" ] || say "$def: no driver exports $name"
done < <(comm -23 <(sort -u <<<"$covered"$'\n'"$called") <(echo "$names"))
while read -r name; do
  [ -z "$name" ] || say "$def: $name has more than one line"
done < <(uniq -d <<<"$covered"; uniq -d <<<"$called")
grep -nE '^SKIP\([A-Za-z0-9_]*, ""\)' $def && say "$def: a SKIP without a reason"
grep -nE '^(HOOK|CALL|SKIP)' $def |
  grep -vE ':(HOOK\([A-Za-z0-9_]+, (REQUIRED|OPTIONAL)\)|CALL\([A-Za-z0-9_]+\)|SKIP\([A-Za-z0-9_]+, "[^"]+"\))$' &&
  say "$def: a line that is not understood"
echo "$(grep -c ^HOOK $def) hooked, $(grep -c ^SKIP $def) left alone, of $(wc -l <<<"$names") names"
exit $bad
