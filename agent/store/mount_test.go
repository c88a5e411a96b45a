// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package store

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/require"
)

func TestMountPages(t *testing.T) {
	require.Root(t)
	directory := filepath.Join(t.TempDir(), "run", "pages")
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	if err := MountPages(directory, logger); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(directory, unix.MNT_DETACH) })
	require.Need(t, "mount", !strings.Contains(log.String(), "could not be mounted"), "cannot mount a tmpfs")
	var mount unix.Statfs_t
	if err := unix.Statfs(directory, &mount); err != nil {
		t.Fatal(err)
	}
	if size := mount.Blocks * uint64(mount.Bsize); mount.Type != unix.TMPFS_MAGIC || size != pagesBytes {
		t.Errorf("file system %x of %d bytes, want a tmpfs of %d", mount.Type, size, pagesBytes)
	}
	if info, err := os.Stat(directory); err != nil || info.Mode().Perm() != pagesMode {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	kept := filepath.Join(directory, "kept")
	if err := os.WriteFile(kept, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := MountPages(directory, logger); err != nil { // the next agent
		t.Fatal(err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("the pages of running containers were covered: %v", err)
	}
	// What a container can do to a page is bounded by the mount.
	if err := os.WriteFile(filepath.Join(directory, "grown"), make([]byte, pagesBytes+1), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("growing a page: %v, want ENOSPC", err)
	}
}

func TestPagesDirectoryMustBeOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pages")
	if err := os.Symlink(t.TempDir(), path); err != nil {
		t.Fatal(err)
	}
	if err := MakePagesDir(path); err == nil {
		t.Error("a symbolic link was used for the pages")
	}
}

func TestLockState(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "state")
	lock, err := Lock(directory)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(directory); err == nil || !strings.Contains(err.Error(), "in use by another agent") {
		t.Errorf("a second lock: %v", err)
	}
	lock.Close()
	if err := os.Chmod(filepath.Join(directory, lockFile), 0o644); err != nil { // as an older agent left it
		t.Fatal(err)
	}
	again, err := Lock(directory)
	if err != nil {
		t.Fatalf("after the first has gone: %v", err)
	}
	defer again.Close()
	// Who can open it can lock it, and keep the agent from starting.
	if info, err := os.Stat(filepath.Join(directory, lockFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the lock: %v, %v", info.Mode(), err)
	}
}

// The process that is named holds the lock; what a killed agent wrote is not repeated.
func TestLockHolder(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "state")
	lock, err := Lock(directory)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	for text, holder := range map[string]string{
		strconv.Itoa(os.Getpid()) + "\n": "process " + strconv.Itoa(os.Getpid()), "4194305\n": "unknown", "1\n": "unknown", "": "unknown", "x": "unknown",
	} {
		if err := errors.Join(lock.Truncate(0), os.WriteFile(lock.Name(), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := Lock(directory); err == nil || !strings.Contains(err.Error(), holder) || holder == "unknown" && strings.Contains(err.Error(), "process "+strings.TrimSpace(text)+" ") {
			t.Errorf("lock file with %q: %v, want %s", text, err, holder)
		}
	}
}
