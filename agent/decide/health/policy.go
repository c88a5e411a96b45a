// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package health

import (
	"errors"
	"fmt"
	"time"

	"github.com/vgpud/vgpud/agent/decide/contention"
)

// Policy is what the operator chose for contention and health. It does not change while the agent runs.
type Policy struct {
	// A period is bad when a slice's pressure, over 10 s and over 60 s, is above Above, with evidence that others are the
	// cause; it is good when no slice's is Below or more. Parts of the time, 0 to 1.
	Above, Below float64
	BadFor       time.Duration // a card is withdrawn after so long without a period that is not bad,
	GoodFor      time.Duration // and comes back after so long without one that is not good
	// Hold is the time for which a verdict does not change again. It doubles with each withdrawal that follows a recovery
	// within Repeated, up to HoldMax; after a recovery it is Hold.
	Hold, HoldMax, Repeated time.Duration

	// LeverFactor is the part of its share that an antagonist keeps for a while before the card is withdrawn, 0 to 1; 0: the
	// card is withdrawn at once. LeverFor is how long; it doubles with each cut within Repeated. LeverConfidence is how
	// certain it must be who it is.
	LeverFactor     float64
	LeverFor        time.Duration
	LeverConfidence float64
}

// DefaultPolicy is the preset "default": never moved by bursts, at the price of two minutes.
func DefaultPolicy() Policy {
	return Policy{Above: 0.25, Below: 0.12, BadFor: time.Minute, GoodFor: 2 * time.Minute, Hold: 5 * time.Minute,
		HoldMax: 30 * time.Minute, Repeated: time.Hour, LeverFor: 2 * time.Minute, LeverConfidence: 0.6}
}

// FastPolicy is the preset "fast": half a minute sooner; a burst of half a minute every few minutes can move it.
func FastPolicy() Policy {
	policy := DefaultPolicy()
	policy.BadFor, policy.GoodFor, policy.Hold = 30*time.Second, time.Minute, 2*time.Minute
	return policy
}

// leastLever is the shortest cut of which anything can be seen in a pressure over 10 s.
const leastLever = 30 * time.Second

// Validate checks numbers that an operator chose; the error names the number and the rule.
func (p Policy) Validate() error {
	var faults []error
	check := func(ok bool, format string, values ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, values...))
		}
	}
	part := func(value float64) bool { return value > 0 && value <= 1 } // false for NaN
	check(part(p.Above), "upper threshold of contention %v is not above 0 and up to 1", p.Above)
	check(part(p.Below) && p.Below < p.Above, "lower threshold of contention %v is not above 0 and below the upper one, %v", p.Below, p.Above)
	check(p.BadFor >= contention.Period, "%s of contention before a card is withdrawn is less than a period, %s", p.BadFor, contention.Period)
	check(p.GoodFor >= contention.Period, "%s without contention before a card comes back is less than a period, %s", p.GoodFor, contention.Period)
	check(p.Hold >= contention.Period, "hold of %s is less than a period, %s", p.Hold, contention.Period)
	check(p.HoldMax >= p.Hold, "longest hold of %s is less than the hold, %s", p.HoldMax, p.Hold)
	check(p.Repeated >= 0, "time in which withdrawals count as repeated is negative: %s", p.Repeated)
	if p.LeverFactor != 0 {
		check(p.LeverFactor > 0 && p.LeverFactor < 1, "part of its share that an antagonist keeps %v is not between 0 and 1", p.LeverFactor)
		check(p.LeverFor >= leastLever && p.LeverFor <= p.HoldMax, "cut of an antagonist for %s is not between %s and the longest hold, %s",
			p.LeverFor, leastLever, p.HoldMax)
		check(part(p.LeverConfidence), "confidence that an antagonist is cut with %v is not above 0 and up to 1", p.LeverConfidence)
	}
	return errors.Join(faults...)
}
