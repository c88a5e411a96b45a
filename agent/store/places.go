// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package store has what the agent keeps on disk beside the ledger: the containers' pages, verdicts, and the lock of its
// state directory.
//
// places.go refuses directories that are not the agent's to take: it changes the mode of the pages directory and mounts a
// file system over it, and it removes what it does not know from below the state directory.
package store

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
	RecordsDirectory = "records"     // of the ledger
	LibraryDirectory = "library"     // installed libraries
	HealthFile       = "health.json" // verdicts about contention
	FrozenFile       = "frozen.json" // which containers are frozen
)

// Places are the configured directories and files that must not lie in each other. Those that are not used are empty.
type Places struct {
	PagesDir, StateDir, KubeletDir, TextfileDir string
	Library, ControlSocket                      string // files
}

// CheckOverlap says which of the configured directories are equal to, inside or above another one of which they have
// to be apart. resolve is applied to each path before.
func (p Places) CheckOverlap(resolve func(string) string) error {
	type named struct{ name, path string }
	pages, state := named{"pages-dir", p.PagesDir}, named{"state-dir", p.StateDir}
	kubelet, textfile := named{"kubelet-dir", p.KubeletDir}, named{"textfile-dir", p.TextfileDir}
	library := named{"the directory of library", ""}
	if p.Library != "" {
		library.path = filepath.Dir(p.Library)
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
		if p.ControlSocket != "" && relate(resolve(p.ControlSocket), resolve(directory.path)) != "" {
			faults = append(faults, fmt.Errorf("control-socket: value %q is in %s (%s): want a place of its own",
				p.ControlSocket, directory.name, directory.path))
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

// Check refuses places that overlap or belong to others. It changes nothing.
func (p Places) Check() error {
	faults := []error{p.CheckOverlap(resolved)}
	stranger, err := findStranger(p.PagesDir, isPagesEntry)
	if err == nil && stranger != "" {
		err = fmt.Errorf("pages-dir: %s holds %s, which is no page of an allocation: want a directory of its own", p.PagesDir, stranger)
	}
	faults = append(faults, err)
	stranger, err = findStranger(p.StateDir, isStateEntry)
	_, missing := os.Lstat(filepath.Join(p.StateDir, RecordsDirectory))
	if err == nil && stranger != "" && missing != nil {
		err = fmt.Errorf("state-dir: %s holds %s and no records of an agent: want a directory of its own", p.StateDir, stranger)
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
	return slices.Contains([]string{lockFile, RecordsDirectory, LibraryDirectory, HealthFile, FrozenFile}, name)
}
