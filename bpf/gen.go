// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package bpf

// The objects and their Go sides are committed, so that a build needs no clang. `make check` compares them with what the
// source gives, where that version of clang is installed.

//go:generate ../scripts/gen-bpf.sh
