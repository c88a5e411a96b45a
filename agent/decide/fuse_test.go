// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package decide

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/monitor"
)

// cards is a node with these cards, of which so many slices are held.
func cards(held ...int) *monitor.Snapshot {
	snapshot := &monitor.Snapshot{At: time.Unix(0, 0), Sources: []monitor.SourceStatus{{Name: monitor.SourceNVML, Up: true}}}
	for i, count := range held {
		uuid := fmt.Sprintf("GPU-%c", 'a'+i)
		snapshot.GPUs = append(snapshot.GPUs, monitor.GPU{UUID: uuid, Health: monitor.GPUReadable, TotalBytes: 1000, ReservedBytes: 100, NUMANode: -1})
		share := monitor.Share{GPUUUID: uuid}
		for n := range count {
			share.SliceIDs = append(share.SliceIDs, fmt.Sprintf("%s::%d", uuid, n))
		}
		snapshot.Allocations = append(snapshot.Allocations, monitor.Allocation{Key: "k-" + uuid, GPUs: []monitor.Share{share}})
	}
	return snapshot
}

func contendedCard(uuid string, since time.Duration, avg60 float64) health.Verdict {
	return health.Verdict{UUID: uuid, Contended: true, Since: since, Evidence: health.Evidence{GPUUUID: uuid, Resource: contention.ResourceDRAM,
		Victim: "victim", Antagonist: "antagonist", Confidence: 0.8, Avg10: avg60, Avg60: avg60}}
}

func TestFuse(t *testing.T) {
	policy := Policy{SlicesPerGPU: 10, RecoverAfter: 3}
	marking := policy
	marking.MarkAllocated = true
	single := policy
	single.SlicesPerGPU = 1
	for _, c := range []struct {
		name      string
		policy    Policy
		held      []int
		contended []health.Verdict
		want      []int  // how many slices of each card may be withdrawn
		fuse      string // what is told of it; "": nothing
	}{
		{"one of two", policy, []int{2, 0}, []health.Verdict{contendedCard("GPU-a", 1, 0.5)}, []int{8, 0}, ""},
		{"both: the older one first", policy, []int{2, 2}, []health.Verdict{contendedCard("GPU-a", 2, 0.9), contendedCard("GPU-b", 1, 0.3)}, []int{2, 8}, "of 8 slices that would be withdrawn the fuse lets 2 go"},
		{"both at once: the worse one first", policy, []int{2, 2}, []health.Verdict{contendedCard("GPU-a", 1, 0.3), contendedCard("GPU-b", 1, 0.9)}, []int{2, 8}, "of 8 slices that would be withdrawn the fuse lets 2 go"},
		{"all of four", policy, []int{0, 0, 0, 0}, []health.Verdict{contendedCard("GPU-a", 1, 0.5), contendedCard("GPU-b", 1, 0.5),
			contendedCard("GPU-c", 1, 0.6), contendedCard("GPU-d", 1, 0.5)}, []int{10, 0, 10, 0}, "of 10 slices that would be withdrawn the fuse lets 0 go"},
		{"a node of one card keeps half", policy, []int{2}, []health.Verdict{contendedCard("GPU-a", 1, 0.9)}, []int{5}, "of 8 slices that would be withdrawn the fuse lets 5 go"},
		{"a node of one card that is well used", policy, []int{7}, []health.Verdict{contendedCard("GPU-a", 1, 0.9)}, []int{3}, ""},
		{"a node of one card with one slice", single, []int{0}, []health.Verdict{contendedCard("GPU-a", 1, 0.9)}, []int{0}, "of 1 slices that would be withdrawn the fuse lets 0 go"},
		{"allocated ones, too", marking, []int{6, 6}, []health.Verdict{contendedCard("GPU-b", 1, 0.9)}, []int{0, 10}, ""},
		{"none contended", policy, []int{2, 2}, []health.Verdict{{UUID: "GPU-a"}, {UUID: "GPU-b"}}, []int{0, 0}, ""},
		{"a card that is not there", policy, []int{2}, []health.Verdict{contendedCard("GPU-z", 1, 0.9)}, []int{0}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			decisions, _ := Decide(cards(c.held...), c.contended, c.policy, State{})
			var got []int
			total, marked := 0, 0
			for _, gpu := range decisions.GPUs {
				got = append(got, gpu.Withdraw)
				total, marked = total+gpu.Slices, marked+gpu.Withdraw
				if gpu.Hard || gpu.MarkAllocated != (c.policy.MarkAllocated && gpu.Contended) {
					t.Errorf("%+v", gpu)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			told := ""
			for _, transition := range decisions.Transitions {
				if _, after, found := strings.Cut(transition.Detail, "; of "); found {
					told = "of " + after
				}
			}
			if c.fuse == "" && told != "" || !strings.HasPrefix(told, c.fuse) {
				t.Errorf("told of the fuse %q, want %q", told, c.fuse)
			}
			if 2*marked > total {
				t.Errorf("%d of %d slices", marked, total)
			}
		})
	}
}

// TestContentionAmongOtherFaults plays ticks of one card: a fault of its own comes first, and each change is told once.
func TestContentionAmongOtherFaults(t *testing.T) {
	policy := Policy{SlicesPerGPU: 10, RecoverAfter: 2}
	healthy, lost := cards(1, 1), cards(1, 1)
	lost.GPUs = lost.GPUs[1:]
	is := []health.Verdict{contendedCard("GPU-a", 1, 0.5)}
	var state State
	for i, tick := range []struct {
		snapshot  *monitor.Snapshot
		contended []health.Verdict
		reason    string
		told      string // of GPU-a
	}{
		{healthy, nil, "ok", "healthy ok"},
		{healthy, is, "contended", "withdrawn contended"},
		{healthy, is, "contended", ""},
		{lost, is, "gpu-lost", "withdrawn gpu-lost"},
		{healthy, is, "recovering", ""},
		{healthy, is, "contended", "withdrawn contended"},
		{lost, nil, "gpu-lost", "withdrawn gpu-lost"},
		{healthy, nil, "recovering", ""},
		{healthy, nil, "ok", "healthy ok"},
		{healthy, is, "contended", "withdrawn contended"},
		{healthy, nil, "ok", "healthy ok"},
		{healthy, nil, "ok", ""},
	} {
		var decisions Decisions
		before := fmt.Sprintf("%+v", state)
		previous := state
		decisions, state = Decide(tick.snapshot, tick.contended, policy, state)
		if fmt.Sprintf("%+v", previous) != before {
			t.Fatalf("tick %d: Decide changed the state it was given", i)
		}
		gpu := decisions.GPUs[0]
		told := ""
		for _, transition := range decisions.Transitions {
			if transition.UUID != "GPU-a" {
				continue
			}
			told = map[bool]string{true: "healthy ", false: "withdrawn "}[transition.Healthy] + transition.Reason
			if (transition.Evidence != nil) != (transition.Reason == ReasonContended) {
				t.Errorf("tick %d: %+v", i, transition)
			}
			if transition.Evidence != nil && !strings.Contains(transition.Detail, "victim lost 50 %") {
				t.Errorf("tick %d: %q", i, transition.Detail)
			}
		}
		if gpu.Reason != tick.reason || gpu.Healthy != (tick.reason == "ok") || told != tick.told || gpu.Contended != (tick.contended != nil) ||
			gpu.Hard != (tick.reason == "gpu-lost" || tick.reason == "recovering") {
			t.Errorf("tick %d: %+v, told %q, want %s and %q", i, gpu, told, tick.reason, tick.told)
		}
	}
}

// Without the driver's answers nothing is called contended: the fault of its own is.
func TestContentionIsSilentWhileNothingCanBeRead(t *testing.T) {
	snapshot := cards(1)
	snapshot.GPUs[0].Health = monitor.GPUUnreadable
	decisions, _ := Decide(snapshot, []health.Verdict{contendedCard("GPU-a", 1, 0.5)}, Policy{SlicesPerGPU: 10}, State{})
	if gpu := decisions.GPUs[0]; gpu.Reason != ReasonUnreadable || gpu.Withdraw != 0 {
		t.Errorf("%+v", gpu)
	}
}
