// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package monitor

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/source"
)

// outsideFake is every source of a look from outside; asked notes in which order they were read.
type outsideFake struct {
	memory    []source.ProcessMemory
	residents []source.Residence
	records   []source.Allocation
	usages    []source.PageUsage
	later     []source.PageUsage // what is read the second time; nil: the same
	calls     []source.Calls
	mode      source.ProbeMode
	fault     string // the source that fails
	asked     []string
	named     []int
}

func (f *outsideFake) err(name string) error {
	f.asked = append(f.asked, name)
	if f.fault == name {
		return errors.New(name + " fails")
	}
	return nil
}

func (f *outsideFake) ProcessMemory(context.Context) ([]source.ProcessMemory, error) {
	return f.memory, f.err("memory")
}

func (f *outsideFake) Residents(_ context.Context, pids []int) ([]source.Residence, error) {
	f.named = pids
	return f.residents, f.err("residents")
}

func (f *outsideFake) Allocations() ([]source.Allocation, error) { return f.records, f.err("ledger") }
func (f *outsideFake) Books() ([]source.Book, error)             { return nil, nil }

func (f *outsideFake) Usage(keys []string) ([]source.PageUsage, error) {
	usages := f.usages
	if f.later != nil && slices.Contains(f.asked, "pages") {
		usages = f.later
	}
	return usages, f.err("pages")
}

func (f *outsideFake) Calls(context.Context) ([]source.Calls, source.ProbeStatus, error) {
	return f.calls, source.ProbeStatus{Mode: f.mode}, f.err("probes")
}

func (f *outsideFake) look(t *testing.T) *Outside {
	t.Helper()
	return CollectOutside(t.Context(), OutsideSources{Memories: f, Residents: f, Ledger: f, Pages: f, Probes: f}, time.Hour)
}

func newOutsideFake() *outsideFake {
	id := source.ProcessID{PIDNamespace: 5, PID: 3, StartTime: 70}
	return &outsideFake{
		memory: []source.ProcessMemory{{GPUUUID: "GPU-b", PID: 30, UsedBytes: 2}, {GPUUUID: "GPU-a", PID: 30, UsedBytes: 1}, {GPUUUID: "GPU-a", PID: 20, UsedBytes: 9}},
		residents: []source.Residence{{PID: 30, StartTime: 70, Keys: []string{"k1"}, ID: id}, {PID: 20, Keys: []string{"k1"}, ID: source.ProcessID{PIDNamespace: 5, PID: 4, StartTime: 71}},
			{PID: 30, Keys: []string{"twice"}}},
		records: []source.Allocation{{Key: "k2"}, {Key: "k1", Owner: source.Owner{PodUID: "u"}, Grants: []source.Grant{
			{GPUUUID: "GPU-a", MemoryLimitBytes: 10}, {GPUUUID: "GPU-a", MemoryLimitBytes: 10}}}},
		usages: []source.PageUsage{{Key: "k1", State: source.PagesReadable, Devices: []source.DeviceUsage{{GPUUUID: "GPU-a", UsedBytes: 7}, {GPUUUID: "GPU-z", UsedBytes: 7}},
			Processes: []source.PageProcess{{ID: id}}}, {Key: "k2", State: source.PagesTampered}, {Key: "unheard", State: source.PagesReadable}},
		calls: []source.Calls{{CgroupID: 8, Contexts: 1}}, mode: source.ProbesFull,
	}
}

func TestOutsideMergesSources(t *testing.T) {
	f := newOutsideFake()
	seen := f.look(t)
	// A process registers before the driver lists it, so the driver is asked before the pages are read; and after, for the books.
	if !slices.Equal(f.asked, []string{"ledger", "pages", "memory", "residents", "probes", "ledger", "pages"}) || !slices.Equal(f.named, []int{20, 30}) {
		t.Errorf("asked %v about %v", f.asked, f.named)
	}
	if !seen.MemoryKnown || !seen.ProcessesKnown || !seen.AllocationsKnown || !seen.CallsKnown || seen.Calls[8].Contexts != 1 || seen.Now != time.Hour {
		t.Errorf("%+v", seen)
	}
	wantAllocations := []OutsideAllocation{
		{Key: "k1", Owner: Owner{PodUID: "u"}, Known: true, Registers: true, GPUs: []OutsideShare{{UUID: "GPU-a", LimitBytes: 20, BookBytes: 7}}},
		{Key: "k2"}}
	if diff := cmp.Diff(wantAllocations, seen.Allocations); diff != "" {
		t.Errorf("allocations (-want +got):\n%s", diff)
	}
	if len(seen.Processes) != 2 || seen.Processes[0].PID != 20 || seen.Processes[0].Registered || !seen.Processes[1].Registered ||
		len(seen.Processes[1].Memory) != 2 || seen.Processes[1].Memory[0].GPUUUID != "GPU-a" {
		t.Errorf("%+v", seen.Processes)
	}
}

// The book that counts is the most that there was while the driver was asked; what was taken meanwhile is of any size.
func TestOutsideBooksMove(t *testing.T) {
	book := func(used, taken uint64) source.PageUsage {
		return source.PageUsage{Key: "k1", State: source.PagesReadable, Devices: []source.DeviceUsage{{GPUUUID: "GPU-a", UsedBytes: used, Allocations: taken}}}
	}
	for name, c := range map[string]struct {
		before, after source.PageUsage
		used          uint64
		moved, ever   bool
	}{
		"at rest":             {book(7, 3), book(7, 3), 7, false, true},
		"given back":          {book(7, 3), book(2, 3), 7, false, true},
		"taken":               {book(2, 3), book(7, 4), 7, true, true},
		"taken and given":     {book(2, 3), book(2, 4), 2, true, true},
		"nothing ever":        {book(0, 0), book(0, 0), 0, false, false},
		"not readable before": {source.PageUsage{Key: "k1", State: source.PagesUnknown}, book(7, 3), 7, true, true},
		"not readable now":    {book(7, 3), source.PageUsage{Key: "k1", State: source.PagesUnknown}, 0, false, false},
		"not there before":    {source.PageUsage{Key: "k9", State: source.PagesReadable}, book(7, 3), 7, true, true},
	} {
		f := newOutsideFake()
		f.usages, f.later = []source.PageUsage{c.before}, []source.PageUsage{c.after}
		got := f.look(t).Allocations[0]
		if share := got.GPUs[0]; share.BookBytes != c.used || share.Moved != c.moved || got.Registers != c.ever {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// What a pod uses of a card that another plugin gave it is none of our business; what it uses of others is.
func TestOutsideLeavesOthersCards(t *testing.T) {
	f := newOutsideFake()
	f.residents[0].Container.PodUID = "u"
	seen := CollectOutside(t.Context(), OutsideSources{Memories: f, Residents: f, Ledger: f, Pages: f,
		Elsewhere: func() map[string][]string { return map[string][]string{"u": {"GPU-b"}, "v": {"GPU-a"}} }}, time.Hour)
	if got := seen.Processes[1]; got.PID != 30 || len(got.Memory) != 1 || got.Memory[0].GPUUUID != "GPU-a" {
		t.Errorf("%+v", got)
	}
	if got := seen.Processes[0]; got.PID != 20 || len(got.Memory) != 1 {
		t.Errorf("of another pod: %+v", got)
	}
}

func TestOutsideRegistration(t *testing.T) {
	slot := source.ProcessID{PIDNamespace: 5, PID: 3, StartTime: 70}
	for name, c := range map[string]struct {
		process source.Residence
		want    bool
	}{
		"the same":             {source.Residence{ID: slot}, true},
		"one without /proc":    {source.Residence{ID: source.ProcessID{PIDNamespace: 7, PID: 9, StartTime: 99}}, true},
		"another start":        {source.Residence{ID: source.ProcessID{PIDNamespace: 5, PID: 3, StartTime: 71}}, false},
		"another clock":        {source.Residence{ID: source.ProcessID{PIDNamespace: 5, PID: 3, StartTime: 71}, OtherTime: true}, true},
		"another namespace":    {source.Residence{ID: source.ProcessID{PIDNamespace: 6, PID: 3, StartTime: 70}}, false},
		"not told":             {source.Residence{}, false},
		"another pid":          {source.Residence{ID: source.ProcessID{PIDNamespace: 5, PID: 4, StartTime: 70}}, false},
		"another's allocation": {source.Residence{ID: slot, Keys: []string{"k2"}}, false},
	} {
		f := newOutsideFake()
		c.process.PID = 30
		if c.process.Keys == nil {
			c.process.Keys = []string{"k1"}
		}
		f.residents = []source.Residence{c.process}
		f.usages[0].Processes = append(f.usages[0].Processes, source.PageProcess{ID: source.ProcessID{PID: 9}})
		if got := f.look(t).Processes[0].Registered; got != c.want {
			t.Errorf("%s: registered %t", name, got)
		}
	}
}

func TestOutsideWithoutSources(t *testing.T) {
	for _, fault := range []string{"memory", "residents", "probes", "ledger", "pages"} {
		f := newOutsideFake()
		f.fault = fault
		seen := f.look(t)
		if known := map[string]bool{"memory": seen.MemoryKnown, "residents": seen.ProcessesKnown, "probes": seen.CallsKnown, "ledger": seen.AllocationsKnown,
			"pages": seen.Allocations[0].Known}; known[fault] || (fault != "pages" && !known["pages"]) {
			t.Errorf("%s fails: %v", fault, known)
		}
		down := 0
		for _, status := range seen.Sources {
			if !status.Up {
				down++
			}
		}
		if len(seen.Sources) != 5 || down != 1 {
			t.Errorf("%s fails: %+v", fault, seen.Sources)
		}
	}
	f := newOutsideFake()
	if f.mode = source.ProbesOff; f.look(t).CallsKnown {
		t.Error("probes that are off count calls")
	}
	seen := CollectOutside(t.Context(), OutsideSources{}, 0)
	if seen.MemoryKnown || seen.ProcessesKnown || seen.AllocationsKnown || seen.CallsKnown || len(seen.Sources) != 5 {
		t.Errorf("%+v", seen)
	}
}
