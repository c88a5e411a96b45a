// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package watch looks at contention: once a second it looks at the counters of all cards and at the traffic that the
// containers' pages tell of, five times a second at the cards that it was asked to; contention.Judge says who slows whom and asks,
// health.Judge whether a card is contended. One goroutine beside tick and steering. It waits for the driver no
// longer than its sampler's patience; what the driver does not tell is missing from the look, which is made all the same.
// The tick takes the verdicts, steering takes the cuts.
//
// sampler.go asks the cards for their counters, on a goroutine of its own.
package watch

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/decide/steering"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/notes"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/steer"
	"github.com/vgpud/vgpud/agent/store"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// Looked is what the last look came to. Nobody changes it.
type Looked struct {
	Seen      *monitor.Contention // of all cards, those of older looks included; nil in the zero value alone
	Concluded contention.Result
	Health    health.Verdicts
	Moved     map[Move]uint64   // transitions since the agent started
	Changes   map[string]Change // the newest of each card
	Rates     map[StreamID]Rates
	Looks     uint64 // since the agent started
	Up        bool   // the counters could be read
}

// Change is when a card became contended, or recovered, and why.
type Change struct {
	At        time.Time
	Contended bool
	Evidence  health.Evidence
}

// Contender concludes from a look; see contention.Judge.
type Contender func(*monitor.Contention, contention.Policy, contention.State) (contention.Result, contention.State)

// StreamID names an allocation on a GPU.
type StreamID struct{ Key, GPUUUID string }

// Loop watches the cards. One goroutine runs it; Last, View, Verdicts, Cuts, TakeUntold and Name are for others.
type Loop struct {
	log      *slog.Logger
	books    *ledger.Ledger
	traffics source.Traffics
	devices  *Sampler // nil: nothing has counters
	steering func() steer.View
	started  func(key string) time.Duration // when its oldest process started, CLOCK_MONOTONIC; 0: not known
	moved    func()                         // wakes the tick
	untold   transitions                    // for the tick, which knows what follows
	now      func() time.Duration           // CLOCK_MONOTONIC
	wall     func() time.Time

	contend Contender
	policy  contention.Policy
	state   contention.State
	health  health.Policy
	verdict health.State
	record  *store.Verdicts // nil: verdicts are not kept

	used    map[StreamID]usedTime
	cards   map[string]source.DeviceSample // of the last look at each
	at      map[StreamID]monitor.Stream
	rates   map[StreamID]Rates
	cadence contention.Cadence
	counts  map[Move]uint64
	changes map[string]Change
	looks   uint64
	noted   notes.Notes

	last atomic.Pointer[Looked] // never nil once Restore has returned
}

// Config is what the loop is made with.
type Config struct {
	Books    *ledger.Ledger
	Traffics source.Traffics
	Counters *Sampler                       // nil: nothing has counters
	Steering func() steer.View              // the last round of steering; nil: nothing is steered
	Started  func(key string) time.Duration // when its oldest process started, CLOCK_MONOTONIC; 0: not known
	Moved    func()                         // called when a verdict moved
	Wall     func() time.Time
	Contend  Contender // nil: contention.Judge
	Health   health.Policy
	Verdicts *store.Verdicts // of an earlier agent and for a later one; nil: they are not kept
	Log      *slog.Logger
}

// New makes the loop; it looks at nothing yet. Before Run, and before anybody asks, comes Restore.
func New(config Config) *Loop {
	w := &Loop{log: config.Log.With("component", "watch"), books: config.Books, traffics: config.Traffics, devices: config.Counters,
		steering: config.Steering, started: config.Started, moved: config.Moved, now: limiter.MonotonicNow, contend: config.Contend,
		policy: contention.DefaultPolicy(), health: config.Health, record: config.Verdicts, used: map[StreamID]usedTime{},
		cards: map[string]source.DeviceSample{}, at: map[StreamID]monitor.Stream{}, rates: map[StreamID]Rates{},
		counts: map[Move]uint64{}, changes: map[string]Change{}, wall: config.Wall}
	if w.steering == nil {
		w.steering = func() steer.View { return steer.View{} }
	}
	if w.contend == nil {
		w.contend = contention.Judge
	}
	if w.devices == nil {
		w.log.Info("contention is judged without counters of the cards: this agent has none, and blames nobody")
	}
	return w
}

// Run looks until ctx ends.
func (w *Loop) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			w.keep(true)
			return nil
		case <-timer.C:
		}
		began := w.now()
		next := w.look(ctx)
		if ctx.Err() == nil {
			timer.Reset(max(0, next-(w.now()-began)))
		}
	}
}

// look looks and concludes once, and returns when to look again.
func (w *Loop) look(ctx context.Context) time.Duration {
	began := w.now()
	named := w.cadence.Named(began)
	all := named == nil
	holdings := w.holdings()
	answer := w.devices.ask(ctx, named)
	if ctx.Err() != nil {
		return 0 // stopping: what could not be read now means nothing
	}
	devices := w.gather(answer, named, holdings)
	traffic, err := w.traffics.Traffic(keysOn(holdings, devices))
	w.noted.Change(w.log, notes.Subject{Stage: notes.StageObserve, Source: monitor.SourceTraffic}, err)
	seen := monitor.CollectContention(w.now(), devices, holdings, traffic)
	concluded, state := w.contend(seen, w.policy, w.state)
	judged, verdict := health.Judge(concluded, w.health, w.verdict, seen.Now)
	w.state, w.verdict = state, verdict
	w.looks++
	w.report(concluded, judged)
	w.publish(seen, concluded, judged, all, answer.err == nil)
	w.keep(len(judged.Transitions) > 0)
	if len(judged.Transitions) > 0 {
		w.moved()
	}
	var wait time.Duration
	w.cadence, wait = w.cadence.After(began, concluded, w.policy)
	return wait
}

// gather makes one device of each card that was looked at. What a quick look leaves out is as it was in the last look at
// all; a card that nobody answers for, because the driver hangs or is not there, has that as its error.
func (w *Loop) gather(answer answer, named []string, holdings []monitor.Holding) []source.DeviceSample {
	fault := answer.err
	if errors.Is(fault, errNoCounters) {
		fault = nil // said once, at the start
	}
	w.noted.Change(w.log, notes.Subject{Stage: notes.StageObserve, Source: monitor.SourceCounters}, fault)
	if answer.err != nil {
		cards := map[string]bool{}
		for _, holding := range holdings {
			if named == nil || slices.Contains(named, holding.GPUUUID) {
				cards[holding.GPUUUID] = true
			}
		}
		var devices []source.DeviceSample
		for _, uuid := range slices.Sorted(maps.Keys(cards)) {
			devices = append(devices, source.DeviceSample{GPUUUID: uuid, At: w.now(), Err: answer.err, Sharing: w.cards[uuid].Sharing})
		}
		return devices
	}
	if answer.all {
		clear(w.cards)
	}
	devices := slices.Clone(answer.samples)
	for i := range devices {
		device := &devices[i]
		if before, known := w.cards[device.GPUUUID]; known && !answer.all {
			carryOver(device, before)
		}
		w.cards[device.GPUUUID] = *device
	}
	return devices
}

// carryOver fills what a quick look does not read.
func carryOver(device *source.DeviceSample, before source.DeviceSample) {
	device.SMClockMHz, device.SMClockMaxMHz = before.SMClockMHz, before.SMClockMaxMHz
	device.MemoryClockMHz, device.MemoryClockMaxMHz = before.MemoryClockMHz, before.MemoryClockMaxMHz
	device.Throttle, device.Sharing = before.Throttle, before.Sharing
	device.LinkGeneration, device.LinkGenerationMax = before.LinkGeneration, before.LinkGenerationMax
	device.LinkWidth, device.LinkWidthMax = before.LinkWidth, before.LinkWidthMax
}

// keysOn are the allocations with a share of one of the cards, sorted.
func keysOn(holdings []monitor.Holding, devices []source.DeviceSample) []string {
	cards := map[string]bool{}
	for _, device := range devices {
		cards[device.GPUUUID] = true
	}
	keys := map[string]bool{}
	for _, holding := range holdings {
		if cards[holding.GPUUUID] {
			keys[holding.Key] = true
		}
	}
	return slices.Sorted(maps.Keys(keys))
}

// publish makes the look known to the other loops. What a quick look did not see stays as it was.
func (w *Loop) publish(seen *monitor.Contention, concluded contention.Result, judged health.Verdicts, all, up bool) {
	for _, transition := range judged.Transitions {
		w.counts[Move{GPUUUID: transition.UUID, Kind: transition.Kind}]++
		if transition.Kind == health.TransitionContended || transition.Kind == health.TransitionRecovered {
			w.changes[transition.UUID] = Change{w.wall(), transition.Kind == health.TransitionContended, transition.Evidence}
		}
	}
	before := w.last.Load()
	if all {
		w.measureRates(seen)
	} else {
		seen = mergeLooks(before.Seen, seen)
		up = up && before.Up
	}
	w.last.Store(&Looked{Seen: seen, Concluded: concluded, Health: judged, Moved: maps.Clone(w.counts),
		Changes: maps.Clone(w.changes), Rates: maps.Clone(w.rates), Looks: w.looks, Up: up})
	w.untold.add(judged.Transitions) // after the verdicts, which the tick reads after these
}

// mergeLooks puts the cards of a quick look into the last look at all.
func mergeLooks(all, quick *monitor.Contention) *monitor.Contention {
	merged := &monitor.Contention{Now: quick.Now, Devices: slices.Clone(all.Devices), Streams: slices.Clone(all.Streams)}
	for i, device := range merged.Devices {
		for _, newer := range quick.Devices {
			if newer.GPUUUID == device.GPUUUID {
				merged.Devices[i] = newer
			}
		}
	}
	for i, stream := range merged.Streams {
		for _, newer := range quick.Streams {
			if newer.Key == stream.Key && newer.GPUUUID == stream.GPUUUID {
				merged.Streams[i] = newer
			}
		}
	}
	return merged
}

// Last is what the last look came to. Restore must have returned.
func (w *Loop) Last() *Looked { return w.last.Load() }

// TakeUntold takes the transitions that nobody has taken. Those verdicts that are read afterwards have them.
func (w *Loop) TakeUntold() []health.Transition { return w.untold.take() }

// View is the last look, as it is shown. The zero value: this agent does not look.
type View struct {
	Looked
	On       bool
	Counters bool // this agent has a source of counters
}

// Move is a kind of change of a card's state, as to contention.
type Move struct {
	GPUUUID string
	Kind    health.TransitionKind
}

// View is the last look. A nil Loop does not look.
func (w *Loop) View() View {
	if w == nil {
		return View{}
	}
	return w.ViewOf(w.last.Load())
}

// ViewOf is a look as it is shown.
func (w *Loop) ViewOf(last *Looked) View {
	return View{Looked: *last, On: true, Counters: w.devices != nil}
}

// Verdicts are what the tick is told: the last look's, or before the first one those of an earlier agent.
func (w *Loop) Verdicts() []health.Verdict { return w.last.Load().Health.GPUs }

// Cuts are what steering is told.
func (w *Loop) Cuts() []steering.Cut { return w.last.Load().Health.Cuts }

// Restore takes the verdicts of an earlier agent over. They stand until there is a look.
func (w *Loop) Restore() {
	now := w.now()
	state, err := w.record.Read(now)
	w.noted.Change(w.log, notes.Subject{Stage: notes.StageRecall}, err)
	w.verdict = state
	judged, _ := health.Judge(contention.Result{}, w.health, state, now)
	w.last.Store(&Looked{Seen: &monitor.Contention{}, Health: judged})
}

// keep writes the verdicts down.
func (w *Loop) keep(moved bool) {
	w.noted.Change(w.log, notes.Subject{Stage: notes.StageRemember}, w.record.Keep(w.verdict, w.now(), moved))
}
