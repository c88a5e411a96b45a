// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package bpf

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/require"
)

// mappedDiffers says in how many bytes a mapping of a file is not the file: breakpoints.
func mappedDiffers(t *testing.T, name string) (differ int) {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	text, err := unix.Mmap(int(file.Fd()), 0, len(content), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(text); err != nil {
			t.Error(err)
		}
	}()
	for i, b := range text {
		if content[i] != b {
			differ++
		}
	}
	return differ
}

// A driver that is written over in its place has no breakpoints of the old one left, and is probed again when it is one.
func TestLibraryIsWrittenAnewInItsPlace(t *testing.T) {
	library := hostCopy(t)
	driver, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	p := openProbes(t, Options{Libraries: []string{library}})
	if mappedDiffers(t, library) == 0 {
		t.Fatal("no breakpoints are seen in a library that is probed: this shows nothing")
	}
	write := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(library, content, 0o755); err != nil { // truncated and written: the same file
			t.Fatal(err)
		}
	}
	write(bytes.Repeat([]byte{0x90}, len(driver)))
	written := time.Now()
	eventually(t, "no breakpoints are left", func() bool { return mappedDiffers(t, library) == 0 })
	if took := time.Since(written); took > 8*time.Second { // what is unused is let go later anyway
		t.Errorf("they were there for %s", took)
	}
	time.Sleep(10 * time.Millisecond) // another time of change
	write(driver)
	eventually(t, "it is probed again", func() bool { return mappedDiffers(t, library) > 0 })
	g := newGroup(t, p.Status().Numbering)
	c := startCaller(t, cards(t), "")
	g.add(t, c.Pid)
	c.do("load %s", library)
	awaitProbed(t, p, c.Pid)
	c.do("begin")
	c.do("htod 5 1000")
	if got := counted(t, p, g.id); got.HostToDevice.Calls != 5 || got.Retained != 1 {
		t.Errorf("counted %+v, want 5 copies and a context", got)
	}
}

// A container that calls the preloaded library a driver's has it not probed: it is one file for all containers.
func TestOurLibraryIsNeverProbed(t *testing.T) {
	library, ours := hostCopy(t), filepath.Join(t.TempDir(), "libvgpu.so")
	copyFile(t, filepath.Join(require.Sim(t), "libcuda.so.1"), ours)
	p := openProbes(t, Options{Never: []string{filepath.Join(filepath.Dir(ours), "*.so")}})
	c := startCaller(t, cards(t), "mkdir -p "+filepath.Dir(library)+"/d; touch "+filepath.Dir(library)+"/d/libcuda.so.1; mount --bind "+
		ours+" "+filepath.Dir(library)+"/d/libcuda.so.1")
	c.do("load %s", filepath.Join(filepath.Dir(library), "d/libcuda.so.1"))
	second := startCaller(t, cards(t), "")
	second.do("load %s", library)
	awaitProbed(t, p, second.Pid) // by then it would be
	time.Sleep(2 * lookEvery)
	if files := probedBy(p, c.Pid); len(files) > 0 || mappedDiffers(t, ours) > 0 {
		t.Errorf("%v are probed, %d breakpoints in it", files, mappedDiffers(t, ours))
	}
}
