// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// rules.go says what is suspicious in one look.
//
//	no-slot             the driver lists a process of an allocation's container, or it has the driver's device nodes open
//	                    without its libraries, and it has no slot in the usage page; or probes count calls in a container
//	                    of which no process has ever registered
//	memory-beyond-book  the driver says that a container holds more than its book and the driver's own needs
//	time-beyond-grant   the driver's samples say that it uses more time than it was granted, or its charges cannot be so
//	replaced-file       what the container sees where our files were mounted is something else
//	no-allocation       the driver lists a process of a container that was given no GPU
//
// Not suspicious: processes of the host and of the node's own tools, programs that only watch (the driver does not list
// them), a process that ends between two reads, memory that the driver needs for itself.

package witness

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/decide/steering"
	"github.com/vgpud/vgpud/agent/monitor"
)

// Quick use of time beyond the grant: well above it, for so long. Steering says the rest, see steering.Verdict.OverShare.
const (
	quickFactor = 1.5
	quickMargin = 0.05
)

// tenancy is one container, or what of the host uses the pages of an allocation, in one look.
type tenancy struct {
	container   monitor.Container
	processes   []*monitor.OutsideProcess
	allocations []*monitor.OutsideAllocation // whose pages are mounted in it, or, without any, that of its pod if there is just one
	mounted     bool                         // they are mounted
	ours        bool                         // its pod holds an allocation
}

// look is one look with what is made of it.
type look struct {
	seen      *monitor.Outside
	shares    []steering.Verdict
	policy    Policy
	before    State
	tenancies []*tenancy
	strays    map[identity]time.Duration
}

// place names where processes live: a container, or the host with an allocation's pages.
func place(container monitor.Container, key string) string {
	if container.ID != "" {
		return container.ID
	}
	return "host/" + key
}

func newLook(seen *monitor.Outside, shares []steering.Verdict, policy Policy, before State) *look {
	l := &look{seen: seen, shares: shares, policy: policy, before: before, strays: map[identity]time.Duration{}}
	byKey := map[string]*monitor.OutsideAllocation{}
	byPod := map[string][]*monitor.OutsideAllocation{}
	for i := range seen.Allocations {
		allocation := &seen.Allocations[i]
		byKey[allocation.Key] = allocation
		if allocation.Owner.Known() {
			byPod[allocation.Owner.PodUID] = append(byPod[allocation.Owner.PodUID], allocation)
		}
	}
	places := map[string]*tenancy{}
	for i := range seen.Processes {
		process := &seen.Processes[i]
		var held []*monitor.OutsideAllocation
		for _, key := range process.Keys {
			if allocation := byKey[key]; allocation != nil {
				held = append(held, allocation)
			}
		}
		if process.Container.ID == "" && len(held) == 0 {
			continue // the host's own
		}
		where := place(process.Container, strings.Join(process.Keys, " "))
		at := places[where]
		if at == nil {
			at = &tenancy{container: process.Container}
			places[where] = at
			l.tenancies = append(l.tenancies, at)
		}
		at.processes = append(at.processes, process)
		for _, allocation := range held {
			at.mounted = true
			if !slices.Contains(at.allocations, allocation) {
				at.allocations = append(at.allocations, allocation)
			}
		}
	}
	for _, at := range l.tenancies {
		pods := byPod[at.container.PodUID]
		at.ours = at.mounted || at.container.PodUID != "" && len(pods) > 0
		if !at.mounted && len(pods) == 1 {
			at.allocations = pods
		}
	}
	return l
}

// known says whether the absence of a kind means anything in this look.
func (l *look) known(kind Kind) bool {
	switch kind {
	case ReplacedFile:
		return l.seen.ProcessesKnown
	case BeyondGrant:
		return l.shares != nil
	}
	return l.seen.ProcessesKnown && l.seen.MemoryKnown && l.seen.AllocationsKnown
}

// judge returns what is suspicious.
func (l *look) judge() (found []Finding) {
	overhead := l.overheads()
	for _, at := range l.tenancies {
		found = append(found, l.replaced(at)...)
		if !l.seen.AllocationsKnown {
			continue // whose it is cannot be told
		}
		if at.ours {
			found = append(found, l.withoutSlot(at)...)
			if l.seen.MemoryKnown {
				found = append(found, l.beyondBook(at, overhead)...)
			}
		} else {
			found = append(found, l.withoutAllocation(at)...)
		}
	}
	return append(found, l.beyondGrant()...)
}

// where names the place of a tenancy, as place does for its findings.
func (at *tenancy) where() string {
	key := ""
	if len(at.allocations) == 1 {
		key = at.allocations[0].Key
	}
	return place(at.container, key)
}

// about begins a finding about a container, with the process that does it.
func (at *tenancy) about(kind Kind, process *monitor.OutsideProcess) Finding {
	f := Finding{Kind: kind, container: at.container, PodUID: at.container.PodUID, ContainerID: at.container.ID,
		Namespace: at.container.Namespace, Pod: at.container.Pod, certain: true, settle: suspectFor}
	if process != nil {
		f.PID, f.start, f.Command = process.PID, process.StartTime, process.Command
	}
	if len(at.allocations) == 1 {
		f.Key = at.allocations[0].Key
	}
	if len(at.allocations) > 0 && at.allocations[0].Owner.Known() {
		owner := at.allocations[0].Owner
		f.PodUID = owner.PodUID
		f.Namespace, f.Pod = cmp.Or(owner.Namespace, f.Namespace), cmp.Or(owner.Pod, f.Pod)
		if at.mounted {
			f.ContainerName = owner.Container
		}
	}
	return f
}

// withoutSlot looks for processes that use a GPU and have not registered. That is certain of those that the driver lists; a
// device node may be a descriptor that a parent left open, and counted calls are the container's, of any process.
func (l *look) withoutSlot(at *tenancy) (found []Finding) {
	if !at.readable() {
		return nil // who has registered cannot be told; the page is reported itself
	}
	var worst *monitor.OutsideProcess
	var held uint64
	how, settle, listed := "", hoppingFor, false
	for _, process := range at.processes {
		why := stray(process)
		if why == "" {
			continue
		}
		id := identity{process.PID, process.StartTime}
		since, known := l.before.strays[id]
		if !known {
			since = l.seen.Now
		}
		l.strays[id] = since
		if l.seen.Now-since >= strayFor {
			settle = suspectFor
		}
		held += bytesOf(process)
		if worst == nil || len(process.Memory) > 0 && (!listed || bytesOf(process) > bytesOf(worst)) {
			worst, how = process, why
		}
		listed = listed || len(process.Memory) > 0
	}
	if worst == nil {
		worst, how = l.called(at)
		settle = suspectFor
	}
	if worst == nil {
		return nil
	}
	f := at.about(NoSlot, worst)
	f.Bytes, f.certain = held, listed
	f.Detail = fmt.Sprintf("process %d (%.32q) %s and has no slot in a usage page; such processes hold %d bytes", worst.PID, worst.Command, how, held)
	f.settle = settle
	return []Finding{f}
}

// stray says what shows that a process uses a GPU though it has not registered; "" if nothing does.
func stray(process *monitor.OutsideProcess) string {
	switch {
	case process.Registered:
		return ""
	case len(process.Memory) > 0:
		return "uses the GPU"
	case process.Devices && !process.Library:
		return "has a device node of the driver open without its libraries"
	}
	return ""
}

// called finds a process of a container in which the driver is called though nobody has ever registered.
func (l *look) called(at *tenancy) (*monitor.OutsideProcess, string) {
	if !at.mounted || !l.seen.CallsKnown {
		return nil, ""
	}
	for _, allocation := range at.allocations {
		if allocation.Registers {
			return nil, ""
		}
	}
	for _, process := range at.processes {
		calls := l.seen.Calls[process.Container.CgroupID]
		total := calls.Contexts + calls.Allocations.Calls
		for _, copies := range calls.Copies {
			total += copies.Calls
		}
		if total > 0 {
			return process, "is in a container that has called the driver's library"
		}
	}
	return nil, ""
}

// readable says whether all usage pages of the container could be read.
func (at *tenancy) readable() bool {
	return !slices.ContainsFunc(at.allocations, func(a *monitor.OutsideAllocation) bool { return !a.Known })
}

// beyondBook compares, for each GPU, what the driver says that the container holds with what its book says, or may say.
func (l *look) beyondBook(at *tenancy, overhead map[string]overheads) (found []Finding) {
	for _, gpu := range at.gpus() {
		sum := at.sum(gpu)
		tolerated := sum.tolerated(overhead[gpu].without(at, l.policy))
		if sum.bytes <= sum.book+tolerated {
			continue
		}
		f := at.about(BeyondBook, sum.largest)
		f.GPUUUID, f.Bytes, f.BookBytes = gpu, sum.bytes, sum.book
		f.certain = sum.bytes > sum.limit+tolerated // else it may be of the kinds that no book has, and is within its slice
		f.Detail = fmt.Sprintf("the driver says %d bytes of %s are held by %d processes; accounted for are %d, and up to %d for the driver's own needs",
			sum.bytes, gpu, len(sum.held), sum.book, tolerated)
		found = append(found, f)
	}
	return found
}

// withoutAllocation looks for processes of a container that was given nothing. What they call themselves proves nothing: a
// server of MPS in a container is excused by its namespace.
func (l *look) withoutAllocation(at *tenancy) []Finding {
	if slices.Contains(l.policy.TrustedNamespaces, at.container.Namespace) {
		return nil
	}
	var largest *monitor.OutsideProcess
	var held uint64
	for _, process := range at.processes {
		if len(process.Memory) == 0 {
			continue
		}
		held += bytesOf(process)
		if largest == nil || bytesOf(process) > bytesOf(largest) {
			largest = process
		}
	}
	if largest == nil {
		return nil
	}
	f := at.about(NoAllocation, largest)
	f.Bytes = held
	f.Detail = fmt.Sprintf("process %d (%.32q) uses %s, of which its container was given nothing; it holds %d bytes", largest.PID, largest.Command,
		largest.Memory[0].GPUUUID, held)
	return []Finding{f}
}

// replaced reports files that a container does not see, each once.
func (l *look) replaced(at *tenancy) (found []Finding) {
	said := map[string]bool{}
	for _, process := range at.processes {
		for _, replaced := range process.Replaced {
			if said[replaced.Path] {
				continue
			}
			said[replaced.Path] = true
			f := at.about(ReplacedFile, process)
			f.settle = changedFor
			f.Path, f.Detail = replaced.Path, fmt.Sprintf("%s is not the file that was mounted there: %s", replaced.Path, replaced.Reason)
			found = append(found, f)
		}
	}
	return found
}

// beyondGrant turns what steering has found into findings about containers.
func (l *look) beyondGrant() (found []Finding) {
	for _, share := range l.shares {
		quick := share.UsedKnown && share.Used > quickFactor*share.Rate+quickMargin
		if !share.OverShare && !share.Distrusted && !quick {
			continue
		}
		at, process := l.userOf(share.Key, share.GPUUUID)
		f := at.about(BeyondGrant, process)
		f.Key, f.GPUUUID, f.Used, f.Granted = share.Key, share.GPUUUID, share.Used, share.Rate
		if f.certain = share.OverShare || share.Distrusted; !f.certain {
			f.settle = overuseFor
		}
		f.Detail = cmp.Or(share.Reason, fmt.Sprintf("uses %.1f %% of the GPU where %.1f %% is granted at present", 100*share.Used, 100*share.Rate))
		if share.Distrusted {
			f.Detail += "; what it charges itself cannot be so, and is not believed"
		}
		found = append(found, f)
	}
	return found
}

// userOf finds the container of an allocation, and the process in it that uses the GPU most likely: one that has not
// registered, before one that holds much.
func (l *look) userOf(key, gpu string) (*tenancy, *monitor.OutsideProcess) {
	for _, at := range l.tenancies {
		if !at.mounted || !slices.ContainsFunc(at.allocations, func(a *monitor.OutsideAllocation) bool { return a.Key == key }) {
			continue
		}
		var best *monitor.OutsideProcess
		for _, process := range at.processes {
			if best == nil || likelier(process, best, gpu) {
				best = process
			}
		}
		return at, best
	}
	at := &tenancy{} // no process of it was seen
	for i := range l.seen.Allocations {
		if l.seen.Allocations[i].Key == key {
			at.allocations, at.mounted = []*monitor.OutsideAllocation{&l.seen.Allocations[i]}, true
		}
	}
	return at, nil
}

func likelier(a, b *monitor.OutsideProcess, gpu string) bool {
	weight := func(p *monitor.OutsideProcess) (uses, unregistered int, bytes uint64) {
		for _, memory := range p.Memory {
			if memory.GPUUUID == gpu {
				uses, bytes = 1, memory.UsedBytes
			}
		}
		if !p.Registered {
			unregistered = 1
		}
		return uses, unregistered, bytes
	}
	usesA, freeA, bytesA := weight(a)
	usesB, freeB, bytesB := weight(b)
	return cmp.Or(cmp.Compare(usesA, usesB), cmp.Compare(freeA, freeB), cmp.Compare(bytesA, bytesB)) > 0
}

func bytesOf(process *monitor.OutsideProcess) (sum uint64) {
	for _, memory := range process.Memory {
		sum += memory.UsedBytes
	}
	return sum
}
