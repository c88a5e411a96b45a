// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package health

import (
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/decide/contention"
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
