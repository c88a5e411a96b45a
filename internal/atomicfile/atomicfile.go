// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package atomicfile replaces a file whole or not at all: a temporary file in the same directory, written,
// given its exact mode, synced, renamed over the name, and the directory synced. A reader sees the old content
// or the new one, also after a crash or a full disk; a process that has the old file open or mapped keeps it.
//
// The directory is opened once and every step works through that handle. The last path component is never
// followed when it is a symbolic link: the link itself is replaced. The directory part of the path is the
// caller's own and is resolved as usual.
package atomicfile

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Temporary files are named tempPrefix + base + "." + nonce + tempSuffix. The suffix never is one that a reader
// of the directory looks for (node_exporter takes every name that ends in .prom, hidden ones too).
const (
	tempPrefix = "."
	tempSuffix = ".tmp"
	nonceBytes = 6
)

// WriteFile replaces path by a file that holds data. mode is given to the file exactly, whatever the umask.
// On an error the old file, if any, is untouched and no temporary file is left, with one exception: when only
// the last sync of the directory fails, the new file is in place and the error is returned all the same.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	return replace(path, mode, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

// Copy replaces path by a file that holds everything src yields. Mode and errors are as in WriteFile.
func Copy(path string, src io.Reader, mode fs.FileMode) error {
	return replace(path, mode, func(f *os.File) error {
		_, err := io.Copy(f, src)
		return err
	})
}

// IsTemp reports whether name (a base name) is one that this package gives to its temporary files. A process
// that was killed half way leaves such a file; the owner of the directory may remove it.
func IsTemp(name string) bool {
	middle, ok := strings.CutPrefix(name, tempPrefix)
	if !ok {
		return false
	}
	middle, ok = strings.CutSuffix(middle, tempSuffix)
	if !ok {
		return false
	}
	dot := strings.LastIndexByte(middle, '.')
	if dot < 1 {
		return false
	}
	nonce, err := hex.DecodeString(middle[dot+1:])
	return err == nil && len(nonce) == nonceBytes
}

// replace does the work of WriteFile and Copy around fill, which writes the content.
func replace(path string, mode fs.FileMode, fill func(*os.File) error) error {
	dir, base := filepath.Split(path)
	if base == "" || base == "." || base == ".." {
		return fmt.Errorf("write %s: not the name of a file", path)
	}
	if dir == "" {
		dir = "."
	}
	handle, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	defer handle.Close()

	temp, err := createTemp(handle, base, mode, fill)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	dirFD := int(handle.Fd())
	if err := unix.Renameat(dirFD, temp, dirFD, base); err != nil {
		return fmt.Errorf("rename to %s: %w", path, errors.Join(err, unlink(dirFD, temp, base)))
	}
	if err := handle.Sync(); err != nil {
		return fmt.Errorf("sync directory of %s: %w", path, err)
	}
	return nil
}

// createTemp makes a complete, synced temporary file beside base and returns its name; on an error it is gone. Errors
// name base: a caller that reports a fault once compares their texts, and the temporary name is another one each time.
func createTemp(dir *os.File, base string, mode fs.FileMode, fill func(*os.File) error) (string, error) {
	nonce := make([]byte, nonceBytes)
	if _, err := rand.Read(nonce); err != nil {
		return "", err
	}
	name := tempPrefix + base + "." + hex.EncodeToString(nonce) + tempSuffix
	dirFD := int(dir.Fd())
	flags := unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(dirFD, name, flags, 0o600)
	if err != nil {
		return "", &fs.PathError{Op: "create temporary file of", Path: base, Err: err}
	}
	f := os.NewFile(uintptr(fd), base)
	err = fill(f)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return "", errors.Join(err, unlink(dirFD, name, base))
	}
	return name, nil
}

func unlink(dirFD int, name, base string) error {
	if err := unix.Unlinkat(dirFD, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove temporary file of", Path: base, Err: err}
	}
	return nil
}
