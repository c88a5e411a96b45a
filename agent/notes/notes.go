// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package notes says each lasting fault once, and once when it is over, however many ticks it lasts. To add a stage: a
// constant, its words, a line in the test.
package notes

import "log/slog"

// Subject is what a fault is with: something that the agent does, with one source or one allocation where there are
// several.
type Subject struct {
	Stage      string // one of the constants below
	Source     string
	Allocation string // its key
	GPU        string // its UUID
}

// Stages.
const (
	StageConfigure = "configure" // the configuration file
	StageObserve   = "observe"   // reading a source
	StageJudge     = "judge"     // what an allocation's pages show
	StagePrepare   = "prepare"   // the directories of pages
	StageRepair    = "repair"    // acting on a verdict
	StageOffer     = "offer"     // the list of slices
	StagePublish   = "publish"   // the metrics file; the older one stays in place
	StageTidy      = "tidy"      // files that a killed agent left
	StageSteer     = "steer"     // opening an allocation's pages to steer its GPU time
	StageRate      = "rate"      // writing its rates
	StageOverShare = "share"     // its use of GPU time is above its share
	StageHeld      = "cap"       // its share makes it wait
	StageMeasure   = "measure"   // the driver's samples of its use
	StageRecall    = "recall"    // verdicts of an earlier agent
	StageRemember  = "remember"  // keeping verdicts for a later one
	StageDRAM      = "dram"      // the card's counter of memory bandwidth
	StagePCIe      = "pcie"      // its counters of PCIe traffic
	StageSharing   = "sharing"   // how it is shared
	StageBlind     = "blind"     // the verdict about a card cannot change
	StageDetach    = "detach"    // probes
	StageControl   = "control"   // the control socket
	StageFreezer   = "freezer"   // the record of frozen containers
)

// wording is what is said of a stage when a fault begins and when it is over.
var wording = map[string]struct{ fault, over string }{
	StageConfigure: {"configuration not applied", "configuration is as it was read"},
	StageObserve:   {"source not readable", "source is readable"},
	StageJudge:     {"allocation is not as it was granted", "allocation is as it was granted"},
	StagePrepare:   {"pages directory could not be made", "pages directory is in place"},
	StageRepair:    {"allocation could not be put right", "allocation was put right"},
	StageOffer:     {"slices not offered as configured", "slices are offered as configured"},
	StagePublish:   {"metrics not written", "metrics are written"},
	StageTidy:      {"files of an agent that was killed stay", "files of an agent that was killed are gone"},
	StageSteer:     {"GPU time of an allocation is not steered; its share holds", "GPU time of an allocation is steered"},
	StageRate:      {"rates of an allocation could not be written; the older ones hold", "rates of an allocation are written"},
	StageOverShare: {"container uses more GPU time than it may", "container uses no more GPU time than it may"},
	StageHeld:      {"container waits for GPU time most of the time: its share binds", "container no longer waits for GPU time most of the time"},
	StageMeasure: {"use of GPU time is not measured: the driver has no samples; the containers' own measurements hold",
		"use of GPU time is measured"},
	StageRecall:   {"verdicts of an earlier agent could not be read; contention is judged anew", "verdicts of an earlier agent were read"},
	StageRemember: {"verdicts are not kept; after a restart contention is judged anew", "verdicts are kept"},
	StageDRAM: {"bandwidth of the GPU's memory is not measured: the card has no counter for it (GPM: Hopper and later); contention on it cannot be told",
		"bandwidth of the GPU's memory is measured"},
	StagePCIe:    {"PCIe traffic of the GPU is not measured: the driver tells none; contention on it cannot be told", "PCIe traffic of the GPU is measured"},
	StageSharing: {"how the GPU is shared cannot be told; contention on it is not judged as to kernels", "how the GPU is shared can be told"},
	StageDetach:  {"probes could not be let go", "probes are let go"},
	StageFreezer: {"who is frozen could not be read: containers of an earlier agent may stay so, and nobody is frozen or killed", "who is frozen was read"},
	StageControl: {"no control socket: vgpud top and thaw find no agent", "control socket is there"},
	StageBlind:   {"GPU stays contended: what would acquit it cannot be seen", "contention of the GPU can be seen again"},
}

// asGranted are stages that are no fault: they are said as information.
var asGranted = map[string]bool{StageHeld: true, StageDRAM: true, StagePCIe: true, StageSharing: true}

// LogValue implements slog.LogValuer: only what says something.
func (s Subject) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("stage", s.Stage)}
	if s.Source != "" {
		attrs = append(attrs, slog.String("source", s.Source))
	}
	if s.Allocation != "" {
		attrs = append(attrs, slog.String("allocation", s.Allocation))
	}
	if s.GPU != "" {
		attrs = append(attrs, slog.String("gpu", s.GPU))
	}
	return slog.GroupValue(attrs...)
}

// Notes remembers which faults were said. The zero value is ready. One goroutine uses it.
type Notes struct{ said map[Subject]string }

// Change logs when the fault with something begins, changes or ends (nil).
func (n *Notes) Change(log *slog.Logger, about Subject, fault error) {
	if n.said == nil {
		n.said = map[Subject]string{}
	}
	before, lasting := n.said[about]
	switch {
	case fault == nil && lasting:
		delete(n.said, about)
		log.Info(wording[about.Stage].over, "", about) //nolint:sloglint // a constant of the table
	case fault != nil && before != fault.Error():
		n.said[about] = fault.Error()
		log.Warn(wording[about.Stage].fault, "", about, "error", fault) //nolint:sloglint // a constant of the table
	}
}

// Turn logs when something that is no error of ours begins and ends. details are asked for then only: what they say may
// change all the time. nil has none.
func (n *Notes) Turn(log *slog.Logger, about Subject, holds bool, details func() []any) {
	if n.said == nil {
		n.said = map[Subject]string{}
	}
	_, lasting := n.said[about]
	if holds == lasting {
		return
	}
	attributes := []any{"", about}
	if details != nil {
		attributes = append(attributes, details()...)
	}
	if !holds {
		delete(n.said, about)
		log.Info(wording[about.Stage].over, attributes...) //nolint:sloglint // a constant of the table
		return
	}
	n.said[about] = ""
	say := log.Warn
	if asGranted[about.Stage] {
		say = log.Info
	}
	say(wording[about.Stage].fault, attributes...)
}

// Keep forgets what was said of allocations that are no more.
func (n *Notes) Keep(exists func(allocation string) bool) {
	for about := range n.said {
		if about.Allocation != "" && !exists(about.Allocation) {
			delete(n.said, about)
		}
	}
}
