// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package metrics publishes one tick's view as vgpud.prom for node-exporter's textfile collector: whole or not at
// all. catalogue.go has one row per metric, render.go makes the text, textfile.go puts it in place, publisher.go does so
// beside the tick. The tick offers a View, whose parts packages steer, watch and outside have made. Labels
// come partly from containers and drivers and are untrusted: what is not valid text never reaches the file.
package metrics

import (
	"github.com/vgpud/vgpud/agent/decide"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/outside"
	"github.com/vgpud/vgpud/agent/steer"
	"github.com/vgpud/vgpud/agent/watch"
)

// View is everything that one file says. Snapshot is never nil.
type View struct {
	Snapshot      *monitor.Snapshot
	Decisions     decide.Decisions
	Steering      steer.View
	Contention    watch.View
	Outside       outside.View
	Events        Events
	TamperedTotal uint64
	Slices        []SliceCounts
	Plugin        Plugin
	Build         Build
	WriteErrors   uint64 // set by Textfile
	DroppedSeries int    // set while the file is rendered
}

// SliceCounts says what becomes of the slices of one GPU; the three add up to all of them.
type SliceCounts struct {
	GPUUUID                    string
	Free, Allocated, Withdrawn int
}

// Plugin is how the device plugin fares with the kubelet.
type Plugin struct {
	Registered           bool
	Registrations        uint64
	RegistrationFailures uint64
	Allocations          uint64
	AllocationFailures   uint64
	StartRefusals        uint64
	Allocate             Durations
}

// Durations is a histogram in seconds. Buckets maps an upper bound to how many took no longer.
type Durations struct {
	Count      uint64
	SumSeconds float64
	Buckets    map[float64]uint64
}

// Build says what runs.
type Build struct {
	Version, Revision, GoVersion, LibraryBuildID string
}
