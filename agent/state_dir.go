// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// state_dir.go sees to the two directories of the agent: one agent per state directory, and pages on a file system of
// bounded size, because a container can grow a file that is bound into it until the node's disk is full.

package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// pagesBytes bounds the tmpfs of the pages: a thousand allocations of one GPU, or some hundred of sixteen.
	pagesBytes = 64 << 20
	// boundedBytes is up to which size a file system that is there already counts as bounded.
	boundedBytes = 1 << 30

	stateMode = 0o755 // runtimes bind libraries from below it
	pagesMode = 0o711
)

// lockMode keeps the lock from others: whoever can open a file, if only for reading, can lock it.
const lockMode = 0o600

// lockState makes the state directory and takes its lock, which lasts as long as the file is open. A second agent
// is refused with the process that holds it.
func lockState(directory string) (*os.File, error) {
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

// mountPages makes the pages directory and, unless it is a mount of bounded size already, mounts a tmpfs on it. Where
// that is not allowed the pages lie on whatever file system is there, and the log says so. The mount outlives the
// agent, as the containers do.
func mountPages(directory string, log *slog.Logger) error {
	if err := makePagesDir(directory); err != nil {
		return err
	}
	bounded, err := isBoundedMount(directory)
	if err != nil {
		return err
	}
	if bounded {
		return nil
	}
	options := fmt.Sprintf("size=%d,mode=%04o", pagesBytes, pagesMode)
	if err := unix.Mount("vgpud-pages", directory, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		log.Warn("pages lie on a file system that a container could fill", "directory", directory,
			"reason", "a tmpfs of bounded size could not be mounted", "error", err)
		return nil
	}
	log.Info("mounted a tmpfs for the pages", "directory", directory, "bytes", pagesBytes)
	return nil
}

// makePagesDir makes the directory with its exact mode, whatever the umask.
func makePagesDir(directory string) error {
	if err := os.MkdirAll(directory, stateMode); err != nil {
		return fmt.Errorf("make pages directory: %w", err)
	}
	info, err := os.Lstat(directory)
	if err != nil {
		return fmt.Errorf("make pages directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("pages directory %s is not a directory", directory)
	}
	if info.Mode().Perm() != pagesMode {
		if err := os.Chmod(directory, pagesMode); err != nil {
			return fmt.Errorf("make pages directory: %w", err)
		}
	}
	return nil
}

// isBoundedMount says whether directory is where a small file system is mounted.
func isBoundedMount(directory string) (bool, error) {
	var own, parent unix.Stat_t
	var fileSystem unix.Statfs_t
	if err := errors.Join(unix.Stat(directory, &own), unix.Stat(filepath.Dir(directory), &parent), unix.Statfs(directory, &fileSystem)); err != nil {
		return false, fmt.Errorf("look up the mount of %s: %w", directory, err)
	}
	size := fileSystem.Blocks * uint64(fileSystem.Bsize)
	return own.Dev != parent.Dev && size > 0 && size <= boundedBytes, nil
}
