// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package main

import (
	"testing"
	"time"
)

// The metrics file is never much older than five seconds, or than a tick where ticks are further apart; and it does not cost
// a file each tick.
func TestTellingIsBoundedByTime(t *testing.T) {
	for _, c := range []struct {
		tick, most time.Duration
		files      int // in ten minutes, at most
	}{
		{100 * time.Millisecond, time.Second, 1201}, {time.Second, 5 * time.Second, 121}, {2 * time.Second, 6 * time.Second, 151},
		{3 * time.Second, 6 * time.Second, 201}, {5 * time.Second, 5 * time.Second, 121}, {12 * time.Second, 12 * time.Second, 51},
		{time.Minute, time.Minute, 11},
	} {
		var told telling
		var last time.Time
		files := 0
		start := time.Unix(1_700_000_000, 0)
		for at := start; at.Sub(start) <= 10*time.Minute; at = at.Add(c.tick) {
			now := at.Add(-time.Duration(at.UnixNano() / 7 % int64(time.Millisecond))) // tickers are not exact
			if told.due(now, c.tick, 1, false) {
				files++
				last = at
			}
			if at.Sub(last) > c.most {
				t.Fatalf("tick %v: the file is %v old, want %v at most", c.tick, at.Sub(last), c.most)
			}
		}
		if files > c.files {
			t.Errorf("tick %v: %d files in ten minutes, want %d at most", c.tick, files, c.files)
		}
	}
}

func TestTellingOfWhatHappens(t *testing.T) {
	now, second := time.Unix(1_700_000_000, 0), time.Second
	for name, c := range map[string]struct {
		later    time.Duration
		revision uint64
		happened bool
		want     bool
	}{
		"nothing": {second, 1, false, false}, "a card changed": {second, 1, true, true}, "the books changed": {second, 2, false, true},
		"the clock was set back": {-time.Hour, 1, false, true},
	} {
		var told telling
		if !told.due(now, second, 1, false) {
			t.Fatal("the first tick is not told")
		}
		if got := told.due(now.Add(c.later), second, c.revision, c.happened); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
