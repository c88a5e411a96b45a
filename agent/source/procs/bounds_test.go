// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package procs

import "testing"

// However many processes need something, each gets its turn, and a look does no more than it may.
func TestInTurn(t *testing.T) {
	var all []int
	for pid := range 1000 {
		all = append(all, pid)
	}
	r, from, seen := &Residents{}, 0, map[int]bool{}
	for look := range 10 {
		done := 0
		left := r.inTurn(all, &from, 100, func(pid int) bool { return !seen[pid] }, func(pid int) { seen[pid] = true; done++ })
		if done != 100 || left != 900-100*look {
			t.Fatalf("look %d: %d done, %d left", look, done, left)
		}
	}
	counts := map[int]int{} // such as are in need in every look
	for range 20 {
		r.inTurn(all, &from, 100, func(int) bool { return true }, func(pid int) { counts[pid]++ })
	}
	for pid := range 1000 {
		if counts[pid] != 2 {
			t.Fatalf("process %d had %d turns of 20, want 2", pid, counts[pid])
		}
	}
	if left := r.inTurn(nil, &from, 1, nil, nil); left != 0 {
		t.Error("nobody is left of nobody")
	}
}
