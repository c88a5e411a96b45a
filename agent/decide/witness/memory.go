// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package witness

import (
	"maps"
	"slices"

	"github.com/vgpud/vgpud/agent/monitor"
)

// sum is a container's memory on one GPU.
type sum struct {
	bytes   uint64   // by the driver's word
	book    uint64   // by the container's, but no more than it may hold
	limit   uint64   // what it may hold
	held    []uint64 // by each process that the driver lists
	largest *monitor.OutsideProcess
}

// gpus lists those on which the driver lists a process of the container.
func (at *tenancy) gpus() []string {
	gpus := map[string]bool{}
	for _, process := range at.processes {
		for _, memory := range process.Memory {
			gpus[memory.GPUUUID] = true
		}
	}
	return slices.Sorted(maps.Keys(gpus))
}

// sum adds a container's memory up. A page that cannot be read, or whose book was in motion while the driver was asked,
// counts as full: nothing is said of it here then but what is above its limit.
func (at *tenancy) sum(gpu string) sum {
	var s sum
	largest := uint64(0)
	for _, process := range at.processes {
		for _, memory := range process.Memory {
			if memory.GPUUUID != gpu {
				continue
			}
			s.held = append(s.held, memory.UsedBytes)
			s.bytes += memory.UsedBytes
			if s.largest == nil || memory.UsedBytes > largest {
				s.largest, largest = process, memory.UsedBytes
			}
		}
	}
	for _, allocation := range at.allocations {
		for _, share := range allocation.GPUs {
			if share.UUID != gpu {
				continue
			}
			s.limit += share.LimitBytes
			switch {
			case allocation.Known && !share.Moved:
				s.book += min(share.BookBytes, share.LimitBytes)
			default:
				s.book += share.LimitBytes
			}
		}
	}
	return s
}

// tolerated is what the driver may need for itself, if that is so much for each process at most: none needs more than it holds,
// so that many small ones hide nothing.
func (s sum) tolerated(each uint64) (bytes uint64) {
	for _, held := range s.held {
		bytes += min(held, each)
	}
	return bytes
}

// overheads is how many bytes the driver takes for itself for each process on one GPU, as far as containers show it whose
// processes have all registered.
type overheads map[*tenancy]uint64

func (l *look) overheads() map[string]overheads {
	all := map[string]overheads{}
	for _, at := range l.tenancies {
		honest := at.mounted && at.readable() && !slices.ContainsFunc(at.processes, func(p *monitor.OutsideProcess) bool { return stray(p) != "" })
		if !honest {
			continue
		}
		for _, gpu := range at.gpus() {
			s := at.sum(gpu)
			if all[gpu] == nil {
				all[gpu] = overheads{}
			}
			all[gpu][at] = (s.bytes - min(s.bytes, s.book)) / uint64(max(1, len(s.held)))
		}
	}
	return all
}

// without is what is tolerated of a container: what the operator says, or what at least two others show, up to twice that.
// One alone may be a cheat itself.
func (o overheads) without(at *tenancy, policy Policy) uint64 {
	var others []uint64
	for other, bytes := range o {
		if other != at {
			others = append(others, bytes)
		}
	}
	slices.Sort(others)
	tolerated := policy.OverheadBytes
	if len(others) >= 2 {
		tolerated = max(tolerated, min(others[len(others)-2], 2*policy.OverheadBytes))
	}
	return tolerated
}

// unaccounted adds up, for each place and GPU, what is held there that no book has.
func (l *look) unaccounted() map[string]map[string]uint64 {
	bytes := map[string]map[string]uint64{}
	if !l.seen.MemoryKnown || !l.seen.ProcessesKnown || !l.seen.AllocationsKnown {
		return bytes
	}
	overhead := l.overheads()
	for _, at := range l.tenancies {
		for _, gpu := range at.gpus() {
			s := at.sum(gpu)
			if accounted := s.book + s.tolerated(overhead[gpu].without(at, l.policy)); s.bytes > accounted {
				where := at.where()
				if bytes[where] == nil {
					bytes[where] = map[string]uint64{}
				}
				bytes[where][gpu] += s.bytes - s.book
			}
		}
	}
	return bytes
}

// take sums what is held at all places up, and at those that were reported for it.
func (f *Findings) take(unaccounted map[string]map[string]uint64) {
	f.UnaccountedBytes, f.TakenBytes = map[string]uint64{}, map[string]uint64{}
	reported := map[string]bool{}
	for _, finding := range f.List {
		switch finding.Kind {
		case NoSlot, BeyondBook, NoAllocation:
			reported[place(finding.container, finding.Key)] = true
		case BeyondGrant, ReplacedFile:
		}
	}
	for where, gpus := range unaccounted {
		for gpu, bytes := range gpus {
			f.UnaccountedBytes[gpu] += bytes
			if reported[where] {
				f.TakenBytes[gpu] += bytes
			}
		}
	}
}
