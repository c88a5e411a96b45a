// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What tenants get in the closed loop of loop_test.go, and what is remembered after it.

package steering

import (
	"math"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// Costs that are wrong by half and by double are corrected in time, for short and long
// kernels and every kind of driver, and costs that are right are left alone.
func TestScaleSettles(t *testing.T) {
	for name, d := range drivers {
		for _, kernel := range []time.Duration{20 * time.Microsecond, 2 * ms, 20 * ms} {
			for _, share := range []float64{0.1, 0.3, 0.5} {
				for _, bias := range []float64{0.5, 1, 2} {
					if kernel == 20*ms && share < 0.3 {
						continue // so few launches in a second that their number decides
					}
					p := &program{mode: monitor.ComputeHard, share: share, kernel: kernel, jitter: 0.05, bias: constant(bias)}
					newLoop(d, p).run(12 * time.Second)
					settled, steady := p.settled(share), p.got(4*time.Second, 12*time.Second)
					if settled > d.settles() || math.Abs(steady-share) > 0.01 {
						t.Errorf("%s driver, kernels of %s, share %.2f, costs times %.1f: settled after %s, steady %.4f, scale %.3f",
							name, kernel, share, bias, settled, steady, p.verdict.Scale)
					}
				}
			}
		}
	}
}

// The same where a neighbour comes and goes every two seconds, and costs are wrong in its company only.
func TestScaleWithANeighbour(t *testing.T) {
	comes := func(now time.Duration) bool { return now/(2*time.Second)%2 == 1 }
	for name, d := range drivers {
		if d.lag >= time.Second {
			continue
		}
		for _, kernel := range []time.Duration{200 * time.Microsecond, 20 * ms} {
			for _, bias := range []float64{0.6, 1, 1.7} {
				biased := func(_ time.Duration, alone bool) float64 {
					if alone {
						return 1
					}
					return bias
				}
				a := &program{mode: monitor.ComputeHard, share: 0.5, kernel: kernel, jitter: 0.05, bias: biased, runs: comes}
				b := &program{mode: monitor.ComputeHard, share: 0.3, kernel: kernel, jitter: 0.05, bias: biased}
				newLoop(d, a, b).run(36 * time.Second)
				for _, got := range []struct {
					of         string
					share, was float64
				}{{"visitor", 0.25, a.got(8*time.Second, 36*time.Second)}, {"other", 0.3, b.got(8*time.Second, 36*time.Second)}} {
					if math.Abs(got.was-got.share) > 0.01 {
						t.Errorf("%s driver, kernels of %s, costs times %.1f: the %s has %.4f, want %.4f",
							name, kernel, bias, got.of, got.was, got.share)
					}
				}
			}
		}
	}
}

// What is lent comes back within 100 ms, is divided by weight, and the GPU is not idle.
func TestLendingInTheLoop(t *testing.T) {
	comes := func(now time.Duration) bool { return now/(2*time.Second)%2 == 1 }
	a := &program{mode: monitor.ComputeElastic, share: 0.5, kernel: 2 * ms, jitter: 0.05, runs: comes}
	b := &program{mode: monitor.ComputeElastic, share: 0.3, kernel: 2 * ms, jitter: 0.05}
	l := newLoop(drivers["usual"], a, b)
	l.run(40 * time.Second)
	busy := time.Duration(0)
	for _, step := range l.busy[4*time.Second/loopStep:] {
		busy += step
	}
	if part := busy.Seconds() / 36; part < 0.97 {
		t.Errorf("the GPU was busy %.3f of the time, want 0.97", part)
	}
	for from := 6 * time.Second; from < 40*time.Second; from += 4 * time.Second {
		if got := a.got(from, from+100*ms); got < 0.45 {
			t.Errorf("%s: the lender had %.3f in its first 100 ms, want 0.45", from, got)
		}
		if got := a.got(from+200*ms, from+2*time.Second); math.Abs(got-0.625) > 0.02 {
			t.Errorf("%s: the lender had %.3f of the GPU, want 0.625", from, got)
		}
	}
	if changes := len(b.rates); changes > 40 {
		t.Errorf("%d changes of a rate in ten visits", changes)
	}
}

// Kernels that are longer than any period: the mean holds, whatever is seen of them.
func TestLongKernelsInTheLoop(t *testing.T) {
	for name, d := range drivers {
		for _, kernel := range []time.Duration{200 * ms, 2 * time.Second} {
			p := &program{mode: monitor.ComputeHard, share: 0.2, kernel: kernel, jitter: 0.05, sync: true}
			newLoop(d, p).run(120 * time.Second)
			if got := p.got(0, 120*time.Second); math.Abs(got-0.2) > 0.02 {
				t.Errorf("%s driver, kernels of %s: %.4f of the GPU, want 0.2 (scale %.3f)", name, kernel, got, p.verdict.Scale)
			}
			if p.verdict.OverShare {
				t.Errorf("%s driver, kernels of %s: %s", name, kernel, p.verdict.Reason)
			}
		}
	}
}

// What is remembered does not grow.
func TestStateIsBounded(t *testing.T) {
	p := &program{mode: monitor.ComputeHard, share: 0.3, kernel: 2 * ms}
	l := newLoop(drivers["fast"], p)
	l.run(100 * time.Second)
	known := l.state.tenants[tenantID{"GPU-a", "k0"}]
	if len(known.history) > 200 || len(known.scale.marks) > marksCount || len(known.usage.recent) > 40 {
		t.Errorf("%d moments, %d marks, %d periods", len(known.history), len(known.scale.marks), len(known.usage.recent))
	}
	_, state := Steer(&monitor.Compute{Now: l.now}, DefaultPolicy(), l.state)
	if len(state.tenants) != 0 {
		t.Error("a tenant that is gone is remembered")
	}
	if _, state = Steer(&monitor.Compute{Now: l.now + gpuForgotten}, DefaultPolicy(), state); len(state.gpus) != 0 {
		t.Error("a GPU without tenants is remembered for ever")
	}
}

// Two rounds from the same state do not disturb each other, nor that state.
func TestHistoryBranches(t *testing.T) {
	h := history{}.add(time.Second, 0, 1, 1, alone)
	for i := range 20 {
		h = h.add(time.Second+time.Duration(i+1)*20*ms, time.Duration(i)*ms, 1, 1, alone)
	}
	one := h.add(2*time.Second, time.Second, 1, 1, alone)
	want := one[len(one)-1]
	two := h.add(2*time.Second, 2*time.Second, 1, 1, alone)
	if got := one[len(one)-1]; got != want || two[len(two)-1].charged != 2*time.Second || h[len(h)-1].charged >= time.Second {
		t.Errorf("%+v, then %+v", want, got)
	}
}
