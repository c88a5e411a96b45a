// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the merge: absent and failing sources, hostile pages, ownership, order.

package monitor

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/source/fake"
)

var start = time.Unix(1700000000, 0)

// example is a node with two cards and one allocation on both.
func example() (Sources, *fake.GPUs, *fake.Ledger, *fake.Pages, *fake.Procs, *fake.Kubelet) {
	gpus, pages := &fake.GPUs{}, &fake.Pages{ByKey: map[string]source.PageUsage{"k1": {State: source.PagesReadable, Processes: []source.PageProcess{
		{ID: source.ProcessID{PID: 1}, UsedBytes: []uint64{4, 5}}, {ID: source.ProcessID{PID: 2}, UsedBytes: []uint64{3, 0}}},
		Devices: []source.DeviceUsage{{GPUUUID: "GPU-b", UsedBytes: 7, Allocations: 3, Refusals: 1}, {GPUUUID: "GPU-a", UsedBytes: 5}}}}}
	gpus.Set(source.GPU{UUID: "GPU-b", Index: 1, TotalBytes: 1000}, source.GPU{UUID: "GPU-a", TotalBytes: 1000})
	ledger := &fake.Ledger{
		Records: []source.Allocation{{Key: "k1", CreatedAt: start.Add(-time.Minute), Grants: []source.Grant{
			{GPUUUID: "GPU-b", SliceIDs: []string{"GPU-b::0"}, MemoryLimitBytes: 100}, {GPUUUID: "GPU-a", SliceIDs: []string{"GPU-a::0"}, MemoryLimitBytes: 100,
				Mode: ComputeElastic, SharePPM: 100_000, CeilingPPM: 900_000},
			{GPUUUID: "GPU-b", SliceIDs: []string{"GPU-b::1"}, MemoryLimitBytes: 100}}}},
		Rows: []source.Book{{GPUUUID: "GPU-a", UsableBytes: 900, HeldBytes: 100}, {GPUUUID: "GPU-gone", UsableBytes: 1}}}
	procs := &fake.Procs{Running: map[string]int{"uid-1": 1}}
	kubelet := &fake.Kubelet{}
	kubelet.Set(source.Holder{Key: "k1", Owner: source.Owner{PodUID: "uid-1", Namespace: "md", Pod: "p", Container: "c"}})
	kubelet.SetPods("uid-1", "uid-other")
	return Sources{gpus, ledger, pages, procs, kubelet}, gpus, ledger, pages, procs, kubelet
}

func TestMerge(t *testing.T) {
	sources, _, _, _, _, _ := example()
	snapshot := Collect(t.Context(), sources, start)
	want := &Snapshot{At: start,
		Sources: []SourceStatus{{Name: "nvml", Up: true}, {Name: "ledger", Up: true}, {Name: "pages", Up: true},
			{Name: "kubelet", Up: true}, {Name: "podresources", Up: true}, {Name: "pods", Up: true}, {Name: "procs", Up: true}},
		GPUs: []GPU{
			{UUID: "GPU-a", TotalBytes: 1000, UsableBytes: 900, HeldBytes: 100, Health: GPUReadable},
			{UUID: "GPU-b", Index: 1, TotalBytes: 1000, Health: GPUReadable}},
		Allocations: []Allocation{{Key: "k1", Age: time.Minute, Pages: PagesReadable,
			Owner: Owner{PodUID: "uid-1", Namespace: "md", Pod: "p", Container: "c"}, PodProcesses: -1, PodDirectory: Present, PodSeen: true,
			GPUs: []Share{{GPUUUID: "GPU-a", SliceIDs: []string{"GPU-a::0"}, LimitBytes: 100, UsedBytes: 5, Measured: true,
				Mode: ComputeElastic, SharePPM: 100_000, CeilingPPM: 900_000},
				{GPUUUID: "GPU-b", SliceIDs: []string{"GPU-b::0", "GPU-b::1"}, LimitBytes: 200, UsedBytes: 7, Allocations: 3, Refusals: 1, Measured: true}}}},
	}
	if diff := cmp.Diff(want, snapshot); diff != "" {
		t.Error(diff)
	}
}

// Whatever is absent or fails, the rest is read, and the snapshot says which.
func TestEverySubsetOfSources(t *testing.T) {
	broken := errors.New("broken")
	for absent := range 32 {
		for failing := range 32 {
			sources, gpus, ledger, pages, procs, kubelet := example()
			if failing&1 != 0 {
				gpus.Fail(broken)
			}
			if failing&2 != 0 {
				ledger.Err = broken
			}
			if failing&4 != 0 {
				pages.Err = broken
			}
			if failing&8 != 0 {
				kubelet.Fail(broken)
			}
			if failing&16 != 0 {
				procs.Err = broken
			}
			if absent&1 != 0 {
				sources.GPUs = nil
			}
			if absent&2 != 0 {
				sources.Ledger = nil
			}
			if absent&4 != 0 {
				sources.Pages = nil
			}
			if absent&8 != 0 {
				sources.Kubelet = nil
			}
			if absent&16 != 0 {
				sources.Procs = nil
			}
			snapshot := Collect(t.Context(), sources, start)
			name := fmt.Sprintf("absent %05b failing %05b", absent, failing)
			for bit, source := range []string{SourceNVML, SourceLedger, SourcePages, SourceKubelet} {
				isAbsent, fails := absent>>bit&1 != 0, failing>>bit&1 != 0
				if snapshot.SourceUp(source) != (!isAbsent && !fails) || snapshot.SourceDown(source) != (!isAbsent && fails) {
					t.Errorf("%s: wrong status of %s: %+v", name, source, snapshot.Sources)
				}
			}
			if gotGPUs := len(snapshot.GPUs) == 2; gotGPUs != ((absent|failing)&1 == 0) {
				t.Errorf("%s: %d GPUs", name, len(snapshot.GPUs))
			}
			for _, allocation := range snapshot.Allocations {
				if measured := allocation.GPUs[0].Measured; measured != ((absent|failing)&4 == 0) {
					t.Errorf("%s: measured %t", name, measured)
				}
				if allocation.Absent {
					t.Errorf("%s: the holder was taken for gone", name)
				}
			}
		}
	}
}

func TestHostileUsagePage(t *testing.T) {
	sources, _, _, pages, _, _ := example()
	pages.ByKey["k1"] = source.PageUsage{State: source.PagesReadable, Devices: []source.DeviceUsage{
		{GPUUUID: "GPU-other", UsedBytes: 1}, {GPUUUID: "GPU-a", UsedBytes: 5}, {GPUUUID: "GPU-a", UsedBytes: ^uint64(0)}}}
	shares := Collect(t.Context(), sources, start).Allocations[0].GPUs
	if len(shares) != 2 || shares[0].UsedBytes != 5 || shares[1].Measured {
		t.Errorf("%+v", shares)
	}
	pages.ByKey["k1"] = source.PageUsage{State: source.PagesTampered, Reason: "wrong size",
		Devices: []source.DeviceUsage{{GPUUUID: "GPU-a", UsedBytes: 9}}}
	allocation := Collect(t.Context(), sources, start).Allocations[0]
	if allocation.Pages != PagesTampered || allocation.Reason != "wrong size" || allocation.GPUs[0].Measured {
		t.Errorf("numbers of a tampered page were believed: %+v", allocation)
	}
}

func TestAbsentHolder(t *testing.T) {
	sources, _, ledger, _, procs, kubelet := example()
	ledger.Records[0].Owner = source.Owner{PodUID: "uid-1", Namespace: "md", Pod: "p", Container: "c"}
	kubelet.Set()
	allocation := Collect(t.Context(), sources, start).Allocations[0]
	if !allocation.Absent || allocation.PodProcesses != 1 || allocation.Owner.Pod != "p" {
		t.Errorf("a gone holder whose pod still runs: %+v", allocation)
	}
	procs.Running = nil
	if got := Collect(t.Context(), sources, start).Allocations[0].PodProcesses; got != 0 {
		t.Errorf("%d processes of a pod that ended, want 0", got)
	}
	procs.Err = errors.New("broken")
	snapshot := Collect(t.Context(), sources, start)
	if snapshot.Allocations[0].PodProcesses != -1 || !snapshot.SourceDown(SourceProcs) {
		t.Errorf("an unreadable process table: %+v", snapshot.Allocations[0])
	}
}

// A pod without a directory is not simply gone: it may never have had one, and processes of it may run.
func TestPodWithoutDirectory(t *testing.T) {
	sources, _, ledger, _, procs, kubelet := example()
	look := func() Allocation { return Collect(t.Context(), sources, start).Allocations[0] }
	kubelet.SetPods("uid-other")
	if got := look(); got.PodDirectory != NotPresent || got.PodSeen || got.PodProcesses != 1 {
		t.Errorf("a pod that had no directory yet: %+v", got)
	}
	ledger.Records[0].PodSeen, ledger.Records[0].Owner = true, source.Owner{PodUID: "uid-1"}
	procs.Running = nil
	if got := look(); got.PodDirectory != NotPresent || !got.PodSeen || got.PodProcesses != 0 || got.Absent {
		t.Errorf("a pod that is gone: %+v", got)
	}
	procs.Err = errors.New("broken")
	if got := look(); got.PodProcesses != -1 {
		t.Errorf("an unreadable process table: %+v", got)
	}
	kubelet.FailPods(errors.New("broken"))
	snapshot := Collect(t.Context(), sources, start)
	if got := snapshot.Allocations[0]; got.PodDirectory != PresenceUnknown || !got.PodSeen || got.PodProcesses != -1 {
		t.Errorf("pods that cannot be listed: %+v", got)
	}
	if !snapshot.SourceDown(SourcePods) || !snapshot.SourceUp(SourceKubelet) {
		t.Errorf("%+v", snapshot.Sources)
	}
	kubelet.SetPods()
	kubelet.Set(source.Holder{Key: "k1", Owner: source.Owner{PodUID: "uid-2"}})
	if got := look(); got.PodSeen {
		t.Errorf("another pod was said to have been seen: %+v", got)
	}
}

// A name that is known stays known while pod-resources does not answer; a new holder does not inherit it.
func TestNamesAreKept(t *testing.T) {
	sources, _, ledger, _, _, kubelet := example()
	ledger.Records[0].Owner = source.Owner{PodUID: "uid-1", Namespace: "md", Pod: "p", Container: "c"}
	kubelet.Set(source.Holder{Key: "k1", Owner: source.Owner{PodUID: "uid-1", Container: "c"}})
	if got := Collect(t.Context(), sources, start).Allocations[0].Owner; got.Pod != "p" || got.Namespace != "md" {
		t.Errorf("the name was forgotten: %+v", got)
	}
	kubelet.Set(source.Holder{Key: "k1", Owner: source.Owner{PodUID: "uid-2", Container: "d"}})
	if got := Collect(t.Context(), sources, start).Allocations[0].Owner; got != (Owner{PodUID: "uid-2", Container: "d"}) {
		t.Errorf("another pod was given the name: %+v", got)
	}
}

func TestClockStepsBack(t *testing.T) {
	sources, _, _, _, _, _ := example()
	if age := Collect(t.Context(), sources, start.Add(-time.Hour)).Allocations[0].Age; age != 0 {
		t.Errorf("age %v", age)
	}
}

func TestDuplicates(t *testing.T) {
	sources, gpus, ledger, _, _, _ := example()
	gpus.Set(source.GPU{UUID: "GPU-a", TotalBytes: 1}, source.GPU{UUID: "GPU-a", TotalBytes: 2})
	ledger.Records = append(ledger.Records, ledger.Records[0])
	snapshot := Collect(t.Context(), sources, start)
	if len(snapshot.GPUs) != 1 || len(snapshot.Allocations) != 1 {
		t.Errorf("%d GPUs and %d allocations, want one of each", len(snapshot.GPUs), len(snapshot.Allocations))
	}
}

// Bytes of a process that has ended are not in use any more, whatever its container's page still says.
func TestEndedProcessesAreLeftOut(t *testing.T) {
	sources, _, _, pages, procs, _ := example()
	procs.Ended = map[source.ProcessID]bool{{PID: 1}: true}
	allocation := Collect(t.Context(), sources, start).Allocations[0]
	if allocation.GPUs[0].UsedBytes != 0 || allocation.GPUs[1].UsedBytes != 3 {
		t.Errorf("%+v", allocation)
	}
	usage := pages.ByKey["k1"]
	usage.Processes[0].UsedBytes = []uint64{^uint64(0), 1, 2, 3} // a hostile page: more than the sum, more than the devices
	pages.ByKey["k1"] = usage
	allocation = Collect(t.Context(), sources, start).Allocations[0]
	if allocation.GPUs[0].UsedBytes != 4 || allocation.GPUs[1].UsedBytes != 0 {
		t.Errorf("%+v", allocation)
	}
}
