// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package bpf

// childVariable names what the test binary is to do in place of tests.
const childVariable = "VGPUD_BPF_TEST_CHILD"

func child(string) int { return 0 }
