// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/require"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin/ledger"
)

const (
	gpuA      = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
	sliceSize = 8 << 30
)

// storedRecord is an allocation with pages in directory.
func storedRecord(directory string, number int) ledger.Record {
	return ledger.Record{Key: fmt.Sprintf("%032x", number), PagesDir: directory,
		Grants: []ledger.Grant{{UUID: gpuA, SliceIDs: []string{ledger.SliceID(gpuA, number)}, MemoryLimitBytes: sliceSize,
			Compute: ledger.Compute{Mode: ledger.ComputeElastic, SharePPM: 100_000, CeilingPPM: 600_000}}}}
}

// checkStored fails the test unless a record's pages are as they were made.
func checkStored(t *testing.T, record ledger.Record) {
	t.Helper()
	limits, err := limiter.ReadLimits(Directory(record))
	if err != nil || limits.Key != record.Key || len(limits.Devices) != 1 || limits.Devices[0].MemoryLimitBytes != sliceSize ||
		limits.Devices[0].Compute != (limiter.Compute{Mode: limiter.ComputeElastic, SharePPM: 100_000, CeilingPPM: 600_000}) {
		t.Errorf("limits %+v, %v", limits, err)
	}
	if _, err := limiter.ReadUsage(Directory(record)); err != nil {
		t.Error(err)
	}
}

// smallTmpfs mounts a file system of the given size.
func smallTmpfs(t *testing.T, bytes int) string {
	t.Helper()
	require.Root(t)
	directory := filepath.Join(t.TempDir(), "pages")
	if err := os.Mkdir(directory, pagesMode); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("vgpud-test", directory, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(directory, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return directory
}

// grow makes a file as long as it can, again and again, as fast as it can, until stop.
func grow(t *testing.T, path string, stop *atomic.Bool, full *atomic.Int64) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Error(err)
		return
	}
	defer file.Close()
	chunk := make([]byte, 1<<20)
	for !stop.Load() {
		end, err := file.Seek(0, io.SeekEnd)
		if err == nil {
			_, err = file.WriteAt(chunk, end)
		}
		if err == nil {
			err = unix.Fallocate(int(file.Fd()), 0, end, int64(len(chunk))*8)
		}
		if err != nil {
			full.Add(1)
		}
	}
}

// Containers that make their usage pages longer in a tight loop keep nobody else from getting pages.
func TestGrowingPagesKeepNobodyOut(t *testing.T) {
	directory := smallTmpfs(t, 8<<20)
	store := NewPages(directory, MakePagesDir, slog.New(slog.DiscardHandler))
	var stop atomic.Bool
	var full atomic.Int64
	var group sync.WaitGroup
	defer group.Wait()
	defer stop.Store(true)
	const growers, newcomers = 8, 100
	for number := range growers {
		record := storedRecord(directory, number)
		if err := store.Create(record); err != nil {
			t.Fatal(err)
		}
		group.Go(func() { grow(t, filepath.Join(Directory(record), limiter.UsageFile), &stop, &full) })
	}
	for full.Load() == 0 && !t.Failed() {
		continue // until the file system is full
	}
	for number := range newcomers {
		record := storedRecord(directory, growers+number)
		if err := store.Create(record); err != nil {
			t.Fatalf("newcomer %d: %v", number, err)
		}
		checkStored(t, record)
		if err := store.Remove(record); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the growers met a full file system %d times", full.Load())
}

// What is full for another reason is an error, and leaves nothing.
func TestPagesThatDoNotFit(t *testing.T) {
	directory := smallTmpfs(t, 64<<10)
	store := NewPages(directory, MakePagesDir, slog.New(slog.DiscardHandler))
	if err := os.WriteFile(filepath.Join(directory, "ballast"), make([]byte, 60<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := store.Create(storedRecord(directory, 1)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("create on a full file system: %v", err)
	}
	if entries, err := os.ReadDir(directory); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v %v", entries, err)
	}
}

func TestRestorePages(t *testing.T) {
	usageOf := func(record ledger.Record) string { return filepath.Join(Directory(record), limiter.UsageFile) }
	for name, spoil := range map[string]func(ledger.Record) error{
		"everything gone":  func(r ledger.Record) error { return os.RemoveAll(r.PagesDir) },
		"both gone":        func(r ledger.Record) error { return os.RemoveAll(Directory(r)) },
		"one gone":         func(r ledger.Record) error { return os.Remove(usageOf(r)) },
		"one an empty dir": func(r ledger.Record) error { return errors.Join(os.Remove(usageOf(r)), os.Mkdir(usageOf(r), 0o755)) },
		"both empty dirs": func(r ledger.Record) error {
			return errors.Join(os.RemoveAll(r.PagesDir), os.MkdirAll(usageOf(r), 0o755),
				os.Mkdir(filepath.Join(Directory(r), limiter.LimitsFile), 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			record := storedRecord(filepath.Join(t.TempDir(), "pages"), 7)
			store := NewPages(record.PagesDir, MakePagesDir, slog.New(slog.DiscardHandler))
			if err := errors.Join(store.Create(record), spoil(record), store.Restore(record)); err != nil {
				t.Fatal(err)
			}
			checkStored(t, record)
		})
	}
}

// What is in the pages is not restored to what it was: only what is missing is made.
func TestRestoreLeavesWhatIsThere(t *testing.T) {
	record := storedRecord(t.TempDir(), 7)
	store := NewPages(record.PagesDir, MakePagesDir, slog.New(slog.DiscardHandler))
	if err := errors.Join(store.Create(record), store.RaiseEpoch(record), store.Restore(record)); err != nil {
		t.Fatal(err)
	}
	if limits, err := limiter.ReadLimits(Directory(record)); err != nil || limits.Epoch != firstEpoch+1 {
		t.Errorf("epoch %d, %v", limits.Epoch, err)
	}
	usage := filepath.Join(Directory(record), limiter.UsageFile)
	if err := errors.Join(os.Remove(usage), os.MkdirAll(filepath.Join(usage, "something"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := store.Restore(record); !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("a directory with something in it: %v", err)
	}
}

// Restoring, raising and removing at the same time: each call is one step.
func TestPageStoreCallsDoNotMix(t *testing.T) {
	record := storedRecord(t.TempDir(), 7)
	store := NewPages(record.PagesDir, MakePagesDir, slog.New(slog.DiscardHandler))
	if err := store.Create(record); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 100 {
				if err := store.Restore(record); err != nil {
					t.Error(err)
				}
				if err := store.RaiseEpoch(record); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Error(err)
				}
			}
		})
	}
	for range 100 {
		if err := store.Remove(record); err != nil {
			t.Error(err)
		}
	}
	group.Wait()
	if err := store.Restore(record); err != nil {
		t.Fatal(err)
	}
	checkStored(t, record)
}

// Every mode of the ledger has one of the pages; one that neither knows limits.
func TestPageCompute(t *testing.T) {
	for mode, want := range map[string]limiter.ComputeMode{ledger.ComputeNone: limiter.ComputeNone, ledger.ComputeHard: limiter.ComputeHard,
		ledger.ComputeElastic: limiter.ComputeElastic, "of a later build": limiter.ComputeHard} {
		got := pageCompute(ledger.Compute{Mode: mode, SharePPM: 300_000, CeilingPPM: 400_000})
		if got != (limiter.Compute{Mode: want, SharePPM: 300_000, CeilingPPM: 400_000}) {
			t.Errorf("%s: %+v", mode, got)
		}
		if want.String() != mode && mode != "of a later build" {
			t.Errorf("mode %s is called %s in the pages", mode, want)
		}
	}
}
