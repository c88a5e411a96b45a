// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The books of many allocations, read at once.

package limiter_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/limiter"
)

// TestHeads: the books of many allocations in one call; what one container does to its page is no matter of the others.
func TestHeads(t *testing.T) {
	const count, times = 60, 20 // together more than one call takes
	var heads limiter.Heads
	dirs, handles := make([]string, count), make([]*limiter.Steering, count)
	now := limiter.MonotonicNow() + time.Second
	for i := range handles {
		dirs[i] = newComputePages(t, hard(500000))
		handles[i] = openSteering(t, dirs[i])
		if !handles[i].Stirred() {
			t.Fatal("nothing was read, and nothing has happened?")
		}
		if _, err := handles[i].Meter(now); err != nil {
			t.Fatal(err)
		}
	}
	stirred := func() (list []int) {
		heads.Read(slices.Repeat(handles, times))
		for i, s := range handles {
			if s.Stirred() {
				list = append(list, i)
			}
		}
		return list
	}
	if got := stirred(); got != nil {
		t.Errorf("at rest, and %d have stirred", len(got))
	}
	const used, cut, removed, tampered = 3, 40, 50, 59
	use(newPacer(t, dirs[used]), now)
	path := func(i int) string { return filepath.Join(dirs[i], limiter.UsageFile) }
	if err := errors.Join(os.Truncate(path(cut), 0), os.Remove(path(removed))); err != nil {
		t.Fatal(err)
	}
	pokeUint64(t, path(tampered), 8, 0)
	if diff := cmp.Diff([]int{used, cut, tampered}, stirred()); diff != "" {
		t.Errorf("stirred (-want +got):\n%s", diff)
	}
	handles[removed].Verify()
	if diff := cmp.Diff([]int{used, cut, removed, tampered}, stirred()); diff != "" {
		t.Errorf("stirred, and verified (-want +got):\n%s", diff)
	}
	for i, s := range handles {
		meters, err := s.Meter(now)
		switch i {
		case used:
			if err != nil || meters[0].Launches != 11 {
				t.Errorf("used: %+v, %v", meters, err)
			}
		case cut, tampered:
			if !errors.Is(err, limiter.ErrTampered) {
				t.Errorf("%d: %v, want ErrTampered", i, err)
			}
		case removed:
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("removed: %v, want fs.ErrNotExist", err)
			}
		default:
			if err != nil || meters[0] != (limiter.ComputeUsage{}) {
				t.Fatalf("%d: %+v, %v", i, meters, err)
			}
		}
	}
	if err := errors.Join(limiter.RestoreUsage(dirs[cut]), limiter.RestoreUsage(dirs[removed])); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{cut, removed} {
		if _, err := handles[i].Meter(now); err != nil {
			t.Errorf("%d, put right: %v", i, err)
		}
	}
	if got := stirred(); got != nil {
		t.Errorf("all that happened was read, and %v have stirred", got)
	}
}
