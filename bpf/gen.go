// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package bpf

// The objects and their Go sides are committed, so that a build needs no clang; `make check` compares them where this
// version of it is installed. -mcpu=v3 (kernel 5.1) has 32-bit jumps and atomic additions with a result.

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -target amd64,arm64 -no-global-types -type counts -type identity -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Wno-unused-parameter -Werror" probes probes.bpf.c
