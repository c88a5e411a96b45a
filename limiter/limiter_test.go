// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Life of a pair of pages, seen from outside.

package limiter_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/limiter"
)

const testUUID = "GPU-3c7a9d1e-0000-4000-8000-000000000000"

// newPages makes pages for one device and returns their directory.
func newPages(t testing.TB, limit uint64) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "key")
	err := limiter.Create(dir, limiter.Limits{Key: "key", Devices: []limiter.Device{
		{UUID: testUUID, SliceCount: 1, MemoryLimitBytes: limit}}})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func readUsage(t testing.TB, dir string) limiter.Usage {
	t.Helper()
	u, err := limiter.ReadUsage(dir)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func openBook(t testing.TB, dir string) *limiter.Book {
	t.Helper()
	b, err := limiter.OpenBook(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func TestCreateAndRead(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "k")
	want := limiter.Limits{Key: strings.Repeat("k", 39), Epoch: 7, Devices: []limiter.Device{
		{UUID: strings.Repeat("u", 63), SliceCount: 2, MemoryLimitBytes: limiter.MaxBytes},
		{UUID: "GPU-b", SliceCount: 1},
	}}
	if err := limiter.Create(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := limiter.ReadLimits(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	u := readUsage(t, dir)
	if diff := cmp.Diff(limiter.Usage{Devices: []limiter.DeviceUsage{{UUID: want.Devices[0].UUID}, {UUID: "GPU-b"}}}, u); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
	for path, mode := range map[string]fs.FileMode{"": 0o711 | fs.ModeDir, limiter.LimitsFile: 0o644, limiter.UsageFile: 0o666} {
		if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Mode() != mode {
			t.Errorf("%q: mode %v, %v, want %v", path, info.Mode(), err, mode)
		}
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
		t.Errorf("left beside the directory: %v, %v", entries, err)
	}
}

func TestCreateRefuses(t *testing.T) {
	device := limiter.Device{UUID: "GPU-a", SliceCount: 1, MemoryLimitBytes: 1}
	for name, l := range map[string]limiter.Limits{
		"no key":           {Devices: []limiter.Device{device}},
		"long key":         {Key: strings.Repeat("k", 40), Devices: []limiter.Device{device}},
		"NUL in key":       {Key: "a\x00b", Devices: []limiter.Device{device}},
		"no device":        {Key: "k"},
		"too many devices": {Key: "k", Devices: make([]limiter.Device, 17)},
		"no UUID":          {Key: "k", Devices: []limiter.Device{{SliceCount: 1}}},
		"long UUID":        {Key: "k", Devices: []limiter.Device{{UUID: strings.Repeat("u", 64)}}},
		"twice":            {Key: "k", Devices: []limiter.Device{device, device}},
		"absurd limit":     {Key: "k", Devices: []limiter.Device{{UUID: "GPU-a", MemoryLimitBytes: limiter.MaxBytes + 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			if err := limiter.Create(filepath.Join(parent, "k"), l); err == nil {
				t.Error("created")
			}
			if entries, err := os.ReadDir(parent); err != nil || len(entries) != 0 {
				t.Errorf("left behind: %v, %v", entries, err)
			}
		})
	}
}

func TestCreateTwice(t *testing.T) {
	dir := newPages(t, 5)
	again := limiter.Limits{Key: "other", Devices: []limiter.Device{{UUID: "GPU-x"}}}
	if err := limiter.Create(dir, again); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second Create: %v, want fs.ErrExist", err)
	}
	if l, err := limiter.ReadLimits(dir); err != nil || l.Key != "key" {
		t.Errorf("limits afterwards: %+v, %v", l, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if err := limiter.Create(filepath.Join(dir, "no", "parent"), again); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Create without a parent: %v, want fs.ErrNotExist", err)
	}
}

func TestRemove(t *testing.T) {
	dir := newPages(t, 5)
	if err := os.WriteFile(filepath.Join(dir, "foreign"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := limiter.Remove(dir); err == nil {
		t.Error("removed a directory with a file that is not ours")
	}
	if err := os.Remove(filepath.Join(dir, "foreign")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing to do
		if err := limiter.Remove(dir); err != nil {
			t.Error(err)
		}
	}
	if _, err := limiter.ReadLimits(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read after remove: %v, want fs.ErrNotExist", err)
	}
	if _, err := limiter.ReadUsage(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read after remove: %v, want fs.ErrNotExist", err)
	}
}

func TestLinksAreNotFollowed(t *testing.T) {
	dir := newPages(t, 5)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if _, err := limiter.ReadLimits(link); err == nil {
		t.Error("read limits through a link")
	}
	if err := limiter.Remove(link); err == nil {
		t.Error("removed through a link")
	}
	if err := limiter.SetMemoryLimit(link, testUUID, 1); err == nil {
		t.Error("set a limit through a link")
	}
	readUsage(t, dir)
}

func TestSetMemoryLimit(t *testing.T) {
	dir := newPages(t, 1000)
	book := openBook(t, dir)
	if err := book.Reserve(0, limiter.KindDevice, 800); err != nil {
		t.Fatal(err)
	}
	if err := limiter.SetMemoryLimit(dir, testUUID, 500); err != nil {
		t.Fatal(err)
	}
	if limit, used := book.LimitBytes(0), book.UsedBytes(0); limit != 500 || used != 800 {
		t.Errorf("limit %d, used %d, want 500 and 800", limit, used)
	}
	if err := book.Reserve(0, limiter.KindDevice, 1); !errors.Is(err, limiter.ErrOverLimit) {
		t.Errorf("reserve under a lowered limit: %v, want ErrOverLimit", err)
	}
	if u := readUsage(t, dir); u.Devices[0].UsedBytes != 800 || u.Devices[0].Refusals != 1 {
		t.Errorf("usage %+v, want 800 used and one refusal", u.Devices[0])
	}
	book.Release(0, limiter.KindDevice, 400)
	if err := book.Reserve(0, limiter.KindManaged, 100); err != nil {
		t.Errorf("reserve what is free again: %v", err)
	}
	if u := readUsage(t, dir); u.Devices[0].ByKind != [limiter.KindCount]uint64{400, 100} {
		t.Errorf("by kind %v, want 400 and 100", u.Devices[0].ByKind)
	}
	if err := limiter.SetMemoryLimit(dir, "GPU-other", 500); err == nil {
		t.Error("set the limit of a device that is not there")
	}
	if err := limiter.SetMemoryLimit(dir, testUUID, limiter.MaxBytes+1); err == nil {
		t.Error("set an absurd limit")
	}
}

func TestRaiseEpoch(t *testing.T) {
	dir := newPages(t, 1000)
	book := openBook(t, dir)
	if err := book.Reserve(0, limiter.KindDevice, 800); err != nil {
		t.Fatal(err)
	}
	if u := readUsage(t, dir); len(u.Processes) != 1 || u.Processes[0].PID != os.Getpid() ||
		u.Processes[0].StartTime == 0 || u.Processes[0].PIDNamespace == 0 || u.Processes[0].UsedBytes[0] != 800 {
		t.Errorf("processes %+v, want this one with 800 bytes", u.Processes)
	}
	if epoch, err := limiter.RaiseEpoch(dir); err != nil || epoch != 2 {
		t.Errorf("epoch %d, %v, want 2", epoch, err)
	}
	if u := readUsage(t, dir); len(u.Processes) != 0 || u.Devices[0].UsedBytes != 0 || u.Devices[0].Allocations != 1 {
		t.Errorf("after the raise: %+v, want no process, nothing used, one allocation ever", u)
	}
	if err := book.Reserve(0, limiter.KindDevice, 300); !errors.Is(err, limiter.ErrOverLimit) {
		t.Errorf("reserve by a process that lived on: %v, want ErrOverLimit", err)
	}
	if u := readUsage(t, dir); len(u.Processes) != 1 || u.Devices[0].UsedBytes != 800 {
		t.Errorf("after it registered again: %+v, want 800 bytes", u)
	}
}

func TestVersionAndDamage(t *testing.T) {
	for name, c := range map[string]struct {
		offset int64
		value  uint64
		want   error
	}{
		"magic":        {0, 1, limiter.ErrTampered},
		"version":      {8, 4096<<32 | 4, limiter.ErrVersion},
		"page bytes":   {8, 4095<<32 | 3, limiter.ErrTampered},
		"device count": {16, 1<<32 | 17, limiter.ErrTampered},
		"no device":    {16, 1 << 32, limiter.ErrTampered},
		"half written": {192, 1<<32 | 1, limiter.ErrTampered},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newPages(t, 5)
			pokeUint64(t, filepath.Join(dir, limiter.LimitsFile), c.offset, c.value)
			if _, err := limiter.ReadLimits(dir); !errors.Is(err, c.want) {
				t.Errorf("ReadLimits: %v, want %v", err, c.want)
			}
			if _, err := limiter.ReadUsage(dir); !errors.Is(err, c.want) {
				t.Errorf("ReadUsage: %v, want %v", err, c.want)
			}
			if b, err := limiter.OpenBook(dir); !errors.Is(err, c.want) {
				t.Errorf("OpenBook: %v, %v, want %v", b != nil, err, c.want)
			}
		})
	}
}

// TestConcurrentUse drives books and the agent's side at once; the race detector watches.
func TestConcurrentUse(t *testing.T) {
	const limit, rounds = 1000, 300
	dir := newPages(t, limit)
	var wg sync.WaitGroup
	for range 2 {
		book := openBook(t, dir)
		for worker := range 3 {
			wg.Go(func() {
				for i := range rounds {
					bytes := uint64(i*7%400 + 1)
					if err := book.Reserve(0, limiter.Kind(worker), bytes); err == nil {
						book.Release(0, limiter.Kind(worker), bytes)
					} else if !errors.Is(err, limiter.ErrOverLimit) {
						t.Errorf("reserve: %v", err)
					}
				}
			})
		}
	}
	wg.Go(func() {
		for i := range rounds {
			if err := limiter.SetMemoryLimit(dir, testUUID, limit-uint64(i%2)); err != nil {
				t.Errorf("set limit: %v", err)
			}
		}
	})
	wg.Go(func() {
		for range rounds {
			if u, err := limiter.ReadUsage(dir); err != nil || u.Devices[0].UsedBytes > 2*limit {
				t.Errorf("usage %+v, %v", u, err)
			}
		}
	})
	wg.Wait()
	if u := readUsage(t, dir); u.Devices[0].UsedBytes != 0 || u.Devices[0].Allocations != u.Devices[0].Frees {
		t.Errorf("usage afterwards: %+v, want nothing used and as many frees as allocations", u.Devices[0])
	}
}
