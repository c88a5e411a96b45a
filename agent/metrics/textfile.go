// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package metrics

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vgpud/vgpud/internal/atomicfile"
)

// FileName is the name of the file in the textfile directory.
const FileName = "vgpud.prom"

// fileMode lets the exporter read, which runs as another user.
const fileMode = 0o644

// Textfile is vgpud.prom. Its methods are for one goroutine at a time.
type Textfile struct {
	path        string
	writeErrors uint64
}

// NewTextfile names the file in directory; it touches nothing.
func NewTextfile(directory string) *Textfile {
	return &Textfile{path: filepath.Join(directory, FileName)}
}

// Write replaces the file by what view says. On an error the older file stays as it was. Whatever has the
// file's name, a link or a fifo of somebody else included, is replaced and neither followed nor opened.
func (t *Textfile) Write(view View) error {
	view.WriteErrors = t.writeErrors
	text, err := render(view)
	if err == nil {
		err = atomicfile.WriteFile(t.path, text, fileMode)
	}
	if err != nil {
		t.writeErrors++
		return fmt.Errorf("write metrics file: %w", err)
	}
	return nil
}

// Remove takes the file away, so that no old numbers are exported after the agent has stopped, and
// temporary files that a killed agent left. A file that is not there is no error.
func (t *Textfile) Remove() error {
	err := os.Remove(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, t.RemoveLeftovers())
}

// RemoveLeftovers takes away the temporary files that an agent left that was killed while writing. Where there is no
// directory there are none.
func (t *Textfile) RemoveLeftovers() error {
	directory := filepath.Dir(t.path)
	entries, err := os.ReadDir(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for temporary files: %w", err)
	}
	var faults []error
	for _, entry := range entries {
		if !atomicfile.IsTemp(entry.Name()) || !strings.HasPrefix(entry.Name(), "."+FileName+".") {
			continue
		}
		if err := os.Remove(filepath.Join(directory, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}
