// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package contention

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// All cards are looked at in time however often some are looked at in between, and seldom when nothing happens.
func TestCadence(t *testing.T) {
	policy := DefaultPolicy()
	quick := Result{Quick: []string{"a"}, Next: policy.QuickInterval}
	for name, c := range map[string]struct {
		found Result
		want  string
	}{
		"busy":     {Result{Next: policy.Interval}, "0s all, 1s all, 2s all, 3s all"},
		"idle":     {Result{Next: policy.IdleInterval, Quick: []string{}}, "0s all, 2s all"},
		"at once":  {Result{}, "0s all, 1s all, 2s all, 3s all"},
		"for ever": {Result{Next: time.Hour}, "0s all, 2s all"},
		"quick":    {quick, "0s all, 200ms a, 400ms a, 600ms a, 800ms a, 1s all, 1.2s a"},
	} {
		looks := strings.Split(c.want, ", ")
		var cadence Cadence
		var made []string
		for now := time.Duration(0); len(made) < len(looks); {
			cards := "all"
			if named := cadence.Named(now); named != nil {
				cards = strings.Join(named, "+")
			}
			made = append(made, now.String()+" "+cards)
			var wait time.Duration
			cadence, wait = cadence.After(now, c.found, policy)
			now += wait
		}
		if !slices.Equal(made, looks) {
			t.Errorf("%s: %v, want %v", name, made, looks)
		}
	}
	var late Cadence
	late, _ = late.After(0, quick, policy)
	if named := late.Named(policy.Interval); named != nil {
		t.Errorf("a look that comes late is at %v, want all cards", named)
	}
	none, _ := late.After(100*time.Millisecond, Result{Quick: []string{}}, policy)
	if named := none.Named(500 * time.Millisecond); named != nil {
		t.Errorf("a look before it is due, with no card to look at, is at %v, want all cards", named)
	}
	if _, wait := late.After(900*time.Millisecond, quick, policy); wait != 100*time.Millisecond {
		t.Errorf("after a late quick look the next one is due in %s, want 100 ms: all cards", wait)
	}
}
