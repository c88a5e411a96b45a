// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// lock.go lets but one agent have a state directory.

package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// lockMode keeps the lock from others: whoever can open a file, if only for reading, can lock it.
const lockMode = 0o600

// Lock makes the state directory and takes its lock, which lasts as long as the file is open. A second agent
// is refused with the process that holds it.
func Lock(directory string) (*os.File, error) {
	if err := os.MkdirAll(directory, stateMode); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	path := filepath.Join(directory, lockFile)
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, lockMode)
	if err != nil {
		return nil, fmt.Errorf("open lock of state directory: %w", err)
	}
	if err := lock.Chmod(lockMode); err != nil { // an older agent left it readable
		lock.Close()
		return nil, fmt.Errorf("open lock of state directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := lockHolder(lock)
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("state directory %s is in use by another agent (%s holds %s): there can be one per directory",
				directory, holder, path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := lock.Truncate(0); err != nil {
		lock.Close()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	if _, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		lock.Close()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return lock, nil
}

// lockHolder names the process that is written into a lock file, if that one has the file open: an agent that was
// killed leaves its number there.
func lockHolder(lock *os.File) string {
	const unknown = "an unknown process"
	text, err := io.ReadAll(io.LimitReader(lock, 64))
	if err != nil {
		return unknown
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return unknown
	}
	own, err := lock.Stat()
	if err != nil {
		return unknown
	}
	descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return unknown
	}
	for _, descriptor := range descriptors {
		if info, err := os.Stat(descriptor); err == nil && os.SameFile(own, info) {
			return fmt.Sprintf("process %d", pid)
		}
	}
	return unknown
}
