// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Checks of the host files that a response names, made when the agent starts, before Allocate answers and before
// every container start. The dynamic loader ignores a preload file that it cannot read and a library that it
// cannot load, and a container runtime makes an empty directory of a bind source that is missing: in each case the
// program would run on, unlimited and silent. So the check comes first, and a failed check fails the start.

package plugin

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/plugin/ledger"
)

// Permission bits that a container's user needs; it may be any user.
const (
	othersRead     fs.FileMode = 0o004
	othersWrite    fs.FileMode = 0o002
	othersExecute  fs.FileMode = 0o001
	maxPreloadSize             = 4096
)

// CheckLibrary checks an installed build: the library, and the preload file for the container directory. The error
// names the file and what is wrong with it.
func CheckLibrary(libraryDir string, library ledger.Library) error {
	if err := checkLibraryFile(libraryPath(libraryDir, library), library.BuildID); err != nil {
		return err
	}
	return checkPreloadFile(preloadPath(libraryDir, library), preloadContent(library.ContainerDir))
}

// checkAllocation checks all files that the response of a record named, wherever new allocations find theirs.
func checkAllocation(rec ledger.Record, cfg Config) error {
	if err := CheckLibrary(cfg.LibraryDir, rec.Library); err != nil {
		return err
	}
	return checkPages(rec)
}

// checkPages checks that both pages are regular files with something in them, readable (and the usage page
// writable) by any user of a container.
func checkPages(rec ledger.Record) error {
	dir := pagesPath(rec)
	for _, page := range []struct {
		name string
		need fs.FileMode
	}{{limitsName, othersRead}, {usageName, othersRead | othersWrite}} {
		f, err := openRegular(filepath.Join(dir, page.name), page.need)
		if err != nil {
			return fmt.Errorf("page of allocation %s: %w", rec.Key, err)
		}
		f.Close()
	}
	return nil
}

func checkLibraryFile(path, buildID string) error {
	f, err := openRegular(path, othersRead|othersExecute)
	if err != nil {
		return fmt.Errorf("libvgpu: %w", err)
	}
	defer f.Close()
	if err := checkMountExec(f); err != nil {
		return fmt.Errorf("libvgpu: %w", err)
	}
	got, err := readBuildID(f)
	if err != nil {
		return fmt.Errorf("libvgpu: %s: %w", path, err)
	}
	if got != buildID {
		return fmt.Errorf("libvgpu: %s has build ID %s, expected %s: the file was replaced", path, got, buildID)
	}
	return nil
}

func checkPreloadFile(path, content string) error {
	f, err := openRegular(path, othersRead)
	if err != nil {
		return fmt.Errorf("preload file: %w", err)
	}
	defer f.Close()
	got, err := io.ReadAll(io.LimitReader(f, maxPreloadSize))
	if err != nil {
		return fmt.Errorf("preload file: read %s: %w", path, err)
	}
	if string(got) != content {
		return fmt.Errorf("preload file: %s holds %q, expected %q (the library's path in the container)", path, got, content)
	}
	return nil
}

// openRegular opens a file that has to be regular, not empty, and has to grant others the permissions need. The
// last path component is not followed when it is a link.
func openRegular(path string, need fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s is missing: %w", path, fs.ErrNotExist)
	case errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%s is a symbolic link, expected a regular file", path)
	case err != nil:
		return nil, err
	}
	if err := checkInfo(f, path, need); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func checkInfo(f *os.File, path string, need fs.FileMode) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return &directoryError{path: path}
	case !mode.IsRegular():
		return fmt.Errorf("%s is not a regular file (%s)", path, mode.Type())
	case info.Size() == 0:
		return fmt.Errorf("%s is empty", path)
	case mode.Perm()&need != need:
		return fmt.Errorf("%s has mode %04o: users of containers need %04o of it", path, mode.Perm(), need)
	}
	return nil
}

// directoryError says that a directory stands where a file is expected: what a container runtime leaves when it
// mounts a source that is missing.
type directoryError struct{ path string }

func (e *directoryError) Error() string {
	return e.path + " is a directory, expected a regular file (a container runtime makes one when the file is missing)"
}

// checkMountExec refuses a library on a file system that is mounted noexec: it could be read and not be loaded.
func checkMountExec(f *os.File) error {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &stat); err != nil {
		return fmt.Errorf("look up the mount of %s: %w", f.Name(), err)
	}
	if stat.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("%s is on a file system mounted noexec: programs cannot load it", f.Name())
	}
	return nil
}
