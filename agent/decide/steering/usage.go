// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package steering

import (
	"fmt"
	"slices"
	"time"
)

// usage is what is remembered for the verdicts.
type usage struct {
	recent []used        // the last overShareOver, oldest first; nothing in it is changed
	over   time.Duration // since when measured use is above what was granted; 0: it is not
	// Since when the driver has not shown it though it charges, 0 if it has; and whether its use may be taken for that of
	// processes without an allocation.
	missed  time.Duration
	foreign bool
	// How long it waited in each of the last stretches, and for how long it was looked at; waits[0] is the present one.
	waits     [heldStretches]waited
	throttled time.Duration // Throttled, as it was last seen
	looked    time.Duration // when that was
	held      bool
}

// A tenant is held from when it waited for heldFrom of the time, until it waits for less than heldUntil, lest the verdict
// flap. The time is cut into heldStretches.
const (
	heldFrom, heldUntil = 0.5, 0.25
	heldStretches       = 6
)

// A tenant that used less than idleBelow of what it was granted is expected to use no more than idleGrows times as much.
const idleBelow, idleGrows = 0.5, 2

// waited is how much of a stretch of time was spent waiting.
type waited struct{ waited, looked time.Duration }

// used is what was measured in one period, in seconds of GPU time.
type used struct {
	from, at      time.Duration
	used, granted float64
	charged       bool // it launched something in it
}

// add takes a period in, with the rate that was granted in it. Where there was none for a while nobody used the GPU, or the
// driver has lost some: that counts as no use.
func (u usage) add(r reading, rate float64, charged bool) usage {
	from := r.from
	if n := len(u.recent); n > 0 && r.at-u.recent[n-1].at < overShareOver {
		from = u.recent[n-1].at
	}
	first := 0
	for first < len(u.recent) && u.recent[first].at <= r.at-overShareOver {
		first++
	}
	u.missed = 0
	u.recent = append(slices.Clip(slices.Clone(u.recent[first:])),
		used{from, r.at, r.busy * (r.at - r.from).Seconds(), rate * (r.at - from).Seconds(), charged})
	covered, consumed, allowed := u.sums(overShareOver)
	switch {
	case consumed <= allowed+overShareMargin*covered.Seconds() || covered < usedOver:
		u.over = 0
	case u.over == 0:
		u.over = r.at
	}
	return u
}

// miss takes in a period in which the driver did not show it though it charges.
func (u usage) miss(at time.Duration) usage {
	if u.missed == 0 {
		u.missed = at
	}
	return u
}

// most is how much of the GPU it can be expected to use: not much more than it did in the last overShareOver, if it left
// half of what it was granted, whatever its pages say that it waits for.
func (u usage) most(now time.Duration) float64 {
	switch {
	case u.foreign:
		return 1
	case u.missed > 0 && now-u.missed > overShareOver:
		return 0
	case len(u.recent) == 0:
		return 1
	}
	last := u.recent[len(u.recent)-1].at
	covered, consumed, allowed := u.sums(overShareOver)
	if now-last > samplesStale || covered < overShareOver/2 || consumed > idleBelow*allowed {
		return 1
	}
	return idleGrows * consumed / covered.Seconds()
}

// seenBusy says whether the driver saw it use the GPU in the last period, though its pages may say otherwise.
func (u usage) seenBusy(now time.Duration) bool {
	if len(u.recent) == 0 {
		return false
	}
	last := u.recent[len(u.recent)-1]
	return now-last.at < samplesStale && last.used > 0 && !last.charged
}

// sums adds up the periods that ended in the last stretch before the last one's end.
func (u usage) sums(stretch time.Duration) (covered time.Duration, consumed, allowed float64) {
	last := u.recent[len(u.recent)-1].at
	for _, period := range u.recent {
		if period.at > last-stretch {
			covered += period.at - period.from
			consumed += period.used
			allowed += period.granted
		}
	}
	return covered, consumed, allowed
}

// wait takes in how long the tenant was kept waiting in all. Waits of several threads at once count once.
func (u usage) wait(now, throttled, over time.Duration) usage {
	passed, more := now-u.looked, throttled-u.throttled
	first := u.looked == 0 || more < 0 || passed > over
	u.throttled, u.looked = throttled, now
	if first {
		u.waits = [heldStretches]waited{}
		return u
	}
	if u.waits[0].looked >= over/heldStretches {
		copy(u.waits[1:], u.waits[:heldStretches-1])
		u.waits[0] = waited{}
	}
	u.waits[0].looked += passed
	u.waits[0].waited += min(passed, more)
	share, all := u.waitShare(over)
	u.held = all && (share >= heldFrom || u.held && share >= heldUntil)
	return u
}

// waitShare is which part of the time it waited, and whether the whole time has been looked at.
func (u usage) waitShare(over time.Duration) (share float64, all bool) {
	var sum waited
	for _, stretch := range u.waits {
		sum.looked += stretch.looked
		sum.waited += stretch.waited
	}
	if sum.looked == 0 {
		return 0, false
	}
	return float64(sum.waited) / float64(sum.looked), sum.looked > over-over/heldStretches
}

// verdict is what is concluded about a tenant.
func (m *member) verdict(now time.Duration, policy Policy) Verdict {
	u := m.usage
	v := Verdict{Key: m.tenant.Key, GPUUUID: m.tenant.GPUUUID, Granted: m.granted, Rate: m.rate, Held: u.held,
		Scale: m.scaleInForce(), Cut: m.share < m.granted, Distrusted: now < m.scale.wary}
	if len(u.recent) > 0 {
		last := u.recent[len(u.recent)-1].at
		switch {
		case now-last <= samplesStale:
			covered, consumed, _ := u.sums(usedOver)
			v.Used, v.UsedKnown = consumed/covered.Seconds(), true
			v.OverShare = u.over > 0 && last-u.over >= policy.OverShareAfter
		case m.tenant.Known && len(m.history) > 0 && !m.active && m.history[len(m.history)-1].launch <= last:
			v.UsedKnown = true // there are no samples because nobody uses the GPU
		}
	}
	switch {
	case v.OverShare:
		covered, consumed, allowed := u.sums(overShareOver)
		v.Reason = fmt.Sprintf("used %.1f %% of the GPU where %.1f %% was granted, for %s",
			100*consumed/covered.Seconds(), 100*allowed/covered.Seconds(), (now - u.over).Round(time.Second))
	case v.Held:
		share, _ := u.waitShare(policy.HeldAfter)
		v.Reason = fmt.Sprintf("waited for GPU time in %.0f %% of the last %s", 100*share, policy.HeldAfter)
	}
	return v
}
