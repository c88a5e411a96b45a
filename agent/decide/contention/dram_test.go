// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Contention in DRAM: under MPS, where kernels run at once, and under time slicing, where they do not.

package contention

import (
	"fmt"
	"math"
	"math/rand"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// streamer is a tenant whose kernels read DRAM: dram is the part of its peak that they use undisturbed.
func streamer(key string, share, dram float64, slower func(time.Duration) float64) *actor {
	return &actor{key: key, dram: dram, works: []*work{{kind: monitor.OperationKernel, takes: 400 * time.Microsecond, share: share,
		jitter: 0.03, every: 64, slower: slower}}}
}

// One tenant streams; another comes, and both are slowed by half. Their shares may be limited, or not: then there is no book
// of their GPU time, and samples of their kernels have to tell it.
func TestContendInDRAM(t *testing.T) {
	for _, book := range []bool{true, false} {
		t.Run(fmt.Sprintf("book %t", book), func(t *testing.T) { contendInDRAM(t, book) })
	}
}

func contendInDRAM(t *testing.T, book bool) {
	both := between(5*time.Minute, time.Hour, 1.8)
	victim := streamer("victim", 0.5, 0.7, both)
	other := streamer("other", 0.55, 0.9, both)
	other.active = during(5*time.Minute, time.Hour, 1)
	victim.noBook, other.noBook = !book, !book
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

// Tenants that take turns are slowed by each other's turns and by their caps, and use up DRAM between them, each in its own
// turn. That is what shares are for: no pressure but on time, and no verdict.
func TestContendTakingTurns(t *testing.T) {
	for _, kernel := range []time.Duration{50 * time.Microsecond, 400 * time.Microsecond, 3 * ms, 40 * ms} {
		var actors []*actor
		for i, key := range []string{"a", "b", "c"} {
			a := streamer(key, 0.33, 0.95, nil)
			a.waits = 0.6
			a.works[0].takes, a.works[0].jitter = kernel, 0.02
			a.turns = rand.New(rand.NewSource(int64(i)))
			if kernel >= 3*ms {
				a.works[0].every = 1
			}
			actors = append(actors, a)
		}
		s := newScene(t, 8, actors...)
		s.sharing = monitor.SharingTimeSliced
		s.run(20*time.Minute, func() {
			for _, slice := range s.result.Slices {
				for _, made := range slice.Strain {
					if made.Avg10 > 0 || made.Bad(0.01) {
						t.Fatalf("kernels of %s, %s: %s", kernel, slice.Key, made)
					}
				}
			}
		})
		waits := s.slice("b").Pressures[ResourceTime]
		if math.Abs(waits.Some.Avg60-0.6) > 0.05 || waits.Full.Avg60 > waits.Some.Avg60 {
			t.Errorf("kernels of %s: waits are %+v", kernel, waits)
		}
	}
}

// The same card under time slicing, where copies within the card are in the way of kernels: that is contention.
func TestContendWithCopiesInTheCard(t *testing.T) {
	both := between(5*time.Minute, time.Hour, 1.8)
	victim := streamer("victim", 0.5, 0.8, both)
	other := &actor{key: "other", works: []*work{{kind: monitor.OperationDeviceCopy, takes: 200 * time.Microsecond, share: 0.55, bytes: 128 << 20,
		every: 16, jitter: 0.02, slower: both}}}
	other.active = func(now time.Duration) float64 { // before, now and then
		if now < time.Hour+5*time.Minute {
			return float64(b(now%(20*time.Second) < 5*time.Second)) * 0.5
		}
		return 1
	}
	s := newScene(t, 9, victim, other)
	s.sharing, s.noise, s.every = monitor.SharingTimeSliced, 0.02, 0
	s.perByte = 0.6 / 600e9 // what it copies is about 0.3 of the DRAM's peak
	s.run(5*time.Minute, nil)
	s.run(2*time.Minute, nil)
	got := s.strain("victim", ResourceDRAM)
	if !got.Bad(0.25) || got.Antagonist != "other" {
		t.Errorf("got %s, %+v", got, s.gpu())
	}
}

// Self-made: a tenant with several streams is slowed by its own, and a neighbour that computes is active beside it.
func TestContendSelfMade(t *testing.T) {
	self := streamer("self", 0.8, 0.95, between(3*time.Minute, time.Hour, 2))
	self.works = append(self.works, &work{kind: monitor.OperationKernel, takes: 300 * time.Microsecond, share: 0.8, jitter: 0.03, every: 64,
		slower: between(3*time.Minute, time.Hour, 2)})
	computes := streamer("computes", 0.5, 0.02, nil)
	computes.active = phases(1, time.Second, 10*time.Second, 0, 1)
	s := newScene(t, 10, self, computes)
	s.every, s.noise, s.reach = 0, 0.03, 0
	limited := 0
	s.run(15*time.Minute, func() {
		for _, key := range []string{"self", "computes"} {
			if made := s.strain(key, ResourceDRAM); made.Bad(0.05) {
				t.Errorf("%s at %s: %s", key, s.now-time.Hour, made)
			}
		}
		limited += b(len(s.slice("self").SelfLimited) > 0)
	})
	if limited == 0 {
		t.Errorf("it is not told that it limits itself: %+v", s.slice("self"))
	}
}
