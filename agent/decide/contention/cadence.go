// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package contention

import "time"

// Cadence is when to look at cards, by what looks before came to: at all of them each Policy.Interval, or IdleInterval when
// nothing happens, and in between each QuickInterval at those that Judge asks for. The zero value looks at all at once. It is
// a value. Times are by the clock of looks, CLOCK_MONOTONIC.
type Cadence struct {
	all   time.Duration // when to look at all cards again
	quick []string      // cards to look at until then
}

// Named is the cards that a look which begins now is at; nil: all. The list is nobody's to change.
func (c Cadence) Named(now time.Duration) []string {
	if now >= c.all || len(c.quick) == 0 {
		return nil
	}
	return c.quick
}

// After takes in what the look came to that began at a time, and returns how long after that the next one is due.
func (c Cadence) After(began time.Duration, found Result, policy Policy) (next Cadence, wait time.Duration) {
	all := c.Named(began) == nil
	next = Cadence{all: c.all, quick: found.Quick}
	if all {
		next.all = began + policy.Interval
		if len(next.quick) == 0 {
			next.all = began + min(max(found.Next, policy.Interval), policy.IdleInterval)
		}
	}
	if wait = next.all - began; len(next.quick) > 0 {
		wait = min(wait, policy.QuickInterval)
	}
	return next, wait
}
