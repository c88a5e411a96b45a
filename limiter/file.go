// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Files beside which hostile hands may work: opened through a handle of their directory, never through a link,
// regular and of the right size or not at all.

package limiter

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// openDirectory opens a directory as a handle; its last element must not be a link.
func openDirectory(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// openFile opens a regular file of the directory. A link, a directory, a pipe in its place is tampering.
func openFile(handle *os.File, name string, flags int) (*os.File, error) {
	path := filepath.Join(handle.Name(), name)
	fd, err := unix.Openat(int(handle.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO) {
		return nil, &TamperError{DamageReplaced, name + " is not a regular file"}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		_ = unix.Close(fd)
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = unix.Close(fd)
		return nil, &TamperError{DamageReplaced, name + " is not a regular file"}
	}
	// It was for pipes. os.File would set it back at each Fd, with two calls, and try in vain to poll a regular file.
	if err := unix.SetNonblock(fd, false); err != nil {
		_ = unix.Close(fd)
		return nil, &fs.PathError{Op: "fcntl", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// createFile makes a file that is not there yet, with all of its blocks, on disk.
func createFile(handle *os.File, name string, mode uint32, content []byte) error {
	path := filepath.Join(handle.Name(), name)
	flags := unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(int(handle.Fd()), name, flags, mode)
	if err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	if err := unix.Fchmod(fd, mode); err != nil { // whatever the umask
		return &fs.PathError{Op: "chmod", Path: path, Err: err}
	}
	if err := allocate(file, len(content)); err != nil {
		return err
	}
	if _, err := file.WriteAt(content, 0); err != nil {
		return err
	}
	return file.Sync()
}

// allocate gives the file all of its blocks, so that a write to a mapping of it never meets a full disk.
func allocate(file *os.File, size int) error {
	err := unix.Fallocate(int(file.Fd()), 0, 0, int64(size))
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // such a file system allocates as it is written, which createFile does in full
	}
	if err != nil {
		return &fs.PathError{Op: "fallocate", Path: file.Name(), Err: err}
	}
	return nil
}

// fileSize is the size of an open file.
func fileSize(file *os.File) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// damageBySize tells a file that grew from one that was cut.
func damageBySize(size int64, want int) Damage {
	if size > int64(want) {
		return DamageGrown
	}
	return DamageCut
}

// readWhole reads a file of exactly len(buffer) bytes. Of a longer one it reads as much, and returns a TamperError with
// DamageGrown.
func readWhole(file *os.File, buffer []byte) error {
	size, err := fileSize(file)
	if err != nil {
		return err
	}
	name := filepath.Base(file.Name())
	_, err = file.ReadAt(buffer, 0)
	switch {
	case size != int64(len(buffer)):
		return &TamperError{damageBySize(size, len(buffer)), fmt.Sprintf("%s has %d bytes, not %d", name, size, len(buffer))}
	case errors.Is(err, io.EOF):
		return &TamperError{DamageCut, name + " became shorter while it was read"}
	}
	return err
}

// syncDirectory puts the directory's entries on disk.
func syncDirectory(dir string) error {
	handle, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer handle.Close()
	return handle.Sync()
}
