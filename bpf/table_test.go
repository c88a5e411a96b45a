// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package bpf

import (
	"bufio"
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vgpud/vgpud/internal/require"
)

func simImage(t testing.TB) *image {
	t.Helper()
	f, err := os.Open(filepath.Join(require.Sim(t), "libcuda.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	im, err := openImage(f)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// TestNumbersOfCalls: the classes and forms have the same numbers in C.
func TestNumbersOfCalls(t *testing.T) {
	raw, err := os.ReadFile("calls.h")
	if err != nil {
		t.Fatal(err)
	}
	list := func(name string) []string {
		_, rest, ok := strings.Cut(string(raw), "enum "+name+" {\n")
		if !ok {
			t.Fatalf("no enum %s", name)
		}
		body, _, _ := strings.Cut(rest, "};")
		return regexp.MustCompile(`(?m)^ {2}([A-Z_0-9]+)`).FindAllString(body, -1)
	}
	for name, want := range map[string][]string{
		"class": {"HOST_TO_DEVICE", "DEVICE_TO_HOST", "DEVICE_TO_DEVICE", "PEER_TO_PEER", "UNTOLD", "ALLOCATION", "STALL", "", "CREATE", "RETAIN", "DESTROY"},
		"form":  {"NONE", "ARGUMENT", "ARGUMENT_32", "PITCH", "RECTANGLE", "BOX", "BOX_PEER", "ARRAY", "ARRAY_3D"},
	} {
		got := list(name)
		for i := range got {
			got[i] = strings.TrimPrefix(strings.TrimSpace(got[i]), strings.ToUpper(name)+"_")
			if got[i] == "COUNTED_CLASSES" {
				got[i] = ""
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("enum %s has %q", name, got)
		}
	}
	if hostToDevice != 0 || untold != 4 || stall != 6 || countedClasses != 7 || create != 7 || retain != 8 || destroy != 9 {
		t.Error("classes have other numbers in Go")
	}
	if noBytes != 0 || pitch != 3 || boxPeer != 6 || array3D != 8 {
		t.Error("forms have other numbers in Go")
	}
}

// TestTableCoversTheDriver: each function of driver 535 that copies, allocates, waits, or makes contexts is probed, or is
// on this list with its reason.
func TestTableCoversTheDriver(t *testing.T) {
	left := map[string]string{}
	for reason, names := range map[string][]string{
		"rows of CUDA 2, not in use since CUDA 3.2": {"cuMemcpy2D", "cuMemcpy2DUnaligned", "cuMemcpy2DAsync", "cuMemcpy3D", "cuMemcpy3DAsync", "cuMemAllocPitch", "cuArrayCreate", "cuArray3DCreate"},
		"memory of the host":                        {"cuMemAllocHost", "cuMemAllocHost_v2"},
	} {
		for _, name := range names {
			left[name] = reason
		}
	}
	probed := map[string]bool{}
	for _, f := range functions {
		if probed[f.name] {
			t.Errorf("%s is in the table twice", f.name)
		}
		probed[f.name] = true
	}
	of := regexp.MustCompile(`^cu(Memcpy.*|MemAlloc.*|MemCreate|(Array|Array3D|MipmappedArray)Create(_v2)?|(Ctx|Stream|Event)Synchronize.*|Ctx(Create|Destroy).*|DevicePrimaryCtx(Retain|Release|Reset)(_v2)?)$`)
	f, err := elf.Open(filepath.Join(require.Sim(t), "libcuda.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && of.MatchString(s.Name) && !probed[s.Name] && left[s.Name] == "" {
			t.Errorf("%s is neither probed nor left out", s.Name)
		}
	}
	// The own reader finds what the standard library's finds, by section headers, at the same place.
	im := simImage(t)
	for _, s := range symbols {
		got, ok := im.exported(s.Name)
		defined := s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC
		if ok != defined {
			t.Errorf("%s: exported %v, want %v", s.Name, ok, defined)
		}
		if want := inFile(f, s.Value); ok && got.offset != want {
			t.Errorf("%s at %#x, want %#x", s.Name, got.offset, want)
		}
	}
}

func inFile(f *elf.File, address uint64) uint64 {
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Vaddr <= address && address < p.Vaddr+p.Filesz {
			return address - p.Vaddr + p.Off
		}
	}
	return 0
}

func TestParseMaps(t *testing.T) {
	const text = `55d0-55d1 r--p 00000000 fe:01 12 /usr/bin/x
7f3ac0000000-7f3ac0021000 r-xp 00001000 fe:01 1049731                    /usr/lib/lib with blanks.so.1 (deleted)
7f00-7f01 r-xp 00000000 00:00 0                          [vdso]
7f02-7f03 r-xs 00000000 00:3b 7 /memfd:x
7f04-7f05 rwxp 00000000 00:00 0
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
bad line x
7f06-zz r-xp 00000000 fe:01 5 /y
`
	got, err := parseMaps(bufio.NewReader(strings.NewReader(text)))
	want := []mapsLine{
		{start: 0x7f3ac0000000, end: 0x7f3ac0021000, major: 0xfe, minor: 1, inode: 1049731, name: "/usr/lib/lib with blanks.so.1 (deleted)"},
		{start: 0x7f02, end: 0x7f03, major: 0, minor: 0x3b, inode: 7, name: "/memfd:x"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func TestDriverDevices(t *testing.T) {
	proc, dev := t.TempDir(), t.TempDir()
	list := "Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n235 nvidia-caps\n511 nvidia-uvm\n\nBlock devices:\n  7 nvidia-no\n"
	if err := os.WriteFile(filepath.Join(proc, "devices"), []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dev, "nvidia0"), nil, 0o644); err != nil { // no device
		t.Fatal(err)
	}
	got := driverDevices(proc, dev)
	for _, major := range []uint32{195, 235, 511} {
		if !got[major<<20|anyMinor] {
			t.Errorf("major %d is missing in %v", major, got)
		}
	}
	if len(got) != 3 {
		t.Errorf("%d numbers, want 3: %v", len(got), got)
	}
}
