// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package monitor merges the sources into one immutable Snapshot per tick. A source may be absent (nil) or may
// fail; both are visible in the snapshot and neither keeps the others from being read. It has no clock, no
// state and no opinion: package decide and its rooms judge. The tick calls Collect, the steering loop CollectCompute, the
// watch CollectContention, the look from outside CollectOutside.
package monitor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/source"
)

// Names of the sources, as they appear in the snapshot and in the metrics.
const (
	SourceNVML    = "nvml"
	SourceLedger  = "ledger"
	SourcePages   = "pages"
	SourceProcs   = "procs"
	SourceKubelet = "kubelet"
	// SourceUtilization is the driver's figures of each process's use of GPU time, which steering takes.
	SourceUtilization = "utilization"
	// SourceCounters are the cards' counters, SourceTraffic what containers tell of theirs by their pages; the watch takes both.
	SourceCounters = "counters"
	SourceTraffic  = "traffic"
	// SourcePodResources is the part of the kubelet that knows the names of pods.
	SourcePodResources = "podresources"
	// SourcePods is the part of the kubelet's directory that shows which pods there are.
	SourcePods = "pods"
)

// errNotAsked is the state of the kubelet's other parts while it is not known what to ask for.
var errNotAsked = errors.New("not asked: the kubelet's record cannot be read")

// Sources are what a snapshot is made of. A nil source is absent.
type Sources struct {
	GPUs    source.GPUs
	Ledger  source.Ledger
	Pages   source.Pages
	Procs   source.Procs
	Kubelet source.Kubelet
}

// Collect reads every source once and returns what they say, stamped with now. It fails never: what could
// not be read is missing from the snapshot and named in Snapshot.Sources.
func Collect(ctx context.Context, sources Sources, now time.Time) *Snapshot {
	collector := collector{sources: sources, snapshot: &Snapshot{At: now}}
	collector.readGPUs(ctx)
	collector.readAllocations(now)
	collector.readPages()
	collector.readKubelet(ctx)
	collector.readProcs()
	return collector.snapshot
}

type collector struct {
	sources  Sources
	snapshot *Snapshot
	usages   []source.PageUsage // as read, for readProcs
}

// note records how reading a source went.
func (c *collector) note(name string, present bool, err error) {
	status := SourceStatus{Name: name, Absent: !present, Up: present && err == nil}
	if err != nil {
		status.Error, status.NotAsked = err.Error(), errors.Is(err, errNotAsked)
	}
	c.snapshot.Sources = append(c.snapshot.Sources, status)
}

func (c *collector) readGPUs(ctx context.Context) {
	if c.sources.GPUs == nil {
		c.note(SourceNVML, false, nil)
		return
	}
	gpus, err := c.sources.GPUs.GPUs(ctx)
	c.note(SourceNVML, true, err)
	if err != nil {
		return
	}
	for _, gpu := range gpus {
		c.snapshot.GPUs = append(c.snapshot.GPUs, newGPU(gpu))
	}
	slices.SortStableFunc(c.snapshot.GPUs, func(a, b GPU) int { return strings.Compare(a.UUID, b.UUID) })
	c.snapshot.GPUs = slices.CompactFunc(c.snapshot.GPUs, func(a, b GPU) bool { return a.UUID == b.UUID })
}

func newGPU(gpu source.GPU) GPU {
	merged := GPU{
		UUID: gpu.UUID, Index: gpu.Index, Model: gpu.Model, NUMANode: gpu.NUMANode, Health: GPUReadable,
		TotalBytes: gpu.TotalBytes, ReservedBytes: gpu.ReservedBytes, UsedBytes: gpu.UsedBytes,
	}
	if gpu.Err == nil {
		return merged
	}
	merged.Detail = gpu.Err.Error()
	switch {
	case errors.Is(gpu.Err, source.ErrGPULost):
		merged.Health = GPULost
	case errors.Is(gpu.Err, source.ErrMIG):
		merged.Health = GPUMIG
	default:
		merged.Health = GPUUnreadable
	}
	return merged
}

func (c *collector) readAllocations(now time.Time) {
	if c.sources.Ledger == nil {
		c.note(SourceLedger, false, nil)
		return
	}
	records, err := c.sources.Ledger.Allocations()
	books, bookErr := c.sources.Ledger.Books()
	c.note(SourceLedger, true, errors.Join(err, bookErr))
	for _, record := range records {
		c.snapshot.Allocations = append(c.snapshot.Allocations, newAllocation(record, now))
	}
	slices.SortStableFunc(c.snapshot.Allocations, func(a, b Allocation) int { return strings.Compare(a.Key, b.Key) })
	c.snapshot.Allocations = slices.CompactFunc(c.snapshot.Allocations,
		func(a, b Allocation) bool { return a.Key == b.Key })
	for _, book := range books {
		for i := range c.snapshot.GPUs {
			if gpu := &c.snapshot.GPUs[i]; gpu.UUID == book.GPUUUID {
				gpu.UsableBytes, gpu.HeldBytes = book.UsableBytes, book.HeldBytes
			}
		}
	}
}

// newAllocation copies a record. Grants of the same GPU become one share with the sum.
func newAllocation(record source.Allocation, now time.Time) Allocation {
	allocation := Allocation{
		Key: record.Key, Owner: record.Owner, Age: max(0, now.Sub(record.CreatedAt)),
		Pages: source.PagesUnknown, Reason: "pages not read", PodProcesses: -1,
		PodSeen: record.PodSeen,
	}
	for _, grant := range record.Grants {
		at := slices.IndexFunc(allocation.GPUs, func(share Share) bool { return share.GPUUUID == grant.GPUUUID })
		if at < 0 {
			at = len(allocation.GPUs)
			allocation.GPUs = append(allocation.GPUs, Share{GPUUUID: grant.GPUUUID})
		}
		share := &allocation.GPUs[at]
		share.SliceIDs = append(share.SliceIDs, grant.SliceIDs...)
		share.LimitBytes += grant.MemoryLimitBytes
		share.Mode, share.SharePPM, share.CeilingPPM = grant.Mode, grant.SharePPM, grant.CeilingPPM
	}
	slices.SortFunc(allocation.GPUs, func(a, b Share) int { return strings.Compare(a.GPUUUID, b.GPUUUID) })
	return allocation
}

func (c *collector) readPages() {
	if c.sources.Pages == nil {
		c.note(SourcePages, false, nil)
		return
	}
	keys := make([]string, 0, len(c.snapshot.Allocations))
	for _, allocation := range c.snapshot.Allocations {
		keys = append(keys, allocation.Key)
	}
	usages, err := c.sources.Pages.Usage(keys)
	c.note(SourcePages, true, err)
	if err != nil {
		return
	}
	c.usages = usages
	byKey := make(map[string]source.PageUsage, len(usages))
	for _, usage := range usages {
		byKey[usage.Key] = usage
	}
	for i := range c.snapshot.Allocations {
		if usage, read := byKey[c.snapshot.Allocations[i].Key]; read {
			c.snapshot.Allocations[i].apply(usage)
		}
	}
}

// apply puts what a usage page says beside the grants. A device that was not granted is ignored: the
// page is the container's to write.
func (a *Allocation) apply(usage source.PageUsage) {
	a.Pages, a.Reason = usage.State, usage.Reason
	a.Damage, a.Epoch, a.Frozen = usage.Damage, usage.Epoch, usage.Frozen
	if usage.State != source.PagesReadable {
		return
	}
	for _, process := range usage.Processes {
		if started := process.ID.StartTime; started > 0 && (a.OldestProcess == 0 || started < a.OldestProcess) {
			a.OldestProcess = started
		}
	}
	for _, device := range usage.Devices {
		for i := range a.GPUs {
			if share := &a.GPUs[i]; share.GPUUUID == device.GPUUUID && !share.Measured {
				share.Measured = true
				share.UsedBytes = device.UsedBytes
				share.Allocations = device.Allocations
				share.Refusals = device.Refusals
			}
		}
	}
}

func (c *collector) readKubelet(ctx context.Context) {
	if c.sources.Kubelet == nil {
		c.note(SourceKubelet, false, nil)
		c.note(SourcePodResources, false, nil)
		c.note(SourcePods, false, nil)
		return
	}
	holders, err := c.sources.Kubelet.Holders(ctx)
	c.note(SourceKubelet, true, err)
	if err != nil {
		c.note(SourcePodResources, true, errNotAsked)
		c.note(SourcePods, true, errNotAsked)
		return
	}
	c.snapshot.Elsewhere = holders.Elsewhere
	c.note(SourcePodResources, true, holders.NamesError)
	c.note(SourcePods, true, holders.PodsError)
	owners := make(map[string]source.Owner, len(holders.List))
	for _, holder := range holders.List {
		owners[holder.Key] = holder.Owner
	}
	for i := range c.snapshot.Allocations {
		allocation := &c.snapshot.Allocations[i]
		owner, held := owners[allocation.Key]
		allocation.Absent = !held
		if held {
			allocation.PodSeen = allocation.PodSeen && owner.PodUID == allocation.Owner.PodUID
			allocation.Owner = merge(allocation.Owner, owner)
		}
		if holders.PodsError == nil && allocation.Owner.Known() {
			allocation.lookForPod(holders.Pods)
		}
	}
}

// lookForPod notes whether the allocation's pod is among those that the kubelet keeps on disk.
func (a *Allocation) lookForPod(pods map[string]bool) {
	a.PodDirectory = NotPresent
	if pods[a.Owner.PodUID] {
		a.PodDirectory, a.PodSeen = Present, true
	}
}

// merge keeps what is known already where the fresh look-up came without it.
func merge(known, fresh source.Owner) source.Owner {
	if fresh.PodUID == known.PodUID && fresh.Pod == "" {
		fresh.Namespace, fresh.Pod = known.Namespace, known.Pod
	}
	if fresh.Container == "" {
		fresh.Container = known.Container
	}
	return fresh
}

// leaveOutEnded takes the bytes of processes that have ended out of the sums. The container's own library does that
// only when the room is needed.
func (c *collector) leaveOutEnded() error {
	var ids []source.ProcessID
	for _, usage := range c.usages {
		for _, process := range usage.Processes {
			ids = append(ids, process.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	gone, err := c.sources.Procs.Gone(ids)
	if err != nil {
		return err
	}
	byKey := map[string]*Allocation{}
	for i := range c.snapshot.Allocations {
		byKey[c.snapshot.Allocations[i].Key] = &c.snapshot.Allocations[i]
	}
	for _, usage := range c.usages {
		for _, process := range usage.Processes {
			if allocation := byKey[usage.Key]; allocation != nil && gone[process.ID] {
				allocation.leaveOut(usage.Devices, process.UsedBytes)
			}
		}
	}
	return nil
}

// leaveOut subtracts what one process held; devices gives the order of bytes.
func (a *Allocation) leaveOut(devices []source.DeviceUsage, bytes []uint64) {
	for i, held := range bytes[:min(len(bytes), len(devices))] {
		for j := range a.GPUs {
			if share := &a.GPUs[j]; share.GPUUUID == devices[i].GPUUUID {
				share.UsedBytes -= min(share.UsedBytes, held)
			}
		}
	}
}

// readProcs leaves ended processes out, and counts the processes of pods whose allocations seem gone.
func (c *collector) readProcs() {
	if c.sources.Procs == nil {
		c.note(SourceProcs, false, nil)
		return
	}
	var pods map[string]int
	err := c.leaveOutEnded()
	for i := range c.snapshot.Allocations {
		allocation := &c.snapshot.Allocations[i]
		seemsGone := allocation.Absent || allocation.PodDirectory == NotPresent
		if !seemsGone || !allocation.Owner.Known() || err != nil {
			continue
		}
		if pods == nil {
			if pods, err = c.sources.Procs.Pods(); err != nil {
				continue
			}
		}
		allocation.PodProcesses = pods[allocation.Owner.PodUID]
	}
	c.note(SourceProcs, true, err)
}
