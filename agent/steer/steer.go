// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package steer steers GPU time: many times a second it reads the compute books of all allocations, lets steering.Steer
// judge, and writes the rates into the limits pages. One goroutine beside the tick; it never waits for the driver, whose
// samples the sampler brings, nor for the kubelet. The lines in the pages go on without it: at its start it takes over
// what they say, and after its end every share holds.
//
// sampler.go asks the driver, on a goroutine of its own.
package steer

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/vgpud/vgpud/agent/decide/steering"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/notes"
	"github.com/vgpud/vgpud/agent/store"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// Times of the loop. The library takes an agent for gone when the heartbeat has not changed for two seconds.
const (
	beatEvery  = 200 * time.Millisecond
	retryEvery = time.Second // pages that could not be opened
	// restsAfter is how long nobody must have wanted GPU time until rounds become glances, one system call for all
	// allocations: nothing has to be decided as long as nothing in the books changes, and the driver tells of no use.
	// fullEvery is how often everything is decided anew all the same. After sleepsAfter there is a glance with each
	// heartbeat, and all is decided anew every fullSeldom: who wants his share has it without us; what he is lent beyond
	// comes so much later.
	restsAfter  = time.Second
	fullEvery   = time.Second
	sleepsAfter = 10 * time.Second
	fullSeldom  = 5 * time.Second
	// verifyEvery is how often it is looked whether usage pages are still those that are open.
	verifyEvery = time.Second
	// unmeasuredAfter is for how long the driver may tell nothing of a GPU before that is said.
	unmeasuredAfter = 10 * time.Second
	// Bounds of the pause that steering.Steer asks for: the heartbeat is due in between.
	shortestRest, longestRest = time.Millisecond, beatEvery
)

// Loop steers the allocations of the books. One goroutine runs it; only View is for others.
type Loop struct {
	log     *slog.Logger
	books   *ledger.Ledger
	pages   *store.Pages
	samples *Sampler // nil: nothing measures
	policy  steering.Policy
	state   steering.State
	now     func() time.Duration  // CLOCK_MONOTONIC
	cuts    func() []steering.Cut // in force for a while; nil: nobody cuts

	handles    []*limiter.Steering // those that tenants have open
	heads      limiter.Heads
	tenants    map[string]*tenant       // by key: the committed allocations whose GPU time is limited; nil: never looked
	revision   uint64                   // of the books, when tenants was made
	made       uint64                   // pages made by then
	retryAt    time.Duration            // when to try again what could not be opened; 0: nothing
	beatAt     time.Duration            // when the next heartbeat is due
	unmeasured map[string]time.Duration // since when, by GPU
	wantedAt   time.Duration            // when GPU time was last wanted, or the loop began
	fullAt     time.Duration            // when everything is to be decided again
	verifyAt   time.Duration            // when to look again whether usage pages were replaced
	noted      notes.Notes

	mu   sync.Mutex
	last View
}

// tenant is an allocation that is steered. handle is nil while its pages cannot be opened.
type tenant struct {
	record   ledger.Record
	handle   *limiter.Steering
	identity store.Identity   // of the limits page that handle has open
	granted  []limiter.Device // of that page, as of the last heartbeat; which devices there are does not change
	devices  map[string]int   // index in granted, by GPU
}

// New makes the loop on the books and on the pages that were made for them; it looks at nothing yet. A nil sampler measures
// nothing.
func New(books *ledger.Ledger, made *store.Pages, samples *Sampler, log *slog.Logger) *Loop {
	return &Loop{log: log.With("component", "steer"), books: books, pages: made, samples: samples, policy: steering.DefaultPolicy(),
		now: limiter.MonotonicNow, unmeasured: map[string]time.Duration{}}
}

// IsSteered says whether anything of an allocation's GPU time is limited.
func IsSteered(record ledger.Record) bool {
	return slices.ContainsFunc(record.Grants, func(grant ledger.Grant) bool { return grant.Compute.Mode != ledger.ComputeNone })
}

// CutBy lets cuts say, before each round, which allocations have less for a while. Before Run.
func (s *Loop) CutBy(cuts func() []steering.Cut) { s.cuts = cuts }

// Run steers until ctx ends.
func (s *Loop) Run(ctx context.Context) error {
	defer s.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		timer.Reset(s.round())
	}
}

// round looks and acts once, and returns when to look again.
func (s *Loop) round() time.Duration {
	now := s.now()
	followed := s.follow(now)
	s.heads.Read(s.handles)
	if !followed && s.rests(now) {
		s.beat(now, false)
		if s.sleeps(now) {
			return longestRest
		}
		return min(s.policy.Rest, longestRest)
	}
	s.fullAt = now + fullEvery
	if s.sleeps(now) {
		s.fullAt = now + fullSeldom
	}
	s.verify(now)
	samples, keys, sampleErr := s.samples.take()
	var books []monitor.Tenant
	for key, tenant := range s.tenants {
		if tenant.handle != nil {
			books = append(books, tenant.read(key, now)...)
		}
	}
	seen := monitor.CollectCompute(now, books, samples, keys)
	if s.cuts != nil {
		s.policy.Cuts = s.cuts()
	}
	result, state := steering.Steer(seen, s.policy, s.state)
	s.state = state
	s.publish(result.Rates, now)
	s.report(result, sampleErr, now)
	s.samples.hurry(result.Next < s.policy.Rest)
	if result.Next < s.policy.Rest || s.wantedAt == 0 || s.wantedAt > now {
		s.wantedAt = now
	}
	s.mu.Lock()
	s.last = View{Seen: seen, Verdicts: result.Verdicts, Rounds: s.last.Rounds + 1,
		Sampled: s.samples != nil, SampleUp: sampleErr == nil}
	s.mu.Unlock()
	return min(max(result.Next, shortestRest), longestRest)
}

// rests says that nothing has happened since the last round, and nothing for some time before it. What is lent stays as long,
// and is called in by the round that follows the first change.
func (s *Loop) rests(now time.Duration) bool {
	if s.idle(now) < restsAfter || now >= s.fullAt || now+fullSeldom < s.fullAt || s.samples.hasNews() {
		return false
	}
	for _, tenant := range s.tenants {
		if tenant.handle == nil || tenant.handle.Stirred() {
			return false
		}
	}
	return true
}

// idle is for how long nobody has wanted GPU time; negative where the clock was set back.
func (s *Loop) idle(now time.Duration) time.Duration { return now - s.wantedAt }

// sleeps says that nobody has wanted GPU time for so long that a glance with each heartbeat will do.
func (s *Loop) sleeps(now time.Duration) bool { return s.wantedAt > 0 && s.idle(now) >= sleepsAfter }

// verify lets go of usage pages that were replaced, when it is time to look.
func (s *Loop) verify(now time.Duration) {
	if now < s.verifyAt && now+verifyEvery >= s.verifyAt {
		return
	}
	s.verifyAt = now + verifyEvery
	for _, handle := range s.handles {
		handle.Verify()
	}
}

// View is the last round of steering GPU time, as it is shown. The zero value: there was none.
type View struct {
	Seen     *monitor.Compute // nil: there was none
	Verdicts []steering.Verdict
	Rounds   uint64 // since the agent started
	Sampled  bool   // this agent has a source of samples
	SampleUp bool   // which answered the last time
}

// View is the last round.
func (s *Loop) View() View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// follow opens the pages of new allocations and of those whose pages were made anew, and lets go of those that were
// released. It says whether there was anything to do.
func (s *Loop) follow(now time.Duration) bool {
	revision, made := s.books.Revision(), s.pages.Made()
	if s.tenants != nil && revision == s.revision && made == s.made && (s.retryAt == 0 || now < s.retryAt) {
		return false
	}
	if s.tenants == nil {
		s.tenants = map[string]*tenant{}
	}
	s.revision, s.made, s.retryAt = revision, made, 0
	held := map[string]bool{}
	for _, record := range s.books.Snapshot() {
		if !IsSteered(record) {
			continue
		}
		held[record.Key] = true
		if s.tenants[record.Key] == nil {
			s.tenants[record.Key] = &tenant{}
		}
		s.tenants[record.Key].record = record
		err := s.open(s.tenants[record.Key])
		if err != nil {
			s.retryAt = now + retryEvery
		}
		s.noted.Change(s.log, notes.Subject{Stage: notes.StageSteer, Allocation: record.Key}, err)
	}
	for key, tenant := range s.tenants {
		if !held[key] {
			tenant.close()
			delete(s.tenants, key)
		}
	}
	s.handles = s.handles[:0]
	for _, tenant := range s.tenants {
		if tenant.handle != nil {
			s.handles = append(s.handles, tenant.handle)
		}
	}
	s.noted.Keep(func(key string) bool { return held[key] })
	return true
}

// open sees to it that the handle is of the pages that are there now.
func (s *Loop) open(t *tenant) error {
	directory := store.Directory(t.record)
	identity, err := store.Identify(filepath.Join(directory, limiter.LimitsFile))
	if err == nil && t.handle != nil && identity == t.identity {
		return nil
	}
	t.close()
	if err != nil {
		return err
	}
	handle, err := limiter.OpenSteering(directory)
	if err != nil {
		return err
	}
	t.handle, t.identity, t.granted, t.devices = handle, identity, handle.Limits().Devices, map[string]int{}
	for i, device := range t.granted {
		t.devices[device.UUID] = i
	}
	handle.Beat()
	return nil
}

// read is what the pages say. Where the usage page cannot be read, the tick tells why and mends it.
func (t *tenant) read(key string, now time.Duration) []monitor.Tenant {
	meters, err := t.handle.Meter(now)
	var books []monitor.Tenant
	for i, device := range t.granted {
		rate := t.handle.Rate(i)
		book := monitor.Tenant{Key: key, GPUUUID: device.UUID, Mode: monitor.ComputeMode(device.Compute.Mode), SharePPM: device.Compute.SharePPM,
			CeilingPPM: device.Compute.CeilingPPM, RatePPM: rate.PPM, ScalePPM: rate.ScalePPM, Known: err == nil}
		if err == nil {
			meter := meters[i]
			book.Debt, book.Charged, book.Wanted, book.Waited = meter.Debt, meter.Charged, meter.Wanted, meter.Waited
			book.Throttled, book.Degraded, book.Launches = meter.Throttled, meter.Degraded, meter.Launches
		}
		books = append(books, book)
	}
	return books
}

func (t *tenant) close() {
	if t.handle != nil {
		_ = t.handle.Close() // what it published stays in force
		t.handle = nil
	}
}

func (s *Loop) close() {
	for _, tenant := range s.tenants {
		tenant.close()
	}
}

// publish writes the rates, and the heartbeat when it is due.
func (s *Loop) publish(rates []steering.Rate, now time.Duration) {
	faults := map[string]error{}
	for _, rate := range rates {
		tenant := s.tenants[rate.Key]
		device, known := tenant.devices[rate.GPUUUID]
		if !known {
			continue
		}
		err := tenant.handle.Publish(device, limiter.Rate{PPM: rate.PPM, ScalePPM: rate.ScalePPM, Alone: rate.Alone}, now)
		faults[rate.Key] = errors.Join(faults[rate.Key], err)
	}
	for key, fault := range faults {
		s.noted.Change(s.log, notes.Subject{Stage: notes.StageRate, Allocation: key}, fault)
	}
	s.beat(now, true)
}

// beat writes the heartbeat when it is due; then, unless all rest, it also looks whether shares were changed, which costs too
// much for every round.
func (s *Loop) beat(now time.Duration, look bool) {
	if now < s.beatAt {
		return
	}
	s.beatAt = now + beatEvery
	for _, tenant := range s.tenants {
		if tenant.handle != nil {
			tenant.handle.Beat()
			if look {
				tenant.granted = tenant.handle.Limits().Devices
			}
		}
	}
}

// report logs what an operator or a user acts on, once when it begins and once when it is over.
func (s *Loop) report(result steering.Result, sampleErr error, now time.Duration) {
	s.noted.Change(s.log, notes.Subject{Stage: notes.StageObserve, Source: monitor.SourceUtilization}, sampleErr)
	for _, verdict := range result.Verdicts {
		record := s.tenants[verdict.Key].record
		about := func(stage string) notes.Subject {
			return notes.Subject{Stage: stage, Allocation: verdict.Key, GPU: verdict.GPUUUID}
		}
		details := func() []any { return evidence(record, verdict) }
		s.noted.Turn(s.log, about(notes.StageOverShare), verdict.OverShare, details)
		s.noted.Turn(s.log, about(notes.StageHeld), verdict.Held, details)
	}
	s.reportUnmeasured(result.Verdicts, now)
}

// reportUnmeasured says of which GPUs the driver tells nothing.
func (s *Loop) reportUnmeasured(verdicts []steering.Verdict, now time.Duration) {
	measured := map[string]bool{}
	for _, verdict := range verdicts {
		measured[verdict.GPUUUID] = measured[verdict.GPUUUID] || verdict.UsedKnown
	}
	for uuid := range s.unmeasured {
		if known, steered := measured[uuid]; known || !steered {
			delete(s.unmeasured, uuid)
			s.noted.Turn(s.log, notes.Subject{Stage: notes.StageMeasure, GPU: uuid}, false, nil)
		}
	}
	for uuid, known := range measured {
		if known {
			continue
		}
		if _, before := s.unmeasured[uuid]; !before {
			s.unmeasured[uuid] = now
		}
		s.noted.Turn(s.log, notes.Subject{Stage: notes.StageMeasure, GPU: uuid}, now-s.unmeasured[uuid] >= unmeasuredAfter, nil)
	}
}

// evidence is what a message about a verdict holds beside its subject. Parts of the GPU are in percent.
func evidence(record ledger.Record, verdict steering.Verdict) []any {
	percent := func(part float64) float64 { return math.Round(part*1000) / 10 }
	var attributes []any
	if pod := record.Pod; pod != nil {
		attributes = append(attributes, "namespace", pod.Namespace, "pod", pod.Pod, "container", pod.Container)
	}
	attributes = append(attributes, "granted_percent", percent(verdict.Granted), "rate_percent", percent(verdict.Rate))
	if verdict.UsedKnown {
		attributes = append(attributes, "used_percent", percent(verdict.Used))
	}
	if verdict.Reason != "" {
		attributes = append(attributes, "reason", verdict.Reason)
	}
	return attributes
}
