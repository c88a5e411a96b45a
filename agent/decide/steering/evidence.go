// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package steering

import (
	"math"
	"time"
)

// What evidence is worth.
const (
	deadBand = 1.1 // a scale that is wrong by less is left to the slow mean
	deadBeat = 2.5 // most that one correction multiplies or divides by: a single period can mislead

	// Costs are not so much too low, or a long launch whose cost is not known yet looks the same; unless the GPU had idle
	// time for so long, when that would have been charged, or unless it shows for longer than any such launch.
	unlikely    = 2.2
	idleFor     = 500 * time.Millisecond
	unlikelyFor = 45 * time.Second

	// The slow mean follows the longest window: its time constant can be short, for the windows are long by themselves.
	// Bounds that are further apart than slowWidth, relative to the scale, say nothing to it.
	slowMean  = 300 * time.Millisecond
	slowWidth = 0.4

	hogMargin = 1.02 // used of what was granted, by who is certain to use more

	// Use above what was granted, by this factor and this much (in seconds of GPU time: windows can be short).
	overusedFactor = 1.05
	overusedMargin = 0.02
)

// evidence is what a window says: the sums, and how far they can be wrong.
type evidence struct {
	sums                    // due: with what was granted while the tenant did nothing
	low, high float64       // bounds of the scale
	whole     time.Duration // from the beginning to the end, with the times without samples
	bill      float64       // charged at the scales in force, less granted, in the whole time
	least     float64       // used at least, of what was charged by now
	before    float64       // charged before at most, and not used then
}

// middle is the scale if nothing is wrong. Only for evidence that says something.
func (e evidence) middle() float64 { return e.used / e.charged }

// silent says that nothing can be concluded.
func (e evidence) silent() bool { return e.used <= 0 || e.charged <= 0 }

// correction is the scale that a window asks for in the place of current, if its bounds leave that out.
func (e evidence) correction(current float64) (corrected float64, wrong bool) {
	if e.silent() {
		return current, false
	}
	switch {
	case e.low > current*deadBand:
		if (e.odd || e.middle() > current*unlikely) && e.idle < idleFor && e.span < unlikelyFor {
			return current, false // a long launch whose cost is not known yet looks the same
		}
		return bounded(min(math.Sqrt(e.middle()*e.low), current*deadBeat)), true
	case e.high < current/deadBand:
		if e.queued || !e.seen || e.overused(current) {
			return current, false // what is charged waits in a queue, or cannot be told from other processes' use
		}
		return bounded(max(math.Sqrt(e.middle()*e.high), current/deadBeat)), true
	}
	return current, false
}

// approach moves the scale towards what a window says, as far as span is of the time constant: its middle; or one, if
// the estimates should be right and whole percents allow it.
func (e evidence) approach(current float64, span time.Duration) float64 {
	if e.odd || e.silent() || e.high-e.low > slowWidth*current {
		return current
	}
	target := e.middle()
	if e.exact && e.isOne() {
		target = 1
	}
	if target < current && (e.queued || e.overused(current)) {
		return current // a queue grows, or the charge is not to be believed
	}
	gain := 1 - math.Exp(-float64(span)/float64(slowMean))
	return bounded(current + gain*(target-current))
}

// isOne says whether as much can have been used as was charged, by what whole percents can mean.
func (e evidence) isOne() bool {
	span := e.span.Seconds()
	return e.used-percentBelow*span <= e.charged && e.charged <= e.used+percentAbove*span
}

// hogs says that a tenant used all of the GPU and more than it was granted. Then it works off a queue, and goes on doing so
// whatever the scale is: the quotient does not show how much too low its costs are.
func (e evidence) hogs(current float64) bool {
	return e.hogged && e.least-current*e.before > hogMargin*e.granted && e.used < unlikely*e.granted
}

// overused says that the tenant was measured to use more than it was granted, one launch left out: then its costs are not
// too high.
func (e evidence) overused(current float64) bool {
	return e.used-current*e.open > overusedFactor*e.granted+overusedMargin
}
