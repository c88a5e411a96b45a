// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package image

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Files maps a path in the image (absolute) to the file of this machine whose content stands there.
type Files map[string]string

// AddProgram adds a program of this machine under the same path, with its loader and all shared libraries that the
// loader finds for it. Libraries keep the paths that the loader gives, so the image needs no loader cache as long as
// these are on the built-in search path or in the program's own.
func (f Files) AddProgram(path string) error { return f.AddProgramAs(path, path) }

// AddProgramAs is AddProgram with another path in the image.
func (f Files) AddProgramAs(imagePath, path string) error {
	loader, err := interpreter(path)
	if err != nil {
		return err
	}
	f[merged(imagePath)] = path
	if loader == "" {
		return nil
	}
	f[merged(loader)] = loader
	if strings.Contains(loader, "ld-musl") {
		return nil // musl's loader is its libc; our musl program needs nothing else
	}
	out, err := exec.Command("ldd", path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("list libraries of %s: %w: %s", path, err, out)
	}
	for _, line := range strings.Split(string(out), "\n") {
		_, found, isLibrary := strings.Cut(line, " => ")
		if !isLibrary {
			continue
		}
		library, _, _ := strings.Cut(found, " (")
		if !strings.HasPrefix(library, "/") {
			return fmt.Errorf("list libraries of %s: %s", path, strings.TrimSpace(line))
		}
		f[merged(library)] = library
	}
	return nil
}

// interpreter reads the loader that an ELF program asks for; empty for static programs and for scripts.
func interpreter(path string) (string, error) {
	file, err := elf.Open(path)
	if err != nil {
		if _, isFormat := errors.AsType[*elf.FormatError](err); isFormat {
			return "", nil
		}
		return "", fmt.Errorf("read program %s: %w", path, err)
	}
	defer file.Close()
	for _, program := range file.Progs {
		if program.Type != elf.PT_INTERP {
			continue
		}
		name := make([]byte, program.Filesz)
		if _, err := program.ReadAt(name, 0); err != nil {
			return "", fmt.Errorf("read loader of %s: %w", path, err)
		}
		return strings.TrimRight(string(name), "\x00"), nil
	}
	return "", nil
}

// merged puts a path into /usr as a Debian system does, where /bin, /lib and so on are links into /usr.
func merged(path string) string {
	for _, dir := range mergedDirs {
		if strings.HasPrefix(path, "/"+dir+"/") {
			return "/usr" + path
		}
	}
	return path
}

var mergedDirs = []string{"bin", "lib", "lib32", "lib64", "sbin"}

// stamp is what decides whether two Files give the same layer: names, sizes and times of change.
func (f Files) stamp() (string, error) {
	var b strings.Builder
	for _, imagePath := range sortedKeys(f) {
		st, err := os.Stat(f[imagePath])
		if err != nil {
			return "", fmt.Errorf("look at file for image: %w", err)
		}
		fmt.Fprintln(&b, imagePath, f[imagePath], st.Mode(), st.Size(), st.ModTime().UnixNano())
	}
	return b.String(), nil
}
