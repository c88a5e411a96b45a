// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// directories.go refuses directories that are not the agent's to take: it changes the mode of the pages directory and
// mounts a file system over it, and it removes what it does not know from below the state directory.

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// What the agent keeps in its state directory.
const (
	lockFile         = "lock"
	recordsDirectory = "records"
	libraryDirectory = "library"
	healthFile       = "health.json" // verdicts about contention
	frozenFile       = "frozen.json" // which containers are frozen
)

// checkOverlap says which of the configured directories are equal to, inside or above another one of which they have
// to be apart. resolve is applied to each path before.
func checkOverlap(config Config, resolve func(string) string) error {
	type named struct{ name, path string }
	pages, state := named{"pages-dir", config.PagesDir}, named{"state-dir", config.StateDir}
	kubelet, textfile := named{"kubelet-dir", config.KubeletDir}, named{"textfile-dir", config.TextfileDir}
	library := named{"the directory of library", ""}
	if config.Library != "" {
		library.path = filepath.Dir(config.Library)
	}
	var faults []error
	for _, pair := range [][2]named{{pages, state}, {pages, kubelet}, {pages, textfile}, {pages, library}, {state, kubelet}, {state, textfile}} {
		own, other := pair[0], pair[1]
		if own.path == "" || other.path == "" {
			continue
		}
		relation := relate(resolve(own.path), resolve(other.path))
		if relation != "" {
			faults = append(faults, fmt.Errorf("%s: value %q is %s %s (%s): want a directory of its own",
				own.name, own.path, relation, other.name, other.path))
		}
	}
	for _, directory := range []named{pages, state} {
		if config.ControlSocket != "" && relate(resolve(config.ControlSocket), resolve(directory.path)) != "" {
			faults = append(faults, fmt.Errorf("control-socket: value %q is in %s (%s): want a place of its own",
				config.ControlSocket, directory.name, directory.path))
		}
	}
	return errors.Join(faults...)
}

// relate says how a directory lies to another one; empty: apart.
func relate(own, other string) string {
	switch {
	case own == other:
		return "equal to"
	case strings.HasPrefix(own, other+"/"):
		return "inside"
	case strings.HasPrefix(other, own+"/"):
		return "above"
	default:
		return ""
	}
}

// resolved follows the links of a path as far as it exists.
func resolved(path string) string {
	rest := ""
	for at := path; ; at = filepath.Dir(at) {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			return filepath.Join(real, rest)
		}
		if at == filepath.Dir(at) {
			return path
		}
		rest = filepath.Join(filepath.Base(at), rest)
	}
}

// checkDirectories refuses a configuration whose directories belong to others. It changes nothing.
func checkDirectories(config Config) error {
	faults := []error{checkOverlap(config, resolved)}
	stranger, err := findStranger(config.PagesDir, isPagesEntry)
	if err == nil && stranger != "" {
		err = fmt.Errorf("pages-dir: %s holds %s, which is no page of an allocation: want a directory of its own", config.PagesDir, stranger)
	}
	faults = append(faults, err)
	stranger, err = findStranger(config.StateDir, isStateEntry)
	_, missing := os.Lstat(filepath.Join(config.StateDir, recordsDirectory))
	if err == nil && stranger != "" && missing != nil {
		err = fmt.Errorf("state-dir: %s holds %s and no records of an agent: want a directory of its own", config.StateDir, stranger)
	}
	return errors.Join(append(faults, err)...)
}

// findStranger returns a name in directory that is not known; empty if there is none or no directory yet.
func findStranger(directory string, known func(name string) bool) (string, error) {
	entries, err := os.ReadDir(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	for _, entry := range entries {
		if !known(entry.Name()) && entry.Name() != "lost+found" { // which file systems make
			return entry.Name(), nil
		}
	}
	return "", err
}

// isPagesEntry knows pages, and what an agent left that was killed while making or removing some: ".<key>.<number>".
func isPagesEntry(name string) bool {
	half, hidden := strings.CutPrefix(name, ".")
	key, _, numbered := strings.Cut(half, ".")
	return isKey(name) || hidden && numbered && isKey(key)
}

func isStateEntry(name string) bool {
	return slices.Contains([]string{lockFile, recordsDirectory, libraryDirectory, healthFile, frozenFile}, name)
}
