# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# libvgpu as a guest in other people's programs.
new_card memory=16384MiB
run guest env LD_PRELOAD="$lib" CUDA_DEVICE_MEMORY_LIMIT=1000m "$bin/guest"
check "one line on stderr" -- [ "$(wc -l <"$work/stderr")" = 1 ]
check "with our prefix" -- grep -q '^vgpud: refused 4294967296 bytes on GPU 0: 1048576 of 1048576000' "$work/stderr"
check "silent in a program without a driver" -- [ -z "$(LD_PRELOAD=$lib CUDA_DEVICE_MEMORY_LIMIT=x /bin/echo 2>&1)" ]
check "a shell's exit code passes" -- [ "$(LD_PRELOAD=$lib bash -c 'exit 7' || echo $?)" = 7 ]

if command -v musl-gcc >/dev/null; then
  printf '#include <dlfcn.h>\n#include <stdio.h>\nint main(void) { puts(dlsym(RTLD_DEFAULT, "printf") ? "fine" : "no"); }\n' \
    >"$work/musl.c"
  musl-gcc -o "$work/musl" "$work/musl.c"
  check "a musl program" -- [ "$(LD_PRELOAD=$lib "$work/musl" 2>&1)" = fine ]
else
  skip musl-gcc "a musl program: no musl-gcc"
fi
printf 'int main(void) { return 0; }\n' >"$work/plain.c"
if cc -m32 -o "$work/plain32" "$work/plain.c" 2>/dev/null && "$work/plain32" 2>/dev/null; then
  check "a 32-bit program" -- env LD_PRELOAD="$lib" "$work/plain32"
else
  skip gcc-multilib "a 32-bit program: this machine cannot make or run one"
fi
cc -static -o "$work/static" "$work/plain.c"
check "a static program" -- env LD_PRELOAD="$lib" "$work/static"
