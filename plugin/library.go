// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Installation of libvgpu on the host: one directory per build ID, in it one per container directory, files that
// arrive by rename and are never rewritten while they are right, and that stay as long as an allocation names them.
//
//	<libraryDir>/<build ID>/libvgpu.so
//	<libraryDir>/<build ID>/<hash of the container directory>/ld.so.preload

package plugin

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/atomicfile"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// Modes of what is installed: any user of a container loads it.
const (
	libraryMode    fs.FileMode = 0o755
	preloadMode    fs.FileMode = 0o644
	libraryDirMode fs.FileMode = 0o755
)

// preloadHashBytes is how much of a container directory's SHA-256 names the directory of its preload file.
const preloadHashBytes = 8

// libraryPath is the host path of an installed library.
func libraryPath(libraryDir string, library ledger.Library) string {
	return filepath.Join(libraryDir, library.BuildID, libraryName)
}

// LibraryPattern matches the host paths of all installed libraries, those of earlier agents included.
func LibraryPattern(libraryDir string) string { return filepath.Join(libraryDir, "*", libraryName) }

// preloadPath is the host path of the ld.so.preload for one container directory. Another one has another file, so that
// containers that start again find the line that they were given.
func preloadPath(libraryDir string, library ledger.Library) string {
	hash := sha256.Sum256([]byte(library.ContainerDir))
	return filepath.Join(libraryDir, library.BuildID, hex.EncodeToString(hash[:preloadHashBytes]), preloadName)
}

// isPreloadDir reports whether a name is that of a directory that preloadPath may return.
func isPreloadDir(name string) bool {
	raw, err := hex.DecodeString(name)
	return err == nil && len(raw) == preloadHashBytes
}

// InstallLibrary copies the library at source below libraryDir, writes the ld.so.preload that names
// <containerDir>/libvgpu.so, and returns the build ID. Files that are already right are not touched. A source that is
// missing, empty, for another machine or without a build ID is refused.
func InstallLibrary(source, libraryDir, containerDir string) (string, error) {
	if err := ValidatePath(containerDir); err != nil {
		return "", fmt.Errorf("container directory %q: %w", containerDir, err)
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
	library := ledger.Library{BuildID: buildID, ContainerDir: containerDir}
	if err := installPreload(preloadPath(libraryDir, library), containerDir); err != nil {
		return "", err
	}
	if err := installCopy(src, libraryPath(libraryDir, library)); err != nil {
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

// makePreloadDir makes the directories of a build and of its preload file.
func makePreloadDir(dir string) error {
	if err := os.MkdirAll(dir, libraryDirMode); err != nil {
		return fmt.Errorf("make library directory: %w", err)
	}
	for _, made := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(made, libraryDirMode); err != nil { // whatever the umask
			return fmt.Errorf("make library directory: %w", err)
		}
	}
	return nil
}

func installPreload(path, containerDir string) error {
	if err := makePreloadDir(filepath.Dir(path)); err != nil {
		return err
	}
	content := preloadContent(containerDir)
	if checkPreloadFile(path, content) == nil {
		return nil
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
// directories named by a build ID that hold nothing but our files are touched. A build that stays keeps its preload
// files for every container directory: they are small, and go with it.
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

// removeBuild removes all files of a build, or none when one is not ours.
func removeBuild(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	paths := []string{dir}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		switch {
		case entry.IsDir() && isPreloadDir(entry.Name()):
			inside, err := os.ReadDir(path)
			if err != nil {
				return err
			}
			paths = append(paths, path)
			for _, file := range inside {
				if !isOurs(file, preloadName) {
					return notOurs(path, file)
				}
				paths = append(paths, filepath.Join(path, file.Name()))
			}
		case isOurs(entry, libraryName):
			paths = append(paths, path)
		default:
			return notOurs(dir, entry)
		}
	}
	for _, path := range slices.Backward(paths) { // what is inside first
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// isOurs says whether an entry is the installed file of this name, a temporary one, or what a container runtime made
// in its place.
func isOurs(entry fs.DirEntry, name string) bool {
	return entry.Name() == name || atomicfile.IsTemp(entry.Name())
}

func notOurs(dir string, entry fs.DirEntry) error {
	return fmt.Errorf("leave %s: it holds %s, which is not ours", dir, entry.Name())
}
