// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Fuzzers: any bytes as a usage page, any sequence of requests against a reference book.

package limiter_test

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/vgpud/vgpud/limiter"
)

// FuzzUsagePage: bytes laid over a page that real processes use. Reading it never panics nor returns an absurd sum, a
// book on it never admits more than the limit, and a restore makes the header good again.
func FuzzUsagePage(f *testing.F) {
	word := func(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
	f.Add([]byte{}, uint32(0), int32(0))
	f.Add(word(0), uint32(0), int32(0))                                   // magic
	f.Add(word(1), uint32(8), int32(0))                                   // version
	f.Add(word(math.MaxUint64), uint32(16), int32(0))                     // counts
	f.Add(word(math.MaxUint64), uint32(24), int32(0))                     // high water
	f.Add(word(math.MaxUint64), uint32(64), int32(0))                     // totals
	f.Add(word(12345), uint32(320), int32(0))                             // owner of slot 0
	f.Add(append(word(1<<22), word(1<<22)...), uint32(320), int32(0))     // an owner without pid
	f.Add(append(word(1<<23|9), word(1<<23|9)...), uint32(640), int32(0)) // a registered stranger
	f.Add(word(math.MaxUint64), uint32(352), int32(0))                    // epoch
	f.Add(word(math.MaxUint64), uint32(384), int32(0))                    // charge
	f.Add(word(1<<62), uint32(392), int32(0))                             // charge of another kind
	f.Add(word(math.MaxUint64), uint32(448), int32(0))                    // claim
	f.Add(word(math.MaxUint64), uint32(456), int32(0))                    // counter
	f.Add([]byte{}, uint32(0), int32(-1))                                 // shorter
	f.Add([]byte{}, uint32(0), int32(-60000))                             // empty
	f.Add([]byte{}, uint32(0), int32(1))                                  // longer
	f.Fuzz(func(t *testing.T, patch []byte, offset uint32, grow int32) {
		const limit = 1000
		dir := newPages(t, limit)
		path := filepath.Join(dir, limiter.UsageFile)
		honest := openBook(t, dir)
		if err := honest.Reserve(0, limiter.KindDevice, 600); err != nil {
			t.Fatal(err)
		}
		tamper(t, path, patch, int64(offset)%94208, int64(grow)%100000)
		checkUsage(t, dir)
		if grow >= 0 {
			checkBook(t, honest, 600, limit)
		}
		if err := limiter.RestoreUsage(dir); err != nil {
			t.Fatalf("restore: %v", err)
		}
		checkUsage(t, dir)
		checkBook(t, honest, 600, limit)
		if other, err := limiter.OpenBook(dir); err != nil {
			t.Errorf("open a restored page: %v", err)
		} else {
			checkBook(t, other, 0, limit)
			if err := other.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

func tamper(t *testing.T, path string, patch []byte, offset, grow int64) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	size := fileSize(t, path)
	patch = patch[:min(int64(len(patch)), size-offset)]
	if _, err := file.WriteAt(patch, offset); err != nil {
		t.Fatal(err)
	}
	if grow != 0 {
		if err := file.Truncate(max(0, size+grow)); err != nil {
			t.Fatal(err)
		}
	}
}

// checkUsage: an error of a known kind, or sums that agree with each other and are not absurd.
func checkUsage(t *testing.T, dir string) {
	t.Helper()
	u, err := limiter.ReadUsage(dir)
	if err != nil {
		if !errors.Is(err, limiter.ErrTampered) {
			t.Errorf("ReadUsage: %v, want ErrTampered or none", err)
		}
		return
	}
	for i, d := range u.Devices {
		var kinds, processes uint64
		for _, b := range d.ByKind {
			kinds += b
		}
		for _, p := range u.Processes {
			if p.PID <= 0 || p.PID >= 1<<22 {
				t.Errorf("process with pid %d", p.PID)
			}
			processes += p.UsedBytes[i]
		}
		if d.UsedBytes > limiter.MaxBytes || kinds != d.UsedBytes || processes != d.UsedBytes {
			t.Errorf("device %d: %d used, %d by kind, %d by process", i, d.UsedBytes, kinds, processes)
		}
		if max(d.Allocations, d.Frees, d.Refusals) > 1<<61 {
			t.Errorf("device %d: absurd counters %+v", i, d)
		}
	}
}

// checkBook: a process that holds `held` never gets more than the limit, whatever the page says.
func checkBook(t *testing.T, b *limiter.Book, held, limit uint64) {
	t.Helper()
	if err := b.Reserve(0, limiter.KindDevice, limit-held+1); err == nil {
		t.Errorf("holding %d, admitted to one byte over the limit", held)
	}
	if err := b.Reserve(0, limiter.KindDevice, limit-held); err == nil {
		b.Release(0, limiter.KindDevice, limit-held)
	}
	if used := b.UsedBytes(0); used < held {
		t.Errorf("%d bytes used, but %d held", used, held)
	}
}

// reference is the book as it should be: plain sums. A process counts from its first request after a raise of the
// epoch or a wipe of the page on.
type reference struct {
	t       *testing.T
	dir     string
	limits  [2]uint64
	books   [3]*limiter.Book
	held    [3][2][limiter.KindCount]uint64
	counted [3]bool
	known   [3]bool // has registered since it was opened
	wiped   bool    // header gone
}

func (r *reference) own(book, device int) (sum uint64) {
	for _, bytes := range r.held[book][device] {
		sum += bytes
	}
	return sum
}

// used is what book sees of all.
func (r *reference) used(book, device int) uint64 {
	var sum uint64
	for i := range r.books {
		if i == book && r.known[i] || i != book && r.counted[i] {
			sum += r.own(i, device)
		}
	}
	return sum
}

func (r *reference) reserve(book, device int, kind limiter.Kind, bytes uint64) {
	err := r.books[book].Reserve(device, kind, bytes)
	var want error
	if r.wiped {
		want = limiter.ErrTampered
	} else {
		r.counted[book], r.known[book] = true, true
		if r.used(book, device)+bytes > r.limits[device] {
			want = limiter.ErrOverLimit
		} else {
			r.held[book][device][kind] += bytes
		}
	}
	if !errors.Is(err, want) {
		r.t.Fatalf("book %d reserves %d of device %d: %v, want %v", book, bytes, device, err, want)
	}
}

func (r *reference) charge(book, device int, kind limiter.Kind, bytes uint64) {
	r.books[book].Charge(device, kind, bytes)
	if !r.wiped {
		r.counted[book], r.known[book] = true, true
	}
	r.held[book][device][kind] += bytes
}

func (r *reference) giveBack(book, device int, kind limiter.Kind, bytes uint64, cancel bool) {
	if cancel {
		r.books[book].Cancel(device, kind, bytes)
	} else {
		r.books[book].Release(device, kind, bytes)
	}
	held := &r.held[book][device][kind]
	*held -= min(*held, bytes)
}

func (r *reference) reopen(book int) {
	if err := r.books[book].Close(); err != nil {
		r.t.Fatal(err)
	}
	fresh, err := limiter.OpenBook(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	r.books[book], r.counted[book], r.known[book] = fresh, false, false
	r.held[book] = [2][limiter.KindCount]uint64{}
}

func (r *reference) setLimit(device int, bytes uint64) {
	if err := limiter.SetMemoryLimit(r.dir, []string{"GPU-a", "GPU-b"}[device], bytes); err != nil {
		r.t.Fatal(err)
	}
	r.limits[device] = bytes
}

func (r *reference) raiseEpoch() {
	if _, err := limiter.RaiseEpoch(r.dir); err != nil {
		r.t.Fatal(err)
	}
	r.counted = [3]bool{}
}

func (r *reference) wipe() {
	path := filepath.Join(r.dir, limiter.UsageFile)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(make([]byte, fileSize(r.t, path)), 0); err != nil {
		r.t.Fatal(err)
	}
	r.wiped, r.counted = true, [3]bool{}
}

func (r *reference) restore() {
	if err := limiter.RestoreUsage(r.dir); err != nil {
		r.t.Fatal(err)
	}
	r.wiped = false
}

// check compares what the book and the page say with the reference.
func (r *reference) check() {
	for i, b := range r.books {
		for device := range 2 {
			want := r.used(i, device)
			if r.wiped {
				want = max(r.limits[device], want)
			}
			if got := b.UsedBytes(device); got != want {
				r.t.Fatalf("book %d sees %d bytes used of device %d, want %d", i, got, device, want)
			}
		}
	}
	if r.wiped {
		return
	}
	u := readUsage(r.t, r.dir)
	for device := range 2 {
		if want := r.used(-1, device); u.Devices[device].UsedBytes != want {
			r.t.Fatalf("page says %d bytes used of device %d, want %d", u.Devices[device].UsedBytes, device, want)
		}
	}
}

// FuzzBookSequence: three books on one page (as three processes) against the reference. Four bytes are one step.
func FuzzBookSequence(f *testing.F) {
	f.Add([]byte{0, 0, 3, 232, 0, 1, 0, 1, 1, 0, 3, 232, 0, 2, 0, 1})
	f.Add([]byte{0, 0, 2, 0, 0, 1, 2, 0, 8, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0})              // epoch
	f.Add([]byte{0, 0, 2, 0, 9, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 9, 10, 0, 0, 0, 0, 1, 0, 1}) // wipe, restore
	f.Add([]byte{5, 4, 8, 0, 0, 5, 0, 1, 7, 0, 8, 1, 0, 4, 0, 1, 6, 0, 0, 0, 0, 5, 0, 1})  // charge, limit, reopen
	f.Add([]byte{0, 0, 1, 0, 3, 0, 1, 0, 0, 16, 1, 0, 2, 16, 9, 9, 11, 1, 255, 255})
	f.Fuzz(func(t *testing.T, steps []byte) {
		dir := filepath.Join(t.TempDir(), "pages")
		r := &reference{t: t, dir: dir, limits: [2]uint64{1000, 1000}}
		if err := limiter.Create(dir, limiter.Limits{Key: "k", Devices: []limiter.Device{
			{UUID: "GPU-a", MemoryLimitBytes: 1000}, {UUID: "GPU-b", MemoryLimitBytes: 1000}}}); err != nil {
			t.Fatal(err)
		}
		for i := range r.books {
			var err error
			if r.books[i], err = limiter.OpenBook(dir); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = r.books[i].Close() }()
		}
		for ; len(steps) >= 4; steps = steps[4:] {
			r.step(steps[0], steps[1], uint64(binary.BigEndian.Uint16(steps[2:]))%2048)
			r.check()
		}
	})
}

func (r *reference) step(what, where byte, bytes uint64) {
	book, device, kind := int(where)%3, int(where>>2)%2, limiter.Kind(where>>4)%limiter.KindCount
	switch what % 12 {
	case 0, 1, 11:
		r.reserve(book, device, kind, bytes)
	case 2, 3:
		r.giveBack(book, device, kind, bytes, false)
	case 4:
		r.giveBack(book, device, kind, bytes, true)
	case 5:
		r.charge(book, device, kind, bytes)
	case 6:
		if !r.wiped {
			r.reopen(book)
		}
	case 7:
		r.setLimit(device, bytes)
	case 8:
		r.raiseEpoch()
	case 9:
		r.wipe()
	case 10:
		r.restore()
	}
}
