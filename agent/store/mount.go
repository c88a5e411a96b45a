// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// mount.go puts pages on a file system of bounded size, because a container can grow a file that is bound into it until the
// node's disk is full.

package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

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

// MountPages makes the pages directory and, unless it is a mount of bounded size already, mounts a tmpfs on it. Where
// that is not allowed the pages lie on whatever file system is there, and the log says so. The mount outlives the
// agent, as the containers do.
func MountPages(directory string, log *slog.Logger) error {
	if err := MakePagesDir(directory); err != nil {
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

// MakePagesDir makes the directory with its exact mode, whatever the umask.
func MakePagesDir(directory string) error {
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
