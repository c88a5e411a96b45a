// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Where in a function a probe costs least. The kernel emulates a few instructions at a breakpoint and single-steps all
// others, which on virtual machines costs twenty times as much (reference: arch/x86/kernel/uprobes.c, branch_setup_xol_ops
// and push_setup_xol_ops; arch/arm64/kernel/probes/decode-insn.c).

package bpf

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/arch/x86/x86asm"
)

// prologueBytes is how much of a function is looked at.
const prologueBytes = 48

// probeOffset returns where in a function that begins with code a probe is to sit, and whether the kernel emulates the
// instruction there. It is the first such instruction that every call passes once, before anything has changed the stack,
// the return address or the registers with arguments: only there does a return probe find the return address, and the
// program its arguments. Where there is none it is 0, and single-stepped.
func probeOffset(code []byte, machine string) (offset uint64, emulated bool) {
	switch machine {
	case "amd64":
		return probeOffsetX86(code)
	case "arm64":
		return probeOffsetArm64(code)
	}
	return 0, false
}

var endbr64 = []byte{0xf3, 0x0f, 0x1e, 0xfa}

func probeOffsetX86(code []byte) (uint64, bool) {
	for at := 0; at < len(code); {
		if bytes.HasPrefix(code[at:], endbr64) { // x86asm does not know it
			at += len(endbr64)
			continue
		}
		inst, err := x86asm.Decode(code[at:], 64)
		if err != nil {
			return 0, false
		}
		if emulatedX86(inst) {
			return uint64(at), true
		}
		if !harmlessX86(inst) {
			return 0, false
		}
		at += inst.Len
	}
	return 0, false
}

// emulatedX86: push of a register, one-byte nop, and relative jumps and calls without a prefix. (Kernels since 6.18 also
// take longer nops; older ones would single-step them, so they are passed over.)
func emulatedX86(inst x86asm.Inst) bool {
	prefix := inst.Prefix[0] &^ x86asm.PrefixImplicit
	switch inst.Op {
	case x86asm.PUSH:
		_, register := inst.Args[0].(x86asm.Reg)
		return register && (prefix == 0 || inst.Len == 2 && prefix == x86asm.PrefixREX|x86asm.PrefixREXB)
	case x86asm.NOP:
		return inst.Len == 1
	}
	_, relative := inst.Args[0].(x86asm.Rel)
	return relative && prefix == 0 && inst.Op != x86asm.JCXZ && inst.Op != x86asm.JECXZ && inst.Op != x86asm.JRCXZ &&
		inst.Op != x86asm.LOOP && inst.Op != x86asm.LOOPE && inst.Op != x86asm.LOOPNE && inst.Op != x86asm.XBEGIN
}

// harmlessX86: comparisons, long nops, and what writes only to registers that carry no argument. All go straight on.
func harmlessX86(inst x86asm.Inst) bool {
	switch inst.Op {
	case x86asm.CMP, x86asm.TEST, x86asm.NOP:
		return true
	case x86asm.MOV, x86asm.LEA, x86asm.XOR, x86asm.MOVZX, x86asm.MOVSXD:
		switch inst.Args[0] {
		case x86asm.RAX, x86asm.EAX, x86asm.R10, x86asm.R10L, x86asm.R11, x86asm.R11L:
			return true
		}
	}
	return false
}

// probeOffsetArm64: a landing pad (bti) first, then the next instruction, are looked at; what follows may have signed the
// return address, which a return probe must not find.
func probeOffsetArm64(code []byte) (uint64, bool) {
	for at := 0; at+4 <= len(code) && at <= 4; at += 4 {
		word := binary.LittleEndian.Uint32(code[at:])
		if emulatedArm64(word) {
			return uint64(at), true
		}
		if word&^0xc0 != 0xd503241f { // bti, in all four kinds
			return 0, false
		}
	}
	return 0, false
}

// emulatedArm64: nop, relative branches with and without a condition, adr, adrp and loads relative to the place.
func emulatedArm64(word uint32) bool {
	return word == 0xd503201f || // nop
		word&0x7c000000 == 0x14000000 || // b, bl
		word&0xff000010 == 0x54000000 || // b.cond
		word&0x7e000000 == 0x34000000 || // cbz, cbnz
		word&0x7e000000 == 0x36000000 || // tbz, tbnz
		word&0x1f000000 == 0x10000000 || // adr, adrp
		word&0xbf000000 == 0x18000000 || word&0xff000000 == 0x98000000 // ldr, ldrsw of a literal
}
