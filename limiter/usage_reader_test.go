// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of readers that keep what they have opened: they say what a reader says that opens everything anew, whatever happens
// to the files meanwhile, and read little where nothing happens.

package limiter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// withoutCompute takes off what may be of an earlier time.
func withoutCompute(u Usage) Usage {
	u.Devices = append([]DeviceUsage{}, u.Devices...)
	for i := range u.Devices {
		u.Devices[i].Compute = ComputeUsage{}
	}
	return u
}

// agree compares the reader with readers that open everything anew.
func agree(t *testing.T, after string, reader *UsageReader) (faults [2]error) {
	t.Helper()
	text := func(err error) string { return fmt.Sprint(err) }
	limits, usage, faults := reader.Read()
	wantLimits, limitsErr := ReadLimits(reader.dir)
	wantUsage, usageErr := ReadUsage(reader.dir)
	if text(faults[0]) != text(limitsErr) || text(faults[1]) != text(usageErr) {
		t.Errorf("after %s: %v, %v; want %v, %v", after, faults[0], faults[1], limitsErr, usageErr)
	}
	if diff := cmp.Diff(wantLimits, limits); diff != "" {
		t.Errorf("after %s: limits (-want +got):\n%s", after, diff)
	}
	if diff := cmp.Diff(withoutCompute(wantUsage), withoutCompute(usage)); diff != "" {
		t.Errorf("after %s: usage (-want +got):\n%s", after, diff)
	}
	return faults
}

func TestUsageReaderAgrees(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "k")
	limits := Limits{Key: "k", Devices: []Device{{UUID: "GPU-a", SliceCount: 1, MemoryLimitBytes: 1000}, {UUID: "GPU-b", SliceCount: 2, MemoryLimitBytes: 2000}}}
	create := func() error { return Create(dir, limits) }
	usageFile, limitsFile := filepath.Join(dir, UsageFile), filepath.Join(dir, LimitsFile)
	var book *Book
	write := func(offset int64, content ...byte) error {
		file, err := os.OpenFile(usageFile, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = file.WriteAt(content, offset)
		return errors.Join(err, file.Close())
	}
	slots := int64(usageHeaderBytes + len(limits.Devices)*usageTotalBytes)
	reader := NewUsageReaders().Open(dir)
	defer reader.Close()
	for _, step := range []struct {
		name string
		do   func() error
		bad  bool // a page is not right then
	}{
		{"nothing", func() error { return nil }, true},
		{"create", create, false},
		{"a process", func() (err error) { book, err = OpenBook(dir); return err }, false},
		{"an allocation", func() error { return book.Reserve(0, KindDevice, 600) }, false},
		{"a refusal", func() error {
			if err := book.Reserve(0, KindDevice, 600); !errors.Is(err, ErrOverLimit) {
				return fmt.Errorf("not refused: %w", err)
			}
			return nil
		}, false},
		{"another limit", func() error { return SetMemoryLimit(dir, "GPU-a", 5000) }, false},
		{"a freeze", func() error { return Freeze(dir, DamageSlots) }, false},
		{"a start", func() error { _, err := RaiseEpoch(dir); return err }, false},
		{"another process", func() error { return book.Reserve(1, KindDevice, 7) }, false},
		{"a mark that hides its slot", func() error { return write(highWaterOffset, 0, 0, 0, 0) }, true},
		{"the repair of the mark", func() error { return RestoreUsage(dir) }, false},
		{"a cut", func() error { return os.Truncate(usageFile, 100) }, true},
		{"a repair", func() error { return RestoreUsage(dir) }, false},
		{"growth", func() error { return os.Truncate(usageFile, 1<<20) }, true},
		{"a second repair", func() error { return RestoreUsage(dir) }, false},
		{"a header of nonsense", func() error { return write(0, 1, 2, 3, 4) }, true},
		{"a third repair", func() error { return RestoreUsage(dir) }, false},
		{"a page that is another file", func() error {
			content, err := os.ReadFile(usageFile)
			if err != nil {
				return err
			}
			clear(content[slots:])
			return errors.Join(os.WriteFile(usageFile+".x", content, 0o666), os.Rename(usageFile+".x", usageFile))
		}, false},
		{"a link to what is right", func() error {
			return errors.Join(os.Rename(usageFile, usageFile+".y"), os.Symlink(usageFile+".y", usageFile))
		}, true},
		{"a pipe", func() error { return errors.Join(os.Remove(usageFile), unix.Mkfifo(usageFile, 0o666)) }, true},
		{"nothing in its place", func() error { return os.Remove(usageFile) }, true},
		{"a fourth repair", func() error { return RestoreUsage(dir) }, false},
		{"no limits page", func() error { return os.Remove(limitsFile) }, true},
		{"no directory", func() error { return errors.Join(os.Remove(usageFile+".y"), Remove(dir)) }, true},
		{"a new pair of pages", create, false},
		{"a pair in its place", func() error { return errors.Join(Remove(dir), create()) }, false},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		for range 3 { // the long way, and twice the short one
			faults := agree(t, step.name, reader)
			if isBad := errors.Join(faults[:]...) != nil; isBad != step.bad {
				t.Errorf("after %s: faults %v", step.name, faults)
			}
		}
	}
	if book != nil {
		if err := book.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestUsageReaderReadsLittle(t *testing.T) {
	parent := t.TempDir()
	readers := NewUsageReaders()
	var all []*UsageReader
	for i := range 3 { // with pages of several sizes in one buffer
		dir := filepath.Join(parent, fmt.Sprint(i))
		var devices []Device
		for d := range i + 1 {
			devices = append(devices, Device{UUID: fmt.Sprintf("GPU-%d", d), SliceCount: 1, MemoryLimitBytes: 1000})
		}
		if err := Create(dir, Limits{Key: "k", Devices: devices}); err != nil {
			t.Fatal(err)
		}
		all = append(all, readers.Open(dir))
		defer all[i].Close()
	}
	for range 10 {
		for _, reader := range all {
			agree(t, "nothing", reader)
		}
	}
	for i, reader := range all {
		if reader.slow != 1 || reader.parsed != 1 {
			t.Errorf("%d: ten reads of pages that do not change took the long way %d times, and %d pages were parsed", i, reader.slow, reader.parsed)
		}
	}
	if all[0].used != usageHeaderBytes+usageTotalBytes { // of 86 KB
		t.Errorf("%d bytes are looked at of a page on which nobody has registered", all[0].used)
	}
	before := testing.AllocsPerRun(20, func() {
		if _, _, faults := all[1].Read(); errors.Join(faults[:]...) != nil {
			t.Error(faults)
		}
	})
	if before > 20 {
		t.Errorf("a read of what has not changed makes %.0f allocations", before)
	}
}

// TestUsageReaderLooksAtAll: what somebody writes above the mark counts for nobody, and is found all the same, a few reads later.
func TestUsageReaderLooksAtAll(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "k")
	if err := Create(dir, Limits{Key: "k", Devices: []Device{{UUID: "GPU-a", SliceCount: 1, MemoryLimitBytes: 1000}}}); err != nil {
		t.Fatal(err)
	}
	reader := NewUsageReaders().Open(dir)
	defer reader.Close()
	for range 2 {
		agree(t, "nothing", reader)
	}
	book, err := OpenBook(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	if err := book.Reserve(0, KindDevice, 600); err != nil {
		t.Fatal(err)
	}
	agree(t, "a process", reader)
	name := filepath.Join(dir, UsageFile)
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	first, second := usedBytesAt(1, 0), usedBytesAt(1, 1)
	_, err = file.WriteAt(content[first:second], int64(usedBytesAt(1, 5)))
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadUsage(dir); !errors.Is(err, ErrTampered) {
		t.Fatal(err)
	}
	reads := 1
	for ; reads <= mostSkipped+2; reads++ {
		if _, _, faults := reader.Read(); errors.Is(faults[1], ErrTampered) {
			break
		}
	}
	if reads > mostSkipped+1 {
		t.Errorf("not found in %d reads", reads)
	}
}

func BenchmarkUsageReader(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "k")
	if err := Create(dir, Limits{Key: "k", Devices: []Device{{UUID: "GPU-a", SliceCount: 1, MemoryLimitBytes: 1000}}}); err != nil {
		b.Fatal(err)
	}
	b.Run("kept", func(b *testing.B) {
		reader := NewUsageReaders().Open(dir)
		defer reader.Close()
		b.ReportAllocs()
		for b.Loop() {
			if _, _, faults := reader.Read(); errors.Join(faults[:]...) != nil {
				b.Fatal(faults)
			}
		}
	})
	b.Run("anew", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := ReadLimits(dir); err != nil {
				b.Fatal(err)
			}
			if _, err := ReadUsage(dir); err != nil {
				b.Fatal(err)
			}
		}
	})
}
