// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package outside looks at containers from outside, every two seconds: what the driver says that processes hold, which files
// they see, and what probes counted. witness.Judge says who uses a GPU past what it was given; the freezer does what the
// operator chose. One goroutine of its own, for the process table is long and the driver may hang.
package outside

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/freezer"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/notes"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/steer"
	"github.com/vgpud/vgpud/limiter"
)

// Every is how often containers are looked at from outside: what they do is to be said within ten seconds.
const Every = 2 * time.Second

// Loop looks at containers from outside. One goroutine runs it; Last and View are for others.
type Loop struct {
	log      *slog.Logger
	witness  bool // else probes alone are read
	sources  monitor.OutsideSources
	open     func() Probes // attaches the probes; nil: there are none
	policy   witness.Policy
	state    witness.State
	steering func() steer.View
	freezer  *freezer.Freezer                               // nil: nobody is frozen
	pods     func(context.Context) (map[string]bool, error) // that the kubelet keeps, by UID
	tell     func(finding witness.Finding, done witness.Action)
	now      func() time.Duration // CLOCK_MONOTONIC

	found map[witness.Kind]uint64
	done  map[string]witness.Action // what the last look did, by container ID
	noted notes.Notes
	last  atomic.Pointer[Look] // never nil
}

// Look is what the last look came to. Nobody changes it.
type Look struct {
	Seen     *monitor.Outside
	Findings witness.Findings
	Found    map[witness.Kind]uint64
	Done     map[string]witness.Action // beyond reporting, by container ID
	Calls    []ContainerCalls
}

// Probes are attached, and have to be let go.
type Probes interface {
	source.Probes
	Close() error
}

// Config is what the loop is made with.
type Config struct {
	Witness  bool                   // judge; else probes alone are read
	Sources  monitor.OutsideSources // without Witness, the residents alone, whose calls the probes count
	Open     func() Probes          // attaches the probes; nil: there are none
	Policy   witness.Policy
	Steering func() steer.View                              // the last round of steering; nil: nothing is steered
	Freezer  *freezer.Freezer                               // nil: nobody is frozen
	Pods     func(context.Context) (map[string]bool, error) // that the kubelet keeps, by UID
	Tell     func(finding witness.Finding, done witness.Action)
	Log      *slog.Logger
}

// New makes the loop; it looks at nothing yet.
func New(config Config) *Loop {
	o := &Loop{log: config.Log.With("component", "witness"), witness: config.Witness, sources: config.Sources, open: config.Open,
		policy: config.Policy, now: limiter.MonotonicNow, found: map[witness.Kind]uint64{}, steering: config.Steering,
		freezer: config.Freezer, pods: config.Pods, tell: config.Tell}
	if o.steering == nil {
		o.steering = func() steer.View { return steer.View{} }
	}
	o.last.Store(&Look{Seen: &monitor.Outside{Probes: source.ProbeStatus{Mode: source.ProbesOff, Reason: "not asked for"}}})
	return o
}

// Run looks until ctx ends. Probes are attached here: that may take a moment, and the agent does not wait for it.
func (o *Loop) Run(ctx context.Context) error {
	if o.open != nil {
		attached := o.open()
		o.sources.Probes = attached
		defer func() { o.noted.Change(o.log, notes.Subject{Stage: notes.StageDetach}, attached.Close()) }()
	}
	ticker := time.NewTicker(Every)
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
func (o *Loop) look(ctx context.Context) {
	seen := monitor.CollectOutside(ctx, o.sources, o.now())
	if ctx.Err() != nil {
		return // stopping: what could not be read now means nothing
	}
	for _, status := range seen.Sources {
		if status.Name != monitor.SourceLedger && status.Name != monitor.SourcePages { // of which the tick tells
			o.noted.Change(o.log, notes.Subject{Stage: notes.StageObserve, Source: status.Name}, status.Fault())
		}
	}
	look := &Look{Seen: seen, Calls: callsByContainer(seen)}
	if o.witness {
		look.Findings, o.state = witness.Judge(seen, o.steering().Verdicts, o.policy, o.state)
		o.report(look.Findings)
		look.Done = o.act(ctx, look.Findings)
		o.announce(look.Findings, look.Done)
		o.done = look.Done
	}
	look.Found = maps.Clone(o.found)
	o.last.Store(look)
}

// report logs what begins and what is over.
func (o *Loop) report(findings witness.Findings) {
	for _, finding := range findings.Begun {
		o.found[finding.Kind]++
		o.log.Warn("container uses a GPU past what it was given", findingAttributes(finding)...)
	}
	for _, finding := range findings.Over {
		o.log.Info("container no longer uses a GPU past what it was given", findingAttributes(finding)...)
	}
}

// announce tells of what begins, with what was done, and again when something is done about it later.
func (o *Loop) announce(findings witness.Findings, done map[string]witness.Action) {
	begun := map[string]bool{}
	for _, finding := range findings.Begun {
		begun[finding.ContainerID] = true
		o.tell(finding, WhatWasDone(done, finding))
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

// callsByContainer sums what the probes counted over the control groups of each container, as far as it is known whose they
// are: of containers with a process that uses a GPU. The names are those of the allocation, or else of what the control
// group's path tells.
func callsByContainer(seen *monitor.Outside) []ContainerCalls {
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
	var list []ContainerCalls
	for who, calls := range sums {
		list = append(list, ContainerCalls{Namespace: who.namespace, Pod: who.pod, Container: who.container, Calls: calls})
	}
	slices.SortFunc(list, func(a, b ContainerCalls) int {
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

// Last is what the last look came to.
func (o *Loop) Last() *Look { return o.last.Load() }

// View is the last look from outside, as it is shown. The zero value: this agent does not look.
type View struct {
	On          bool
	Sources     []monitor.SourceStatus
	Probes      ProbesView
	Containers  []ContainerCalls  // sorted by their labels, without duplicates
	Findings    []witness.Finding // in force
	Found       map[witness.Kind]uint64
	Unaccounted map[string]uint64 // bytes, by GPU
	Frozen      int
}

// ProbesView says what the probes can see, and what they cost.
type ProbesView struct {
	Mode, Reason   string
	HitCostSeconds float64
	Libraries      int
	Unobservable   int
}

// ContainerCalls are the calls of the driver's library by one container, as probes counted them. Names are as far as known.
type ContainerCalls struct {
	Namespace, Pod, Container string
	Calls                     monitor.Calls
}

// View is the last look. A nil Loop does not look.
func (o *Loop) View() View {
	if o == nil {
		return View{}
	}
	return o.ViewOf(o.last.Load())
}

// ViewOf is a look as it is shown.
func (o *Loop) ViewOf(last *Look) View {
	return View{On: true, Sources: last.Seen.Sources, Containers: last.Calls, Findings: last.Findings.List, Found: last.Found,
		Unaccounted: last.Findings.UnaccountedBytes, Frozen: len(o.freezer.View()),
		Probes: probesView(last.Seen.Probes)}
}

// probesView says what the probes see. A file that is probed in part is not one that cannot be seen.
func probesView(status source.ProbeStatus) ProbesView {
	view := ProbesView{Mode: string(status.Mode), Reason: status.Reason, HitCostSeconds: status.HitCost.Seconds(), Libraries: status.Libraries}
	for _, file := range status.Unobservable {
		if !file.Partial {
			view.Unobservable++
		}
	}
	return view
}

// act does what was ordered, and thaws whose time has come. It returns what has been done to containers with findings, by
// their ID. A kill stays said as long as a finding of that container does.
func (o *Loop) act(ctx context.Context, findings witness.Findings) map[string]witness.Action {
	applied := o.freezer.Apply(findings.Orders)
	o.freezer.Tend(ctx, o.pods)
	done := map[string]witness.Action{}
	for _, finding := range findings.List {
		id := finding.ContainerID
		switch {
		case applied[id] != "":
			done[id] = applied[id]
		case o.done[id] == witness.Kill:
			done[id] = witness.Kill
		}
	}
	return done
}

// WhatWasDone is what was done about a finding.
func WhatWasDone(done map[string]witness.Action, finding witness.Finding) witness.Action {
	return cmp.Or(done[finding.ContainerID], witness.Report)
}
