// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// app_outside.go looks at containers from outside, every two seconds: what the driver says that processes hold, which files
// they see, and what probes counted. witness.Judge says who uses a GPU past what it was given; the freezer does what the
// operator chose. One goroutine of its own, for the process table is long and the driver may hang.

package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/freezer"
	"github.com/vgpud/vgpud/agent/metrics"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/notes"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/source/bpfevents"
	"github.com/vgpud/vgpud/agent/source/procs"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin"
)

// outsideEvery is how often containers are looked at from outside: what they do is to be said within ten seconds.
const outsideEvery = 2 * time.Second

// outsider is the loop. One goroutine runs it; last is for others.
type outsider struct {
	log      *slog.Logger
	witness  bool // else probes alone are read
	sources  monitor.OutsideSources
	open     func() probes // attaches the probes; nil: there are none
	policy   witness.Policy
	state    witness.State
	steering func() metrics.Steering
	freezer  *freezer.Freezer                               // nil: nobody is frozen
	pods     func(context.Context) (map[string]bool, error) // that the kubelet keeps, by UID
	tell     func(finding witness.Finding, done witness.Action)
	now      func() time.Duration // CLOCK_MONOTONIC

	found map[witness.Kind]uint64
	done  map[string]witness.Action // what the last look did, by container ID
	noted notes.Notes
	last  atomic.Pointer[outsideLook] // never nil
}

// outsideLook is what the last look came to. Nobody changes it.
type outsideLook struct {
	seen     *monitor.Outside
	findings witness.Findings
	found    map[witness.Kind]uint64
	done     map[string]witness.Action // beyond reporting, by container ID
	calls    []metrics.ContainerCalls
}

// probes are attached, and have to be let go.
type probes interface {
	source.Probes
	Close() error
}

// openOutside makes the look from outside, where the witness or the probes are asked for.
func (a *app) openOutside() {
	judged, probed := a.config.Witness != "" && a.config.Witness != wordOff, a.config.Probes != "" && a.config.Probes != wordOff
	if !judged && !probed {
		return
	}
	residents := procs.NewResidents(a.parts.procRoot, a.pagesPath, a.mountedFiles, limiter.MonotonicNow)
	a.residents = residents
	a.onClose(func(context.Context) error { residents.Close(); return nil })
	a.outside = a.newOutsider()
}

// mountedFiles are the files that a process of an allocation is to see.
func (a *app) mountedFiles(key string) []procs.File {
	record, held := a.books.Record(key)
	if !held {
		return nil
	}
	var files []procs.File
	for _, file := range plugin.MountedFiles(record, libraryDir(a.config)) {
		files = append(files, procs.File{ContainerPath: file.ContainerPath, HostPath: file.HostPath})
	}
	return files
}

// openProbes attaches the probes.
func (a *app) openProbes() probes {
	return bpfevents.Open(bpfevents.Options{Mode: a.config.Probes, NVMLLibrary: a.config.NVMLLibrary, Ours: plugin.LibraryPattern(libraryDir(a.config)),
		Log: a.baseLog.With("component", "probes")})
}

// newOutsider makes the loop of an agent; it looks at nothing yet.
func (a *app) newOutsider() *outsider {
	o := &outsider{log: a.baseLog.With("component", "witness"), witness: a.config.Witness != "" && a.config.Witness != wordOff,
		policy: witnessPolicy(a.config), now: limiter.MonotonicNow, found: map[witness.Kind]uint64{},
		steering: func() metrics.Steering { return metrics.Steering{} }, freezer: a.freezer, pods: a.podsKept, tell: a.tellFinding}
	if a.steer != nil {
		o.steering = a.steer.View
	}
	if a.config.Probes != "" && a.config.Probes != wordOff {
		o.open = a.openProbes
	}
	o.sources.Residents = a.residents // whose calls the probes count
	if o.witness {
		o.sources = monitor.OutsideSources{Memories: a.memories, Residents: a.residents, Ledger: a.sources.Ledger, Pages: a.sources.Pages, Elsewhere: a.givenElsewhere}
	}
	o.last.Store(&outsideLook{seen: &monitor.Outside{Probes: source.ProbeStatus{Mode: source.ProbesOff, Reason: "not asked for"}}})
	return o
}

// givenElsewhere are the cards that other plugins gave to pods, as the last tick saw it whose kubelet could be read. The witness
// alone calls it.
func (a *app) givenElsewhere() map[string][]string {
	if last := a.ticked.Load(); last != nil && last.snapshot.Elsewhere != nil {
		a.elsewhere = last.snapshot.Elsewhere
	}
	return a.elsewhere
}

// witnessPolicy is what the configuration says of the witness.
func witnessPolicy(config Config) witness.Policy {
	policy := witness.DefaultPolicy()
	policy.Action = witness.Action(config.Witness)
	policy.OverheadBytes, policy.TrustedNamespaces = config.WitnessOverheadBytes, config.WitnessTrusted
	return policy
}

// run looks until ctx ends. Probes are attached here: that may take a moment, and the agent does not wait for it.
func (o *outsider) run(ctx context.Context) error {
	if o.open != nil {
		attached := o.open()
		o.sources.Probes = attached
		defer func() { o.noted.Change(o.log, notes.Subject{Stage: notes.StageDetach}, attached.Close()) }()
	}
	ticker := time.NewTicker(outsideEvery)
	defer ticker.Stop()
	for {
		o.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// look looks and judges once.
func (o *outsider) look(ctx context.Context) {
	seen := monitor.CollectOutside(ctx, o.sources, o.now())
	if ctx.Err() != nil {
		return // stopping: what could not be read now means nothing
	}
	for _, status := range seen.Sources {
		if status.Name != monitor.SourceLedger && status.Name != monitor.SourcePages { // of which the tick tells
			o.noted.Change(o.log, notes.Subject{Stage: notes.StageObserve, Source: status.Name}, statusError(status))
		}
	}
	look := &outsideLook{seen: seen, calls: callsByContainer(seen)}
	if o.witness {
		look.findings, o.state = witness.Judge(seen, o.steering().Verdicts, o.policy, o.state)
		o.report(look.findings)
		look.done = o.act(ctx, look.findings)
		o.announce(look.findings, look.done)
		o.done = look.done
	}
	look.found = maps.Clone(o.found)
	o.last.Store(look)
}

// report logs what begins and what is over.
func (o *outsider) report(findings witness.Findings) {
	for _, finding := range findings.Begun {
		o.found[finding.Kind]++
		o.log.Warn("container uses a GPU past what it was given", findingAttributes(finding)...)
	}
	for _, finding := range findings.Over {
		o.log.Info("container no longer uses a GPU past what it was given", findingAttributes(finding)...)
	}
}

// announce tells of what begins, with what was done, and again when something is done about it later.
func (o *outsider) announce(findings witness.Findings, done map[string]witness.Action) {
	begun := map[string]bool{}
	for _, finding := range findings.Begun {
		begun[finding.ContainerID] = true
		o.tell(finding, whatWasDone(done, finding))
	}
	for _, finding := range findings.List {
		id := finding.ContainerID
		if done[id] != "" && done[id] != o.done[id] && !begun[id] {
			begun[id] = true // once for each container
			o.tell(finding, done[id])
		}
	}
}

// findingAttributes name who does what. What is not known is left out.
func findingAttributes(finding witness.Finding) []any {
	attributes := []any{"kind", string(finding.Kind)}
	for _, one := range []struct{ name, value string }{{"namespace", finding.Namespace}, {"pod", finding.Pod}, {"pod_uid", finding.PodUID},
		{"container", finding.ContainerName}, {"container_id", finding.ContainerID}, {"allocation", finding.Key}, {"gpu", finding.GPUUUID}} {
		if one.value != "" {
			attributes = append(attributes, one.name, one.value)
		}
	}
	if finding.PID > 0 {
		attributes = append(attributes, "pid", finding.PID, "command", finding.Command)
	}
	return append(attributes, "detail", finding.Detail)
}

// statusError is what is wrong with a source; nil where it is absent or up.
func statusError(status monitor.SourceStatus) error {
	if status.Up || status.Absent {
		return nil
	}
	return errors.New(status.Error)
}

// callsByContainer sums what the probes counted over the control groups of each container, as far as it is known whose they
// are: of containers with a process that uses a GPU. The names are those of the allocation, or else of what the control
// group's path tells.
func callsByContainer(seen *monitor.Outside) []metrics.ContainerCalls {
	owners := map[string]monitor.Owner{}
	for _, allocation := range seen.Allocations {
		owners[allocation.Key] = allocation.Owner
	}
	type names struct{ namespace, pod, container string }
	groups := map[uint64]names{}
	for _, process := range seen.Processes {
		if _, named := groups[process.Container.CgroupID]; named || process.Container.CgroupID == 0 {
			continue
		}
		who := names{process.Container.Namespace, cmp.Or(process.Container.Pod, process.Container.PodUID), process.Container.ID}
		for _, key := range process.Keys {
			if owner := owners[key]; owner.Pod != "" && owner.PodUID == process.Container.PodUID {
				who = names{owner.Namespace, owner.Pod, owner.Container}
			}
		}
		groups[process.Container.CgroupID] = who
	}
	sums := map[names]monitor.Calls{}
	for group, calls := range seen.Calls {
		if who, known := groups[group]; known {
			sums[who] = addCalls(sums[who], calls)
		}
	}
	var list []metrics.ContainerCalls
	for who, calls := range sums {
		list = append(list, metrics.ContainerCalls{Namespace: who.namespace, Pod: who.pod, Container: who.container, Calls: calls})
	}
	slices.SortFunc(list, func(a, b metrics.ContainerCalls) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod), strings.Compare(a.Container, b.Container))
	})
	return list
}

func addCalls(a, b monitor.Calls) monitor.Calls {
	add := func(a *monitor.Count, b monitor.Count) {
		a.Calls, a.Bytes, a.Time = a.Calls+b.Calls, a.Bytes+b.Bytes, a.Time+b.Time
	}
	for direction := range a.Copies {
		add(&a.Copies[direction], b.Copies[direction])
	}
	add(&a.UntoldCopies, b.UntoldCopies)
	add(&a.Allocations, b.Allocations)
	add(&a.Stalls, b.Stalls)
	a.Contexts, a.Ioctls, a.Exits, a.Missed = a.Contexts+b.Contexts, a.Ioctls+b.Ioctls, a.Exits+b.Exits, a.Missed+b.Missed
	return a
}

// view is the last look, for the metrics. A nil outsider does not look.
func (o *outsider) view() metrics.Outside {
	if o == nil {
		return metrics.Outside{}
	}
	return o.viewOf(o.last.Load())
}

// viewOf is what metrics tell of a look.
func (o *outsider) viewOf(last *outsideLook) metrics.Outside {
	return metrics.Outside{On: true, Sources: last.seen.Sources, Containers: last.calls, Findings: last.findings.List, Found: last.found,
		Unaccounted: last.findings.UnaccountedBytes, Frozen: len(o.freezer.View()),
		Probes: probesView(last.seen.Probes)}
}

// probesView says what the probes see. A file that is probed in part is not one that cannot be seen.
func probesView(status source.ProbeStatus) metrics.Probes {
	view := metrics.Probes{Mode: string(status.Mode), Reason: status.Reason, HitCostSeconds: status.HitCost.Seconds(), Libraries: status.Libraries}
	for _, file := range status.Unobservable {
		if !file.Partial {
			view.Unobservable++
		}
	}
	return view
}
