// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

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

// checkTraffic: an error of a known kind, or figures within their bounds.
func checkTraffic(t *testing.T, r *limiter.TrafficReader) {
	t.Helper()
	books, err := r.Read()
	if err != nil {
		if !errors.Is(err, limiter.ErrTampered) {
			t.Errorf("Read: %v, want ErrTampered or none", err)
		}
		return
	}
	const most = 1 << 60
	for _, book := range books {
		for _, count := range book.Copies {
			if count.Calls > most || count.Bytes > most {
				t.Errorf("copies %+v", count)
			}
		}
		if book.Stalls > most || book.Stalled < 0 || book.Stalled > most {
			t.Errorf("stalls %d, %d", book.Stalls, book.Stalled)
		}
		ids := map[uint64]bool{0: true}
		for _, class := range book.Classes {
			sane := !ids[class.ID] && class.Kind >= limiter.ClassKernel && class.Kind <= limiter.ClassDeviceCopy &&
				class.Samples > 0 && class.Samples <= most && class.Operations >= class.Samples && class.Operations <= most &&
				class.Bytes <= most && class.Time >= 0 && class.Time <= most && uint64(len(class.Recent)) <= class.Samples
			ids[class.ID] = true
			for _, d := range class.Recent {
				sane = sane && d > 0 && d <= math.MaxUint32*16
			}
			if !sane {
				t.Errorf("class %+v", class)
			}
		}
	}
}

// FuzzTrafficBook: any bytes over a traffic book that says something.
func FuzzTrafficBook(f *testing.F) {
	golden, err := os.ReadFile(filepath.Join("testdata", "pages", "v3", limiter.UsageFile))
	if err != nil {
		f.Fatal(err)
	}
	const books = 151552
	word := func(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
	f.Add([]byte{}, uint16(0), int16(0))
	f.Add(word(math.MaxUint64), uint16(5120), int16(0))         // calls
	f.Add(word(math.MaxUint64), uint16(5120+264), int16(0))     // stalled
	f.Add(word(math.MaxUint64), uint16(5120+384+40), int16(0))  // samples
	f.Add(word(math.MaxUint64), uint16(5120+384+64), int16(0))  // time
	f.Add(word(0), uint16(5120+384+40), int16(0))               // no samples
	f.Add(word(12), uint16(5120+384), int16(0))                 // an id that its end does not have
	f.Add(word(math.MaxUint64), uint16(5120+384+72), int16(0))  // recent ones
	f.Add(word(0xfffffffe), uint16(5120+384+32), int16(0))      // kind
	f.Add(word(0), uint16(0), int16(-1))                        // cut
	f.Add(append(word(11), word(5)...), uint16(384), int16(0))  // an entry in the first book
	f.Add(word(1<<63), uint16(5120+384+192*3+40), int16(-5000)) // both
	f.Fuzz(func(t *testing.T, patch []byte, offset uint16, cut int16) {
		dir := t.TempDir()
		page := append([]byte{}, golden...)
		at := books + int(offset)%(2*5120)
		copy(page[at:], patch)
		page = page[:len(page)+min(0, int(cut))]
		for name, content := range map[string][]byte{limiter.LimitsFile: limitsV3(), limiter.UsageFile: page} {
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		reader, err := limiter.OpenTraffic(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		checkTraffic(t, reader)
	})
}

// TestTrafficReader: it goes on through a page that was cut, replaced and removed.
func TestTrafficReader(t *testing.T) {
	dir := newPages(t, 5)
	path := filepath.Join(dir, limiter.UsageFile)
	reader, err := limiter.OpenTraffic(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	read := func() (uint64, error) {
		books, err := reader.Read()
		if err != nil {
			return 0, err
		}
		return books[0].Copies[limiter.HostToDevice].Bytes, nil
	}
	pokeUint64(t, path, 86016+8, 4711)
	if got, err := read(); got != 4711 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
	if err := os.Truncate(path, 86016); err != nil {
		t.Fatal(err)
	}
	if _, err := read(); !errors.Is(err, limiter.ErrTampered) {
		t.Errorf("cut: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := read(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("removed: %v", err)
	}
	if err := os.Symlink("/dev/zero", path); err != nil {
		t.Fatal(err)
	}
	if _, err := read(); !errors.Is(err, limiter.ErrTampered) {
		t.Errorf("a link: %v", err)
	}
	if err := limiter.RestoreUsage(dir); err != nil {
		t.Fatal(err)
	}
	pokeUint64(t, path, 86016+8, 12)
	if got, err := read(); got != 12 || err != nil {
		t.Errorf("made anew: %d, %v", got, err)
	}
}

// BenchmarkTraffic is one look at one container with one GPU, whose book is full.
func BenchmarkTraffic(b *testing.B) {
	reader, err := limiter.OpenTraffic(filepath.Join("testdata", "pages", "v3"))
	if err != nil {
		b.Fatal(err)
	}
	defer reader.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := reader.Read(); err != nil {
			b.Fatal(err)
		}
	}
}
