// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package scene

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Criteria is what a row is held to. A limit that is nil is not looked at.
type Criteria struct {
	Means     []Span        // the spans of mean error, p95, Jain and busy, by the worst; shares are those of the last
	Steps     []Span        // each begins with a change: the spans of settling and overshoot; none: Means
	Within    time.Duration // windows that begin so long after a change count for overshoot; 0: 1 s
	Both      bool          // being below the target counts as overshoot, too
	MeanError *float64      // points
	P95       *float64      // points
	Settle    *float64      // seconds
	Overshoot *float64      // points
	Jain      *float64      // at least
	Processes *float64      // Jain among the processes of the first tenant, at least
	Busy      *float64      // percent, at least
	Reach     *float64      // ms; of Lender
	Split     *float64      // points; of BothOn
	Throttled *float64      // seconds
	Longest   *float64      // seconds
	Slowdown  *float64      // of the last tenant's rounds, against Alone seconds a round
	Lender    int
	LenderAt  float64 // part of the card that it is to have again
	BothOn    []Span  // spans of the split
	Alone     time.Duration
}

// check is one figure and its limit.
type check struct {
	name, unit string
	figure     **float64
	limit      *float64
	isLeast    bool // the figure is to be at least the limit
	measure    func() float64
}

func (c *Criteria) checks(o Outcome, s Scene, f *Figures) []check {
	steps := c.Steps
	if len(steps) == 0 {
		steps = c.Means
	}
	within := orElse(c.Within, time.Second)
	overshoot := func(span Span) float64 { return o.Overshoot(span, within, c.Both) }
	return []check{
		{"mean error", " points", &f.MeanError, c.MeanError, false, most(o.MeanError, c.Means)},
		{"p95", " points", &f.P95, c.P95, false, most(o.P95, c.Means)},
		{"settled after", " s", &f.Settle, c.Settle, false, most(o.Settle, steps)},
		{"overshoot", " points", &f.Overshoot, c.Overshoot, false, most(overshoot, steps)},
		{"Jain", "", &f.Jain, c.Jain, true, least(o.Jain, c.Means)},
		{"Jain of processes", "", &f.Within, c.Processes, true, func() float64 { return o.Claims[0].Jain }},
		{"busy", " %", &f.Busy, c.Busy, true, least(o.Busy, c.Means)},
		{"lender back after", " ms", &f.Reach, c.Reach, false, func() float64 { return c.reach(o, s) }},
		{"split", " points", &f.Split, c.Split, false, func() float64 { return o.split(c.BothOn) }},
		{"throttled", " s", &f.Throttled, c.Throttled, false, func() float64 { return o.throttled() }},
		{"longest wait", " s", &f.Longest, c.Longest, false, func() float64 { return o.longest() }},
		{"slowdown", "", &f.Slowdown, c.Slowdown, false, func() float64 { return c.slowdown(o, s) }},
	}
}

// most is the largest value of the spans; -1 (never) is larger than all.
func most(of func(Span) float64, spans []Span) func() float64 {
	return func() float64 {
		result := 0.0
		for _, span := range spans {
			value := of(span)
			if value < 0 {
				return value
			}
			result = max(result, value)
		}
		return result
	}
}

// least is the smallest value of the spans.
func least(of func(Span) float64, spans []Span) func() float64 {
	return func() float64 {
		result := math.Inf(1)
		for _, span := range spans {
			result = min(result, of(span))
		}
		return result
	}
}

// always are the figures that every row shows, whether or not it is held to them.
var always = map[string]bool{"mean error": true, "p95": true, "settled after": true, "overshoot": true, "busy": true}

// Judge makes the row's figures, and says which limits they miss.
func (c Criteria) Judge(o Outcome, s Scene) (f Figures, missed []string) {
	last := c.Means[len(c.Means)-1]
	f.Shares = rounded(o.Shares(last))
	for _, target := range last.Targets {
		f.Targets = append(f.Targets, math.Round(10000*target)/100)
	}
	for _, check := range c.checks(o, s, &f) {
		if check.limit == nil && !always[check.name] {
			continue
		}
		value := check.measure()
		*check.figure = new(math.Round(value*1e5) / 1e5)
		if check.limit == nil {
			continue
		}
		if value < 0 || (check.isLeast && value < *check.limit) || (!check.isLeast && value > *check.limit) {
			missed = append(missed, fmt.Sprintf("%s %.4g%s", check.name, value, check.unit))
		}
	}
	return f, missed
}

func rounded(values []float64) []float64 {
	for i, v := range values {
		values[i] = math.Round(v*1000) / 1000
	}
	return values
}

// String is the target in words.
func (c Criteria) String() string {
	var parts []string
	for _, check := range c.checks(Outcome{}, Scene{}, &Figures{}) {
		if check.limit == nil {
			continue
		}
		sign := "≤"
		if check.isLeast {
			sign = "≥"
		}
		unit := check.unit
		if *check.limit == 1 {
			unit = strings.Replace(unit, "points", "point", 1)
		}
		parts = append(parts, fmt.Sprintf("%s %s %g%s", check.name, sign, *check.limit, unit))
	}
	return strings.Join(parts, ", ")
}

// reach looks at every return of the lender but its first start.
func (c *Criteria) reach(o Outcome, s Scene) float64 {
	var returns, ends []time.Duration
	lender := s.Filled().Tenants[c.Lender]
	for at := time.Duration(0); at < s.Length; {
		from, until := lender.NextOn(at)
		if from >= min(lender.Until, s.Length) {
			break
		}
		if from > lender.From || lender.From > 0 {
			returns, ends = append(returns, from), append(ends, min(until, s.Length))
		}
		at = until
	}
	return o.Reach(c.Lender, c.LenderAt, returns, ends)
}

// split is how far the tenants' means over all the spans together are from their targets, in points.
func (o Outcome) split(spans []Span) float64 {
	worst := 0.0
	for i := range o.Tenants {
		var error, total float64
		for _, span := range spans {
			if span.Targets[i] >= 0 {
				length := (span.To - span.From).Seconds()
				error += (o.Tenants[i].Share(span.From, span.To) - span.Targets[i]) * length
				total += length
			}
		}
		if total > 0 {
			worst = max(worst, 100*math.Abs(error)/total)
		}
	}
	return worst
}

func (o Outcome) throttled() float64 {
	var sum time.Duration
	for _, c := range o.Claims {
		sum += c.Throttled
	}
	return sum.Seconds()
}

func (o Outcome) longest() float64 {
	var longest time.Duration
	for _, c := range o.Claims {
		longest = max(longest, c.LongestWait)
	}
	return longest.Seconds()
}

func (c *Criteria) slowdown(o Outcome, s Scene) float64 {
	if len(o.Claims) == 0 {
		return 0
	}
	rounds := o.Claims[len(o.Claims)-1].Rounds
	if rounds == 0 {
		return math.Inf(1)
	}
	return float64(s.Length) / float64(rounds) / float64(c.Alone)
}
