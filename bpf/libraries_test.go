// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Which files are probed: found through the processes that map them, once each, whatever their names are.

package bpf

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/require"
)

// hostCopy puts the simulated driver where a test may do with it what it likes.
func hostCopy(t testing.TB) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "libcuda.so.1")
	copyFile(t, filepath.Join(require.Sim(t), "libcuda.so.1"), name)
	return name
}

// TestWaysToALibrary: through whatever name a program comes to the host's file or to one of its own, each call counts
// once, for its own control group.
func TestWaysToALibrary(t *testing.T) {
	library := hostCopy(t)
	for _, row := range []struct {
		name, setup, path string
		own               bool // a file of its own
	}{
		{"the host's file", "", "$LIB", false},
		{"a bind mount of the file", "mkdir -p $TMP/d; touch $TMP/d/lib; mount --bind $LIB $TMP/d/lib", "$TMP/d/lib", false},
		{"a hard link", "ln $LIB $TMP/hard", "$TMP/hard", false},
		{"a private copy", "cp $LIB $TMP/libcuda.so.1", "$TMP/libcuda.so.1", true},
		{"a private copy under another name", "cp $LIB $TMP/notes.txt", "$TMP/notes.txt", true},
		{"a private copy on a tmpfs", "mkdir $TMP/t; mount -t tmpfs none $TMP/t; cp $LIB $TMP/t/libcuda.so.1", "$TMP/t/libcuda.so.1", true},
		{"the host's file below an overlay", "mkdir $TMP/u $TMP/w $TMP/o; " +
			"mount -t tmpfs none $TMP/w; mkdir $TMP/w/u $TMP/w/w; mount -t overlay none -o lowerdir=$(dirname $LIB),upperdir=$TMP/w/u,workdir=$TMP/w/w $TMP/o", "$TMP/o/libcuda.so.1", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := openProbes(t, Options{Libraries: []string{library}})
			g := newGroup(t, p.Status().Numbering)
			dir := t.TempDir()
			expand := strings.NewReplacer("$LIB", library, "$TMP", dir)
			c := startCaller(t, cards(t), expand.Replace(row.setup))
			g.add(t, c.Pid)
			c.do("load %s", expand.Replace(row.path))
			host, id := awaitProbed(t, p, 0), awaitProbed(t, p, c.Pid)
			if all := probedBy(p, c.Pid); len(all) != 1 || (id == host) == row.own {
				t.Errorf("its files %v are probed, the host's is %v", all, host)
			}
			c.do("begin")
			c.do("htod 5 1000")
			got := counted(t, p, g.id)
			if got.HostToDevice != (Count{Calls: 5, Bytes: 5000, Time: got.HostToDevice.Time}) || got.Retained != 1 {
				t.Errorf("counted %+v, want 5 copies of 1000 bytes and one context", got)
			}
		})
	}
}

// TestLibraryIsFoundSoon: a program that loads the driver long after its start is seen within two seconds or so.
func TestLibraryIsFoundSoon(t *testing.T) {
	library := hostCopy(t)
	p := openProbes(t, Options{})
	c := startCaller(t, cards(t), "")
	time.Sleep(2 * time.Second)
	if n := len(probedBy(p, c.Pid)); n != 0 {
		t.Fatalf("%d libraries of it are probed before any is mapped", n)
	}
	start := time.Now()
	c.do("load %s", library)
	awaitProbed(t, p, c.Pid)
	t.Logf("found after %v", time.Since(start).Round(time.Millisecond))
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("found after %v", took)
	}
}

// TestWithoutRecords: where the kernel's records are refused, scanning finds the same.
func TestWithoutRecords(t *testing.T) {
	library := hostCopy(t)
	p := openProbes(t, Options{noRecords: true})
	if p.Status().Records || !strings.Contains(p.Status().Reason, "scanning") {
		t.Fatalf("status %+v", p.Status())
	}
	c := startCaller(t, cards(t), "")
	start := time.Now()
	c.do("load %s", library)
	awaitProbed(t, p, c.Pid)
	t.Logf("found after %v", time.Since(start).Round(time.Millisecond))
}

// TestFileWithoutName: a library that was deleted while mapped is opened through the mapping.
func TestFileWithoutName(t *testing.T) {
	library := hostCopy(t)
	g := newGroup(t, numbering())
	c := startCaller(t, cards(t), "")
	g.add(t, c.Pid)
	c.do("load %s", library)
	if err := os.Remove(library); err != nil {
		t.Fatal(err)
	}
	p := openProbes(t, Options{})
	awaitProbed(t, p, c.Pid)
	c.do("begin")
	c.do("dtoh 3 100")
	if got := counted(t, p, g.id); got.DeviceToHost.Bytes != 300 {
		t.Errorf("counted %+v", got)
	}
}

// TestLibraryIsReplaced: old users stay seen in the old file, new ones are seen in the new one, and the old file's probes
// go when its last user has.
func TestLibraryIsReplaced(t *testing.T) {
	library := hostCopy(t)
	p := openProbes(t, Options{Libraries: []string{library}, Unused: time.Second})
	old, late := newGroup(t, p.Status().Numbering), newGroup(t, p.Status().Numbering)
	first := startCaller(t, cards(t), "")
	old.add(t, first.Pid)
	first.do("load %s", library)
	before := awaitProbed(t, p, first.Pid)
	first.do("begin")

	copyFile(t, library, library+".new")
	if err := os.Rename(library+".new", library); err != nil {
		t.Fatal(err)
	}
	second := startCaller(t, cards(t), "")
	late.add(t, second.Pid)
	second.do("load %s", library)
	if after := awaitProbed(t, p, second.Pid); after == before {
		t.Errorf("the new file is taken for the old one, %v", after)
	}
	second.do("begin")
	first.do("htod 3 10")
	second.do("htod 4 10")
	for g, want := range map[group]uint64{old: 3, late: 4} {
		if got := counted(t, p, g.id); got.HostToDevice.Calls != want || got.Retained != 1 {
			t.Errorf("counted %+v, want %d copies and a context", got, want)
		}
	}
	first.end()
	eventually(t, "the old file is let go", func() bool { return !isProbed(p, before) })
	second.do("htod 1 10")
	if got := counted(t, p, late.id); got.HostToDevice.Calls != 5 {
		t.Errorf("after the old file was let go: %+v", got)
	}
}

// TestLibraryThatCannotBeSeen: a copy that exports nothing of use is reported with pid, path and reason; one that lacks a
// function is probed and reported; others are counted as before.
func TestLibraryThatCannotBeSeen(t *testing.T) {
	library := hostCopy(t)
	dir := t.TempDir()
	broken, partial := filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "partial.so")
	raw, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	renamed := func(out string, names ...string) {
		text := string(raw)
		for _, name := range names {
			text = strings.ReplaceAll(text, "\x00"+name+"\x00", "\x00"+strings.Repeat("x", len(name))+"\x00")
		}
		if err := os.WriteFile(out, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var all []string
	for _, f := range functions {
		all = append(all, f.name)
	}
	renamed(broken, all...)
	renamed(partial, "cuMemAlloc_v2")

	p := openProbes(t, Options{})
	g := newGroup(t, p.Status().Numbering)
	healthy := startCaller(t, cards(t), "")
	g.add(t, healthy.Pid)
	healthy.do("load %s", library)
	awaitProbed(t, p, healthy.Pid)

	// They cannot be used for calls any more, but they are mapped as a library is.
	cheats := map[string]*caller{}
	for _, path := range []string{broken, partial} {
		cheats[path] = startCaller(t, cards(t), "")
		cheats[path].do("map %s", path)
	}
	reported := func() []Unobservable { // others on the machine may have such too
		return slices.DeleteFunc(p.Status().Unobservable, func(u Unobservable) bool { return filepath.Dir(u.Path) != dir })
	}
	eventually(t, "both are reported", func() bool { return len(reported()) == 2 })
	for _, u := range reported() {
		c := cheats[u.Path]
		if c == nil || c.Pid != u.PID {
			t.Errorf("reported %+v, want pid and path of a cheat", u)
		}
		want := map[string]string{broken: "exports none", partial: "cuMemAlloc_v2"}[u.Path]
		if !strings.Contains(u.Reason, want) {
			t.Errorf("reason %q, want %q in it", u.Reason, want)
		}
	}
	healthy.do("begin")
	healthy.do("htod 2 10")
	if got := counted(t, p, g.id); got.HostToDevice.Calls != 2 {
		t.Errorf("beside them: %+v", got)
	}
	for _, c := range cheats {
		c.end()
	}
	eventually(t, "reports end with their processes", func() bool { return len(reported()) == 0 })
}

// TestPathsDoNotLeadAway: what a container calls its files is never opened in the host's view of that name.
func TestPathsDoNotLeadAway(t *testing.T) {
	library := hostCopy(t)
	c := startCaller(t, cards(t), fmt.Sprintf("mount -t tmpfs none /mnt; cp %s /mnt/libcuda.so.1", library))
	c.do("load /mnt/libcuda.so.1")
	lines, err := execMappings("/proc", c.Pid)
	if err != nil {
		t.Fatal(err)
	}
	var line mapsLine
	for _, l := range lines {
		if l.name == "/mnt/libcuda.so.1" {
			line = l
		}
	}
	if line.inode == 0 {
		t.Fatalf("not among %v", lines)
	}
	base := fmt.Sprintf("/proc/%d", c.Pid)
	handle, err := openInRoot(base, line, unix.EPERM)
	if err != nil {
		t.Fatalf("open by name in its root: %v", err)
	}
	var there, here unix.Stat_t
	if err := unix.Fstat(handle, &there); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(handle)
	if there.Ino != line.inode {
		t.Errorf("opened inode %d, mapped is %d", there.Ino, line.inode)
	}
	if err := unix.Stat("/mnt/libcuda.so.1", &here); err == nil && here.Ino == there.Ino && here.Dev == there.Dev {
		t.Error("the test's own /mnt has it too, which shows nothing")
	}
	for _, name := range []string{"/proc/1/root/etc/passwd", "/../../etc/passwd", "/proc/self/exe"} {
		lie := line
		lie.name = name
		if handle, err := openInRoot(base, lie, unix.EPERM); err == nil {
			_ = unix.Close(handle)
			t.Errorf("was led to %s", name)
		}
	}
}

// TestHostileLibraries: files that say they are libraries and are not.
func TestHostileLibraries(t *testing.T) {
	raw, err := os.ReadFile(hostCopy(t))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := openImage(strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := whole.exported("cuInit"); !ok || whole.soname != "libcuda.so.1" {
		t.Fatalf("soname %q, cuInit %v", whole.soname, ok)
	}
	for _, cut := range []int{0, 3, 63, 64, 500, 4096, len(raw) / 2} {
		if im, err := openImage(strings.NewReader(string(raw[:cut]))); err == nil {
			_, _ = place(im)
		}
	}
	huge := []byte(string(raw))
	binary.LittleEndian.PutUint16(huge[56:], 0xffff)
	if _, err := openImage(strings.NewReader(string(huge))); err == nil {
		t.Error("65535 segments are taken")
	}
}

func FuzzImage(f *testing.F) {
	raw, err := os.ReadFile(filepath.Join(require.Sim(f), "libcuda.so.1"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(0), uint32(0), uint64(0))
	f.Add(uint32(0x298), uint32(0x2a0), uint64(1<<63))
	f.Fuzz(func(t *testing.T, at, also uint32, value uint64) {
		bent := append([]byte(nil), raw...)
		for _, place := range []uint32{at, also} {
			if int(place)+8 <= len(bent) {
				binary.LittleEndian.PutUint64(bent[place:], value)
			}
		}
		im, err := openImage(strings.NewReader(string(bent)))
		if err != nil {
			return
		}
		isDriver(im, "x")
		d, err := place(im)
		if err == nil {
			for _, p := range d.functions {
				if p.offset > 1<<63-1 {
					t.Errorf("%s at %d", p.name, p.offset)
				}
			}
		}
	})
}
