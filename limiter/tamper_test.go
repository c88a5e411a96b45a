// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Usage pages after hostile hands: what the agent says of them, and what restoring brings back.

package limiter_test

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/limiter"
)

func truncate(size int64) func(path string) error {
	return func(path string) error { return os.Truncate(path, size) }
}

func replace(with func(path string) error) func(path string) error {
	return func(path string) error { return errors.Join(os.Remove(path), with(path)) }
}

// TestTampering: whatever was done to the page is reported, does not raise the limit, and is put right in place.
func TestTampering(t *testing.T) {
	for name, c := range map[string]struct {
		tamper func(path string) error
		keeps  bool // the processes keep the page that they have mapped
	}{
		"emptied":         {truncate(0), true},
		"truncated":       {truncate(4096), true},
		"one byte less":   {truncate(53247), true},
		"grown":           {truncate(1 << 22), true},
		"zeroed":          {func(p string) error { return errors.Join(os.Truncate(p, 0), os.Truncate(p, 94208)) }, true},
		"unreadable":      {func(p string) error { return errors.Join(os.Truncate(p, 0), os.Chmod(p, 0)) }, true},
		"a link":          {replace(func(p string) error { return os.Symlink("/etc/passwd", p) }), false},
		"a dangling link": {replace(func(p string) error { return os.Symlink("nowhere", p) }), false},
		"a directory":     {replace(func(p string) error { return os.Mkdir(p, 0o755) }), false},
		"a pipe":          {replace(func(p string) error { return unix.Mkfifo(p, 0o666) }), false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newPages(t, 1000)
			path := filepath.Join(dir, limiter.UsageFile)
			before := openBook(t, dir)
			reserve(t, before, 600)
			if err := c.tamper(path); err != nil {
				t.Fatal(err)
			}
			var tamper *limiter.TamperError
			if u, err := limiter.ReadUsage(dir); !errors.Is(err, limiter.ErrTampered) || !errors.As(err, &tamper) || tamper.Reason == "" {
				t.Errorf("ReadUsage: %+v, %v, want a TamperError with its reason", u, err)
			}
			if b, err := limiter.OpenBook(dir); !errors.Is(err, limiter.ErrTampered) {
				t.Errorf("OpenBook: %v, %v, want ErrTampered", b, err)
			}
			if err := limiter.RestoreUsage(dir); err != nil {
				t.Fatal(err)
			}
			u := readUsage(t, dir)
			if info, err := os.Lstat(path); err != nil || info.Size() != 94208 || info.Mode() != 0o666 {
				t.Errorf("restored page: %v, %v", info, err)
			}
			if !c.keeps {
				return
			}
			after := openBook(t, dir)
			if err := before.Reserve(0, limiter.KindDevice, 401); !errors.Is(err, limiter.ErrOverLimit) {
				t.Errorf("reserve after the restore: %v, want ErrOverLimit", err)
			}
			if u = readUsage(t, dir); u.Devices[0].UsedBytes != 600 {
				t.Errorf("restored page has %d bytes used, want 600", u.Devices[0].UsedBytes)
			}
			reserve(t, after, 400)
		})
	}
}

func reserve(t *testing.T, b *limiter.Book, bytes uint64) {
	t.Helper()
	if err := b.Reserve(0, limiter.KindDevice, bytes); err != nil {
		t.Fatalf("reserve %d: %v", bytes, err)
	}
}

func TestUnlinked(t *testing.T) {
	dir := newPages(t, 1000)
	path := filepath.Join(dir, limiter.UsageFile)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := limiter.ReadUsage(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadUsage: %v, want fs.ErrNotExist", err)
	}
	if err := limiter.RestoreUsage(dir); err != nil {
		t.Fatal(err)
	}
	readUsage(t, dir)
	if err := os.Remove(filepath.Join(dir, limiter.LimitsFile)); err != nil {
		t.Fatal(err)
	}
	if err := limiter.RestoreUsage(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("RestoreUsage without a limits page: %v, want fs.ErrNotExist", err)
	}
}

// TestHeaderTampering: each word of the header, while a process has the page mapped.
func TestHeaderTampering(t *testing.T) {
	for offset := int64(0); offset < 32; offset += 8 {
		dir := newPages(t, 1000)
		path := filepath.Join(dir, limiter.UsageFile)
		book := openBook(t, dir)
		reserve(t, book, 600)
		pokeUint64(t, path, offset, 0xfffffff0fffffff0)
		if _, err := limiter.ReadUsage(dir); !errors.Is(err, limiter.ErrTampered) {
			t.Errorf("word at %d: %v, want ErrTampered", offset, err)
		}
		if err := book.Reserve(0, limiter.KindDevice, 401); err == nil {
			t.Errorf("word at %d: reserved over the limit", offset)
		}
		if err := limiter.RestoreUsage(dir); err != nil {
			t.Fatal(err)
		}
		if u := readUsage(t, dir); u.Devices[0].UsedBytes != 600 {
			t.Errorf("word at %d: %d bytes used after the restore, want 600: slots are kept", offset, u.Devices[0].UsedBytes)
		}
		reserve(t, book, 400)
	}
}

// TestDamageIsTold: the agent learns what was done, and whether what processes hold may have been lost.
func TestDamageIsTold(t *testing.T) {
	scribble := func(offset int64, value uint64) func(string) error {
		return func(path string) error {
			file, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = file.WriteAt(binary.LittleEndian.AppendUint64(nil, value), offset)
			return errors.Join(err, file.Close())
		}
	}
	grow := truncate(1 << 20)
	for name, c := range map[string]struct {
		tamper func(path string) error
		want   limiter.Damage
	}{
		"grown":             {grow, limiter.DamageGrown},
		"grown and cleared": {func(p string) error { return errors.Join(grow(p), scribble(0, 0)(p)) }, limiter.DamageHeader},
		"cut":               {truncate(4096), limiter.DamageCut},
		"header":            {scribble(16, 0), limiter.DamageHeader},
		"a pipe":            {replace(func(p string) error { return unix.Mkfifo(p, 0o666) }), limiter.DamageReplaced},
		"sums":              {scribble(384, 1<<60), limiter.DamageSlots},
		"owner":             {scribble(320, 12345), limiter.DamageSlots},
		"hidden slot":       {scribble(24, 0), limiter.DamageSlots},
	} {
		dir := newPages(t, 1000)
		reserve(t, openBook(t, dir), 600)
		if err := c.tamper(filepath.Join(dir, limiter.UsageFile)); err != nil {
			t.Fatal(err)
		}
		var tamper *limiter.TamperError
		if u, err := limiter.ReadUsage(dir); !errors.As(err, &tamper) || tamper.Damage != c.want {
			t.Errorf("%s: %+v, %v, want %q", name, u, err, c.want)
		}
	}
}

// TestFreeze: after damage and a restore the idle process has no slot any more; the freeze keeps its bytes from others
// until the epoch is raised.
func TestFreeze(t *testing.T) {
	dir := newPages(t, 1000)
	idle := openBook(t, dir)
	reserve(t, idle, 600)
	if err := limiter.Freeze(dir, limiter.DamageNone); err == nil {
		t.Error("frozen for no reason")
	}
	if err := overwriteZeros(filepath.Join(dir, limiter.UsageFile)); err != nil {
		t.Fatal(err)
	}
	for _, why := range []limiter.Damage{limiter.DamageHeader, limiter.DamageCut} { // the first reason stays
		if err := limiter.Freeze(dir, why); err != nil {
			t.Fatal(err)
		}
	}
	if err := limiter.RestoreUsage(dir); err != nil {
		t.Fatal(err)
	}
	if l, err := limiter.ReadLimits(dir); err != nil || l.Frozen != limiter.DamageHeader {
		t.Errorf("limits %+v, %v, want them frozen for the header", l, err)
	}
	other := openBook(t, dir)
	for _, book := range []*limiter.Book{other, idle} {
		if err := book.Reserve(0, limiter.KindDevice, 1); !errors.Is(err, limiter.ErrTampered) {
			t.Errorf("reserve while frozen: %v, want ErrTampered", err)
		}
	}
	if limit := other.LimitBytes(0); limit != 1000 {
		t.Errorf("limit %d while frozen, want 1000", limit)
	}
	idle.Release(0, limiter.KindDevice, 600)
	if _, err := limiter.RaiseEpoch(dir); err != nil {
		t.Fatal(err)
	}
	if l, err := limiter.ReadLimits(dir); err != nil || l.Frozen != limiter.DamageNone || l.Epoch != 2 {
		t.Errorf("limits %+v, %v, want them thawed in epoch 2", l, err)
	}
	reserve(t, other, 1000)
}

func overwriteZeros(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.Write(make([]byte, 94208))
	return errors.Join(err, file.Close())
}

// TestRestoreBesideProcesses: restoring a page again and again never loses a charge of the processes at work.
func TestRestoreBesideProcesses(t *testing.T) {
	const limit = 1000 * mib
	worker, dir, d := buildWorker(t), newPages(t, limit), newDriver(t)
	observer := start(t, worker, "observe", dir, d.path)
	race := start(t, worker, "race", dir, d.path, "2", "20000")
	d.waitFor(t, wordReady, 2)
	d.set(wordStart)
	done := make(chan error, 1)
	go func() { done <- race.Wait() }()
	for running := true; running; {
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("worker: %v", err)
			}
			running = false
		case <-time.After(time.Millisecond):
			if err := limiter.RestoreUsage(dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	d.set(wordStop)
	wait(t, observer)
	if d.get(wordHighWater) > limit || d.get(wordErrors) != 0 {
		t.Errorf("high water %d, %d errors", d.get(wordHighWater), d.get(wordErrors))
	}
	if u := readUsage(t, dir); u.Devices[0].UsedBytes != 0 || u.Devices[0].Allocations != d.get(wordAdmitted) {
		t.Errorf("usage afterwards: %+v, want nothing used, %d allocations", u.Devices[0], d.get(wordAdmitted))
	}
}
