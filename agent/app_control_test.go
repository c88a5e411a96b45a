// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/control"
	"github.com/vgpud/vgpud/agent/decide"
	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/monitor"
)

// A card that the driver no longer lists stays in view, as it was seen last, with what is still granted of it.
func TestLostCardStaysInView(t *testing.T) {
	verdicts := []decide.GPUVerdict{{UUID: "GPU-a"}, {UUID: "GPU-b", UsableBytes: 70}}
	before := []monitor.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1, Model: "T4", TotalBytes: 80, UsedBytes: 33, HeldBytes: 44}}
	snapshot := &monitor.Snapshot{GPUs: before[:1], Sources: []monitor.SourceStatus{{Name: monitor.SourceNVML, Up: true}},
		Allocations: []monitor.Allocation{{GPUs: []monitor.Share{{GPUUUID: "GPU-b", LimitBytes: 7}, {GPUUUID: "GPU-a", LimitBytes: 1}}},
			{GPUs: []monitor.Share{{GPUUUID: "GPU-b", LimitBytes: 5}}}}}
	lost := monitor.GPU{UUID: "GPU-b", Index: 1, Model: "T4", TotalBytes: 80, UsableBytes: 70, HeldBytes: 12, Detail: "the driver no longer lists it"}
	for range 2 { // also of the tick after
		before = knownGPUs(snapshot, verdicts, before)
		if diff := cmp.Diff([]monitor.GPU{{UUID: "GPU-a", Index: 0}, lost}, before); diff != "" {
			t.Error(diff)
		}
	}
	snapshot.Sources[0].Up = false
	never := knownGPUs(snapshot, verdicts, nil)
	if len(never) != 2 || never[1].Index != -1 || !strings.Contains(never[1].Detail, "not answer") {
		t.Errorf("a card that was never seen: %+v", never)
	}
}

// What a card's parts are means over is told as it is: the counters' own times are shorter.
func TestPartsHaveTheirOwnPeriod(t *testing.T) {
	counter := &control.Figure{Value: 46e9, PeriodSeconds: 0.02}
	view := control.GPU{PCIeRXBytesPerSec: counter}
	controlConcluded(&view, contention.GPU{Device: []contention.Attributed{{Resource: contention.ResourcePCIeRX, Part: 0.87, Known: true}}})
	if want := (control.Figure{Value: 0.87, PeriodSeconds: 30}); view.PCIeRXRatio == nil || *view.PCIeRXRatio != want || view.PCIeRXBytesPerSec != counter {
		t.Errorf("part %+v, want %+v; counter %+v", view.PCIeRXRatio, want, view.PCIeRXBytesPerSec)
	}
}

func TestThawingNobodySaysOfWhom(t *testing.T) {
	for want, request := range map[string]control.ThawRequest{
		`container "3f" is not frozen`:  {Container: "3f"},
		`allocation "k1" is not frozen`: {Allocation: "k1"},
		`no container is there to thaw`: {All: true},
	} {
		if text := nothingThawed(request).Error(); !strings.Contains(text, want) {
			t.Errorf("%+v: %q, want %q in it", request, text, want)
		}
	}
}
