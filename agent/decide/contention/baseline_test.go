// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What is learnt of an operation's time undisturbed.

package contention

import (
	"math"
	"math/rand"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// teacher gives a baseline samples.
type teacher struct {
	baseline
	random *rand.Rand
	now    time.Duration
	at     clocks
}

func newTeacher() *teacher {
	return &teacher{random: rand.New(rand.NewSource(2)), now: time.Hour, at: clocks{sm: 1980, memory: 2619}}
}

// teach gives it four samples a second, of a mean and a standard deviation relative to it.
func (l *teacher) teach(span time.Duration, mean time.Duration, spread float64, alone, squeezed bool) {
	for end := l.now + span; l.now < end; {
		l.now += time.Second
		var samples []time.Duration
		for range 4 {
			samples = append(samples, time.Duration(float64(mean)*(1+spread*l.random.NormFloat64())))
		}
		l.learn(samples, alone, squeezed, l.at, l.now)
	}
}

func (l *teacher) want(t *testing.T, what string, want time.Duration, tolerance float64) {
	t.Helper()
	if got := l.expected(l.at, true); math.Abs(got-float64(want)) > tolerance*float64(want) {
		t.Errorf("%s: %s is expected, want about %s", what, time.Duration(got), want)
	}
}

func TestBaselineWarmsUp(t *testing.T) {
	l := newTeacher()
	l.teach(12*time.Second, time.Millisecond, 0.02, true, false) // 48 samples
	if got := l.expected(l.at, true); got != 0 {
		t.Errorf("%g is expected after %d samples", got, l.samples)
	}
	l.teach(time.Second, time.Millisecond, 0.02, true, false)
	l.want(t, "after 52 samples", 974*time.Microsecond, 0.02) // the tenth percentile: 1.28 deviations below the mean
}

// Samples of the time alone are preferred; without them the lowest twentieth of all counts, and it is not moved by what is
// slow because others are in the way.
func TestBaselineOfWhichSamples(t *testing.T) {
	l := newTeacher()
	l.teach(5*time.Minute, time.Millisecond, 0.02, true, false)
	l.teach(9*time.Minute, 2*time.Millisecond, 0.02, false, true)
	l.want(t, "alone before", 974*time.Microsecond, 0.02)
	l.teach(time.Hour, 2*time.Millisecond, 0.02, false, true)
	l.want(t, "in a squeeze ever since", 974*time.Microsecond, 0.02)

	l = newTeacher()
	for range 300 { // nine in ten disturbed, never alone
		l.teach(time.Second, time.Millisecond, 0.02, false, false)
		l.teach(9*time.Second, 2*time.Millisecond, 0.02, false, false)
	}
	l.want(t, "never alone", time.Millisecond, 0.06)
}

// Down at once, up by a hundredth a minute.
func TestBaselineFollows(t *testing.T) {
	l := newTeacher()
	l.teach(10*time.Minute, time.Millisecond, 0.005, true, false)
	l.teach(2*time.Minute, 800*time.Microsecond, 0.005, true, false)
	l.want(t, "after it became faster", 800*time.Microsecond, 0.02)
	before := l.expected(l.at, true)
	for minutes := 1; minutes <= 30; minutes++ {
		l.teach(time.Minute, 2*time.Millisecond, 0.005, true, false)
		if most := before * math.Pow(1.0101, float64(minutes)); l.expected(l.at, true) > most {
			t.Fatalf("%d minutes after it became slower, %g ns are expected; at most %g", minutes, l.expected(l.at, true), most)
		}
	}
	l.teach(2*time.Hour, 2*time.Millisecond, 0.005, true, false)
	l.want(t, "at last", 2*time.Millisecond, 0.02)
}

// A lower clock excuses; a higher one obliges to nothing; and which clock matters is the operation's.
func TestBaselineAndClocks(t *testing.T) {
	l := newTeacher()
	l.teach(5*time.Minute, time.Millisecond, 0.005, true, false)
	for _, c := range []struct {
		at     clocks
		kernel bool
		factor float64
	}{
		{clocks{sm: 1980, memory: 2619}, true, 1},
		{clocks{sm: 990, memory: 2619}, true, 2},
		{clocks{sm: 990, memory: 2619}, false, 1},
		{clocks{sm: 1980, memory: 1310}, true, 2619.0 / 1310},
		{clocks{sm: 1980, memory: 1310}, false, 2619.0 / 1310},
		{clocks{sm: 2500, memory: 3000}, true, 1},
		{clocks{}, true, 1},
	} {
		if got := l.expected(c.at, c.kernel) / l.value; math.Abs(got-c.factor) > 1e-9 {
			t.Errorf("%+v, kernel %t: times %g, want %g", c.at, c.kernel, got, c.factor)
		}
	}
	// Learnt at a low clock for long, the high one is forgotten.
	l.at = clocks{sm: 1000, memory: 2619}
	l.teach(40*time.Minute, 2*time.Millisecond, 0.005, true, false)
	if l.reference.sm != 1000 {
		t.Errorf("the reference is still %d MHz", l.reference.sm)
	}
}

// What was learnt is forgotten when the link is another for good, or the card is shared otherwise; not when an idle link saves
// power.
func TestBaselineIsForgotten(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(now time.Duration, device *monitor.Device)
		idle    bool
		forgets bool
	}{
		"nothing": {change: func(time.Duration, *monitor.Device) {}},
		"another link": {forgets: true, change: func(_ time.Duration, device *monitor.Device) {
			device.LinkWidth, device.LinkWidthMax = 8, 8
		}},
		"another link for a second": {change: func(now time.Duration, device *monitor.Device) {
			if now%(10*time.Second) == 0 {
				device.LinkGeneration = 3
			}
		}},
		"a link that saves power": {idle: true, change: func(_ time.Duration, device *monitor.Device) { device.LinkGeneration = 1 }},
		"another way of sharing":  {forgets: true, change: func(_ time.Duration, device *monitor.Device) { device.Sharing = monitor.SharingTimeSliced }},
	} {
		t.Run(name, func(t *testing.T) {
			a := copier("a", 0.3, nil)
			if c.idle {
				a.active = during(0, 3*time.Minute, 1)
			}
			s := newScene(t, 3, a)
			s.run(3*time.Minute, nil)
			before := s.state.cards[0].slices[0].classes[0].baseline.samples
			s.change = c.change
			s.run(10*time.Second, nil)
			after := s.state.cards[0].slices[0].classes[0].baseline.samples
			if before < 1000 || after < before != c.forgets {
				t.Errorf("%d samples, then %d", before, after)
			}
		})
	}
}
