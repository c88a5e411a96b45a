// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package bpf

import (
	"encoding/hex"
	"strings"
	"testing"
)

func TestProbeOffset(t *testing.T) {
	for _, row := range []struct {
		name, machine, code string
		offset              uint64
		emulated            bool
	}{
		{"libcuda 535: cmpl, short je, jump", "amd64", "813d964a020000ba1c32 740c ff25363c0200", 10, true},
		{"push rbp", "amd64", "55 4889e5", 0, true},
		{"push r15", "amd64", "4157 4156", 0, true},
		{"endbr64, push", "amd64", "f30f1efa 55", 4, true},
		{"endbr64, test, near je", "amd64", "f30f1efa 4885c0 0f8400010000", 7, true},
		{"one-byte nop", "amd64", "90 c3", 0, true},
		{"relative jump", "amd64", "e900010000", 0, true},
		{"relative call", "amd64", "e800010000", 0, true},
		{"five-byte nop is passed over", "amd64", "0f1f440000 55", 5, true},
		{"mov to rax, push", "amd64", "488b0500100000 53", 7, true},
		{"sub rsp: the stack has moved", "amd64", "4883ec18 55", 0, false},
		{"mov to an argument", "amd64", "4889f7 55", 0, false},
		{"mov to memory", "amd64", "48893d00100000 55", 0, false},
		{"xor edx: an argument", "amd64", "31d2 55", 0, false},
		{"push of memory", "amd64", "ff7508", 0, false},
		{"push of a constant", "amd64", "6a01", 0, false},
		{"push with an operand size", "amd64", "6655", 0, false},
		{"jump through a table", "amd64", "ff25363c0200", 0, false},
		{"return", "amd64", "c3", 0, false},
		{"no instruction", "amd64", "0f0b 06", 0, false},
		{"loop", "amd64", "e2fe", 0, false},
		{"jrcxz", "amd64", "e300", 0, false},
		{"cut in the middle", "amd64", "813d964a", 0, false},
		{"nothing", "amd64", "", 0, false},

		{"branch", "arm64", "00000014", 0, true},
		{"adrp", "arm64", "100000b0", 0, true},
		{"nop", "arm64", "1f2003d5", 0, true},
		{"cbz", "arm64", "400000b4", 0, true},
		{"tbnz", "arm64", "40000037", 0, true},
		{"load of a literal", "arm64", "40000058", 0, true},
		{"bti c, branch", "arm64", "5f2403d5 00000014", 4, true},
		{"bti c, stp", "arm64", "5f2403d5 fd7bbfa9", 0, false},
		{"paciasp signs the return address", "arm64", "3f2303d5 00000014", 0, false},
		{"stp", "arm64", "fd7bbfa9", 0, false},
		{"mov", "arm64", "00008052", 0, false},
		{"prefetch of a literal, which the kernel refuses", "arm64", "400000d8", 0, false},
		{"cut", "arm64", "0000", 0, false},
		{"of a machine nobody knows", "riscv64", "00000014", 0, false},
	} {
		t.Run(row.machine+" "+row.name, func(t *testing.T) {
			code, err := hex.DecodeString(strings.ReplaceAll(row.code, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			if at, emulated := probeOffset(code, row.machine); at != row.offset || emulated != row.emulated {
				t.Errorf("+%d, emulated %v; want +%d, %v", at, emulated, row.offset, row.emulated)
			}
		})
	}
}

// TestDriversPrologues: in the simulated driver, which begins as driver 535 does, every function is probed where the
// kernel emulates.
func TestDriversPrologues(t *testing.T) {
	im := simImage(t)
	d, err := place(im)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range d.functions {
		if !f.emulated {
			t.Errorf("%s would be single-stepped", f.name)
		}
	}
	if len(d.lacking) > 0 || len(d.functions) < 80 {
		t.Errorf("%d functions found, vital ones lack: %v", len(d.functions), d.lacking)
	}
	if n := len(distinct(d.functions)); n != len(d.functions) {
		t.Errorf("%d places for %d functions", n, len(d.functions))
	}
}

// TestNoLaunches: launches are never probed.
func TestNoLaunches(t *testing.T) {
	for _, f := range functions {
		if strings.Contains(f.name, "Launch") {
			t.Errorf("%s is probed", f.name)
		}
	}
}
