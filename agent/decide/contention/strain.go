// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What a period adds up to: pressures, and the evidence that a slice is slowed by others.

package contention

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// strainFrom is the pressure over ten seconds from which it matters who is to blame.
const strainFrom = 0.1

// possible is on which resources there can be a verdict in the way in which a card is shared, and what cannot be told.
func (c *cardTraffic) possible(policy *Policy) (on [metered]bool, note string) {
	var notes []string
	switch c.sharing {
	case monitor.SharingExclusive:
		return on, "one process has the card for itself: there is nobody to contend with"
	case monitor.SharingMIG:
		return on, "the card is split in hardware: nothing is concluded of its instances"
	case monitor.SharingUnknown:
		notes = append(notes, "how the card is shared is not known: no verdict on its memory's bandwidth")
	case monitor.SharingTimeSliced:
		on[onDRAM] = c.dram.known > 0
		notes = append(notes, "containers take turns: on its memory's bandwidth only copies within the card and kernels contend")
	default:
		on[onDRAM] = c.dram.known > 0
	}
	if c.dram.known == 0 {
		notes = append(notes, "the card does not tell its memory's bandwidth (GPM): no verdict on it")
	}
	for _, direction := range []int{onRX, onTX} {
		on[direction] = c.counterOf(direction).known > 0 && c.achievable(direction, policy) > 0
	}
	switch {
	case c.rx.known == 0 && c.tx.known == 0:
		notes = append(notes, "the card does not tell its PCIe throughput: no verdict on that")
	case !on[onRX]:
		notes = append(notes, "the card does not tell what PCIe link it has: no verdict on that")
	case c.trainedDown:
		notes = append(notes, fmt.Sprintf("the PCIe link is trained down from generation %d x%d: no verdict on that",
			c.linkMost.generation, c.linkMost.width))
	}
	return on, strings.Join(notes, "; ")
}

// blind says why nothing can be concluded of the card in this period.
func (c *cardTraffic) blind(now time.Duration) string {
	switch {
	case now-c.looked > unknownFor:
		return "the card was not looked at of late"
	case c.fault != "" && now-c.read > unknownFor:
		return c.fault
	case len(c.slices) > 0 && !c.anyRead(now):
		return "no usage page can be read"
	}
	return ""
}

// anyRead says whether anything was read of a slice of late.
func (c *cardTraffic) anyRead(now time.Duration) bool {
	if c.rested > 0 && now-c.rested <= unknownFor {
		return true
	}
	for i := range c.slices {
		if c.slices[i].read > 0 && now-c.slices[i].read <= unknownFor {
			return true
		}
	}
	return false
}

// conclude ends a period of a card. The card and its slices are its caller's own.
func (c *cardTraffic) conclude(now time.Duration, passed span, policy *Policy) (GPU, []Slice) {
	possible, note := c.possible(policy)
	gpu := GPU{UUID: c.uuid, Blind: c.blind(now), Note: note}
	for on, can := range possible {
		if can {
			gpu.Possible = append(gpu.Possible, resourceNames[on])
		}
	}
	traffic := c.attribute(now, policy)
	traffic.describe(&gpu)
	found := make([]Slice, len(c.slices))
	var weighted [metered]struct{ some, full float64 }
	busy := 0.0
	for i := range c.slices {
		s := &c.slices[i]
		found[i] = Slice{Key: s.key, GPUUUID: c.uuid}
		if s.silent() {
			continue // and may be of the state before
		}
		weight := s.weight()
		busy += weight
		for on := range metered {
			meters := &s.pressure[on]
			if on != onTime && (s.period[on].hushed || on != onDRAM && c.trainedDown) {
				meters.some.hold()
				meters.full.hold()
			} else {
				weighted[on].some += weight * meters.some.part(passed)
				weighted[on].full += weight * meters.full.part(passed)
				meters.some.update(passed)
				meters.full.update(passed)
			}
		}
		found[i].Pressures = s.pressures()
		traffic.of(i, &found[i])
		for on := onDRAM; on < metered; on++ {
			if possible[on] {
				c.strain(on, i, traffic, policy, &found[i])
			}
		}
		s.period = [metered]lossOf{}
	}
	for on := range metered {
		c.pressure[on].some.advance(weighted[on].some, busy, passed)
		c.pressure[on].full.advance(weighted[on].full, busy, passed)
	}
	gpu.Pressures = c.pressures()
	c.plan(now, traffic, policy)
	return gpu, found
}

// weight is how much a slice counts in the pressure of its card: for how much of the time it was not idle.
func (s *sliceTraffic) weight() float64 {
	busy := s.busy
	for on := onDRAM; on < metered; on++ {
		busy = max(busy, s.several[on])
	}
	return min(busy, 1)
}

// part is the part of a period that an update would sample.
func (m *meter) part(passed span) float64 {
	if passed.period <= 0 {
		return 0
	}
	return float64(min(m.total-m.sampled, passed.period)) / float64(passed.period)
}

// advance updates a card's meter by the sum of its slices' parts of a period, each times a weight.
func (m *meter) advance(weighted, weights float64, passed span) {
	if weights > 0 {
		m.lose(seconds(weighted / weights * passed.period.Seconds()))
	}
	m.update(passed)
}

// pressures is what is published of meters; nil where nothing was ever lost.
func pressures(meters *[metered]struct{ some, full meter }) map[Resource]Pressure {
	var found map[Resource]Pressure
	for on := range meters {
		pair := &meters[on]
		if pair.some.total == 0 {
			continue
		}
		if found == nil {
			found = make(map[Resource]Pressure, metered)
		}
		found[resourceNames[on]] = Pressure{Some: pair.some.averages(), Full: pair.full.averages()}
	}
	return found
}

func (s *sliceTraffic) pressures() map[Resource]Pressure { return pressures(&s.pressure) }
func (c *cardTraffic) pressures() map[Resource]Pressure  { return pressures(&c.pressure) }

// strain draws up the evidence that a slice is slowed on a resource; none where nothing was lost of late.
func (c *cardTraffic) strain(on, index int, traffic *cardShares, policy *Policy, found *Slice) {
	s := &c.slices[index]
	meters := &s.pressure[on]
	felt := &meters.full
	if s.several[on] > severalFrom {
		felt = &meters.some
	}
	averages := felt.averages()
	if averages.Avg10 == 0 && averages.Avg60 == 0 && s.several[on] == 0 && s.vague[on] == 0 && (on != onDRAM || s.busy == 0) {
		return // it does nothing on it
	}
	shares := traffic.sharesOf(on, index)
	if shares.known && shares.own > policy.SelfLimited && traffic.ratio[on] >= policy.Saturated {
		found.SelfLimited = append(found.SelfLimited, resourceNames[on])
	}
	silent := (s.period[on].hushed && s.period[on].took+s.period[on].unknown > 0 || s.isVague(on, c.looked)) &&
		traffic.ratio[on] >= policy.Saturated // something may well be lost, and cannot be judged
	if averages.Avg10 == 0 && averages.Avg60 == 0 && !silent {
		return
	}
	made := Strain{Resource: resourceNames[on], Avg10: averages.Avg10, Avg60: averages.Avg60, DeviceRatio: traffic.ratio[on],
		Saturated: traffic.ratio[on] >= policy.Saturated, Samples: s.period[on].samples}
	if shares.known {
		made.CoActive = shares.others >= policy.Antagonist && shares.own <= policy.SelfLimited
		if made.CoActive {
			made.Antagonist, made.Confidence = shares.antagonist, shares.confidence
		}
	}
	made.Excluded = c.excluded(on, s, averages, shares)
	found.Strain = append(found.Strain, made)
}

// isVague says whether too little is known of what a slice did on a resource of late.
func (s *sliceTraffic) isVague(on int, now time.Duration) bool {
	return s.vague[on] > 0 && now-s.vague[on] < shareOver
}

// excluded says why a period proves nothing.
func (c *cardTraffic) excluded(on int, s *sliceTraffic, averages Averages, shares shares) string {
	period := &s.period[on]
	switch {
	case c.throttle != 0 || period.hushed && c.looked-c.throttled <= 2*Period && c.throttled > 0:
		return "the card is throttled: " + throttleWords(c.throttle)
	case period.hushed:
		return "its processes have just begun"
	case on != onDRAM && c.trainedDown:
		return "the PCIe link is trained down"
	case s.isVague(on, c.looked):
		return fmt.Sprintf("fewer than %d samples of most of its operations", warmup)
	case averages.Avg10 < strainFrom:
		return ""
	case !c.counterOf(on).knownAt(c.looked):
		return "the card's counter cannot be read"
	case !shares.known:
		return "unattributed: " + shares.why
	}
	return ""
}

// throttleWords names the reasons of a throttle.
func throttleWords(set monitor.Throttle) string {
	var words []string
	for _, reason := range monitor.ThrottleReasons {
		if set&reason.Bit != 0 {
			words = append(words, reason.Name)
		}
	}
	if len(words) == 0 {
		return "until a moment ago"
	}
	return strings.Join(words, ", ")
}

// sane bounds a part.
func sane(part float64) float64 {
	if math.IsNaN(part) {
		return 0
	}
	return min(max(part, 0), 1)
}
