// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// page_store.go keeps the pages of all allocations in one directory, for the plugin (born, epoch, removed) and for
// the tick (restored). Package limiter knows what is in them.

package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// firstEpoch is the epoch of new pages; 0 is left to pages of nobody.
const firstEpoch = 1

// pageStore implements plugin.Pages. The lock keeps creation, restoring and removal of pages apart.
type pageStore struct {
	directory string
	mu        sync.Mutex
}

var _ plugin.Pages = (*pageStore)(nil)

func (s *pageStore) path(key string) string { return filepath.Join(s.directory, key) }

// Create implements plugin.Pages.
func (s *pageStore) Create(key string, grants []ledger.Grant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.createLocked(key, grants)
}

func (s *pageStore) createLocked(key string, grants []ledger.Grant) error {
	limits := limiter.Limits{Key: key, Epoch: firstEpoch}
	for _, grant := range grants {
		limits.Devices = append(limits.Devices, limiter.Device{UUID: grant.UUID, SliceCount: uint32(len(grant.SliceIDs)),
			MemoryLimitBytes: grant.MemoryLimitBytes})
	}
	return limiter.Create(s.path(key), limits)
}

// RaiseEpoch implements plugin.Pages.
func (s *pageStore) RaiseEpoch(key string) error {
	_, err := limiter.RaiseEpoch(s.path(key))
	return err
}

// Remove implements plugin.Pages.
func (s *pageStore) Remove(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removeLocked(key)
}

func (s *pageStore) removeLocked(key string) error {
	if err := limiter.Remove(s.path(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// restoreUsage puts size and header of a tampered usage page back. Where what the processes wrote cannot be true
// all the same, everything is wiped: each process finds its slot gone and registers again, with all that it holds.
func (s *pageStore) restoreUsage(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := limiter.RestoreUsage(s.path(key)); err != nil {
		return err
	}
	if _, err := limiter.ReadUsage(s.path(key)); !errors.Is(err, limiter.ErrTampered) {
		return err
	}
	if err := wipe(filepath.Join(s.path(key), limiter.UsageFile)); err != nil {
		return err
	}
	return limiter.RestoreUsage(s.path(key))
}

// wipe writes zeros over a file. It is never cut: processes that have it mapped would be killed.
func wipe(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("wipe usage page: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("wipe usage page: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxUsageBytes {
		return fmt.Errorf("wipe usage page: %s is not a usage page", path)
	}
	if _, err := file.WriteAt(make([]byte, info.Size()), 0); err != nil {
		return fmt.Errorf("wipe usage page: %w", err)
	}
	return nil
}

// maxUsageBytes is more than any usage page has.
const maxUsageBytes = 4 << 20

// restore makes both pages anew when one is gone: one without the other is of no use.
func (s *pageStore) restore(key string, grants []ledger.Grant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	missing := false
	for _, name := range []string{limiter.LimitsFile, limiter.UsageFile} {
		if _, err := os.Lstat(filepath.Join(s.path(key), name)); errors.Is(err, fs.ErrNotExist) {
			missing = true
		}
	}
	if !missing {
		return nil
	}
	if err := s.removeLocked(key); err != nil {
		return err
	}
	return s.createLocked(key, grants)
}

// sweep removes the pages of allocations that are not to be kept: an agent that is killed between making pages and
// writing the record leaves such. Names that are no keys are left alone.
func (s *pageStore) sweep(keep func(key string) bool) (removed []string, err error) {
	entries, err := os.ReadDir(s.directory)
	if err != nil {
		return nil, fmt.Errorf("look for old pages: %w", err)
	}
	var faults []error
	for _, entry := range entries {
		key := entry.Name()
		if _, err := hex.DecodeString(key); err != nil || len(key) != ledger.KeyBytes || !entry.IsDir() || keep(key) {
			continue
		}
		if err := s.Remove(key); err != nil {
			faults = append(faults, err)
			continue
		}
		removed = append(removed, key)
	}
	return removed, errors.Join(faults...)
}
