// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package main

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// timelessLog writes lines that can be compared.
func timelessLog(out io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if attr.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return attr
	}}))
}

// A fault is said when it begins, when it becomes another one and when it is over, each time with what it is about.
func TestNotes(t *testing.T) {
	var text bytes.Buffer
	log := timelessLog(&text)
	var noted notes
	repair, observe := subject{stage: stageRepair, allocation: "k1"}, subject{stage: stageObserve, source: "nvml"}
	noted.change(log, repair, nil)
	for range 3 {
		noted.change(log, repair, errors.New("no room"))
		noted.change(log, observe, errors.New("no driver"))
	}
	noted.change(log, observe, errors.New("driver hangs"))
	noted.change(log, observe, nil)
	noted.keep(func(key string) bool { return key == "k1" })
	noted.change(log, repair, errors.New("no room"))
	noted.keep(func(string) bool { return false }) // the allocation is no more
	noted.change(log, repair, errors.New("no room"))
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
	log := timelessLog(&text)
	var noted notes
	over, held := subject{stage: stageOverShare, allocation: "k1", gpu: "GPU-a"}, subject{stage: stageHeld, allocation: "k1", gpu: "GPU-a"}
	for used, states := range [][2]bool{{false, false}, {true, false}, {true, true}, {true, true}, {false, true}, {false, false}} {
		details := func() []any { return []any{"used_percent", used} }
		noted.turn(log, over, states[0], details)
		noted.turn(log, held, states[1], details)
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
	for _, stage := range []string{stageConfigure, stageObserve, stageJudge, stagePrepare, stageRepair, stageOffer, stagePublish, stageTidy,
		stageSteer, stageRate, stageOverShare, stageHeld, stageMeasure, stageRecall, stageRemember, stageDRAM, stagePCIe, stageSharing, stageBlind,
		stageDetach, stageControl, stageFreezer} {
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
