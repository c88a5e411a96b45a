// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Pages as the plugin needs them, and how they come back after a reboot.

package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/plugin/ledger"
)

// Pages makes and removes the two pages of an allocation in <PagesDir>/<key>. The agent adapts package limiter.
type Pages interface {
	// Create makes both pages, born with the limits of grants. fs.ErrExist (wrapped) when they are there.
	Create(key string, grants []ledger.Grant) error
	// RaiseEpoch tells the library that every process it knew of this allocation is gone.
	RaiseEpoch(key string) error
	// Remove removes the pages; it is no error when they are not there.
	Remove(key string) error
}

// restorePages makes the pages of a record again when they are gone: the pages directory is usually on a tmpfs,
// and a container that starts again after a reboot gets the paths of its old response. Pages that are there in any
// form are left as they are, except for the empty directory that a container runtime makes of a missing source.
func restorePages(rec ledger.Record, cfg Config, pages Pages) error {
	err := checkPages(rec, cfg)
	var directory *directoryError
	switch {
	case errors.As(err, &directory):
		dir := pagesPath(cfg, rec.Key)
		for _, name := range []string{limitsName, usageName} {
			if err := unix.Rmdir(filepath.Join(dir, name)); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
				return fmt.Errorf("restore pages of allocation %s: %w", rec.Key, err)
			}
		}
	case errors.Is(err, fs.ErrNotExist):
	default:
		return nil
	}
	// One page without the other is of no use, and Create insists on making both.
	if err := pages.Remove(rec.Key); err != nil {
		return fmt.Errorf("restore pages of allocation %s: %w", rec.Key, err)
	}
	if err := pages.Create(rec.Key, rec.Grants); err != nil {
		return fmt.Errorf("restore pages of allocation %s: %w", rec.Key, err)
	}
	return nil
}
