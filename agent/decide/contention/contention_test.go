// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Contention that is there is found, with who makes it; and nothing else is.

package contention

import (
	"math"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// copier copies at a rate of the host's memory to the card: a MiB in 42 µs at 25 GB/s.
func copier(key string, share float64, slower func(time.Duration) float64) *actor {
	return &actor{key: key, works: []*work{{kind: monitor.OperationHostToDevice, takes: 42 * time.Microsecond, share: share, bytes: 1 << 20,
		jitter: 0.03, every: 64, slower: slower}}}
}

// Two tenants copy, and each gets half of the link: the pressure is what the slower copies lose, the other is to blame.
func TestContendOnALink(t *testing.T) {
	both := between(5*time.Minute, time.Hour, 2)
	victim := copier("victim", 0.45, both)
	other := copier("other", 0.6, both)
	other.active = during(5*time.Minute, time.Hour, 1)
	s := newScene(t, 1, victim, other)
	s.run(5*time.Minute, func() {
		if made := s.strain("victim", ResourcePCIeRX); made.Bad(0.05) {
			t.Errorf("%s: alone: %s", s.now, made)
		}
	})
	s.run(2*time.Minute, nil)
	got := s.strain("victim", ResourcePCIeRX)
	// Of 0.9 of the time that it copies, half is lost, less the tolerance.
	want := 0.9 * (1 - 1.05/2)
	if !got.Bad(0.25) || got.Antagonist != "other" || got.Confidence < 0.5 || math.Abs(got.Avg10-want) > 0.04 {
		t.Errorf("got %s, want about %.2f", got, want)
	}
}
