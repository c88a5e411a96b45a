// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package contention finds what the tenants of a card lose because others use the same bandwidth, who they are, and how sure
// that is. In: looks at cards and usage pages (monitor.Contention), a policy, and the state of the look before. Out: pressures,
// parts of the traffic, and per period of two seconds the evidence that a slice is slowed. It has no effects. The agent's watch
// calls Judge; package health makes verdicts of what it returns, metrics and the control socket show it.
//
// From the samples of operations that containers measure follows what is lost (class.go, against what baseline.go has learnt),
// from that pressure (pressure.go), from the card's own counters and the containers' byte counts who uses a resource
// (attribute.go, and package attribution), and from all together the evidence of a period (strain.go). result.go is what comes
// out of it, cadence.go when to look again.
package contention

import (
	"slices"
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// Policy is what is taken for contention. Parts are 0 to 1.
type Policy struct {
	Tolerance   float64 // an operation that takes so much longer than its baseline has lost nothing
	Saturated   float64 // a resource is used up from this part of what the card can do
	Antagonist  float64 // others must have this part of the traffic to be to blame
	SelfLimited float64 // who has more than this part is its own antagonist
	Residual    float64 // nobody is blamed when more than this part of the traffic is nobody's
	Floor       float64 // bytes per second that a link's counter shows of itself

	AchievableDRAM float64 // of the peak that the driver counts in, until more has been seen
	AchievableLink float64 // of what the lanes carry

	Young     time.Duration // a process is not judged before it is so old
	ColdFor   time.Duration // nor are, for so long,
	ColdBytes uint64        // copies that are larger
	TimeSlice time.Duration // of a card that is shared in turns
	Engines   int           // that copy

	Quick float64 // look more often from this part of the DRAM's bandwidth, with several active slices

	// Between looks; see Cadence. GPM needs 100 ms between two samples.
	Interval, QuickInterval, IdleInterval time.Duration
}

// DefaultPolicy is what the agent uses.
func DefaultPolicy() Policy {
	return Policy{Tolerance: 0.05, Saturated: 0.7, Antagonist: 0.3, SelfLimited: 0.8, Residual: 0.3, Floor: 20e6,
		AchievableDRAM: 0.85, AchievableLink: 0.8, Young: time.Minute, ColdFor: 2 * time.Minute, ColdBytes: 256 << 20,
		TimeSlice: 2 * time.Millisecond, Engines: 2, Quick: 0.5,
		Interval: time.Second, QuickInterval: 200 * time.Millisecond, IdleInterval: 2 * time.Second}
}

// Times of looking.
const (
	cardForgotten = 15 * time.Second // a card that was not looked at for so long is gone
	gapMost       = 10 * time.Second // what was counted over a longer time says nothing of now
	periodLate    = time.Second      // a period that is not ended by a look at all cards is ended by any
	idleAfter     = 10 * time.Second // without traffic
)

// State is what has to be remembered between looks. The zero value is the start. It is a value: Judge makes a
// new one and changes nothing in the one it was given; what did not change is shared between them. Its size is bounded: by
// slice at most some 13 KiB (32 classes with two reservoirs of 64 durations each, averages, counters), by card that shows its
// DRAM's bandwidth at most windowRows looks of 8 bytes and slice.
type State struct {
	now    time.Duration
	clock  pressureClock
	cards  []*cardTraffic // sorted by UUID; not changed any more
	result Result         // of the last period
	active time.Duration  // when there was traffic last
}

// Judge judges one look. All that containers claim is bounded: whatever they write, only what is concluded of themselves
// can be wrong, and nobody is blamed for what the card's own counters do not show.
func Judge(seen *monitor.Contention, policy Policy, state State) (Result, State) {
	if seen == nil {
		return Result{Slices: state.result.Slices, GPUs: state.result.GPUs, Next: policy.Interval}, state
	}
	next := State{now: seen.Now, clock: state.clock, result: state.result, active: state.active}
	if seen.Now < state.now || state.clock == (pressureClock{}) {
		next.clock = next.clock.begin(seen.Now)
	}
	next.cards = lookAtCards(seen, &policy, state)
	for _, card := range next.cards {
		if card.looked == seen.Now && card.busy() {
			next.active = seen.Now
		}
	}
	clock, passed, ended := next.clock.end(seen.Now)
	if ended && (next.complete() || seen.Now-next.clock.next >= periodLate) {
		next.clock = clock
		next.result = next.conclude(passed, &policy)
		next.result.Period = true
	}
	result := next.result
	next.result.Period = false
	result.Quick, result.Next = next.schedule(&policy)
	return result, next
}

// complete says whether this look was at all cards.
func (s *State) complete() bool {
	return !slices.ContainsFunc(s.cards, func(c *cardTraffic) bool { return c.looked != s.now })
}

// schedule tells which cards to look at more often, and when to look again.
func (s *State) schedule(policy *Policy) (quick []string, after time.Duration) {
	for _, card := range s.cards {
		if card.quick {
			quick = append(quick, card.uuid)
		}
	}
	switch {
	case len(quick) > 0:
		return quick, policy.QuickInterval
	case s.now-s.active > idleAfter:
		return nil, policy.IdleInterval
	}
	return nil, policy.Interval
}

// lookAtCards makes the new state of all cards. Devices and streams are sorted by card, and so are the cards.
func lookAtCards(seen *monitor.Contention, policy *Policy, state State) []*cardTraffic {
	cards := make([]*cardTraffic, 0, max(len(state.cards), len(seen.Devices)))
	known, devices, streams := state.cards, seen.Devices, seen.Streams
	for len(known)+len(devices)+len(streams) > 0 {
		uuid := firstUUID(known, devices, streams)
		var card *cardTraffic
		var device *monitor.Device
		if len(known) > 0 && known[0].uuid == uuid {
			card, known = known[0], known[1:]
		}
		for len(devices) > 0 && devices[0].GPUUUID <= uuid {
			device, devices = &devices[0], devices[1:]
		}
		own := 0
		for own < len(streams) && streams[own].GPUUUID <= uuid {
			own++
		}
		switch {
		case device != nil || own > 0:
			if card == nil {
				card = &cardTraffic{uuid: uuid}
			}
			cards = append(cards, card.look(seen.Now, device, streams[:own], policy))
		case seen.Now-card.looked < cardForgotten && seen.Now >= card.looked:
			cards = append(cards, card)
		}
		streams = streams[own:]
	}
	return cards
}

// firstUUID is the first card of three sorted lists.
func firstUUID(known []*cardTraffic, devices []monitor.Device, streams []monitor.Stream) string {
	first, found := "", false
	take := func(uuid string) {
		if !found || strings.Compare(uuid, first) < 0 {
			first, found = uuid, true
		}
	}
	if len(known) > 0 {
		take(known[0].uuid)
	}
	if len(devices) > 0 {
		take(devices[0].GPUUUID)
	}
	if len(streams) > 0 {
		take(streams[0].GPUUUID)
	}
	return first
}

// conclude ends a period: averages are updated, and evidence is drawn up.
func (s *State) conclude(passed span, policy *Policy) Result {
	total := 0
	for _, card := range s.cards {
		total += len(card.slices)
	}
	result := Result{Slices: make([]Slice, 0, total), GPUs: make([]GPU, 0, len(s.cards))}
	for i, known := range s.cards {
		card := *known
		if anyLoud(known.slices) {
			card.slices = slices.Clone(known.slices)
		}
		gpu, of := card.conclude(s.now, passed, policy)
		result.GPUs = append(result.GPUs, gpu)
		result.Slices = append(result.Slices, of...)
		s.cards[i] = &card
	}
	return result
}
