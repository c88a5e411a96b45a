// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the books and of hold, commit, release.

package ledger

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const gib = 1 << 30

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

var anyLibrary = Library{BuildID: "abcd", ContainerDir: "/usr/local/vgpud"}

const anyPages = "/run/vgpud/pages"

func open(t *testing.T, dir string, gpus ...GPU) *Ledger {
	t.Helper()
	l, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	l.SetGPUs(gpus)
	return l
}

// grant holds and commits.
func grant(t *testing.T, l *Ledger, ids ...string) Record {
	t.Helper()
	r, err := l.Hold("nvidia.com/gpu", ids, anyLibrary, anyPages, noon)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Commit(r.Key); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSliceBytesRoundsDownToMebibytes(t *testing.T) {
	for _, c := range []struct {
		gpu  GPU
		want uint64
	}{
		{GPU{UsableBytes: 80 * gib, Slices: 10}, 8 * gib},
		{GPU{UsableBytes: 80*gib - 1, Slices: 10}, 8*gib - SliceUnit},
		{GPU{UsableBytes: 10 * SliceUnit, Slices: 3}, 3 * SliceUnit},
		{GPU{UsableBytes: 10, Slices: 3}, 0},
		{GPU{UsableBytes: 80 * gib, Slices: 0}, 0},
		{GPU{UsableBytes: 80 * gib, Slices: 1}, 80 * gib},
	} {
		if got := c.gpu.SliceBytes(); got != c.want {
			t.Errorf("%+v: %d, want %d", c.gpu, got, c.want)
		}
	}
}

func TestParseSliceIDAcceptsOneSpelling(t *testing.T) {
	uuid, n, err := ParseSliceID("MIG-GPU-1/2/3::17")
	if err != nil || uuid != "MIG-GPU-1/2/3" || n != 17 {
		t.Errorf("got %q %d %v", uuid, n, err)
	}
	for _, id := range []string{"", "GPU-a", "::1", "GPU-a::", "GPU-a::01", "GPU-a::-1", "GPU-a::+1", "GPU-a::1 ", "GPU-a::x", "GPU-a::99999999999999999999"} {
		if _, _, err := ParseSliceID(id); err == nil {
			t.Errorf("%q was accepted", id)
		}
	}
}

func TestHoldMergesPerGPU(t *testing.T) {
	l := open(t, t.TempDir(), GPU{"GPU-a", 80 * gib, 10}, GPU{"GPU-b", 40 * gib, 10})
	r, err := l.Hold("nvidia.com/gpu", []string{"GPU-b::3", "GPU-a::10", "GPU-a::2"}, anyLibrary, anyPages, noon)
	if !errors.Is(err, ErrUnknownDevice) {
		t.Fatalf("slice 10 of 10: %v, %v", r, err)
	}
	r = grant(t, l, "GPU-b::3", "GPU-a::9", "GPU-a::2")
	want := []Grant{{"GPU-a", []string{"GPU-a::2", "GPU-a::9"}, 16 * gib, Compute{Mode: ComputeNone}},
		{"GPU-b", []string{"GPU-b::3"}, 4 * gib, Compute{Mode: ComputeNone}}}
	if diff := cmp.Diff(want, r.Grants); diff != "" {
		t.Error(diff)
	}
	rows := []BookRow{{"GPU-a", 80 * gib, 16 * gib}, {"GPU-b", 40 * gib, 4 * gib}}
	if diff := cmp.Diff(rows, l.Books()); diff != "" {
		t.Error(diff)
	}
}

func TestHoldRefuses(t *testing.T) {
	l := open(t, t.TempDir(), GPU{"GPU-a", 80 * gib, 10}, GPU{"GPU-tiny", 10, 10})
	for _, c := range []struct {
		ids  []string
		want error
	}{
		{nil, ErrUnknownDevice},
		{[]string{"GPU-x::0"}, ErrUnknownDevice},
		{[]string{"GPU-a"}, ErrUnknownDevice},
		{[]string{"GPU-a::1", "GPU-a::1"}, ErrUnknownDevice},
		{[]string{"GPU-tiny::0"}, ErrNoMemory},
	} {
		if _, err := l.Hold("nvidia.com/gpu", c.ids, anyLibrary, anyPages, noon); !errors.Is(err, c.want) {
			t.Errorf("%q: %v, want %v", c.ids, err, c.want)
		}
	}
	if held := l.Held(); len(held) != 0 {
		t.Errorf("refused holds left %v", held)
	}
}

func TestIDCountsOnceAndBothRecordsStay(t *testing.T) {
	l := open(t, t.TempDir(), GPU{"GPU-a", 80 * gib, 10})
	first := grant(t, l, "GPU-a::0")
	second := grant(t, l, "GPU-a::0", "GPU-a::1")
	third := grant(t, l, "GPU-a::0")
	if held := l.Books()[0].HeldBytes; held != 16*gib {
		t.Errorf("held %d, want two slices", held)
	}
	if got := l.ByDeviceIDs([]string{"GPU-a::0"}); len(got) != 2 || got[0].Key == got[1].Key {
		t.Errorf("records of the handed-on slice: %v", got)
	}
	if got := l.ByDeviceIDs([]string{"GPU-a::1", "GPU-a::0"}); len(got) != 1 || got[0].Key != second.Key {
		t.Errorf("records of the pair: %v", got)
	}
	for i, key := range []string{second.Key, first.Key, third.Key} {
		if err := l.Release(key); err != nil {
			t.Fatal(err)
		}
		if want := uint64([]int{8, 8, 0}[i]) * gib; l.Books()[0].HeldBytes != want {
			t.Errorf("after release %d: held %d, want %d", i, l.Books()[0].HeldBytes, want)
		}
	}
}

func TestRecutGPUKeepsWhatIsHeld(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, GPU{"GPU-a", 80 * gib, 10})
	for n := range 9 {
		grant(t, l, SliceID("GPU-a", n))
	}
	// 9 slices of 8 GiB are held; cut into 20, only two of 4 GiB are left, although 11 IDs are free.
	l = open(t, dir, GPU{"GPU-a", 80 * gib, 20})
	grant(t, l, "GPU-a::10")
	grant(t, l, "GPU-a::11")
	if _, err := l.Hold("nvidia.com/gpu", []string{"GPU-a::12"}, anyLibrary, anyPages, noon); !errors.Is(err, ErrNoMemory) {
		t.Errorf("third slice: %v, want ErrNoMemory", err)
	}
	// An ID that is handed on takes nothing more from the book, so it is still served.
	grant(t, l, "GPU-a::3")
	// A GPU that vanished keeps its holdings in sight.
	l.SetGPUs(nil)
	if diff := cmp.Diff([]BookRow{{"GPU-a", 0, 80 * gib}}, l.Books()); diff != "" {
		t.Error(diff)
	}
}

func TestConcurrentHoldsNeverOvercommit(t *testing.T) {
	// Room for 6 of 10 slices: 2 GiB were taken from the GPU's usable memory after it had been cut.
	l := open(t, t.TempDir(), GPU{"GPU-a", 10 * gib, 10})
	for n := range 4 {
		grant(t, l, SliceID("GPU-a", n))
	}
	l.SetGPUs([]GPU{{"GPU-a", 14 * gib, 20}}) // slices of 716 MiB: 14 more fit, 16 IDs are free
	var wg sync.WaitGroup
	results := make(chan error, 16)
	for n := 4; n < 20; n++ {
		wg.Go(func() {
			r, err := l.Hold("nvidia.com/gpu", []string{SliceID("GPU-a", n)}, anyLibrary, anyPages, noon)
			if err == nil {
				err = l.Commit(r.Key)
			}
			results <- err
		})
	}
	wg.Wait()
	close(results)
	granted := 0
	for err := range results {
		if err == nil {
			granted++
		} else if !errors.Is(err, ErrNoMemory) {
			t.Error(err)
		}
	}
	if row := l.Books()[0]; granted != 14 || row.HeldBytes > row.UsableBytes {
		t.Errorf("%d granted, book %+v", granted, row)
	}
}

func TestUnknownKeys(t *testing.T) {
	l := open(t, t.TempDir())
	for _, err := range []error{l.Commit("x"), l.Release("x"), l.Identify("x", Identity{})} {
		if !errors.Is(err, ErrUnknownKey) {
			t.Errorf("%v, want ErrUnknownKey", err)
		}
	}
}

func TestHoldIsInvisibleUntilCommitted(t *testing.T) {
	l := open(t, t.TempDir(), GPU{"GPU-a", 80 * gib, 10})
	r, err := l.Hold("nvidia.com/gpu", []string{"GPU-a::0"}, anyLibrary, anyPages, noon)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(len(l.Snapshot()), len(l.ByDeviceIDs(r.SliceIDs())), l.Books()[0].HeldBytes, l.Held()); got != "0 0 8589934592 map[GPU-a::0:true]" {
		t.Errorf("a hold: %s", got)
	}
	if err := l.Release(r.Key); err != nil {
		t.Fatal(err)
	}
	if l.Books()[0].HeldBytes != 0 {
		t.Error("the released hold is still in the books")
	}
}
