// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Mixtures of tenants whose true traffic is known: what is told with confidence is near it, and what cannot be told is not.

package contention

import (
	"fmt"
	"math"
	"math/rand"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// phases is a random rhythm: for a while it works at some part, for a while at another.
func phases(seed int64, shortest, longest time.Duration, parts ...float64) func(time.Duration) float64 {
	random := rand.New(rand.NewSource(seed))
	var ends []time.Duration
	var values []float64
	end := time.Hour
	return func(now time.Duration) float64 {
		for end <= now {
			end += shortest + time.Duration(random.Int63n(int64(longest-shortest)+1))
			ends, values = append(ends, end), append(values, parts[random.Intn(len(parts))])
		}
		for i := len(ends) - 1; i > 0; i-- {
			if now >= ends[i-1] {
				return values[i]
			}
		}
		return values[0]
	}
}

// tally is how well the traffic of a card's slices was told over a run.
type tally struct {
	looks, known  int
	worst         float64 // error of a slice that was told, as a part of the card's traffic
	beyond        int     // more than a tenth
	worstConfided float64 // of the same, with a confidence of a half at least
}

// measure runs a scene and compares.
func (s *scene) measure(settle, span time.Duration) tally {
	s.t.Helper()
	var got tally
	s.run(settle, nil)
	s.run(span, func() {
		if !s.result.Period {
			return
		}
		whole := 0.0
		for _, a := range s.actors {
			whole += s.truth[a.key]
		}
		whole += s.foreign[0]
		can := s.state.cards[0].achievable(onDRAM, &s.policy)
		for _, a := range s.actors {
			for _, found := range s.slice(a.key).Traffic {
				if found.Resource != ResourceDRAM || whole < 0.05 {
					continue
				}
				got.looks++
				if !found.Known {
					continue
				}
				got.known++
				wrong := math.Abs(found.Part*can-s.truth[a.key]) / whole
				got.worst = max(got.worst, wrong)
				if found.Confidence >= 0.5 {
					got.worstConfided = max(got.worstConfided, wrong)
				}
				if wrong > 0.1 {
					got.beyond++
				}
			}
		}
	})
	return got
}

// mixture makes tenants whose kernels read DRAM more or less, or hardly at all, as their data lies in L2.
func mixture(seed int64, count int, shortest, longest time.Duration) []*actor {
	random := rand.New(rand.NewSource(seed))
	actors := make([]*actor, count)
	for i := range actors {
		dram := 0.1 + 0.8*random.Float64()
		if random.Intn(4) == 0 {
			dram = 0.01
		}
		actors[i] = streamer(fmt.Sprintf("slice-%d", i), 0.9, dram, nil)
		actors[i].active = phases(seed*31+int64(i), shortest, longest, 0, 0, 0.3+0.7*random.Float64(), 1/float64(count))
	}
	return actors
}

// Mixtures of two to six tenants with their own rhythms, noise and lag: a tenth of the card's traffic at most.
func TestAttributeMixtures(t *testing.T) {
	t.Parallel()
	known, looks := 0, 0
	for count := 2; count <= 6; count++ {
		for seed := range int64(12) {
			s := newScene(t, seed, mixture(seed*7+int64(count), count, 300*ms, 8*time.Second)...)
			s.every, s.noise, s.lag = 200*ms, 0.03, time.Duration(seed%6)*200*ms
			s.sharing = []monitor.Sharing{monitor.SharingMPS, monitor.SharingTimeSliced}[seed%2]
			s.reach = 0.92
			s.foreign[0] = []float64{0, 0.01, 0.02}[seed%3]
			got := s.measure(150*time.Second, 90*time.Second)
			known, looks = known+got.known, looks+got.looks
			if got.worst > 0.1 {
				t.Errorf("%d tenants, seed %d, lag %s, %s: %.3f of the card's traffic is told wrongly (%d of %d beyond a tenth, %d looks)",
					count, seed, s.lag, s.sharing, got.worst, got.beyond, got.known, got.looks)
			}
		}
	}
	t.Logf("told in %d of %d looks", known, looks)
	if known < looks*9/10 {
		t.Errorf("told in %d of %d looks alone", known, looks)
	}
}

// The same as often as Judge asks for, which is seldom where little is at stake.
func TestAttributeAsOftenAsAsked(t *testing.T) {
	t.Parallel()
	known, looks, often, all := 0, 0, 0, 0
	for seed := range int64(24) {
		count := 2 + int(seed%5)
		s := newScene(t, seed, mixture(seed*13+1, count, 500*ms, 20*time.Second)...)
		s.every, s.noise, s.reach, s.lag = 0, 0.03, 0.92, time.Duration(seed%3)*300*ms
		got := s.measure(200*time.Second, 90*time.Second)
		s.run(30*time.Second, func() { all++; often += b(len(s.result.Quick) > 0) })
		known, looks = known+got.known, looks+got.looks
		if got.worst > 0.1 {
			t.Errorf("%d tenants, seed %d, lag %s: %.3f of the card's traffic is told wrongly (%d of %d beyond a tenth, %d looks)",
				count, seed, s.lag, got.worst, got.beyond, got.known, got.looks)
		}
	}
	t.Logf("told in %d of %d looks; %d of %d looks were asked for early", known, looks, often, all)
	if known < looks*8/10 {
		t.Errorf("told in %d of %d looks alone", known, looks)
	}
}

// Tenants that are active at the same times cannot be told apart, whatever noise there is: that is said.
func TestAttributeSameRhythm(t *testing.T) {
	t.Parallel()
	known, looks := 0, 0
	for seed := range int64(24) {
		count := 2 + int(seed%5)
		actors := mixture(seed*17+3, count, 300*ms, 5*time.Second)
		rhythm := phases(seed, 300*ms, 5*time.Second, 0, 0.5, 1)
		for _, a := range actors {
			a.active = rhythm
		}
		if seed%3 == 0 { // without any
			for _, a := range actors {
				a.active = nil
			}
		}
		s := newScene(t, seed, actors...)
		s.every, s.noise, s.reach, s.lag = 200*ms, 0.03, 0.92, time.Duration(seed%6)*200*ms
		got := s.measure(150*time.Second, 60*time.Second)
		known, looks = known+got.known, looks+got.looks
		if got.worst > 0.1 {
			t.Errorf("%d tenants, seed %d: %.3f of the card's traffic is told wrongly (%d of %d beyond a tenth, %d looks)", count, seed,
				got.worst, got.beyond, got.known, got.looks)
		}
	}
	t.Logf("told in %d of %d looks", known, looks)
	if known > looks/4 {
		t.Errorf("told in %d of %d looks", known, looks)
	}
}

// What is charged is no guide to what runs: it comes in lumps, ahead or behind, or does not grow with what kernels lose. Then
// little may be told, but nothing wrong.
func TestAttributeWithRoughCharges(t *testing.T) {
	t.Parallel()
	for name, rough := range map[string]func(a *actor, seed int64){
		"lumps": func(a *actor, seed int64) {
			var shown time.Duration
			random := rand.New(rand.NewSource(seed))
			a.forge = func(_ time.Duration, stream *monitor.Stream) {
				if random.Intn(3) == 0 {
					shown = stream.Charged
				}
				stream.Charged = shown
			}
		},
		"undisturbed": func(a *actor, _ int64) {
			var shown, last time.Duration
			a.forge = func(_ time.Duration, stream *monitor.Stream) {
				shown += time.Duration(float64(stream.Charged-last) / max(a.squeeze, 1))
				last, stream.Charged = stream.Charged, shown
			}
		},
		"half of it": func(a *actor, _ int64) {
			a.forge = func(_ time.Duration, stream *monitor.Stream) { stream.Charged /= 2 }
		},
	} {
		known, looks := 0, 0
		for seed := range int64(12) {
			actors := mixture(seed*19+5, 2+int(seed%5), 300*ms, 8*time.Second)
			for i, a := range actors {
				rough(a, seed*8+int64(i))
			}
			s := newScene(t, seed, actors...)
			s.every, s.noise, s.reach = 200*ms, 0.03, 0.92
			got := s.measure(150*time.Second, 90*time.Second)
			known, looks = known+got.known, looks+got.looks
			if got.worst > 0.1 {
				t.Errorf("%s, %d tenants, seed %d: %.3f of the card's traffic is told wrongly (%d of %d beyond a tenth, %d looks)", name,
					len(actors), seed, got.worst, got.beyond, got.known, got.looks)
			}
		}
		t.Logf("%s: told in %d of %d looks", name, known, looks)
	}
}
