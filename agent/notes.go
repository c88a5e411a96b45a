// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// notes.go says each lasting fault once, and once when it is over, however many ticks it lasts.

package main

import "log/slog"

// subject is what a fault is with: something that the agent does, with one source or one allocation where there are
// several.
type subject struct {
	stage      string
	source     string
	allocation string // its key
	gpu        string // its UUID
}

// Stages.
const (
	stageConfigure = "configure" // the configuration file
	stageObserve   = "observe"   // reading a source
	stageJudge     = "judge"     // what an allocation's pages show
	stagePrepare   = "prepare"   // the directories of pages
	stageRepair    = "repair"    // acting on a verdict
	stageOffer     = "offer"     // the list of slices
	stagePublish   = "publish"   // the metrics file; the older one stays in place
	stageTidy      = "tidy"      // files that a killed agent left
	stageSteer     = "steer"     // opening an allocation's pages to steer its GPU time
	stageRate      = "rate"      // writing its rates
	stageOverShare = "share"     // its use of GPU time is above its share
	stageHeld      = "cap"       // its share makes it wait
	stageMeasure   = "measure"   // the driver's samples of its use
	stageRecall    = "recall"    // verdicts of an earlier agent
	stageRemember  = "remember"  // keeping verdicts for a later one
	stageDRAM      = "dram"      // the card's counter of memory bandwidth
	stagePCIe      = "pcie"      // its counters of PCIe traffic
	stageSharing   = "sharing"   // how it is shared
	stageBlind     = "blind"     // the verdict about a card cannot change
	stageDetach    = "detach"    // probes
	stageControl   = "control"   // the control socket
	stageFreezer   = "freezer"   // the record of frozen containers
)

// wording is what is said of a stage when a fault begins and when it is over.
var wording = map[string]struct{ fault, over string }{
	stageConfigure: {"configuration not applied", "configuration is as it was read"},
	stageObserve:   {"source not readable", "source is readable"},
	stageJudge:     {"allocation is not as it was granted", "allocation is as it was granted"},
	stagePrepare:   {"pages directory could not be made", "pages directory is in place"},
	stageRepair:    {"allocation could not be put right", "allocation was put right"},
	stageOffer:     {"slices not offered as configured", "slices are offered as configured"},
	stagePublish:   {"metrics not written", "metrics are written"},
	stageTidy:      {"files of an agent that was killed stay", "files of an agent that was killed are gone"},
	stageSteer:     {"GPU time of an allocation is not steered; its share holds", "GPU time of an allocation is steered"},
	stageRate:      {"rates of an allocation could not be written; the older ones hold", "rates of an allocation are written"},
	stageOverShare: {"container uses more GPU time than it may", "container uses no more GPU time than it may"},
	stageHeld:      {"container waits for GPU time most of the time: its share binds", "container no longer waits for GPU time most of the time"},
	stageMeasure: {"use of GPU time is not measured: the driver has no samples; the containers' own measurements hold",
		"use of GPU time is measured"},
	stageRecall:   {"verdicts of an earlier agent could not be read; contention is judged anew", "verdicts of an earlier agent were read"},
	stageRemember: {"verdicts are not kept; after a restart contention is judged anew", "verdicts are kept"},
	stageDRAM: {"bandwidth of the GPU's memory is not measured: the card has no counter for it (GPM: Hopper and later); contention on it cannot be told",
		"bandwidth of the GPU's memory is measured"},
	stagePCIe:    {"PCIe traffic of the GPU is not measured: the driver tells none; contention on it cannot be told", "PCIe traffic of the GPU is measured"},
	stageSharing: {"how the GPU is shared cannot be told; contention on it is not judged as to kernels", "how the GPU is shared can be told"},
	stageDetach:  {"probes could not be let go", "probes are let go"},
	stageFreezer: {"who is frozen could not be read: containers of an earlier agent may stay so, and nobody is frozen or killed", "who is frozen was read"},
	stageControl: {"no control socket: vgpud top and thaw find no agent", "control socket is there"},
	stageBlind:   {"GPU stays contended: what would acquit it cannot be seen", "contention of the GPU can be seen again"},
}

// asGranted are stages that are no fault: they are said as information.
var asGranted = map[string]bool{stageHeld: true, stageDRAM: true, stagePCIe: true, stageSharing: true}

// LogValue implements slog.LogValuer: only what says something.
func (s subject) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("stage", s.stage)}
	if s.source != "" {
		attrs = append(attrs, slog.String("source", s.source))
	}
	if s.allocation != "" {
		attrs = append(attrs, slog.String("allocation", s.allocation))
	}
	if s.gpu != "" {
		attrs = append(attrs, slog.String("gpu", s.gpu))
	}
	return slog.GroupValue(attrs...)
}

// notes remembers which faults were said. The zero value is ready. One goroutine uses it.
type notes struct{ said map[subject]string }

// change logs when the fault with something begins, changes or ends (nil).
func (n *notes) change(log *slog.Logger, about subject, fault error) {
	if n.said == nil {
		n.said = map[subject]string{}
	}
	before, lasting := n.said[about]
	switch {
	case fault == nil && lasting:
		delete(n.said, about)
		log.Info(wording[about.stage].over, "", about) //nolint:sloglint // a constant of the table
	case fault != nil && before != fault.Error():
		n.said[about] = fault.Error()
		log.Warn(wording[about.stage].fault, "", about, "error", fault) //nolint:sloglint // a constant of the table
	}
}

// turn logs when something that is no error of ours begins and ends. details are asked for then only: what they say may
// change all the time.
func (n *notes) turn(log *slog.Logger, about subject, holds bool, details func() []any) {
	if n.said == nil {
		n.said = map[subject]string{}
	}
	_, lasting := n.said[about]
	switch {
	case !holds && lasting:
		delete(n.said, about)
		log.Info(wording[about.stage].over, append([]any{"", about}, details()...)...) //nolint:sloglint // a constant of the table
	case holds && !lasting:
		n.said[about] = ""
		say := log.Warn
		if asGranted[about.stage] {
			say = log.Info
		}
		say(wording[about.stage].fault, append([]any{"", about}, details()...)...)
	}
}

// keep forgets what was said of allocations that are no more.
func (n *notes) keep(exists func(allocation string) bool) {
	for about := range n.said {
		if about.allocation != "" && !exists(about.allocation) {
			delete(n.said, about)
		}
	}
}
