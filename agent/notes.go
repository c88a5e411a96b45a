// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// notes.go says each lasting fault once, and once when it is over, however many ticks it lasts.

package main

import (
	"log/slog"

	"github.com/vgpud/vgpud/agent/monitor"
)

// subject is what a fault is with: something that the agent does, with one source or one allocation where there are
// several.
type subject struct {
	stage      string
	source     string
	allocation string // its key
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
}

// LogValue implements slog.LogValuer: only what says something.
func (s subject) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("stage", s.stage)}
	if s.source != "" {
		attrs = append(attrs, slog.String("source", s.source))
	}
	if s.allocation != "" {
		attrs = append(attrs, slog.String("allocation", s.allocation))
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

// keep forgets what was said of allocations that are no more.
func (n *notes) keep(allocations map[string]monitor.Allocation) {
	for about := range n.said {
		if _, exists := allocations[about.allocation]; about.allocation != "" && !exists {
			delete(n.said, about)
		}
	}
}
