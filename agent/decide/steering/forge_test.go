// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tenants that write into their own usage pages what is not so: nobody else may lose by it.

package steering

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// forgeCharge adds so much of what is charged to the charge, in pieces of at least lump, after two honest seconds.
func forgeCharge(factor float64, lump time.Duration) func(time.Duration, *monitor.Tenant) {
	var last, owed time.Duration
	return func(now time.Duration, book *monitor.Tenant) {
		if now > 2*time.Second {
			owed += scaled(book.Charged-last, factor)
		}
		if owed >= lump || owed <= -lump {
			book.Charged += owed
			owed = 0
		}
		last = book.Charged
	}
}

// Whoever charges more than it can have bought, or less than it did, gets no more than its share for it, and takes
// nothing of a neighbour's.
func TestForgedCharge(t *testing.T) {
	for name, d := range drivers {
		for _, mode := range []monitor.ComputeMode{monitor.ComputeHard, monitor.ComputeElastic} {
			for _, factor := range []float64{-0.9, -0.5, 0.1, 0.3, 1, 9} {
				for _, lump := range []time.Duration{0, 100 * ms} {
					if lump > 0 && factor < 0.3 {
						continue // a lump looks like one long launch; so small an excess is found late
					}
					forger := &program{mode: mode, share: 0.3, kernel: ms, jitter: 0.05, forge: forgeCharge(factor, lump)}
					honest := &program{mode: mode, share: 0.5, kernel: ms, jitter: 0.05}
					newLoop(d, forger, honest).run(40 * time.Second)
					due, own := 0.3, 0.5
					if mode == monitor.ComputeElastic {
						due, own = 0.375, 0.615
					}
					start := 5*time.Second + d.lag + 2*d.period
					got, left := forger.got(start, 40*time.Second), honest.got(start, 40*time.Second)
					if got > due+0.02 || left < own-0.01 {
						t.Errorf("%s driver, mode %d, charge times %.1f in lumps of %s: the forger has %.3f, its neighbour %.3f, scale %.3f",
							name, mode, 1+factor, lump, got, left, forger.verdict.Scale)
					}
				}
			}
		}
	}
}

// Whoever claims while it does little to have charged all that it was granted, and then floods, takes nothing of its
// neighbour's, and gains nothing in the mean if its turns are long.
func TestForgedChargeInTurns(t *testing.T) {
	for _, name := range []string{"usual", "slow", "gaps"} {
		d := drivers[name]
		for _, low := range []float64{0.1, 0.5, 0.8} {
			for _, turn := range []time.Duration{time.Second, 3 * time.Second, 10 * time.Second} {
				hidden := func(now time.Duration) bool { return now/turn%2 == 0 }
				forger := &program{mode: monitor.ComputeHard, share: 0.3, kernel: ms}
				forger.runs = func(now time.Duration) bool { return !hidden(now) || now%(100*ms) < scaled(100*ms, low) }
				var last time.Duration
				forger.forge = func(now time.Duration, book *monitor.Tenant) {
					if claim := scaled(loopStep, 0.3/float64(book.ScalePPM)*ppm) - (book.Charged - last); hidden(now) && claim > 0 {
						book.Charged += claim
					}
					last = book.Charged
				}
				honest := &program{mode: monitor.ComputeHard, share: 0.6, kernel: ms, jitter: 0.05}
				newLoop(d, forger, honest).run(150 * time.Second)
				got, left := forger.got(80*time.Second, 150*time.Second), honest.got(80*time.Second, 150*time.Second)
				if got > 0.32 && turn > time.Second || left < 0.57 {
					t.Errorf("%s driver, %.1f of the time for %s, then all: the forger has %.3f, its neighbour %.3f", name, low, turn, got, left)
				}
			}
		}
	}
}

// Whoever says that it waits and is in debt, and does nothing, keeps no more than its share from the others.
func TestForgedWaiting(t *testing.T) {
	for _, charges := range []bool{false, true} {
		idle := &program{mode: monitor.ComputeElastic, share: 0.5, kernel: ms, runs: func(now time.Duration) bool { return false }}
		idle.forge = func(now time.Duration, book *monitor.Tenant) {
			book.Wanted, book.Waited, book.Debt = time.Hour+now, time.Hour+now, time.Hour
			book.Throttled += loopStep
			if charges {
				book.Charged += loopStep / 2
			}
		}
		honest := &program{mode: monitor.ComputeElastic, share: 0.2, kernel: ms}
		newLoop(drivers["usual"], idle, honest).run(20 * time.Second)
		if got := honest.got(8*time.Second, 20*time.Second); got < 0.48 {
			t.Errorf("forging charges too: %t: the neighbour has %.3f of the GPU, want what is not the forger's share", charges, got)
		}
	}
}

// Numbers of any size in the page of one do nothing to another.
func TestForgedNonsense(t *testing.T) {
	for _, value := range []time.Duration{math.MaxInt64, math.MinInt64, -1, time.Hour} {
		t.Run(fmt.Sprint(int64(value)), func(t *testing.T) {
			forger := &program{mode: monitor.ComputeHard, share: 0.3, kernel: ms}
			forger.forge = func(_ time.Duration, book *monitor.Tenant) {
				book.Charged, book.Debt, book.Wanted, book.Waited, book.Throttled = value, value, value, value, value
			}
			honest := &program{mode: monitor.ComputeHard, share: 0.5, kernel: ms}
			newLoop(drivers["usual"], forger, honest).run(20 * time.Second)
			got, left := forger.got(3*time.Second, 20*time.Second), honest.got(3*time.Second, 20*time.Second)
			if got > 0.32 || left < 0.49 {
				t.Errorf("the forger has %.3f, its neighbour %.3f", got, left)
			}
		})
	}
}
