// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the directories: where they lie, and when they go.

package standalone

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/require"
)

// What removeStale makes of each state in which a directory can be found.
func TestExecStates(t *testing.T) {
	base := t.TempDir()
	birth, err := ownBirth()
	if err != nil {
		t.Fatal(err)
	}
	make := func(name string, locked bool, age time.Duration, files ...string) {
		directory := filepath.Join(base, name)
		if err := os.Mkdir(directory, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if err := os.WriteFile(filepath.Join(directory, file), []byte(birth.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if locked {
			lock, err := os.OpenFile(filepath.Join(directory, lockName), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { lock.Close() })
			if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(directory, then, then); err != nil {
			t.Fatal(err)
		}
	}
	make("exec-aa-running", true, time.Hour, lockName, libraryName)
	make("exec-bb-killed", false, 0, lockName, libraryName)
	make("exec-cc-half-removed", false, 0, libraryName)
	make("new-dd-made-just-now", false, 0)
	make("new-ee-lock-not-taken-yet", false, 0, lockName)
	make("new-ff-made-slowly", true, time.Hour, lockName)
	make("new-gg-killed-early", false, time.Hour)
	make("new-hh-killed-late", false, time.Hour, lockName, libraryName)
	make("other", false, time.Hour, lockName)
	removeStale(base)
	entries, err := os.ReadDir(base)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	want := []string{"exec-aa-running", "new-dd-made-just-now", "new-ee-lock-not-taken-yet", "new-ff-made-slowly", "other"}
	if !slices.Equal(left, want) {
		t.Errorf("left %q, want %q", left, want)
	}
}

// A directory that is replaced between the look and the lock is another one.
func TestIsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), lockName)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if !isFile(path, file) {
		t.Error("the file itself was not known again")
	}
	if err := errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if isFile(path, file) {
		t.Error("another file was taken for it")
	}
	if err := os.Remove(path); err != nil || isFile(path, file) {
		t.Errorf("a file that is gone was taken for it (%v)", err)
	}
}

// Somebody else's directory, or one that others may write, is not used.
func TestExecBase(t *testing.T) {
	foreign := t.TempDir()
	if err := os.Mkdir(filepath.Join(foreign, "vgpud"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(foreign, "vgpud"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := prepareBase(filepath.Join(foreign, "vgpud")); err == nil {
		t.Error("a directory that others may write was used")
	}
	link := filepath.Join(t.TempDir(), "vgpud")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if err := prepareBase(link); err == nil {
		t.Error("a symbolic link was used")
	}
	blank := filepath.Join(t.TempDir(), "a b")
	if err := prepareBase(blank); err == nil || !strings.Contains(err.Error(), "blank") {
		t.Errorf("a path that LD_PRELOAD cannot name: %v", err)
	}
	if err := prepareBase(filepath.Join(t.TempDir(), "vgpud")); err != nil {
		t.Error(err)
	}
}

func TestExecBaseNotOnNoexec(t *testing.T) {
	require.Root(t)
	directory := t.TempDir()
	if err := unix.Mount("tmpfs", directory, "tmpfs", unix.MS_NOEXEC, "size=64k"); err != nil {
		require.Need(t, "mount", false, "cannot mount a tmpfs")
	}
	t.Cleanup(func() { _ = unix.Unmount(directory, unix.MNT_DETACH) })
	if err := prepareBase(filepath.Join(directory, "vgpud")); err == nil || !strings.Contains(err.Error(), "noexec") {
		t.Errorf("a file system mounted noexec: %v", err)
	}
	base, err := findBase(map[string]string{"XDG_RUNTIME_DIR": directory, "TMPDIR": t.TempDir()})
	if err != nil || strings.HasPrefix(base, directory) {
		t.Errorf("base %s, %v: want another place", base, err)
	}
}
