// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package decide

import (
	"fmt"
	"maps"
	"slices"

	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/monitor"
)

// Reasons for a GPU's health, as they appear in metrics and logs.
const (
	ReasonOK         = "ok"
	ReasonUnreadable = "gpu-unreadable"   // its memory cannot be read, or nothing can watch it
	ReasonLost       = "gpu-lost"         // the driver lost it, or no longer lists it
	ReasonMIG        = "gpu-mig"          // split by MIG: the whole card cannot be used
	ReasonNoMemory   = "no-usable-memory" // what reserve and margin leave is too little for the slices
	ReasonRecovering = "recovering"       // readable again, but not for long enough
	ReasonContended  = "contended"        // its slices lose too much to each other
)

// GPUVerdict is what is offered of one card.
type GPUVerdict struct {
	UUID        string
	Healthy     bool
	Reason      string
	Hard        bool   // the card itself is broken: also its allocated slices are unhealthy, until it has recovered
	UsableBytes uint64 // total less the driver's reserve and the margin; fixed at the first good reading
	Slices      int    // 0: the card has never been readable and is not offered
	NUMANode    int    // -1: none known

	// Contended says that the card is contended, whatever Reason says. Where that is the reason, at most Withdraw of its
	// slices are marked, free ones first; MarkAllocated says whether allocated ones may be. Evidence is why.
	Contended     bool
	Withdraw      int
	MarkAllocated bool
	Evidence      *health.Evidence
}

// Transition is a change of one card's health.
type Transition struct {
	UUID    string
	Healthy bool
	Reason  string
	Detail  string // evidence, for people

	Evidence *health.Evidence // for contention that began; nil with any other reason
}

// GPUState is what is remembered of one card.
type GPUState struct {
	UsableBytes uint64
	NUMANode    int
	Healthy     bool
	Hard        bool // see GPUVerdict
	Reason      string
	GoodTicks   int // readable in a row since it was last withdrawn
	Contended   bool
}

// judgeGPUs withdraws a card at the first tick in which it cannot be read and takes it back after
// Policy.RecoverAfter readable ticks. A card that was never readable is listed, but with no slices.
func judgeGPUs(snapshot *monitor.Snapshot, policy Policy, known map[string]GPUState) (
	[]GPUVerdict, []Transition, map[string]GPUState) {
	next := maps.Clone(known)
	if next == nil {
		next = map[string]GPUState{}
	}
	seen := map[string]monitor.GPU{}
	for _, gpu := range snapshot.GPUs {
		seen[gpu.UUID] = gpu
		if _, remembered := next[gpu.UUID]; !remembered {
			// As if it had just recovered: a good first reading offers it at once.
			next[gpu.UUID] = GPUState{NUMANode: gpu.NUMANode, Reason: ReasonRecovering, GoodTicks: policy.RecoverAfter}
		}
	}
	var verdicts []GPUVerdict
	var transitions []Transition
	for _, uuid := range slices.Sorted(maps.Keys(next)) {
		before := next[uuid]
		reading, listed := seen[uuid]
		if !listed {
			reading = missing(uuid, snapshot.SourceUp(monitor.SourceNVML))
		}
		after := before.step(reading, policy)
		next[uuid] = after
		_, remembered := known[uuid]
		tooSmall := after.Reason == ReasonNoMemory && before.Reason != ReasonNoMemory // it may have been unreadable before
		if after.Healthy != before.Healthy || (!remembered && !after.Healthy) || tooSmall {
			transitions = append(transitions, Transition{UUID: uuid, Healthy: after.Healthy, Reason: after.Reason,
				Detail: detail(reading, after, policy)})
		}
		verdict := GPUVerdict{UUID: uuid, Healthy: after.Healthy, Reason: after.Reason, Hard: after.Hard,
			UsableBytes: after.UsableBytes, NUMANode: after.NUMANode}
		if after.UsableBytes > 0 {
			verdict.Slices = policy.SlicesPerGPU
		}
		verdicts = append(verdicts, verdict)
	}
	return verdicts, transitions, next
}

// missing stands for a card that the snapshot does not have: lost when the driver answered without it,
// unreadable when the driver did not answer at all.
func missing(uuid string, driverAnswers bool) monitor.GPU {
	if driverAnswers {
		return monitor.GPU{UUID: uuid, Health: monitor.GPULost, Detail: "the driver no longer lists it"}
	}
	return monitor.GPU{UUID: uuid, Health: monitor.GPUUnreadable, Detail: "the driver's management library does not answer"}
}

// step moves one card by one tick.
func (s GPUState) step(reading monitor.GPU, policy Policy) GPUState {
	switch reading.Health {
	case monitor.GPULost:
		s.Hard = true
		return s.withdrawn(ReasonLost)
	case monitor.GPUMIG:
		s.Hard = true
		return s.withdrawn(ReasonMIG)
	case monitor.GPUUnreadable:
		return s.withdrawn(ReasonUnreadable)
	case monitor.GPUReadable:
	}
	if s.UsableBytes == 0 {
		s.UsableBytes = usable(reading, policy)
		s.NUMANode = reading.NUMANode
	}
	if s.UsableBytes == 0 {
		return s.withdrawn(ReasonNoMemory)
	}
	if s.Healthy {
		return s
	}
	s.GoodTicks++
	s.Reason = ReasonRecovering
	if s.GoodTicks >= policy.RecoverAfter {
		s.Healthy, s.Hard, s.Reason = true, false, ReasonOK
	}
	return s
}

func (s GPUState) withdrawn(reason string) GPUState {
	s.Healthy, s.Reason, s.GoodTicks = false, reason, 0
	return s
}

// usable is what can be granted of a card; 0 when that is too little for its slices.
func usable(gpu monitor.GPU, policy Policy) uint64 {
	kept := gpu.ReservedBytes + policy.MarginBytes
	if kept < policy.MarginBytes || gpu.TotalBytes <= kept {
		return 0
	}
	usable := gpu.TotalBytes - kept
	if usable/uint64(max(1, policy.SlicesPerGPU)) < policy.MinSliceBytes {
		return 0
	}
	return usable
}

// detail is the evidence for a card's state.
func detail(reading monitor.GPU, state GPUState, policy Policy) string {
	if state.Reason != ReasonNoMemory {
		return reading.Detail
	}
	return fmt.Sprintf("of %d bytes the driver keeps %d and the margin is %d: too little for %d slices of at least %d bytes",
		reading.TotalBytes, reading.ReservedBytes, policy.MarginBytes, policy.SlicesPerGPU, policy.MinSliceBytes)
}
