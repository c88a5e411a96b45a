// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The shipped rule: health.Judge behind contention.Judge, and what decide.Decide makes of it for a node of two cards,
// one of which nobody uses. What counts is what the kubelet is offered: of a contended card, its free slices less.

package main

import (
	"fmt"
	"time"

	"github.com/vgpud/vgpud/agent/decide"
	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/scripts/benchnode"
	"github.com/vgpud/vgpud/scripts/contentionbench/scene"
	"github.com/vgpud/vgpud/scripts/contentionbench/virtual"
)

const (
	otherCard  = "GPU-00000000-0000-4000-8000-000000000002"
	cardMemory = 80 << 30
)

// shipped is ours, with one set of numbers.
type shipped struct {
	policy health.Policy
	held   []monitor.Allocation // by the scene's tenants
	health health.State
	node   decide.State
	told   []string // its transitions
}

// newShipped is ours on a scene.
func newShipped(policy health.Policy, of scene.Scene) *shipped {
	s := &shipped{policy: policy}
	first := 0
	for _, t := range of.Filled().Tenants {
		share := monitor.Share{GPUUUID: virtual.UUID}
		for range t.Slices {
			share.SliceIDs = append(share.SliceIDs, fmt.Sprintf("%s::%d", virtual.UUID, first))
			first++
		}
		s.held = append(s.held, monitor.Allocation{Key: virtual.Key(t), GPUs: []monitor.Share{share}})
	}
	return s
}

// nodePolicy is what the agent uses by default, with as many slices as a node in real time has.
var nodePolicy = decide.Policy{SlicesPerGPU: benchnode.SlicesPerCard, RecoverAfter: 1, MinSliceBytes: 256 << 20, ReleaseAge: time.Minute, ReleaseAfter: 3}

func (s *shipped) look(seen *monitor.Contention, concluded contention.Result) (bool, string) {
	var verdicts health.Verdicts
	verdicts, s.health = health.Judge(concluded, s.policy, s.health, seen.Now)
	snapshot := &monitor.Snapshot{At: time.Unix(0, 0).Add(seen.Now), Allocations: s.held, Sources: []monitor.SourceStatus{{Name: monitor.SourceNVML, Up: true}}}
	for _, uuid := range []string{virtual.UUID, otherCard} {
		snapshot.GPUs = append(snapshot.GPUs, monitor.GPU{UUID: uuid, Health: monitor.GPUReadable, TotalBytes: cardMemory, NUMANode: -1})
	}
	var decisions decide.Decisions
	decisions, s.node = decide.Decide(snapshot, verdicts.GPUs, nodePolicy, s.node)
	for _, t := range decisions.Transitions {
		s.told = append(s.told, t.Reason+": "+t.Detail)
	}
	for _, gpu := range decisions.GPUs {
		switch {
		case gpu.UUID != virtual.UUID || gpu.Healthy:
		case gpu.Evidence == nil:
			return true, gpu.Reason
		case gpu.Withdraw > 0:
			return true, gpu.Evidence.Antagonist
		}
	}
	return false, ""
}
