// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package monitor

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/source"
)

// Outside is what one look at the node saw of containers without their help, beside what their pages say. It is apart from
// the Snapshot because it is made at its own pace. Nobody changes it once it is made.
type Outside struct {
	Now         time.Duration // CLOCK_MONOTONIC
	Processes   []OutsideProcess
	Allocations []OutsideAllocation
	Calls       map[uint64]Calls // by control group
	Probes      ProbeStatus      // off where there are none

	// What could be read. Nothing may be concluded from the absence of what could not.
	MemoryKnown, ProcessesKnown, AllocationsKnown, CallsKnown bool

	Sources []SourceStatus // one for each source, in a fixed order
}

// Names of the sources that only this look has.
const (
	SourceMemory    = "process-memory"
	SourceResidents = "residents"
	SourceProbes    = "probes"
)

// Container is where a process lives; see package source.
type Container = source.Container

// ProcessMemory is what the driver says that one process holds; see package source.
type ProcessMemory = source.ProcessMemory

// Calls are counted calls of the driver's library; see package source.
type Calls = source.Calls

// ProbeStatus says what the probes can see; see package source.
type ProbeStatus = source.ProbeStatus

// Replaced is a file of ours that a process does not see where it was put; see package source.
type Replaced = source.Replaced

// Residence is what is known of a process from outside; see package source.
type Residence = source.Residence

// OutsideProcess is one process that matters, in the order of pids.
type OutsideProcess struct {
	Residence
	Memory     []ProcessMemory // what the driver says that it holds, by GPU; not of cards that another plugin gave its pod
	Registered bool            // it has a slot in the usage page of one of its Keys
}

// OutsideAllocation is what one allocation holds, in the order of keys.
type OutsideAllocation struct {
	Key       string
	Owner     Owner
	GPUs      []OutsideShare
	Known     bool // its usage page could be read
	Registers bool // a process has registered on its page, ever; its slot may have been taken back
}

// OutsideShare is what an allocation holds of one GPU.
type OutsideShare struct {
	UUID       string
	LimitBytes uint64
	// BookBytes is the container's own claim: the most that its book had while the driver was asked. 0 unless Known.
	BookBytes uint64
	// Moved: memory was taken meanwhile, or it is not known whether, so the book may have had any amount up to the limit.
	Moved bool

	Taken uint64 // how often memory was taken, ever
}

// OutsideSources are what a look from outside is made of. A nil source is absent.
type OutsideSources struct {
	Memories  source.ProcessMemories
	Residents source.Residents
	Ledger    source.Ledger
	Pages     source.Pages
	Probes    source.Probes
	Elsewhere func() map[string][]string // cards that other plugins gave, by the UID of the pod; nil: none are known
}

// CollectOutside looks once. The order matters: a process registers on its page before it makes a context, so one that the
// driver lists is registered in a page that is read later. Memory comes and goes while we look; so the books are read
// before the driver is asked, too. It fails never.
func CollectOutside(ctx context.Context, sources OutsideSources, now time.Duration) *Outside {
	o := &Outside{Now: now, Calls: map[uint64]Calls{}}
	before := &Outside{}
	before.readAllocations(sources.Ledger, sources.Pages)
	memory := o.readMemory(ctx, sources.Memories)
	o.readProcesses(ctx, sources.Residents, memory)
	o.readCalls(ctx, sources.Probes)
	registered := o.readAllocations(sources.Ledger, sources.Pages)
	o.compareBooks(before.Allocations)
	var elsewhere map[string][]string
	if sources.Elsewhere != nil {
		elsewhere = sources.Elsewhere()
	}
	for i := range o.Processes {
		process := &o.Processes[i]
		process.Memory = slices.DeleteFunc(process.Memory, func(memory ProcessMemory) bool {
			return slices.Contains(elsewhere[process.Container.PodUID], memory.GPUUUID)
		})
		process.Registered = slices.ContainsFunc(process.Keys, func(key string) bool {
			return slices.ContainsFunc(registered[key], process.is)
		})
	}
	return o
}

func (o *Outside) note(name string, present bool, err error) (up bool) {
	status := SourceStatus{Name: name, Absent: !present, Up: present && err == nil}
	if err != nil {
		status.Error = err.Error()
	}
	o.Sources = append(o.Sources, status)
	return status.Up
}

func (o *Outside) readMemory(ctx context.Context, memories source.ProcessMemories) map[int][]ProcessMemory {
	if memories == nil {
		o.note(SourceMemory, false, nil)
		return nil
	}
	found, err := memories.ProcessMemory(ctx)
	o.MemoryKnown = o.note(SourceMemory, true, err)
	byPID := map[int][]ProcessMemory{}
	for _, memory := range found {
		byPID[memory.PID] = append(byPID[memory.PID], memory)
	}
	for _, list := range byPID {
		slices.SortFunc(list, func(a, b source.ProcessMemory) int { return strings.Compare(a.GPUUUID, b.GPUUUID) })
	}
	return byPID
}

func (o *Outside) readProcesses(ctx context.Context, residents source.Residents, memory map[int][]ProcessMemory) {
	if residents == nil {
		o.note(SourceResidents, false, nil)
		return
	}
	found, err := residents.Residents(ctx, slices.Sorted(maps.Keys(memory)))
	o.ProcessesKnown = o.note(SourceResidents, true, err)
	for _, residence := range found {
		o.Processes = append(o.Processes, OutsideProcess{Residence: residence, Memory: memory[residence.PID]})
	}
	slices.SortStableFunc(o.Processes, func(a, b OutsideProcess) int { return cmp.Compare(a.PID, b.PID) })
	o.Processes = slices.CompactFunc(o.Processes, func(a, b OutsideProcess) bool { return a.PID == b.PID })
}

func (o *Outside) readCalls(ctx context.Context, probes source.Probes) {
	if probes == nil {
		o.note(SourceProbes, false, nil)
		o.Probes = ProbeStatus{Mode: source.ProbesOff, Reason: "not asked for"}
		return
	}
	found, status, err := probes.Calls(ctx)
	o.Probes = status
	o.CallsKnown = o.note(SourceProbes, true, err) && status.Mode != source.ProbesOff
	for _, calls := range found {
		o.Calls[calls.CgroupID] = calls
	}
}

// readAllocations reads what is held and returns who has registered, by key.
func (o *Outside) readAllocations(books source.Ledger, pages source.Pages) map[string][]source.ProcessID {
	if books == nil {
		o.note(SourceLedger, false, nil)
		o.note(SourcePages, false, nil)
		return nil
	}
	records, err := books.Allocations()
	o.AllocationsKnown = o.note(SourceLedger, true, err)
	slices.SortStableFunc(records, func(a, b source.Allocation) int { return strings.Compare(a.Key, b.Key) })
	records = slices.CompactFunc(records, func(a, b source.Allocation) bool { return a.Key == b.Key })
	keys := make([]string, 0, len(records))
	for _, record := range records {
		keys = append(keys, record.Key)
		allocation := OutsideAllocation{Key: record.Key, Owner: record.Owner}
		for _, share := range newAllocation(record, record.CreatedAt).GPUs { // grants of one GPU become one
			allocation.GPUs = append(allocation.GPUs, OutsideShare{UUID: share.GPUUUID, LimitBytes: share.LimitBytes})
		}
		o.Allocations = append(o.Allocations, allocation)
	}
	if pages == nil {
		o.note(SourcePages, false, nil)
		return nil
	}
	usages, err := pages.Usage(keys)
	registered := map[string][]source.ProcessID{}
	if !o.note(SourcePages, true, err) {
		return registered
	}
	for _, usage := range usages {
		at, found := slices.BinarySearch(keys, usage.Key)
		if found && usage.State == source.PagesReadable {
			registered[usage.Key] = o.Allocations[at].take(usage)
		}
	}
	return registered
}

// compareBooks puts into the allocations what their books had before, both in the order of keys.
func (o *Outside) compareBooks(before []OutsideAllocation) {
	for i := range o.Allocations {
		allocation := &o.Allocations[i]
		if !allocation.Known {
			continue
		}
		at, found := slices.BinarySearchFunc(before, allocation.Key, func(a OutsideAllocation, key string) int { return strings.Compare(a.Key, key) })
		for j := range allocation.GPUs {
			share := &allocation.GPUs[j]
			share.Moved = true
			if found && before[at].Known && j < len(before[at].GPUs) && before[at].GPUs[j].UUID == share.UUID {
				was := before[at].GPUs[j]
				share.BookBytes, share.Moved = max(share.BookBytes, was.BookBytes), was.Taken != share.Taken
			}
		}
	}
}

// take puts what a usage page says beside the grants, and returns who has registered on it.
func (h *OutsideAllocation) take(usage source.PageUsage) []source.ProcessID {
	h.Known, h.Registers = true, len(usage.Processes) > 0
	for _, device := range usage.Devices {
		h.Registers = h.Registers || device.Allocations > 0 // a slot that holds memory is taken back when its process is gone
		for i := range h.GPUs {
			if h.GPUs[i].UUID == device.GPUUUID {
				h.GPUs[i].BookBytes, h.GPUs[i].Taken = device.UsedBytes, device.Allocations
			}
		}
	}
	ids := make([]source.ProcessID, 0, len(usage.Processes))
	for _, process := range usage.Processes {
		ids = append(ids, process.ID)
	}
	return ids
}

// is says whether a slot is this process'. One in another time namespace has written a start time that is shifted; one that
// sees no /proc knows neither that nor its pid namespace.
func (p *OutsideProcess) is(slot source.ProcessID) bool {
	return slot.PID == p.ID.PID && (slot.PIDNamespace == p.ID.PIDNamespace || slot.PIDNamespace == 0) && p.ID.PID != 0 &&
		(slot.StartTime == p.ID.StartTime || slot.StartTime == 0 || p.OtherTime)
}
