// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Contention that one average has shown for long when the other comes to show it too.

package health

import (
	"math"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/decide/contention"
)

// TestSustainedContentionOnAQuietCard: the average over 60 s takes 75 s to say 25 % of a constant 35 % that begins from nothing.
// Shorter contention, which is over when it says so, moves nothing.
func TestSustainedContentionOnAQuietCard(t *testing.T) {
	const quiet = 10 * time.Minute
	for name, c := range map[string]struct {
		policy Policy
		lasts  time.Duration
		within time.Duration // 0: there is to be no verdict
	}{
		"default":             {DefaultPolicy(), time.Hour, 2 * time.Minute},
		"fast":                {FastPolicy(), time.Hour, 80 * time.Second},
		"default, 80 s of it": {DefaultPolicy(), 80 * time.Second, 0}, "fast, 60 s of it": {FastPolicy(), time.Minute, 0},
	} {
		j := &judge{t: t, policy: c.policy}
		var pressure madePressure
		for j.now < quiet+5*time.Minute {
			if j.now >= quiet && j.now < quiet+c.lasts {
				pressure.add(0.35)
			} else {
				pressure.add(0)
			}
			j.see(contention.Period, strained(pressure.avg10, pressure.avg60))
		}
		switch {
		case c.within == 0 && len(j.all) > 0:
			t.Errorf("%s: %v", name, j.all)
		case c.within > 0 && (len(j.all) != 1 || j.all[0].at-quiet > c.within):
			t.Errorf("%s: %v, want one verdict within %s of %s", name, j.all, c.within, quiet)
		}
	}
}

// Suspicion is confirmed by a bad period alone, of which the antagonist is told as surely as in those before in which others
// had much of the traffic; it ends with the first period that is not suspicious.
func TestSuspicionIsConfirmed(t *testing.T) {
	early := strained(0.4, 0.24)
	early.Slices[1].Strain[0].CoActive, early.Slices[1].Strain[0].Antagonist, early.Slices[1].Strain[0].Confidence = false, "", 0
	j := newJudge(t).see(40*time.Second, early).see(46*time.Second, strained(0.4, 0.24)).want(false).see(contention.Period, strained(0.4, 0.26)).want(true)
	if e := j.last.Transitions[0].Evidence; e.Antagonist != "big" || math.Abs(e.Confidence-0.9) > 1e-9 || e.Lasted != 88*time.Second || e.Since != 0 {
		t.Errorf("%+v", e)
	}
	newJudge(t).see(time.Hour, early).want(false)
	newJudge(t).see(time.Hour, strained(0.4, 0.24)).want(false)
	newJudge(t).see(80*time.Second, strained(0.4, 0.24)).see(contention.Period, strained(0.2, 0.24)).
		see(20*time.Second, strained(0.4, 0.26)).want(false)
}

// A slice that suffers for certain is the victim, whatever another one, of which that is not certain, has lost.
func TestVictimIsWhoSuffersForCertain(t *testing.T) {
	seen := strained(0.6, 0.5)
	seen.Slices = append(seen.Slices, contention.Slice{Key: "zelf", GPUUUID: "GPU-a", Strain: []contention.Strain{
		{Resource: contention.ResourceDRAM, Avg10: 0.9, Avg60: 0.9, Saturated: true}}})
	j := newJudge(t).see(time.Minute, seen).want(true)
	if e := j.last.Transitions[0].Evidence; e.Victim != "small" || e.Antagonist != "big" {
		t.Errorf("%+v", e)
	}
}
