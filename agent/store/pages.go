// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// pages.go keeps the pages of all allocations, for the plugin (born, restored, epoch, removed) and for the tick (put right,
// restored). Package limiter knows what is in them. Each record names the directory of its own pages, which is the one that
// was configured when it was granted.

package store

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// firstEpoch is the epoch of new pages; 0 is left to pages of nobody.
const firstEpoch = 1

// roomTries is how often pages are tried to be made on a full file system. Between two tries every page that its
// container made longer is cut; what that frees has to be taken before the container takes it again.
const roomTries = 64

// Pages implements plugin.Pages. The lock keeps creation, restoring, changes and removal of pages apart.
type Pages struct {
	directory string             // of new pages
	mount     func(string) error // makes a directory of pages, and mounts what bounds its size
	log       *slog.Logger
	made      atomic.Uint64

	mu    sync.Mutex
	ready map[string]Identity // directories that were made ready, and what they were then
}

var _ plugin.Pages = (*Pages)(nil)

// Identity tells a directory from another one in its place, such as the one below a mount that is gone.
type Identity struct{ device, inode uint64 }

// NewPages keeps pages in a directory that mount makes, together with what bounds its size.
func NewPages(directory string, mount func(string) error, log *slog.Logger) *Pages {
	return &Pages{directory: directory, mount: mount, log: log, ready: map[string]Identity{}}
}

// Directory is where the pages of an allocation are.
func Directory(record ledger.Record) string { return filepath.Join(record.PagesDir, record.Key) }

// Made counts how often pages were made: those that somebody has open may be others by now.
func (s *Pages) Made() uint64 { return s.made.Load() }

// Ready implements plugin.Pages.
func (s *Pages) Ready() error { return s.Prepare(s.directory) }

// Prepare makes a directory of pages ready unless it still is what it was when it was made ready: it may have been
// removed or unmounted since.
func (s *Pages) Prepare(directory string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.prepareLocked(directory)
}

func (s *Pages) prepareLocked(directory string) error {
	before, known := s.ready[directory]
	if now, err := identifyDirectory(directory); err == nil && known && now == before {
		return nil
	}
	if known {
		s.log.Warn("the pages directory was removed or unmounted; it is made again", "directory", directory)
	}
	if err := s.mount(directory); err != nil {
		return err
	}
	now, err := identifyDirectory(directory)
	if err != nil {
		return fmt.Errorf("look up pages directory: %w", err)
	}
	s.ready[directory] = now
	return nil
}

func identifyDirectory(path string) (Identity, error) {
	identity, mode, err := identify(path)
	if err == nil && mode&unix.S_IFMT != unix.S_IFDIR { // it may have got the number of the directory that was there
		err = &fs.PathError{Op: "stat", Path: path, Err: unix.ENOTDIR}
	}
	return identity, err
}

// Identify tells what is at a path now. Links are not followed.
func Identify(path string) (Identity, error) {
	identity, _, err := identify(path)
	return identity, err
}

func identify(path string) (identity Identity, mode uint32, err error) {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return Identity{}, 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return Identity{stat.Dev, stat.Ino}, stat.Mode, nil
}

// Create implements plugin.Pages.
func (s *Pages) Create(record ledger.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.createLocked(record)
}

func (s *Pages) createLocked(record ledger.Record) error {
	if err := s.prepareLocked(record.PagesDir); err != nil {
		return err
	}
	limits := limiter.Limits{Key: record.Key, Epoch: firstEpoch}
	for _, grant := range record.Grants {
		limits.Devices = append(limits.Devices, limiter.Device{UUID: grant.UUID, SliceCount: uint32(len(grant.SliceIDs)),
			MemoryLimitBytes: grant.MemoryLimitBytes, Compute: pageCompute(grant.Compute)})
	}
	defer s.made.Add(1)
	return s.withRoomLocked(record.PagesDir, func() error { return limiter.Create(Directory(record), limits) })
}

// pageCompute is what a grant of GPU time is in a page. A mode that is none of ours limits: the safe side.
func pageCompute(grant ledger.Compute) limiter.Compute {
	compute := limiter.Compute{Mode: limiter.ComputeHard, SharePPM: grant.SharePPM, CeilingPPM: grant.CeilingPPM}
	switch grant.Mode {
	case ledger.ComputeNone:
		compute.Mode = limiter.ComputeNone
	case ledger.ComputeElastic:
		compute.Mode = limiter.ComputeElastic
	}
	return compute
}

// withRoomLocked calls write, which takes space in a directory of pages. Space there is shared: a container that makes
// its usage page longer can take all of it, and must not keep others from theirs.
func (s *Pages) withRoomLocked(directory string, write func() error) error {
	err := write()
	for try := 0; try < roomTries && errors.Is(err, unix.ENOSPC); try++ {
		s.shrinkLocked(directory)
		err = write()
	}
	return err
}

// shrinkLocked cuts the pages that are longer than they were made. Why one cannot be cut is for the tick to tell, which
// looks at each page.
func (s *Pages) shrinkLocked(directory string) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if isKey(entry.Name()) {
			_, _ = limiter.ShrinkUsage(filepath.Join(directory, entry.Name()))
		}
	}
}

// RaiseEpoch implements plugin.Pages. The container's earlier processes are gone: what they did to the usage page is put
// right and forgotten.
func (s *Pages) RaiseEpoch(record ledger.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := limiter.ReadUsage(Directory(record)); errors.Is(err, limiter.ErrTampered) {
		if err := s.restoreUsageLocked(record); err != nil {
			return err
		}
	}
	_, err := limiter.RaiseEpoch(Directory(record))
	return err
}

// Freeze lets the processes of an allocation allocate nothing more. False: its epoch is another one by now, so the
// damage is that of processes that are gone.
func (s *Pages) Freeze(record ledger.Record, epoch uint32, why limiter.Damage) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limits, err := limiter.ReadLimits(Directory(record))
	if err != nil || limits.Epoch != epoch {
		return false, err
	}
	return true, limiter.Freeze(Directory(record), why)
}

// Remove implements plugin.Pages.
func (s *Pages) Remove(record ledger.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return removePages(Directory(record))
}

func removePages(directory string) error {
	if err := limiter.Remove(directory); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Restore implements plugin.Pages.
func (s *Pages) Restore(record ledger.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.prepareLocked(record.PagesDir); err != nil {
		return err
	}
	missing := false
	for _, name := range []string{limiter.LimitsFile, limiter.UsageFile} {
		path := filepath.Join(Directory(record), name)
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = true
		case err != nil:
			return err
		case info.IsDir(): // a container runtime makes an empty one when a source is missing
			if err := unix.Rmdir(path); err != nil {
				return &fs.PathError{Op: "rmdir", Path: path, Err: err}
			}
			missing = true
		}
	}
	if !missing {
		return nil
	}
	if err := removePages(Directory(record)); err != nil { // one without the other is of no use
		return err
	}
	return s.createLocked(record)
}

// RestoreUsage puts size and header of a tampered usage page back. Where what the processes wrote cannot be true
// all the same, everything is wiped: each process finds its slot gone and registers again, with all that it holds.
func (s *Pages) RestoreUsage(record ledger.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restoreUsageLocked(record)
}

func (s *Pages) restoreUsageLocked(record ledger.Record) error {
	directory := Directory(record)
	restore := func() error { return limiter.RestoreUsage(directory) }
	if err := s.withRoomLocked(record.PagesDir, restore); err != nil {
		return err
	}
	if _, err := limiter.ReadUsage(directory); !errors.Is(err, limiter.ErrTampered) {
		return err
	}
	if err := wipe(filepath.Join(directory, limiter.UsageFile)); err != nil {
		return err
	}
	return s.withRoomLocked(record.PagesDir, restore)
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

// Sweep removes the pages of allocations that are not to be kept: an agent that is killed between making pages and
// writing the record leaves such. Names that are no keys are left alone.
func (s *Pages) Sweep(directory string, keep func(key string) bool) (removed []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, fmt.Errorf("look for old pages: %w", err)
	}
	var faults []error
	for _, entry := range entries {
		key := entry.Name()
		if !isKey(key) || !entry.IsDir() || keep(key) {
			continue
		}
		if err := removePages(filepath.Join(directory, key)); err != nil {
			faults = append(faults, err)
			continue
		}
		removed = append(removed, key)
	}
	return removed, errors.Join(faults...)
}

func isKey(name string) bool {
	_, err := hex.DecodeString(name)
	return err == nil && len(name) == ledger.KeyBytes
}
