// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// A card with tenants for the tests of Judge: what each does is prescribed, and the counters follow from it.

package contention

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

const ms = time.Millisecond

// scaled is a time times a factor.
func scaled(d time.Duration, factor float64) time.Duration { return time.Duration(float64(d) * factor) }

// PlayForgedLink plays, for tests from outside, a link that is a tenth in use: the victim copies undisturbed, and the forger says
// that it copied so many times what it did, that each of its copies took ten times as long, and that it stalled all the time.
func PlayForgedLink(t *testing.T, times uint64, span time.Duration, seen func(now time.Duration, concluded Result)) {
	t.Helper()
	victim, forger := copier("victim", 0.05, nil), copier("forger", 0.05, nil)
	forger.forge = forgeLink(times, time.Hour+5*time.Minute)
	s := newScene(t, 1, victim, forger)
	s.run(span, func() { seen(s.now, s.result) })
}

// forgeLink forges from a time on.
func forgeLink(times uint64, from time.Duration) func(time.Duration, *monitor.Stream) {
	var honest, claimed monitor.Stream // at the look before
	return func(now time.Duration, stream *monitor.Stream) {
		real := *stream
		real.Classes = slices.Clone(stream.Classes)
		if now > from {
			copied := &stream.Copies[monitor.HostToDevice].Bytes
			*copied = claimed.Copies[monitor.HostToDevice].Bytes + times*(*copied-honest.Copies[monitor.HostToDevice].Bytes)
			stream.Stalls.Time = claimed.Stalls.Time + time.Second
			for i := range stream.Classes {
				class := &stream.Classes[i]
				class.Time = claimed.Classes[i].Time + 10*(class.Time-honest.Classes[i].Time)
				class.Recent = slices.Clone(class.Recent)
				for j := range class.Recent {
					class.Recent[j] *= 10
				}
			}
		}
		honest, claimed = real, *stream
		claimed.Classes = slices.Clone(stream.Classes)
	}
}

// work is one kind of operation that an actor does over and over.
type work struct {
	kind   monitor.OperationKind
	takes  time.Duration // alone
	share  float64       // part of the time that it is under way, as long as nothing slows it
	bytes  uint64        // of one copy
	jitter float64       // standard deviation, of takes
	slower func(now time.Duration) float64
	every  uint64 // one in so many is sampled

	id                         uint64
	operations, samples, moved uint64
	time                       time.Duration
	recent                     []time.Duration
	rest                       float64 // of an operation
}

// actor is one allocation on the card.
type actor struct {
	key     string
	works   []*work
	active  func(now time.Duration) float64 // part of the time that it works; nil: always
	dram    float64                         // of the peak, while its kernels run
	noBook  bool
	unread  func(now time.Duration) bool
	forge   func(now time.Duration, stream *monitor.Stream)
	started time.Duration
	copies  [monitor.Directions]uint64
	charged time.Duration
	waited  time.Duration
	stalls  time.Duration
	waits   float64 // part of the time that its launches wait for its share

	turns   *rand.Rand // samples hold others' turns now and then; nil: never
	squeeze float64    // by how much DRAM that is used up slows its kernels
	used    float64    // of the DRAM's peak, exactly, in the last step
	did     float64    // of the card's time
}

// scene is a card and its actors.
type scene struct {
	t       *testing.T
	random  *rand.Rand
	now     time.Duration
	actors  []*actor
	sharing monitor.Sharing
	change  func(now time.Duration, device *monitor.Device)
	foreign [4]float64 // traffic of nobody: DRAM, RX, TX; and of the card's time
	noise   float64    // of counters, relative
	lag     time.Duration
	reach   float64 // what DRAM can do, of its peak; 0: no bound, what the test prescribes is what happens
	perByte float64 // part of the DRAM's peak per byte per second that is copied within the card, read and written
	noGPM   bool
	policy  Policy
	state   State
	result  Result
	past    []monitor.Device
	every   time.Duration // between looks; 0: what Judge asks for
	truth   map[string]float64
}

func newScene(t *testing.T, seed int64, actors ...*actor) *scene {
	t.Helper()
	slices.SortFunc(actors, func(a, b *actor) int { return strings.Compare(a.key, b.key) })
	id := uint64(0)
	for _, a := range actors {
		for _, w := range a.works {
			id++
			w.id = id
			w.every = max(w.every, 1)
		}
	}
	return &scene{t: t, random: rand.New(rand.NewSource(seed)), now: time.Hour, actors: actors, sharing: monitor.SharingMPS,
		policy: DefaultPolicy(), every: time.Second, truth: map[string]float64{}}
}

// run lets time pass, and calls seen after each look.
func (s *scene) run(span time.Duration, seen func()) {
	s.t.Helper()
	for end := s.now + span; s.now < end; {
		step := s.every
		if step == 0 {
			step = max(s.result.Next, 50*ms)
		}
		s.step(step)
		if seen != nil {
			seen()
		}
	}
}

// step lets one look pass.
func (s *scene) step(passed time.Duration) {
	s.t.Helper()
	s.now += passed
	device := monitor.Device{GPUUUID: "GPU-a", At: s.now, Sharing: s.sharing, SMClockMHz: 1980, SMClockMaxMHz: 1980,
		MemoryClockMHz: 2619, MemoryClockMaxMHz: 2619, LinkGeneration: 4, LinkGenerationMax: 4, LinkWidth: 16, LinkWidthMax: 16}
	dram, busy := s.foreign[0], s.foreign[3]
	rx, tx := s.foreign[1]+20e6, s.foreign[2]+20e6
	seen := &monitor.Contention{Now: s.now}
	s.squeeze()
	for _, a := range s.actors {
		before := a.copies
		a.act(s.now, passed, s.random)
		a.used += s.perByte * float64(a.copies[monitor.DeviceToDevice]-before[monitor.DeviceToDevice]) / passed.Seconds()
		dram += a.used
		s.truth[a.key] = fade(s.truth[a.key], a.used, passed, shareOver)
		busy += a.did
		rx += float64(a.copies[monitor.HostToDevice]-before[monitor.HostToDevice]) / passed.Seconds()
		tx += float64(a.copies[monitor.DeviceToHost]-before[monitor.DeviceToHost]) / passed.Seconds()
		stream := a.stream()
		if a.unread != nil && a.unread(s.now) {
			stream = monitor.Stream{}
			stream.Key = a.key
		}
		stream.GPUUUID = "GPU-a"
		if a.forge != nil {
			a.forge(s.now, &stream)
		}
		seen.Streams = append(seen.Streams, stream)
	}
	figure := func(value, most float64) monitor.Figure {
		value *= 1 + s.noise*s.random.NormFloat64()
		return monitor.Figure{Value: min(max(value, 0), most), Period: passed, Known: true}
	}
	device.Busy, device.PCIeRX, device.PCIeTX = figure(busy, 1), figure(rx, 1e15), figure(tx, 1e15)
	if !s.noGPM {
		device.DRAM = figure(dram, 1)
	}
	s.past = append(s.past, device)
	device = s.late(device)
	if s.change != nil {
		s.change(s.now, &device)
	}
	seen.Devices = []monitor.Device{device}
	s.result, s.state = Judge(seen, s.policy, s.state)
}

// squeeze slows kernels where they want more of DRAM together than it can do.
func (s *scene) squeeze() {
	wanted := s.foreign[0]
	for _, a := range s.actors {
		a.squeeze = 1
		part := 1.0
		if a.active != nil {
			part = a.active(s.now)
		}
		for _, w := range a.works {
			if w.kind == monitor.OperationKernel {
				wanted += a.dram * w.share * part
			}
		}
	}
	if s.reach > 0 && wanted > s.reach {
		for _, a := range s.actors { // a kernel that uses little of it waits little for it
			a.squeeze = 1 + (wanted/s.reach-1)*min(1, 1.5*a.dram)
		}
	}
}

// late gives the counters that the card shows: those of a while ago.
func (s *scene) late(device monitor.Device) monitor.Device {
	for _, old := range s.past {
		if old.At >= s.now-s.lag {
			device.DRAM, device.PCIeRX, device.PCIeTX = old.DRAM, old.PCIeRX, old.PCIeTX
			break
		}
	}
	if len(s.past) > 64 {
		s.past = slices.Clone(s.past[32:])
	}
	return device
}

// act does an actor's work for some time.
func (a *actor) act(now, passed time.Duration, random *rand.Rand) {
	part := 1.0
	if a.active != nil {
		part = a.active(now)
	}
	a.used, a.did = 0, 0
	for _, w := range a.works {
		slower := 1.0
		if w.slower != nil {
			slower = w.slower(now)
		}
		if w.kind == monitor.OperationKernel && a.squeeze > 0 {
			slower *= a.squeeze
		}
		under := min(w.share*slower, 1) * part // of the time
		exact := under*float64(passed)/(float64(w.takes)*slower) + w.rest
		count := uint64(exact)
		w.rest = exact - float64(count)
		w.operations += count
		a.copy(w, count)
		if w.kind == monitor.OperationKernel || w.kind == monitor.OperationGraph {
			a.did += under
			a.used += a.dram * under / slower
			a.charged += scaled(passed, under)
		}
		for w.samples < w.operations/w.every {
			w.samples++
			d := time.Duration(float64(w.takes) * slower * max(0.5, 1+w.jitter*random.NormFloat64()))
			if a.turns != nil { // a turn of each of two others for each of its own, of 2 ms
				for left := float64(d)/float64(2*ms) + a.turns.Float64(); left >= 1; left-- {
					d += time.Duration(2+a.turns.Intn(3)) * ms
				}
			}
			w.time += d
			w.recent = append(w.recent, d)
			w.moved += w.bytes
		}
		if len(w.recent) > 22 {
			w.recent = slices.Clone(w.recent[len(w.recent)-22:])
		}
	}
	a.waited += scaled(passed, a.waits)
	a.stalls += scaled(passed, a.waits)
}

// copy counts copies.
func (a *actor) copy(w *work, count uint64) {
	switch w.kind {
	case monitor.OperationHostToDevice:
		a.copies[monitor.HostToDevice] += count * w.bytes
	case monitor.OperationDeviceToHost:
		a.copies[monitor.DeviceToHost] += count * w.bytes
	case monitor.OperationDeviceCopy:
		a.copies[monitor.DeviceToDevice] += count * w.bytes
	}
}

// stream is what the actor's page says.
func (a *actor) stream() monitor.Stream {
	stream := monitor.Stream{Share: 0.3, Charged: a.charged, Waited: a.waited, Started: a.started}
	if a.noBook {
		stream.Share, stream.Charged = 0, 0
	}
	stream.Key, stream.Known = a.key, true
	for i, bytes := range a.copies {
		stream.Copies[i].Bytes = bytes
	}
	stream.Stalls.Time = a.stalls
	for _, w := range a.works {
		stream.Classes = append(stream.Classes, monitor.Class{ID: w.id, Kind: w.kind, Samples: w.samples,
			Operations: w.samples * w.every, Bytes: w.moved, Time: w.time, Recent: slices.Clone(w.recent)})
	}
	return stream
}

// slice is what was concluded of an actor.
func (s *scene) slice(key string) Slice {
	s.t.Helper()
	for _, found := range s.result.Slices {
		if found.Key == key {
			return found
		}
	}
	return Slice{}
}

// strain is the evidence that an actor is slowed.
func (s *scene) strain(key string, on Resource) Strain {
	s.t.Helper()
	for _, made := range s.slice(key).Strain {
		if made.Resource == on {
			return made
		}
	}
	return Strain{}
}

// gpu is what was concluded of the card.
func (s *scene) gpu() GPU {
	if len(s.result.GPUs) == 0 {
		return GPU{}
	}
	return s.result.GPUs[0]
}

// between is a factor that holds for some time after the scene's begin.
func between(from, to time.Duration, factor float64) func(time.Duration) float64 {
	return func(now time.Duration) float64 {
		if now -= time.Hour; now >= from && now < to {
			return factor
		}
		return 1
	}
}

// during is a part of the time in which an actor works, for some time after the scene's begin.
func during(from, to time.Duration, part float64) func(time.Duration) float64 {
	return func(now time.Duration) float64 {
		if now -= time.Hour; now >= from && now < to {
			return part
		}
		return 0
	}
}

func (s Strain) String() string {
	return fmt.Sprintf("%s 10=%.3f 60=%.3f saturated=%t coactive=%t ratio=%.2f by=%q confidence=%.2f samples=%d excluded=%q", s.Resource,
		s.Avg10, s.Avg60, s.Saturated, s.CoActive, s.DeviceRatio, s.Antagonist, s.Confidence, s.Samples, s.Excluded)
}
