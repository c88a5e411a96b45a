// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// cmd_exec_slice.go keeps the files of one vgpud exec: <base>/<key>/libvgpu.so and <base>/<key>/alloc/<key>/{limits,
// usage}, in a directory of the user's own. They go when the command has ended and no process has the library mapped;
// what a killed vgpud exec left goes at the next one. A directory is never taken from a process that uses it: the next
// program that such a process starts would not find the library, and run without a limit.

package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/atomicfile"
	"github.com/vgpud/vgpud/limiter"
)

const (
	execKeyPrefix = "exec-"
	execLockName  = "lock"
	// execLockAge is how old a directory without a lock must be before it counts as left behind.
	execLockAge = time.Minute
)

// execSlice is the slice of one vgpud exec.
type execSlice struct {
	key, uuid string
	directory string   // <base>/<key>
	library   string   // our copy, for LD_PRELOAD
	lock      *os.File // held while this vgpud exec lives
}

// newExecSlice makes the pages and copies the library.
func newExecSlice(variables map[string]string, library, uuid string, memory uint64) (*execSlice, error) {
	base, err := execBase(variables)
	if err != nil {
		return nil, err
	}
	removeStale(base)
	nonce := make([]byte, 12)
	if _, err := rand.Read(nonce); err != nil {
		return nil, fmt.Errorf("mint allocation key: %w", err)
	}
	slice := &execSlice{key: execKeyPrefix + hex.EncodeToString(nonce), uuid: uuid}
	slice.directory = filepath.Join(base, slice.key)
	slice.library = filepath.Join(slice.directory, "libvgpu.so")
	if err := slice.fill(library, memory); err != nil {
		slice.Close()
		return nil, fmt.Errorf("make slice: %w", err)
	}
	return slice, nil
}

// fill makes the directory's content.
func (s *execSlice) fill(library string, memory uint64) error {
	if err := os.Mkdir(s.directory, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(s.directory, execLockName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	s.lock = lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	source, err := os.Open(library)
	if err != nil {
		return fmt.Errorf("open library: %w", err)
	}
	defer source.Close()
	if err := atomicfile.Copy(s.library, source, 0o755); err != nil {
		return err
	}
	pages := filepath.Join(s.directory, "alloc", s.key)
	if err := os.Mkdir(filepath.Dir(pages), 0o711); err != nil {
		return err
	}
	return limiter.Create(pages, limiter.Limits{Key: s.key,
		Devices: []limiter.Device{{UUID: s.uuid, SliceCount: 1, MemoryLimitBytes: memory}}})
}

// Close removes the slice, unless processes that the command left behind still run in it.
func (s *execSlice) Close() {
	if !inUse(s.directory) {
		_ = os.RemoveAll(s.directory) // what stays is removed by a later vgpud exec
	}
	if s.lock != nil {
		s.lock.Close()
	}
}

// execBase returns a directory of this user's own from which programs can map code, making it if need be.
func execBase(variables map[string]string) (string, error) {
	var candidates []string
	if runtime := variables["XDG_RUNTIME_DIR"]; filepath.IsAbs(runtime) {
		candidates = append(candidates, filepath.Join(runtime, "vgpud"))
	}
	if os.Geteuid() == 0 {
		candidates = append(candidates, "/run/vgpud/exec")
	}
	temporary := variables["TMPDIR"]
	if !filepath.IsAbs(temporary) {
		temporary = "/tmp"
	}
	candidates = append(candidates, filepath.Join(temporary, fmt.Sprintf("vgpud-%d", os.Geteuid())))
	var faults []error
	for _, candidate := range candidates {
		err := prepareBase(candidate)
		if err == nil {
			return candidate, nil
		}
		faults = append(faults, err)
	}
	return "", fmt.Errorf("no place for the slice's files (set TMPDIR to another): %w", errors.Join(faults...))
}

// prepareBase makes directory with mode 0700, or checks that it is the user's own: in a shared temporary directory
// anybody may have made it before.
func prepareBase(directory string) error {
	if strings.ContainsAny(directory, ": \t\n") {
		return fmt.Errorf("%q: LD_PRELOAD cannot name a path with a blank or a colon", directory)
	}
	if err := os.Mkdir(directory, 0o700); errors.Is(err, fs.ErrNotExist) && os.Geteuid() == 0 && directory == "/run/vgpud/exec" {
		err = os.MkdirAll(directory, 0o711)
		if err == nil {
			err = os.Chmod(directory, 0o700)
		}
		if err != nil {
			return err
		}
	} else if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(directory)
	if err != nil {
		return err
	}
	status, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(status.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s: is not a directory of this user's own with mode 0700", directory)
	}
	var mount unix.Statfs_t
	if err := unix.Statfs(directory, &mount); err != nil {
		return fmt.Errorf("look up the mount of %s: %w", directory, err)
	}
	if mount.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("%s: is on a file system mounted noexec, from which the library could not be loaded", directory)
	}
	return nil
}

// removeStale takes away what killed instances left in base. Faults are left to the next one.
func removeStale(base string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, entry := range entries {
		directory := filepath.Join(base, entry.Name())
		if entry.IsDir() && strings.HasPrefix(entry.Name(), execKeyPrefix) && abandoned(directory) && !inUse(directory) {
			_ = os.RemoveAll(directory)
		}
	}
}

// abandoned says that the vgpud exec of a directory is gone.
func abandoned(directory string) bool {
	lock, err := os.OpenFile(filepath.Join(directory, execLockName), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		info, statErr := os.Stat(directory)
		return statErr == nil && time.Since(info.ModTime()) > execLockAge
	}
	if err != nil {
		return false
	}
	defer lock.Close()
	return unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// inUse says whether a process that we may look into has something of directory mapped. The library is mapped by
// every program of a slice, from its start on.
func inUse(directory string) bool {
	tables, err := filepath.Glob("/proc/[0-9]*/maps")
	if err != nil {
		return true
	}
	for _, table := range tables {
		// A process that is gone, or another user's, cannot be read; another user cannot reach a 0700 directory.
		text, err := os.ReadFile(table)
		if err == nil && strings.Contains(string(text), directory+"/") {
			return true
		}
	}
	return false
}
