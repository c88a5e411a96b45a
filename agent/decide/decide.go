// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package decide turns what was observed into what is to be done: (Snapshot, Policy, State) → (Decisions, State).
// It does no I/O, reads no clock, keeps no log and changes none of its arguments, so that every case is a text
// file in testdata. The tick calls Decide and app.go applies the decisions. gpu.go judges GPUs, memory.go judges allocations,
// fuse.go brings in which cards are contended and bounds what follows from it.
//
// Its rooms conclude the rest, each from its own values and in a loop of its own: contention → health → Decide for bandwidth,
// health → steering → witness for GPU time.
package decide

import (
	"time"

	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/monitor"
)

// Policy is what the operator chose. It does not change while the agent runs.
type Policy struct {
	SlicesPerGPU int
	// MarginBytes is kept free on each GPU, beyond what the driver reserves.
	MarginBytes uint64
	// RecoverAfter is how many ticks in a row a failed GPU must be readable before it is healthy again.
	RecoverAfter int
	// MinSliceBytes is the least memory of a slice; a card that has less for each is not offered.
	MinSliceBytes uint64
	// ReleaseAge is the age before which no allocation is released: the kubelet writes its record
	// only after Allocate has answered.
	ReleaseAge time.Duration
	// ReleaseAfter is how many ticks in a row an allocation must be lost before it is released.
	ReleaseAfter int
	// MarkAllocated: allocated slices of a contended GPU are unhealthy, too. That moves no pod, but shows in its status, and
	// a pod whose container does not run when the kubelet starts anew fails.
	MarkAllocated bool
}

// State is what has to be remembered between ticks. The zero value is the start.
type State struct {
	GPUs   map[string]GPUState
	Absent map[string]Absence // allocations that are lost, by key
	// TamperedTotal counts how often a page was found changed by its container.
	TamperedTotal uint64
}

// Absence is for how long an allocation is lost.
type Absence struct {
	Ticks int       // in a row
	Since time.Time // Snapshot.At of the first of them
}

// Decisions are what one tick asks for.
type Decisions struct {
	// GPUs has every card ever seen, sorted by UUID, the withdrawn ones included.
	GPUs []GPUVerdict
	// Allocations has every allocation of the snapshot, sorted by key.
	Allocations []AllocationVerdict
	// Transitions are the changes of GPU health in this tick, for the log.
	Transitions []Transition
}

// Decide judges one snapshot. contended is what health.Judge thinks of the cards, sorted by UUID; nil: nothing.
func Decide(snapshot *monitor.Snapshot, contended []health.Verdict, policy Policy, state State) (Decisions, State) {
	var decisions Decisions
	var next State
	decisions.GPUs, decisions.Transitions, next.GPUs = judgeGPUs(snapshot, policy, state.GPUs)
	decisions.mergeContention(snapshot, contended, policy, state.GPUs, next.GPUs)
	decisions.Allocations, next.Absent = judgeAllocations(snapshot, policy, state.Absent)
	next.TamperedTotal = state.TamperedTotal
	for _, verdict := range decisions.Allocations {
		if verdict.Tampered {
			next.TamperedTotal++
		}
	}
	return decisions, next
}
