// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The programs for arm64, where there is no arm64: they are compared with those for x86, and run by this kernel, as the
// bytecode of both is the same, with arguments put where these programs look for them.

package bpf

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/arch/arm64/arm64asm"

	"github.com/vgpud/vgpud/internal/require"
)

func specOf(t *testing.T, machine string) *ebpf.CollectionSpec {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec("probes_" + machine + "_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// told is what is compared of an object's programs.
type told struct {
	Type            ebpf.ProgramType
	AttachType      ebpf.AttachType
	AttachTo        string
	SectionName     string
	License         string
	ReferencedMaps  []string // each once, in order
	Relocations     []string // of fields of kernel structures, in order
	CallsOfTheirOwn []string // of functions of the kernel, in order
}

// localID numbers a type within one object.
var localID = regexp.MustCompile(`, local_id=\d+`)

func tell(p *ebpf.ProgramSpec) told {
	t := told{Type: p.Type, AttachType: p.AttachType, AttachTo: p.AttachTo, SectionName: p.SectionName, License: p.License}
	for i := range p.Instructions {
		ins := &p.Instructions[i]
		if relocation := btf.CORERelocationMetadata(ins); relocation != nil {
			t.Relocations = append(t.Relocations, localID.ReplaceAllString(relocation.String(), ""))
		}
		switch name := ins.Reference(); {
		case ins.IsLoadFromMap() && !slices.Contains(t.ReferencedMaps, name):
			t.ReferencedMaps = append(t.ReferencedMaps, name)
		case ins.IsKfuncCall():
			t.CallsOfTheirOwn = append(t.CallsOfTheirOwn, name)
		}
	}
	slices.Sort(t.ReferencedMaps)
	slices.Sort(t.Relocations)
	return t
}

// TestObjectsAreAlike: both objects have the same maps and programs, follow the same fields of the kernel's structures, and
// are for the machine that their names say.
func TestObjectsAreAlike(t *testing.T) {
	x86, arm := specOf(t, "x86"), specOf(t, "arm64")
	programs := func(spec *ebpf.CollectionSpec) map[string]told {
		all := map[string]told{}
		for name, p := range spec.Programs {
			all[name] = tell(p)
		}
		return all
	}
	if diff := cmp.Diff(programs(x86), programs(arm)); diff != "" {
		t.Errorf("programs differ (-x86 +arm64):\n%s", diff)
	}
	maps := func(spec *ebpf.CollectionSpec) map[string]string {
		all := map[string]string{}
		for name, m := range spec.Maps {
			all[name] = fmt.Sprint(m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags)
		}
		for name, v := range spec.Variables {
			all["variable "+name] = fmt.Sprint(v.Size(), v.SectionName, v.Offset)
		}
		return all
	}
	if diff := cmp.Diff(maps(x86), maps(arm)); diff != "" {
		t.Errorf("maps differ (-x86 +arm64):\n%s", diff)
	}
	if n := len(programs(arm)["session_legacy"].Relocations); n < 5 || len(x86.Programs) < 13 || len(x86.Maps) < 5 {
		t.Errorf("compared %d programs, %d maps, %d relocations", len(x86.Programs), len(x86.Maps), n)
	}
	// They are not the same: arguments lie elsewhere.
	for name, same := range map[string]bool{"session_unified": false, "entry_legacy": false, "exit_legacy": true} {
		if (fmt.Sprint(x86.Programs[name].Instructions) == fmt.Sprint(arm.Programs[name].Instructions)) != same {
			t.Errorf("%s: alike must be %v", name, same)
		}
	}
	for _, machine := range []string{"x86", "arm64"} {
		f, err := elf.Open("probes_" + machine + "_bpfel.o")
		if err != nil {
			t.Fatal(err)
		}
		if f.Machine != elf.EM_BPF || f.Data != elf.ELFDATA2LSB {
			t.Errorf("object for %s: %v, %v", machine, f.Machine, f.Data)
		}
		_ = f.Close()
	}
}

// armCall is a function of machine code for x86 that can be called by Go. Where the kernel hands a program r15, r14, r13,
// r12 and rbp on x86 it hands it x0 to x4 on arm64, and x0 is the result too; see struct pt_regs of kernel.h. So the
// function fills these with five words of the file, calls what is probed, and restores them.
func armCall(arguments [5]uint64) (code []byte, probed uint64) {
	const words, inner = 0x200, 0x100
	code = make([]byte, os.Getpagesize())
	for i, argument := range arguments {
		*(*uint64)(unsafe.Pointer(&code[words+8*i])) = argument
	}
	var text []byte
	text = append(text, 0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54, 0x55) // push r15, r14, r13, r12, rbp
	for i, head := range [][]byte{{0x4c, 0x8b, 0x3d}, {0x4c, 0x8b, 0x35}, {0x4c, 0x8b, 0x2d}, {0x4c, 0x8b, 0x25}, {0x48, 0x8b, 0x2d}} {
		next := len(text) + 7 // mov word(%rip), register
		text = append(text, head...)
		text = append(text, distance(next, words+8*i)...)
	}
	text = append(text, 0xe8) // call inner
	text = append(text, distance(len(text)+4, inner)...)
	text = append(text, 0x5d, 0x41, 0x5c, 0x41, 0x5d, 0x41, 0x5e, 0x41, 0x5f, 0xc3) // pop them, ret
	copy(code, text)
	copy(code[inner:], []byte{0x90, 0xc3}) // nop, ret
	return code, inner
}

func distance(from, to int) []byte {
	d := int32(to - from)
	return []byte{byte(d), byte(d >> 8), byte(d >> 16), byte(d >> 24)}
}

// TestArm64ProgramsCount: loaded into this kernel, they count calls, bytes and failures by the registers of arm64.
func TestArm64ProgramsCount(t *testing.T) {
	require.Root(t)
	if runtime.GOARCH != "amd64" {
		require.Need(t, "amd64", false, "the function is machine code of x86")
	}
	for _, mechanism := range []Mechanism{MechanismSession, MechanismMulti} {
		t.Run(string(mechanism), func(t *testing.T) {
			l := &loaded{spec: specOf(t, "arm64"), numbering: numbering(), mechanism: mechanism, types: btf.NewCache()}
			var err error
			l.collection, err = l.open(nil, l.programs()...)
			require.Need(t, "bpf", err == nil, fmt.Sprint(err))
			defer l.close()
			for _, row := range []struct {
				function  function
				arguments [5]uint64 // the first is the result too
				want      Group
			}{
				{function{"", hostToDevice, argument, 1}, [5]uint64{0, 11, 12, 13, 14}, Group{HostToDevice: Count{Calls: 3, Bytes: 33}}},
				{function{"", deviceToHost, argument, 2}, [5]uint64{0, 11, 12, 13, 14}, Group{DeviceToHost: Count{Calls: 3, Bytes: 36}}},
				{function{"", hostToDevice, argument32, 3}, [5]uint64{0, 11, 12, 1<<40 + 13, 14}, Group{HostToDevice: Count{Calls: 3, Bytes: 39}}},
				{function{"", peerToPeer, argument, 4}, [5]uint64{0, 11, 12, 13, 14}, Group{PeerToPeer: Count{Calls: 3, Bytes: 42}}},
				{function{"", allocation, pitch, 0}, [5]uint64{0, 11, 12, 13, 14}, Group{Allocations: Count{Calls: 3, Bytes: 3 * 12 * 13}}},
				{function{"", stall, noBytes, 0}, [5]uint64{5, 0, 0, 0, 0}, Group{Stalls: Count{Calls: 3}}},
				{function{"", retain, noBytes, 0}, [5]uint64{0, 1, 1, 1, 1}, Group{Retained: 3}},
				{function{"", hostToDevice, argument, 1}, [5]uint64{2, 11, 12, 13, 14}, Group{Failed: 3}},
				{function{"", create, noBytes, 0}, [5]uint64{1 << 32, 0, 0, 0, 0}, Group{Created: 3}}, // a CUresult is 32 bits
			} {
				countsAsArm64(t, l, row.function, row.arguments, row.want)
			}
		})
	}
}

// countsAsArm64 calls a function three times, with a program of arm64 on it, and compares the counts.
func countsAsArm64(t *testing.T, l *loaded, f function, arguments [5]uint64, want Group) {
	t.Helper()
	code, probed := armCall(arguments)
	d, err := mapCode(code)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if err := l.forget(); err != nil {
		t.Fatal(err)
	}
	probes, err := l.attach(d.file, []placed{{function: f, offset: probed, emulated: true}})
	if err != nil {
		t.Fatal(err)
	}
	d.time(0, 1, 3)
	if err := probes.Close(); err != nil {
		t.Fatal(err)
	}
	var r reader
	rows, err := r.read(l.collection.Maps[probesMapGroups])
	if err != nil || len(rows) != 1 { // our own group's
		t.Fatalf("rows %+v, %v", rows, err)
	}
	if diff := cmp.Diff(want, withoutTimes(rows[0])); diff != "" {
		t.Errorf("%+v with %v (-want +got):\n%s", f, arguments, diff)
	}
}

// TestEmulatedArm64: of a million words, those are taken for emulated that an independent decoder takes for the
// instructions which arch/arm64/kernel/probes/decode-insn.c simulates, and no others.
func TestEmulatedArm64(t *testing.T) {
	simulated := map[arm64asm.Op]bool{
		arm64asm.B: true, arm64asm.BL: true, arm64asm.CBZ: true, arm64asm.CBNZ: true, arm64asm.TBZ: true, arm64asm.TBNZ: true,
		arm64asm.ADR: true, arm64asm.ADRP: true, arm64asm.NOP: true,
	}
	random := rand.New(rand.NewPCG(1, 2))
	seen := map[arm64asm.Op]int{}
	for range 1 << 20 {
		word := random.Uint32()
		if random.IntN(1000) == 0 {
			word = 0xd503201f // nop, which is too rare
		}
		inst, err := arm64asm.Decode(binary.LittleEndian.AppendUint32(nil, word))
		want := err == nil && simulated[inst.Op]
		if err == nil && (inst.Op == arm64asm.LDR || inst.Op == arm64asm.LDRSW) {
			_, relative := inst.Args[1].(arm64asm.PCRel)
			register, _ := inst.Args[0].(arm64asm.Reg)
			want = relative && register <= arm64asm.XZR // not those of vectors
		}
		if got := emulatedArm64(word); got != want && err == nil {
			t.Fatalf("%#08x, %v: emulated %v, want %v", word, inst, got, want)
		}
		if want {
			seen[inst.Op]++
		}
	}
	if len(seen) != len(simulated)+2 {
		t.Errorf("not all were met: %v", seen)
	}
}
