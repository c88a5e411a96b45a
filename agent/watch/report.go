// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// report.go says what of a look an operator acts on: once when it begins and once when it is over.

package watch

import (
	"math"

	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/notes"
	"github.com/vgpud/vgpud/agent/source"
)

// settledAfter is after how many looks a card's counters are known: two samples of GPM are needed.
const settledAfter = 5

// report logs changes.
func (w *Loop) report(concluded contention.Result, judged health.Verdicts) {
	for _, transition := range judged.Transitions {
		attributes := append([]any{"gpu", transition.UUID}, w.contentionEvidence(transition.Evidence)...)
		attributes = append(attributes, "reason", transition.Reason)
		switch transition.Kind {
		case health.TransitionContended:
			w.log.Warn("GPU is contended", attributes...)
		case health.TransitionRecovered:
			w.log.Info("GPU is no longer contended", attributes...)
		case health.TransitionCut:
			w.log.Warn("container is given less of the GPU's time for a while: it slows others", attributes...)
		case health.TransitionUncut:
			w.log.Info("container has its part of the GPU's time again", attributes...)
		}
	}
	for uuid, card := range w.cards {
		if w.looks < settledAfter || card.Err != nil || card.Sharing == source.SharingMIG {
			continue
		}
		w.noted.Turn(w.log, notes.Subject{Stage: notes.StageDRAM, GPU: uuid}, !card.DRAM.Known, nil)
		w.noted.Turn(w.log, notes.Subject{Stage: notes.StagePCIe, GPU: uuid}, !card.PCIeRX.Known || !card.PCIeTX.Known, nil)
		w.noted.Turn(w.log, notes.Subject{Stage: notes.StageSharing, GPU: uuid}, card.Sharing == source.SharingUnknown, nil)
	}
	for _, verdict := range judged.GPUs {
		w.noted.Turn(w.log, notes.Subject{Stage: notes.StageBlind, GPU: verdict.UUID}, verdict.Contended && verdict.Blind != "",
			func() []any { return []any{"reason", verdict.Blind} })
	}
}

// contentionEvidence names the containers and the figures.
func (w *Loop) contentionEvidence(found health.Evidence) []any {
	percent := func(part float64) float64 { return math.Round(part*1000) / 10 }
	attributes := []any{"resource", string(found.Resource), "victim", w.Name(found.Victim)}
	if found.Antagonist != "" {
		attributes = append(attributes, "antagonist", w.Name(found.Antagonist), "confidence_percent", percent(found.Confidence))
	}
	return append(attributes, "lost_percent_10s", percent(found.Avg10), "lost_percent_60s", percent(found.Avg60),
		"device_percent", percent(found.DeviceRatio), "samples", found.Samples)
}

// Name is a container for people: its pod and name, or its allocation.
func (w *Loop) Name(key string) string {
	record, held := w.books.Record(key)
	if !held || record.Pod == nil || record.Pod.Pod == "" {
		return key
	}
	return record.Pod.Namespace + "/" + record.Pod.Pod + "/" + record.Pod.Container
}
