// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package scene

import (
	"math"
	"slices"
	"time"
)

// Windows in which shares are looked at.
const (
	window     = time.Second            // p95, overshoot and settling
	windowStep = 100 * time.Millisecond // how far apart they begin
	settleFor  = 5 * time.Second        // how long the share stays within the band to count as settled
	settleBand = 0.10                   // of the target
	reachLook  = 50 * time.Millisecond  // window in which a lender's return is looked at
	reachStep  = time.Millisecond
)

// Figures of one row. Errors are in points of a percent of the card's time; the worst tenant counts. What does not
// apply to a row is nil.
type Figures struct {
	Shares         []float64 `json:"shares_percent"`
	Targets        []float64 `json:"target_percent"`
	MeanError      *float64  `json:"mean_error_points,omitempty"`
	P95            *float64  `json:"p95_points,omitempty"`
	Settle         *float64  `json:"settle_seconds,omitempty"` // -1: never
	Overshoot      *float64  `json:"overshoot_points,omitempty"`
	Jain           *float64  `json:"jain,omitempty"`
	Within         *float64  `json:"jain_of_processes,omitempty"`
	Busy           *float64  `json:"busy_percent,omitempty"`
	Reach          *float64  `json:"lender_reach_ms,omitempty"`
	Split          *float64  `json:"split_error_points,omitempty"`
	Throttled      *float64  `json:"throttled_seconds,omitempty"`
	Longest        *float64  `json:"longest_wait_seconds,omitempty"`
	Slowdown       *float64  `json:"slowdown,omitempty"`
	AgainstVirtual *float64  `json:"against_virtual_points,omitempty"` // of a real row: how far its shares are from the virtual ones
}

// Span is a part of a scene in which every tenant has one target, as parts of the card's time.
type Span struct {
	From, To time.Duration
	Targets  []float64 // negative: none, not looked at
}

// MeanError is how far the worst tenant's mean over the span is from its target, in points.
func (o Outcome) MeanError(s Span) float64 {
	worst := 0.0
	for i, target := range s.Targets {
		if target >= 0 {
			worst = max(worst, 100*math.Abs(o.Tenants[i].Share(s.From, s.To)-target))
		}
	}
	return worst
}

// Shares are the tenants' means over the span, in percent.
func (o Outcome) Shares(s Span) []float64 {
	shares := make([]float64, len(o.Tenants))
	for i, t := range o.Tenants {
		shares[i] = 100 * t.Share(s.From, s.To)
	}
	return shares
}

// P95 is the 95th percentile of the distance from the target of windows of 1 s, of the worst tenant, in points.
func (o Outcome) P95(s Span) float64 {
	worst := 0.0
	for i, target := range s.Targets {
		if target < 0 {
			continue
		}
		var distances []float64
		for from := s.From; from+window <= s.To; from += windowStep {
			distances = append(distances, 100*math.Abs(o.Tenants[i].Share(from, from+window)-target))
		}
		if len(distances) > 0 {
			slices.Sort(distances)
			worst = max(worst, distances[(len(distances)*95-1)/100])
		}
	}
	return worst
}

// Settle is the time from the span's begin on after which each tenant's share, over windows of 1 s, stays within a
// tenth of its target for 5 s (or to the span's end). 0 means in the first window already; -1 never, in seconds.
func (o Outcome) Settle(s Span) float64 {
	worst := 0.0
	for i, target := range s.Targets {
		if target < 0 {
			continue
		}
		settled := -1.0
		since := s.From
		for from := s.From; from+window <= s.To; from += windowStep {
			if math.Abs(o.Tenants[i].Share(from, from+window)-target) > settleBand*target {
				since = from + windowStep
			}
			if from-since >= settleFor || (from+window+windowStep > s.To && since <= from) {
				settled = (since - s.From).Seconds()
				break
			}
		}
		if settled < 0 {
			return -1
		}
		worst = max(worst, settled)
	}
	return worst
}

// Overshoot is by how much the share of a tenant was above its target (or away from it at all, with both) in the worst
// window of 1 s that begins within the span's first `within`, in points.
func (o Outcome) Overshoot(s Span, within time.Duration, both bool) float64 {
	worst := 0.0
	for i, target := range s.Targets {
		if target < 0 {
			continue
		}
		for from := s.From; from < s.From+within && from+window <= s.To; from += windowStep {
			over := 100 * (o.Tenants[i].Share(from, from+window) - target)
			if both {
				over = math.Abs(over)
			}
			worst = max(worst, over)
		}
	}
	return worst
}

// Jain is the fairness index of share by target: 1 when all have the same part of theirs.
func (o Outcome) Jain(s Span) float64 {
	var parts []float64
	for i, target := range s.Targets {
		if target > 0 {
			parts = append(parts, o.Tenants[i].Share(s.From, s.To)/target)
		}
	}
	return JainOf(parts)
}

// JainOf is the fairness index of values that ought to be equal.
func JainOf(values []float64) float64 {
	var sum, squares float64
	for _, v := range values {
		sum += v
		squares += v * v
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(values)) * squares)
}

// Busy is the part of the span in which the card worked, in percent.
func (o Outcome) Busy(s Span) float64 { return 100 * o.Card.Share(s.From, s.To) }

// Reach is how long after each of its returns the tenant took, at worst, to use at least `target` of the card over the
// last 50 ms, in milliseconds; what it used before its return is not looked at. Returns of which that never came true
// count whole.
func (o Outcome) Reach(tenant int, target float64, returns, ends []time.Duration) float64 {
	worst := 0.0
	for i, start := range returns {
		reached := ends[i] - start
		for at := start + reachStep; at <= ends[i]; at += reachStep {
			from := max(start, at-reachLook)
			if at-start >= reachLook/2 && o.Tenants[tenant].Share(from, at) >= target {
				reached = at - start
				break
			}
		}
		worst = max(worst, float64(reached)/float64(time.Millisecond))
	}
	return worst
}

// Named is a figure with its name, for people.
type Named struct {
	Name  string
	Value float64
}

// Named returns the figures that apply, in a fixed order.
func (f Figures) Named() []Named {
	var named []Named
	for _, n := range []struct {
		name  string
		value *float64
	}{{"mean", f.MeanError}, {"p95", f.P95}, {"settle", f.Settle}, {"over", f.Overshoot}, {"Jain", f.Jain}, {"Jain of processes", f.Within}, {"busy", f.Busy},
		{"reach", f.Reach}, {"split", f.Split}, {"throttled", f.Throttled}, {"longest", f.Longest}, {"slowdown", f.Slowdown},
		{"against virtual", f.AgainstVirtual}} {
		if n.value != nil {
			named = append(named, Named{n.name, *n.value})
		}
	}
	return named
}
