// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package scene

import (
	"math"
	"testing"
	"time"
)

// trackOf is a track whose share at each time is what the function says.
func trackOf(length time.Duration, share func(at time.Duration) float64) Track {
	t := Track{Step: time.Millisecond, Used: make([]time.Duration, 1)}
	for at := time.Duration(0); at < length; at += t.Step {
		t.Used = append(t.Used, t.Used[len(t.Used)-1]+time.Duration(share(at)*float64(t.Step)))
	}
	return t
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.Abs(got-want) > within {
		t.Errorf("%s is %v, want %v within %v", what, got, want, within)
	}
}

func TestFiguresOfAStep(t *testing.T) {
	// 60 % until 10 s, then falling to 30 % within a second.
	o := Outcome{Tenants: []Track{trackOf(30*time.Second, func(at time.Duration) float64 {
		return max(0.3, min(0.6, 0.6-0.3*(at-10*time.Second).Seconds()))
	})}}
	after := Span{From: 10 * time.Second, To: 30 * time.Second, Targets: []float64{0.3}}
	near(t, "mean error", o.MeanError(after), 0.75, 0.01) // 0.15 points·s over 20 s
	near(t, "overshoot", o.Overshoot(after, time.Second, false), 15, 0.1)
	near(t, "settling", o.Settle(after), 0.6, 0.001)                                                             // a window that begins there is above by 0.3·0.4²/2 = 2.4 points
	near(t, "p95", o.P95(Span{From: 10 * time.Second, To: 15 * time.Second, Targets: []float64{0.3}}), 9.6, 0.1) // of 41 windows the third
	before := Span{From: 0, To: 10 * time.Second, Targets: []float64{0.6}}
	near(t, "settling at once", o.Settle(before), 0, 0)
	near(t, "overshoot of none", o.Overshoot(before, time.Second, true), 0, 1e-6)
	never := Span{From: 0, To: 10 * time.Second, Targets: []float64{0.4}}
	near(t, "settling of what never does", o.Settle(never), -1, 0)
	ignored := Span{From: 0, To: 10 * time.Second, Targets: []float64{-1}}
	near(t, "mean error of what is not looked at", o.MeanError(ignored), 0, 0)
}

func TestJain(t *testing.T) {
	o := Outcome{Tenants: []Track{trackOf(time.Second, func(time.Duration) float64 { return 0.46 }), trackOf(time.Second, func(time.Duration) float64 { return 0.54 })}}
	near(t, "Jain of 46 and 54 for 30 and 70", o.Jain(Span{From: 0, To: time.Second, Targets: []float64{0.3, 0.7}}), 0.90, 0.005)
	near(t, "Jain of what is fair", o.Jain(Span{From: 0, To: time.Second, Targets: []float64{0.23, 0.27}}), 1, 1e-9)
}

func TestReach(t *testing.T) {
	// Nothing for 30 ms after the return, then half of the card.
	o := Outcome{Tenants: []Track{trackOf(4*time.Second, func(at time.Duration) float64 {
		if at < 2030*time.Millisecond {
			return 0
		}
		return 0.5
	})}}
	near(t, "reach", o.Reach(0, 0.45, []time.Duration{2 * time.Second}, []time.Duration{4 * time.Second}), 75, 1) // 45 of the last 50 ms
	near(t, "reach of what is never reached", o.Reach(0, 0.6, []time.Duration{2 * time.Second}, []time.Duration{4 * time.Second}), 2000, 0)
}

func TestJudge(t *testing.T) {
	o := Outcome{Tenants: []Track{trackOf(10*time.Second, func(time.Duration) float64 { return 0.32 })}, Claims: make([]Claims, 1)}
	o.Card = o.Tenants[0]
	c := Criteria{Means: []Span{{From: 0, To: 10 * time.Second, Targets: []float64{0.3}}}, MeanError: new(1.0), P95: new(3.0), Busy: new(97.0)}
	f, missed := c.Judge(o, Scene{})
	if len(missed) != 2 {
		t.Errorf("missed %v, want mean error and busy", missed)
	}
	near(t, "mean error", *f.MeanError, 2, 0.01)
	if f.Jain != nil {
		t.Error("a figure that the row does not have is there")
	}
}

func TestPhases(t *testing.T) {
	tenant := Tenant{From: time.Second, Until: 10 * time.Second, Load: Load{On: 2 * time.Second, Off: time.Second}}
	for _, c := range []struct{ at, from, until time.Duration }{
		{0, 1000, 3000}, {1500, 1500, 3000}, {3000, 4000, 6000}, {3500, 4000, 6000}, {9500, 10000, 10000},
	} {
		from, until := tenant.NextOn(c.at * time.Millisecond)
		if from != c.from*time.Millisecond || until != c.until*time.Millisecond {
			t.Errorf("next on from %d ms: %v to %v, want %d to %d ms", c.at, from, until, c.from, c.until)
		}
	}
}
