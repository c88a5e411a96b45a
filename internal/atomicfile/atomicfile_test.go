// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of atomicfile: modes, links, leftovers, readers during replacement, a full disk.

package atomicfile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/require"
)

func TestModeIsExactWhateverTheUmask(t *testing.T) {
	old := unix.Umask(0o077)
	t.Cleanup(func() { unix.Umask(old) })
	for _, mode := range []os.FileMode{0o644, 0o666, 0o600, 0o755} {
		path := filepath.Join(t.TempDir(), "f")
		if err := WriteFile(path, []byte("x"), mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode {
			t.Errorf("mode %o, want %o", info.Mode().Perm(), mode)
		}
	}
}

func TestLinkIsReplacedNotFollowed(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "f")
	if err := os.Symlink(victim, path); err != nil {
		t.Fatal(err)
	}
	if err := Copy(path, bytes.NewReader([]byte("new")), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(victim); string(got) != "untouched" {
		t.Errorf("the link's target now holds %q", got)
	}
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if !info.Mode().IsRegular() {
		t.Errorf("path is %v, want a regular file", info.Mode())
	}
}

func TestOpenFileKeepsItsContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := WriteFile(path, []byte("new content"), 0o644); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 16)
	n, _ := f.ReadAt(got, 0)
	if string(got[:n]) != "old" {
		t.Errorf("open file reads %q after the replacement", got[:n])
	}
}

func TestReadersSeeOldOrNewOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	versions := [][]byte{bytes.Repeat([]byte("a"), 8192), bytes.Repeat([]byte("b"), 16384)}
	if err := WriteFile(path, versions[0], 0o644); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for i := range 50 {
			if err := WriteFile(path, versions[i%2], 0o644); err != nil {
				t.Error(err)
			}
		}
		close(stop)
	})
	for done := false; !done; {
		select {
		case <-stop:
			done = true
		default:
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, versions[0]) && !bytes.Equal(got, versions[1]) {
			t.Fatalf("read %d bytes that are neither version", len(got))
		}
	}
	wg.Wait()
}

func TestFailureLeavesOldFileAndNoTemp(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	err := Copy(path, failingReader{boom}, 0o644)
	if !errors.Is(err, boom) {
		t.Errorf("error %v, want boom inside", err)
	}
	checkOnly(t, dir, "f", "old")

	if err := WriteFile(filepath.Join(dir, "absent", "f"), nil, 0o644); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
	if err := WriteFile(dir+"/", nil, 0o644); err == nil {
		t.Error("a directory path was accepted as a file name")
	}
}

func TestFullDisk(t *testing.T) {
	require.Root(t)
	dir := t.TempDir()
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k")
	require.Need(t, "mount", err == nil, "cannot mount a tmpfs")
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	path := filepath.Join(dir, "f")
	if err := WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, make([]byte, 1<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v, want ENOSPC inside", err)
	}
	checkOnly(t, dir, "f", "old")
	checkSameFault(t, path, make([]byte, 1<<20))
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	checkSameFault(t, path, nil)
}

// checkSameFault checks that a fault that lasts has one text, however often it is met.
func checkSameFault(t *testing.T, path string, data []byte) {
	t.Helper()
	first, second := WriteFile(path, data, 0o644), WriteFile(path, data, 0o644)
	if first == nil || second == nil || first.Error() != second.Error() {
		t.Errorf("the same fault twice:\n%v\n%v", first, second)
	}
}

func TestIsTemp(t *testing.T) {
	for name, want := range map[string]bool{
		".a.json.0123456789ab.tmp": true,
		".a.0123456789ab.tmp":      true,
		"a.0123456789ab.tmp":       false,
		".0123456789ab.tmp":        false,
		".a.0123.tmp":              false,
		".a.tmp":                   false,
		"a.json":                   false,
	} {
		if got := IsTemp(name); got != want {
			t.Errorf("IsTemp(%q) = %v", name, got)
		}
	}
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// checkOnly checks that dir holds one file of that name and content.
func checkOnly(t *testing.T, dir, name, content string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Name() != name {
		t.Errorf("directory holds %v, want only %s", entries, name)
	}
	if got, _ := os.ReadFile(filepath.Join(dir, name)); string(got) != content {
		t.Errorf("file holds %q, want %q", got, content)
	}
}
