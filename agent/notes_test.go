// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package main

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/monitor"
)

// A fault is said when it begins, when it becomes another one and when it is over, each time with what it is about.
func TestNotes(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if attr.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return attr
	}}))
	var noted notes
	repair, observe := subject{stage: stageRepair, allocation: "k1"}, subject{stage: stageObserve, source: "nvml"}
	noted.change(log, repair, nil)
	for range 3 {
		noted.change(log, repair, errors.New("no room"))
		noted.change(log, observe, errors.New("no driver"))
	}
	noted.change(log, observe, errors.New("driver hangs"))
	noted.change(log, observe, nil)
	noted.keep(map[string]monitor.Allocation{"k1": {}})
	noted.change(log, repair, errors.New("no room"))
	noted.keep(nil) // the allocation is no more
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

// Each stage has words of its own for its fault.
func TestStagesHaveWords(t *testing.T) {
	seen := map[string]bool{}
	for _, stage := range []string{stageConfigure, stageObserve, stageJudge, stagePrepare, stageRepair, stageOffer, stagePublish, stageTidy} {
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
