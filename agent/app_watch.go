// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// app_watch.go watches contention: once a second it looks at the counters of all cards and at the traffic that the
// containers' pages tell of, five times a second at the cards that decide asks for; contention.Judge says who slows whom,
// health.Judge whether a card is contended. One goroutine beside tick and steering. It waits for the driver no
// longer than its sampler's patience; what the driver does not tell is missing from the look, which is made all the same.
// The tick takes the verdicts, steering takes the cuts.

package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/vgpud/vgpud/agent/amount"
	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/decide/steering"
	"github.com/vgpud/vgpud/agent/metrics"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/notes"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/source/pages"
	"github.com/vgpud/vgpud/agent/store"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// watched is what the last look came to. Nobody changes it.
type watched struct {
	seen      *monitor.Contention // of all cards, those of older looks included
	concluded contention.Result
	health    health.Verdicts
	moved     map[metrics.Move]uint64     // transitions since the agent started
	changes   map[string]contentionChange // the newest of each card
	rates     map[streamID]streamRates
	looks     uint64
	up        bool // the counters could be read
}

// contentionChange is when a card became contended, or recovered, and why.
type contentionChange struct {
	at        time.Time
	contended bool
	evidence  health.Evidence
}

// contender concludes from a look; see contention.Judge.
type contender func(*monitor.Contention, contention.Policy, contention.State) (contention.Result, contention.State)

// streamID names an allocation on a GPU.
type streamID struct{ key, gpuUUID string }

// watcher is the loop. One goroutine runs it; last is for others.
type watcher struct {
	log      *slog.Logger
	books    *ledger.Ledger
	traffics source.Traffics
	devices  *deviceSampler // nil: nothing has counters
	steering func() metrics.Steering
	started  func(key string) time.Duration // when its oldest process started, CLOCK_MONOTONIC; 0: not known
	moved    func()                         // wakes the tick
	untold   transitions                    // for the tick, which knows what follows
	now      func() time.Duration           // CLOCK_MONOTONIC
	wall     func() time.Time

	contend contender
	policy  contention.Policy
	state   contention.State
	health  health.Policy
	verdict health.State
	record  *store.Verdicts // nil: verdicts are not kept

	used    map[streamID]usedTime
	cards   map[string]source.DeviceSample // of the last look at each
	at      map[streamID]monitor.Stream
	rates   map[streamID]streamRates
	cadence contention.Cadence
	counts  map[metrics.Move]uint64
	changes map[string]contentionChange
	looks   uint64
	noted   notes.Notes

	last atomic.Pointer[watched] // never nil once restore has returned
}

// newWatcher makes the loop of an agent; it looks at nothing yet.
func (a *app) newWatcher() *watcher {
	traffics := pages.NewTraffic(a.pagesPath)
	a.onClose(func(context.Context) error { return traffics.Close() })
	w := &watcher{log: a.baseLog.With("component", "watch"), books: a.books, traffics: traffics, devices: a.devices,
		steering: func() metrics.Steering { return metrics.Steering{} }, started: a.processStarted, moved: a.hurryTick, now: limiter.MonotonicNow,
		contend: contention.Judge, policy: contention.DefaultPolicy(), health: healthPolicy(a.config),
		record: store.NewVerdicts(filepath.Join(a.config.StateDir, store.HealthFile), a.parts.now),
		used:   map[streamID]usedTime{}, cards: map[string]source.DeviceSample{}, at: map[streamID]monitor.Stream{},
		rates: map[streamID]streamRates{}, counts: map[metrics.Move]uint64{}, changes: map[string]contentionChange{}, wall: a.parts.now}
	if a.steer != nil {
		w.steering = a.steer.view
	}
	if a.parts.health != nil {
		w.health = *a.parts.health
	}
	if a.parts.contend != nil {
		w.contend = a.parts.contend
	}
	if a.devices == nil {
		w.log.Info("contention is judged without counters of the cards: this agent has none, and blames nobody")
	}
	return w
}

// healthPolicy is what the configuration says of contention and health.
func healthPolicy(config Config) health.Policy {
	policy := health.DefaultPolicy()
	switch config.ContentionPreset {
	case presetFast:
		policy = health.FastPolicy()
	case presetCustom:
		numbers := config.ContentionNumbers
		policy.Above, policy.Below = numbers.Above, numbers.Below
		policy.BadFor, policy.GoodFor, policy.Hold = numbers.BadFor, numbers.GoodFor, numbers.Hold
	}
	policy.LeverFactor = float64(config.ContentionLeverPercent) / amount.WholePercent
	if config.ContentionLeverFor > 0 {
		policy.LeverFor = config.ContentionLeverFor
	}
	return policy
}

// run looks until ctx ends.
func (w *watcher) run(ctx context.Context) error {
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
func (w *watcher) look(ctx context.Context) time.Duration {
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
	w.noted.Change(w.log, notes.Subject{Stage: notes.StageObserve, Source: metrics.SourceTraffic}, err)
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
func (w *watcher) gather(answer deviceAnswer, named []string, holdings []monitor.Holding) []source.DeviceSample {
	fault := answer.err
	if errors.Is(fault, errNoCounters) {
		fault = nil // said once, at the start
	}
	w.noted.Change(w.log, notes.Subject{Stage: notes.StageObserve, Source: metrics.SourceCounters}, fault)
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
func (w *watcher) publish(seen *monitor.Contention, concluded contention.Result, judged health.Verdicts, all, up bool) {
	for _, transition := range judged.Transitions {
		w.counts[metrics.Move{GPUUUID: transition.UUID, Kind: transition.Kind}]++
		if transition.Kind == health.TransitionContended || transition.Kind == health.TransitionRecovered {
			w.changes[transition.UUID] = contentionChange{w.wall(), transition.Kind == health.TransitionContended, transition.Evidence}
		}
	}
	before := w.last.Load()
	if all {
		w.measureRates(seen)
	} else {
		seen = mergeLooks(before.seen, seen)
		up = up && before.up
	}
	w.last.Store(&watched{seen: seen, concluded: concluded, health: judged, moved: maps.Clone(w.counts),
		changes: maps.Clone(w.changes), rates: maps.Clone(w.rates), looks: w.looks, up: up})
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

// view is the last look, for the metrics. A nil watcher does not look.
func (w *watcher) view() metrics.Contention {
	if w == nil {
		return metrics.Contention{}
	}
	return w.viewOf(w.last.Load())
}

// viewOf is what metrics tell of a look.
func (w *watcher) viewOf(last *watched) metrics.Contention {
	return metrics.Contention{On: true, Seen: last.seen, Concluded: last.concluded, Health: last.health, Moved: last.moved,
		Looks: last.looks, Counters: w.devices != nil, Up: last.up}
}

// verdicts are what the tick is told: the last look's, or before the first one those of an earlier agent.
func (w *watcher) verdicts() []health.Verdict { return w.last.Load().health.GPUs }

// cuts are what steering is told.
func (w *watcher) cuts() []steering.Cut { return w.last.Load().health.Cuts }

// restore takes the verdicts of an earlier agent over. They stand until there is a look.
func (w *watcher) restore() {
	now := w.now()
	state, err := w.record.Read(now)
	w.noted.Change(w.log, notes.Subject{Stage: notes.StageRecall}, err)
	w.verdict = state
	judged, _ := health.Judge(contention.Result{}, w.health, state, now)
	w.last.Store(&watched{seen: &monitor.Contention{}, health: judged})
}

// keep writes the verdicts down.
func (w *watcher) keep(moved bool) {
	w.noted.Change(w.log, notes.Subject{Stage: notes.StageRemember}, w.record.Keep(w.verdict, w.now(), moved))
}
