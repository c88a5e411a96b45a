// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Contention in DRAM: under MPS, where kernels run at once, and under time slicing, where they do not.

package decide

import (
	"math"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// streamer is a tenant whose kernels read DRAM: dram is the part of its peak that they use undisturbed.
func streamer(key string, share, dram float64, slower func(time.Duration) float64) *actor {
	return &actor{key: key, dram: dram, works: []*work{{kind: monitor.OperationKernel, takes: 400 * time.Microsecond, share: share,
		jitter: 0.03, every: 64, slower: slower}}}
}

// One tenant streams; another comes, and both are slowed by half.
func TestContendInDRAM(t *testing.T) {
	both := between(5*time.Minute, time.Hour, 1.8)
	victim := streamer("victim", 0.5, 0.7, both)
	other := streamer("other", 0.55, 0.9, both)
	other.active = during(5*time.Minute, time.Hour, 1)
	s := newScene(t, 1, victim, other)
	s.every, s.noise = 0, 0.03
	s.run(5*time.Minute, func() {
		if made := s.strain("victim", ResourceDRAM); made.Bad(0.05) {
			t.Errorf("%s: alone: %s", s.now, made)
		}
	})
	s.run(3*time.Minute, nil)
	got, want := s.strain("victim", ResourceDRAM), 0.9*(1-1.05/1.8)
	if !got.Bad(0.25) || got.Antagonist != "other" || math.Abs(got.Avg10-want) > 0.05 {
		t.Errorf("got %s, want about %.2f", got, want)
	}
	// It lasts for an hour, and is not got used to.
	s.run(50*time.Minute, nil)
	if got := s.strain("victim", ResourceDRAM); !got.Bad(0.25) {
		t.Errorf("after an hour: %s", got)
	}
}
