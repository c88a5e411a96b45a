// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Installation of libvgpu on the host: one directory per build ID, files that arrive by rename and are never
// rewritten while they are right, and that stay as long as an allocation names them.

package plugin

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/atomicfile"
)

// Modes of what is installed: any user of a container loads it.
const (
	libraryMode    fs.FileMode = 0o755
	preloadMode    fs.FileMode = 0o644
	libraryDirMode fs.FileMode = 0o755
)

// InstallLibrary copies the library at source to <libraryDir>/<build ID>/libvgpu.so, writes the ld.so.preload
// beside it that names <containerDir>/libvgpu.so, and returns the build ID. Files that are already right are not
// touched. A source that is missing, empty, for another machine or without a build ID is refused.
//
// inUse says whether an allocation still names a build ID. Its preload file is then not changed to another
// containerDir, because containers that start again mount the library where it was: that is an error.
func InstallLibrary(source, libraryDir, containerDir string, inUse func(buildID string) bool) (string, error) {
	if err := validateDir("container directory", containerDir); err != nil {
		return "", err
	}
	src, err := openSource(source)
	if err != nil {
		return "", err
	}
	defer src.Close()
	buildID, err := readBuildID(src)
	if err != nil {
		return "", fmt.Errorf("library %s: %w", source, err)
	}
	dir := filepath.Join(libraryDir, buildID)
	if err := makeLibraryDir(dir); err != nil {
		return "", err
	}
	if err := installPreload(filepath.Join(dir, preloadName), containerDir, inUse(buildID)); err != nil {
		return "", err
	}
	if err := installCopy(src, filepath.Join(dir, libraryName)); err != nil {
		return "", fmt.Errorf("install library: %w", err)
	}
	return buildID, nil
}

// openSource opens the library that came with the agent. Unlike an installed file it may be a link.
func openSource(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open library: %w", err)
	}
	if err := checkInfo(f, path, 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("library: %w", err)
	}
	return f, nil
}

func makeLibraryDir(dir string) error {
	if err := os.MkdirAll(dir, libraryDirMode); err != nil {
		return fmt.Errorf("make library directory: %w", err)
	}
	if err := os.Chmod(dir, libraryDirMode); err != nil { // whatever the umask
		return fmt.Errorf("make library directory: %w", err)
	}
	return nil
}

func installPreload(path, containerDir string, inUse bool) error {
	content := preloadContent(containerDir)
	err := checkPreloadFile(path, content)
	if err == nil {
		return nil
	}
	if current, readErr := os.ReadFile(path); inUse && readErr == nil && len(current) > 0 {
		return fmt.Errorf("%w; running containers still use it: keep the container directory until they are gone", err)
	}
	if err := replaceable(path); err != nil {
		return err
	}
	return atomicfile.WriteFile(path, []byte(content), preloadMode)
}

// installCopy makes path a copy of src unless it already is one.
func installCopy(src *os.File, path string) error {
	same, err := sameContent(src, path)
	if err != nil {
		return err
	}
	if same {
		return nil
	}
	if err := replaceable(path); err != nil {
		return err
	}
	return atomicfile.Copy(path, io.NewSectionReader(src, 0, 1<<62), libraryMode)
}

// replaceable makes room where a container runtime left an empty directory; a directory with content is an error.
func replaceable(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		return unix.Rmdir(path)
	}
	return nil
}

// sameContent reports whether path is a proper installed file with the bytes of src.
func sameContent(src *os.File, path string) (bool, error) {
	installed, err := openRegular(path, othersRead|othersExecute)
	if err != nil {
		return false, nil // absent or damaged: it is replaced
	}
	defer installed.Close()
	want, err := contentHash(src)
	if err != nil {
		return false, err
	}
	got, err := contentHash(installed)
	if err != nil {
		return false, err
	}
	return bytes.Equal(want, got), nil
}

func contentHash(f *os.File) ([]byte, error) {
	hash := sha256.New()
	if _, err := io.Copy(hash, io.NewSectionReader(f, 0, 1<<62)); err != nil {
		return nil, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return hash.Sum(nil), nil
}

// SweepLibraries removes the installed builds that keep does not want, and returns their build IDs. Only
// directories named by a build ID that hold nothing but our files are touched.
func SweepLibraries(libraryDir string, keep func(buildID string) bool) ([]string, error) {
	entries, err := os.ReadDir(libraryDir)
	if err != nil {
		return nil, fmt.Errorf("read library directory: %w", err)
	}
	var removed []string
	var errs []error
	for _, entry := range entries {
		if !entry.IsDir() || !validBuildID(entry.Name()) || keep(entry.Name()) {
			continue
		}
		if err := removeBuild(filepath.Join(libraryDir, entry.Name())); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, entry.Name())
	}
	return removed, errors.Join(errs...)
}

func removeBuild(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if name := entry.Name(); name != libraryName && name != preloadName && !atomicfile.IsTemp(name) {
			return fmt.Errorf("leave %s: it holds %s, which is not ours", dir, name)
		}
	}
	for _, entry := range entries {
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return os.Remove(dir)
}
