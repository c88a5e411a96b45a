// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package notes

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/internal/logtest"
)

// A fault is said when it begins, when it becomes another one and when it is over, each time with what it is about.
func TestNotes(t *testing.T) {
	var text bytes.Buffer
	log := logtest.Timeless(&text)
	var noted Notes
	repair, observe := Subject{Stage: StageRepair, Allocation: "k1"}, Subject{Stage: StageObserve, Source: "nvml"}
	noted.Change(log, repair, nil)
	for range 3 {
		noted.Change(log, repair, errors.New("no room"))
		noted.Change(log, observe, errors.New("no driver"))
	}
	noted.Change(log, observe, errors.New("driver hangs"))
	noted.Change(log, observe, nil)
	noted.Keep(func(key string) bool { return key == "k1" })
	noted.Change(log, repair, errors.New("no room"))
	noted.Keep(func(string) bool { return false }) // the allocation is no more
	noted.Change(log, repair, errors.New("no room"))
	want := `level=WARN msg="allocation could not be put right" stage=repair allocation=k1 error="no room"
level=WARN msg="source not readable" stage=observe source=nvml error="no driver"
level=WARN msg="source not readable" stage=observe source=nvml error="driver hangs"
level=INFO msg="source is readable" stage=observe source=nvml
level=WARN msg="allocation could not be put right" stage=repair allocation=k1 error="no room"
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Error(diff)
	}
}

// What is no error of ours is said when it begins and when it is over, with the figures of then, however these change
// meanwhile.
func TestNotesOfStates(t *testing.T) {
	var text bytes.Buffer
	log := logtest.Timeless(&text)
	var noted Notes
	over, held := Subject{Stage: StageOverShare, Allocation: "k1", GPU: "GPU-a"}, Subject{Stage: StageHeld, Allocation: "k1", GPU: "GPU-a"}
	for used, states := range [][2]bool{{false, false}, {true, false}, {true, true}, {true, true}, {false, true}, {false, false}} {
		details := func() []any { return []any{"used_percent", used} }
		noted.Turn(log, over, states[0], details)
		noted.Turn(log, held, states[1], details)
	}
	want := `level=WARN msg="container uses more GPU time than it may" stage=share allocation=k1 gpu=GPU-a used_percent=1
level=INFO msg="container waits for GPU time most of the time: its share binds" stage=cap allocation=k1 gpu=GPU-a used_percent=2
level=INFO msg="container uses no more GPU time than it may" stage=share allocation=k1 gpu=GPU-a used_percent=4
level=INFO msg="container no longer waits for GPU time most of the time" stage=cap allocation=k1 gpu=GPU-a used_percent=5
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Error(diff)
	}
}

// Each stage has words of its own for its fault.
func TestStagesHaveWords(t *testing.T) {
	seen := map[string]bool{}
	for _, stage := range []string{StageConfigure, StageObserve, StageJudge, StagePrepare, StageRepair, StageOffer, StagePublish, StageTidy,
		StageSteer, StageRate, StageOverShare, StageHeld, StageMeasure, StageRecall, StageRemember, StageDRAM, StagePCIe, StageSharing, StageBlind,
		StageDetach, StageControl, StageFreezer} {
		for _, text := range []string{wording[stage].fault, wording[stage].over} {
			if text == "" || seen[text] {
				t.Errorf("stage %s: message %q", stage, text)
			}
			seen[text] = true
		}
	}
	if len(seen) != 2*len(wording) {
		t.Errorf("%d messages of %d stages", len(seen), len(wording))
	}
}
