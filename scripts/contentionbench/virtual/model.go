// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package virtual

import (
	"slices"
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/scripts/contentionbench/scene"
)

const (
	// UUID is of the model's card.
	UUID = "GPU-00000000-0000-4000-8000-000000000001"

	// Begun is what CLOCK_MONOTONIC shows when a scene begins.
	Begun = time.Hour

	shortWindow  = 20 * time.Millisecond  // of PCIe throughput without GPM
	leastPeriod  = 100 * time.Millisecond // of GPM
	floorRate    = 20e6                   // bytes per second that the link shows without any copy
	floorVaries  = 0.15
	deviceVaries = 0.01
	sleepsAfter  = 100 * time.Millisecond // without copies, of a link that saves power
	clockMHz     = 1980
	memoryMHz    = 2619
	generation   = 4
	lanes        = 16
)

// Model is a card with its tenants in virtual time.
type Model struct {
	world  *world
	before reading // the counters as they were last read
}

// reading is the counters at a time.
type reading struct {
	at     time.Duration
	meters meters
}

// New returns the scene at its begin.
func New(s scene.Scene) *Model { return &Model{world: newWorld(s)} }

// Key is the name of a tenant's allocation.
func Key(t scene.Tenant) string { return "pod-" + t.Name + "/c" }

// Truth is what the tenant really had and lost until now.
func (m *Model) Truth(tenant int) Truth { return m.world.tenants[tenant].truth }

// Now is how much of the scene has passed.
func (m *Model) Now() time.Duration { return m.world.now }

// Look lets time pass to `at`, and returns what sources say then. It must not go back. A quick look has no more than what
// changes quickly.
func (m *Model) Look(at time.Duration, quick bool) *monitor.Contention {
	seen := &monitor.Contention{Now: Begun + at}
	w := m.world
	end := max(w.now, at-w.scene.Card.Lag)
	w.advance(max(w.now, end-shortWindow))
	short := reading{w.now, w.meters}
	w.advance(end)
	seen.Devices = []monitor.Device{m.device(short, quick)}
	w.advance(at)
	for _, t := range w.tenants {
		if at < t.From || at >= t.Until || t.Unnamed {
			continue
		}
		s := monitor.Stream{Traffic: t.library.traffic(Key(t.Tenant), UUID), Share: float64(t.Share) / 100,
			Charged: time.Duration(t.library.charged), Waited: t.library.waited, Started: Begun + t.library.started}
		if t.Free {
			s.Charged, s.Waited = 0, 0
		}
		seen.Streams = append(seen.Streams, s)
	}
	slices.SortFunc(seen.Streams, func(a, b monitor.Stream) int { return strings.Compare(a.Key, b.Key) })
	return seen
}

// device is what the driver shows of the card.
func (m *Model) device(short reading, quick bool) monitor.Device {
	w := m.world
	now := reading{w.now, w.meters}
	period := now.at - m.before.at
	known := !w.scene.Card.NoGPM && period >= leastPeriod
	mean := func(of func(meters) float64, from reading, noise float64) source.Figure {
		if now.at <= from.at {
			return source.Figure{}
		}
		value := (of(now.meters) - of(from.meters)) / float64(now.at-from.at)
		return source.Figure{Value: max(0, value*(1+noise*w.random.NormFloat64())), Period: now.at - from.at, Known: true}
	}
	d := monitor.Device{GPUUUID: UUID, At: Begun + w.now,
		Busy:   mean(func(x meters) float64 { return x.busy }, m.before, 0),
		PCIeRX: m.link(mean, RX, short, known), PCIeTX: m.link(mean, TX, short, known)}
	if known {
		d.DRAM = mean(func(x meters) float64 { return x.dram }, m.before, deviceVaries)
		d.DRAM.Value = min(1, d.DRAM.Value)
	}
	if known || w.scene.Card.NoGPM {
		m.before = now
	}
	if quick {
		return d
	}
	d.MemoryBusy = mean(func(x meters) float64 { return x.memory }, short, 0)
	d.SMClockMHz, d.SMClockMaxMHz = uint32(clockMHz*w.clock), clockMHz
	d.MemoryClockMHz, d.MemoryClockMaxMHz = uint32(memoryMHz*w.memory), memoryMHz
	if (w.clock < 1 || w.memory < 1) && !w.cause.Silent {
		d.Throttle = source.ThrottlePower
		if w.cause.Setting {
			d.Throttle = source.ThrottleSetting
		}
	}
	d.LinkGeneration, d.LinkGenerationMax = generation, generation
	d.LinkWidth, d.LinkWidthMax = uint32(lanes*w.link), lanes
	if w.scene.Card.Sleeps && w.now-w.copied > sleepsAfter {
		d.LinkGeneration = 1
	}
	d.Sharing = source.SharingTimeSliced
	if w.scene.Card.Sharing == scene.MPS {
		d.Sharing = source.SharingMPS
	}
	return d
}

// link is the link's throughput in bytes per second: over the whole period with GPM, else over the last 20 ms.
func (m *Model) link(mean func(func(meters) float64, reading, float64) source.Figure, at Resource, short reading, long bool) source.Figure {
	from := short
	if long {
		from = m.before
	}
	f := mean(func(x meters) float64 { return x.copied[at] }, from, deviceVaries)
	f.Value = f.Value*1e9 + floorRate*(1+floorVaries*(2*m.world.random.Float64()-1))
	return f
}
