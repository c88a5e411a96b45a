// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package decide

import (
	"math"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/monitor"
)

func leverJudge(t *testing.T) *judge {
	j := newJudge(t)
	j.policy.LeverFactor = 0.5
	if err := j.policy.Validate(); err != nil {
		t.Fatal(err)
	}
	return j
}

// wantCut checks who is cut.
func (j *judge) wantCut(key string) *judge {
	j.t.Helper()
	if len(j.last.Cuts) == 0 && key == "" {
		return j
	}
	if len(j.last.Cuts) != 1 || j.last.Cuts[0].Key != key || j.last.Cuts[0].GPUUUID != "GPU-a" || j.last.Cuts[0].Factor != 0.5 {
		j.t.Fatalf("at %s: cuts %+v, want of %q; so far %v", j.now, j.last.Cuts, key, j.all)
	}
	return j
}

func changeKinds(changes []healthChange) (all []TransitionKind) {
	for _, c := range changes {
		all = append(all, c.kind)
	}
	return all
}

func equalKinds(t *testing.T, j *judge, want ...TransitionKind) {
	t.Helper()
	got := changeKinds(j.all)
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("%v, want %v", got, want)
		}
	}
}

// The antagonist is cut, that is no help, so it has its share back and the card is withdrawn.
func TestLeverThatDoesNotHelp(t *testing.T) {
	j := leverJudge(t).see(time.Minute, badLook).want(false).wantCut("big").see(118*time.Second, badLook).want(false).wantCut("big").
		see(2*time.Second, badLook).want(true).wantCut("")
	equalKinds(t, j, TransitionCut, TransitionUncut, TransitionContended)
}

// It helps: the card stays. It is tried three times in an hour, for longer each time; then the card is withdrawn.
func TestLeverThatHelps(t *testing.T) {
	j := leverJudge(t)
	for _, lasts := range []time.Duration{2 * time.Minute, 4 * time.Minute, 8 * time.Minute} {
		j.see(time.Minute, badLook).want(false).wantCut("big").see(lasts-contention.Period, goodLook).wantCut("big").
			see(contention.Period, goodLook).want(false).wantCut("")
	}
	j.see(time.Minute, badLook).want(true).wantCut("")
	equalKinds(t, j, TransitionCut, TransitionUncut, TransitionCut, TransitionUncut, TransitionCut, TransitionUncut, TransitionContended)
}

func TestLeverNeedsToKnowWhoItIs(t *testing.T) {
	seen := strained(0.6, 0.5)
	seen.Slices[1].Strain[0].Confidence = 0.5
	leverJudge(t).see(time.Minute, seen).want(true).wantCut("")
}

func TestLeverEndsWithItsAntagonist(t *testing.T) {
	gone := strained(0.6, 0.5)
	gone.Slices = gone.Slices[1:]
	j := leverJudge(t).see(time.Minute, badLook).wantCut("big").see(contention.Period, gone).wantCut("")
	if j.all[1].kind != TransitionUncut {
		t.Errorf("%v", j.all)
	}
}

// Who was cut has his share back in time although nothing is seen any more.
func TestLeverIsGivenBackBlindly(t *testing.T) {
	j := leverJudge(t).see(time.Minute, badLook).wantCut("big")
	unseen := noLook
	unseen.Period = false
	j.see(2*time.Minute, unseen).want(false).wantCut("")
	j = leverJudge(t).see(time.Minute, badLook).wantCut("big").see(2*time.Minute, noLook).wantCut("")
	equalKinds(t, j, TransitionCut, TransitionUncut)
}

// steerWith plays a second of two tenants that want all they can get, and returns what is in force at its end.
func steerWith(t *testing.T, mode monitor.ComputeMode, state SteerState, from time.Duration, cuts ...Cut) (map[string]Rate, map[string]ComputeVerdict, SteerState) {
	t.Helper()
	policy := DefaultSteerPolicy()
	policy.Cuts = cuts
	rates, verdicts := map[string]Rate{}, map[string]ComputeVerdict{}
	for now := from; now < from+time.Second; now += policy.Round {
		seen := &monitor.Compute{Now: now}
		for _, key := range []string{"big", "small"} {
			share := map[string]uint32{"big": 600_000, "small": 200_000}[key]
			seen.Tenants = append(seen.Tenants, monitor.Tenant{Key: key, GPUUUID: "GPU-a", Mode: mode, SharePPM: share, CeilingPPM: ppm,
				RatePPM: share, ScalePPM: ppm, Known: true, Debt: time.Millisecond, Charged: now / 2, Wanted: now, Waited: now})
		}
		var steering Steering
		steering, state = Steer(seen, policy, state)
		for i, rate := range steering.Rates {
			rates[rate.Key], verdicts[rate.Key] = rate, steering.Verdicts[i]
		}
	}
	return rates, verdicts, state
}

func TestCutLowersARateAndGivesItBack(t *testing.T) {
	const start = time.Hour
	for mode, others := range map[monitor.ComputeMode]uint32{monitor.ComputeHard: 200_000, monitor.ComputeElastic: 690_000} {
		whole, verdicts, state := steerWith(t, mode, SteerState{}, start)
		if whole["big"].PPM < 600_000 || verdicts["big"].Cut {
			t.Fatalf("mode %d: %+v", mode, whole)
		}
		cut := Cut{Key: "big", GPUUUID: "GPU-a", Factor: 0.5, Until: start + 2*time.Second}
		lowered, verdicts, state := steerWith(t, mode, state, start+time.Second, cut)
		if lowered["big"].PPM != 300_000 || lowered["small"].PPM != others {
			t.Errorf("mode %d, cut: %+v", mode, lowered)
		}
		if v := verdicts["big"]; !v.Cut || v.Granted != 0.6 || verdicts["small"].Cut {
			t.Errorf("mode %d: %+v", mode, verdicts)
		}
		// Its time is over, though nobody has taken it away.
		back, verdicts, _ := steerWith(t, mode, state, start+2*time.Second, cut)
		if back["big"] != whole["big"] || back["small"] != whole["small"] || verdicts["big"].Cut {
			t.Errorf("mode %d: %+v, before %+v", mode, back, whole)
		}
	}
}

func TestCutHasAFloorAndHitsNobodyElse(t *testing.T) {
	until := 2 * time.Hour
	for _, c := range []struct {
		cut  Cut
		want uint32
	}{
		{Cut{"big", "GPU-a", 0.001, until}, 60_000},
		{Cut{"big", "GPU-a", -1, until}, 60_000},
		{Cut{"big", "GPU-a", math.NaN(), until}, 600_000},
		{Cut{"big", "GPU-a", 2, until}, 600_000},
		{Cut{"big", "GPU-b", 0.5, until}, 600_000},
		{Cut{"nobody", "GPU-a", 0.5, until}, 600_000},
	} {
		if rates, _, _ := steerWith(t, monitor.ComputeHard, SteerState{}, time.Hour, c.cut); rates["big"].PPM != c.want {
			t.Errorf("%+v: %+v", c.cut, rates["big"])
		}
	}
}
