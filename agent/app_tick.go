// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// app_tick.go is one tick: read, decide, apply. It runs in one goroutine.

package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/decide"
	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/metrics"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/notes"
	"github.com/vgpud/vgpud/agent/steer"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// loop ticks until ctx ends. A tick that takes too long delays the next one; none is made up for.
func (a *app) loop(ctx context.Context) error {
	ticker := time.NewTicker(a.config.TickInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-a.wake: // a card became contended, or recovered
		}
		err := a.tick(ctx)
		a.noted.Change(a.log, notes.Subject{Stage: notes.StageOffer}, err)
		var changed error
		if a.config.Changed() {
			changed = errors.New("the configuration file was changed; it is read at the next start")
		}
		a.noted.Change(a.log, notes.Subject{Stage: notes.StageConfigure}, changed)
	}
}

// tick looks at everything once and acts. An error says which cards cannot be offered as configured; the others are.
func (a *app) tick(ctx context.Context) error {
	a.keepPages()
	snapshot := monitor.Collect(ctx, a.sources, a.parts.now())
	if ctx.Err() != nil {
		return nil // stopping: what could not be read now means nothing
	}
	a.noteProcesses(snapshot)
	moved := a.untoldTransitions()
	decisions, state := decide.Decide(snapshot, a.contended(), a.policy, a.state)
	a.state = state
	a.report(snapshot, decisions)
	a.applyAllocations(snapshot, decisions)
	err := a.server.Update(inventory(decisions.GPUs, a.takenMemory()))
	a.tellTransitions(moved, decisions, a.decidedBefore())
	a.keepTick(snapshot, decisions)
	if a.publish != nil && a.told.due(a.parts.now(), a.config.TickInterval, a.books.Revision(), len(decisions.Transitions) > 0) {
		a.publish.Offer(a.view(snapshot, decisions))
	}
	return err
}

// While nothing happens there are so many ticks, and about that time at most, between two metrics files: collectors look
// several times a minute, and a file costs as much as some ticks.
const (
	tellEvery  = 5
	tellWithin = 5 * time.Second
)

// telling is what was in the metrics file last. The zero value: nothing was.
type telling struct {
	at       time.Time
	since    int    // ticks, this one included
	revision uint64 // of the books
}

// due says whether this tick is in the metrics file: the first, one every so often, and those in which something happened.
// Where ticks are far apart, each of them is.
func (t *telling) due(now time.Time, interval time.Duration, revision uint64, happened bool) bool {
	t.since++
	age := now.Sub(t.at)
	if !happened && !t.at.IsZero() && revision == t.revision && t.since < tellEvery && age >= 0 && age+interval/2 < tellWithin {
		return false
	}
	*t = telling{at: now, revision: revision}
	return true
}

// decidedBefore is what the last tick decided.
func (a *app) decidedBefore() decide.Decisions {
	if before := a.ticked.Load(); before != nil {
		return before.decisions
	}
	return decide.Decisions{}
}

// hurryTick makes the next tick come at once. Any goroutine may call it.
func (a *app) hurryTick() {
	select {
	case a.wake <- struct{}{}:
	default: // it comes already
	}
}

// contended are the verdicts that a card's health follows; none where contention is only reported.
func (a *app) contended() []health.Verdict {
	if a.watch == nil || a.config.Contention != contentionHealth {
		return nil
	}
	return a.watch.Verdicts()
}

// noteProcesses keeps when the oldest process of each allocation started.
func (a *app) noteProcesses(snapshot *monitor.Snapshot) {
	now, sinceBoot := limiter.MonotonicNow(), bootTime()
	oldest := map[string]time.Duration{}
	for _, allocation := range snapshot.Allocations {
		if allocation.OldestProcess > 0 {
			started := time.Duration(min(allocation.OldestProcess, mostTicks)) * clockTick
			oldest[allocation.Key] = min(now, max(1, now-(sinceBoot-started)))
		}
	}
	a.oldest.Store(&oldest)
}

// Start times of processes are in ticks of a hundredth of a second, on every Linux that programs see.
const (
	clockTick = time.Second / 100
	mostTicks = 1 << 40 // some centuries: what a page claims may be anything
)

// bootTime is the time since the machine started, sleep included.
func bootTime() time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &at); err != nil {
		panic(err) // there is no Linux without this clock
	}
	return time.Duration(at.Nano())
}

// processStarted is when the oldest process of an allocation started, CLOCK_MONOTONIC; 0: not known. Any goroutine may
// call it.
func (a *app) processStarted(key string) time.Duration {
	if oldest := a.oldest.Load(); oldest != nil {
		return (*oldest)[key]
	}
	return 0
}

// report logs what an operator acts on: changes, never the same state twice.
func (a *app) report(snapshot *monitor.Snapshot, decisions decide.Decisions) {
	for _, transition := range decisions.Transitions {
		switch {
		case transition.Healthy:
			a.log.Info("GPU is healthy", "gpu", transition.UUID)
		case transition.Reason == decide.ReasonContended && withdrawn(decisions, transition.UUID) == 0:
			a.log.Warn("GPU is contended, and none of its slices is withdrawn", "gpu", transition.UUID, "detail", transition.Detail)
		default:
			a.log.Warn("GPU is withdrawn", "gpu", transition.UUID, "reason", transition.Reason, "detail", transition.Detail)
		}
	}
	for _, status := range snapshot.Sources {
		if status.NotAsked {
			continue // for the fault of another source, which is said
		}
		a.noted.Change(a.log, notes.Subject{Stage: notes.StageObserve, Source: status.Name}, status.Fault())
	}
	for _, verdict := range decisions.Allocations {
		var fault error
		if verdict.Tampered || verdict.OverLimit || verdict.Missing {
			fault = errors.New(verdict.Reason)
		}
		a.noted.Change(a.log, notes.Subject{Stage: notes.StageJudge, Allocation: verdict.Key}, fault)
	}
}

// takenMemory is what of each card containers hold beyond their grants, as the witness has reported.
func (a *app) takenMemory() map[string]uint64 {
	if a.outside == nil {
		return nil
	}
	return a.outside.Last().Findings.TakenBytes
}

// inventory is what the plugin offers of the cards. One that was never readable has no size and is left out.
func inventory(verdicts []decide.GPUVerdict, taken map[string]uint64) []plugin.GPU {
	var gpus []plugin.GPU
	for _, verdict := range verdicts {
		if verdict.Slices == 0 {
			continue
		}
		gpu := plugin.GPU{NUMA: verdict.NUMANode, TakenBytes: taken[verdict.UUID],
			GPU: ledger.GPU{UUID: verdict.UUID, UsableBytes: verdict.UsableBytes, Slices: verdict.Slices}}
		switch {
		case verdict.Reason == decide.ReasonContended:
			if verdict.Withdraw > 0 { // else the fuse keeps all of them
				gpu.Health = plugin.Health{Reason: verdict.Reason, Most: verdict.Withdraw, Allocated: verdict.MarkAllocated}
			}
		case !verdict.Healthy:
			gpu.Health = plugin.Health{Reason: verdict.Reason, Hard: verdict.Hard}
		}
		gpus = append(gpus, gpu)
	}
	return gpus
}

// keepPages sees to it that the directories of pages are there and mounted, before the pages are read.
func (a *app) keepPages() {
	var faults []error
	for directory := range a.pagesDirectories() {
		faults = append(faults, a.pages.Prepare(directory))
	}
	a.noted.Change(a.log, notes.Subject{Stage: notes.StagePrepare}, errors.Join(faults...))
}

// applyAllocations acts on each verdict. A fault with one allocation is logged and does not stop the others.
func (a *app) applyAllocations(snapshot *monitor.Snapshot, decisions decide.Decisions) {
	observed := map[string]monitor.Allocation{}
	for _, allocation := range snapshot.Allocations {
		observed[allocation.Key] = allocation
	}
	for _, verdict := range decisions.Allocations {
		record, held := a.books.Record(verdict.Key)
		if !held {
			continue // given up since the snapshot
		}
		allocation := observed[verdict.Key]
		var err error
		switch {
		case verdict.Release:
			err = a.release(record, allocation, verdict.Reason)
		case verdict.Tampered, verdict.Missing:
			err = a.putRight(record, allocation, verdict)
		}
		if err == nil && !verdict.Release && snapshot.SourceUp(monitor.SourceKubelet) && !allocation.Absent && allocation.Owner.Known() {
			err = a.identify(allocation)
		}
		a.noted.Change(a.log, notes.Subject{Stage: notes.StageRepair, Allocation: verdict.Key}, err)
	}
	a.noted.Keep(func(key string) bool { _, exists := observed[key]; return exists })
}

// putRight freezes the allocation where what it holds may be lost, and only then gives it pages that are right.
func (a *app) putRight(record ledger.Record, allocation monitor.Allocation, verdict decide.AllocationVerdict) error {
	if why := limiter.Damage(verdict.Freeze); why != limiter.DamageNone {
		frozen, err := a.pages.Freeze(record, allocation.Epoch, why)
		if err != nil || !frozen {
			return err // not frozen: its container has started anew since it was looked at
		}
		a.log.Warn("frozen until its container starts again", "allocation", record.Key, "namespace", allocation.Owner.Namespace,
			"pod", allocation.Owner.Pod, "container", allocation.Owner.Container, "reason", why)
	}
	if verdict.Missing && allocation.Epoch == 0 {
		return a.pages.Restore(record)
	}
	return a.pages.RestoreUsage(record) // the limits page stays, and with it the freeze
}

// release gives the slices back and removes the pages. The record goes first: pages without a record are
// removed at the next start, a record without pages would come back.
func (a *app) release(record ledger.Record, allocation monitor.Allocation, reason string) error {
	if err := a.books.Release(record.Key); err != nil {
		return err
	}
	a.log.Info("released", "allocation", allocation.Key, "namespace", allocation.Owner.Namespace, "pod", allocation.Owner.Pod,
		"container", allocation.Owner.Container, "reason", reason)
	return a.pages.Remove(record)
}

func (a *app) identify(allocation monitor.Allocation) error {
	err := a.books.Identify(allocation.Key, ledger.Identity{PodUID: allocation.Owner.PodUID,
		Namespace: allocation.Owner.Namespace, Pod: allocation.Owner.Pod, Container: allocation.Owner.Container,
		Seen: allocation.PodSeen})
	if errors.Is(err, ledger.ErrUnknownKey) {
		return nil // given up since the snapshot
	}
	return err
}

// view is what the metrics file says of this tick.
func (a *app) view(snapshot *monitor.Snapshot, decisions decide.Decisions) metrics.View {
	status := a.server.Status()
	var steering steer.View
	if a.steer != nil {
		steering = a.steer.View()
	}
	return metrics.View{
		Snapshot: snapshot, Decisions: decisions, Steering: steering, Contention: a.watch.View(), Outside: a.outside.View(), Events: a.eventsView(), TamperedTotal: a.state.TamperedTotal, Build: a.build,
		Slices: countSlices(a.server.Slices(), a.books.Held()),
		Plugin: metrics.Plugin{Registered: status.Registered, Registrations: status.Registrations,
			RegistrationFailures: status.RegistrationFailures, Allocations: status.Allocations,
			AllocationFailures: status.AllocationFailures, StartRefusals: status.StartRefusals,
			Allocate: metrics.Durations{Count: status.AllocateDurations.Count, SumSeconds: status.AllocateDurations.Sum.Seconds(),
				Buckets: status.AllocateDurations.Buckets()}},
	}
}

// countSlices sorts the slices of each GPU by state.
func countSlices(listed []plugin.Slice, held map[string]bool) []metrics.SliceCounts {
	var counts []metrics.SliceCounts
	for _, slice := range listed { // sorted by GPU
		uuid, _, _ := strings.Cut(slice.ID, "::")
		if len(counts) == 0 || counts[len(counts)-1].GPUUUID != uuid {
			counts = append(counts, metrics.SliceCounts{GPUUUID: uuid})
		}
		count := &counts[len(counts)-1]
		switch {
		case held[slice.ID]:
			count.Allocated++
		case slice.Healthy():
			count.Free++
		default:
			count.Withdrawn++
		}
	}
	return counts
}
