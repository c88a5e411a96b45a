// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package virtual

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/scripts/contentionbench/scene"
)

const mib = 1 << 20

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.Abs(got-want) > within || math.IsNaN(got) {
		t.Errorf("%s is %v, want %v within %v", what, got, want, within)
	}
}

func copies(name string, processes int) scene.Tenant {
	return scene.Tenant{Name: name, Processes: processes, Loops: []scene.Loop{{
		Operations: []scene.Operation{{Kind: scene.HostToDevice, Bytes: 64 * mib}}}}}
}

func kernels(name string, work time.Duration, dram, bound float64) scene.Tenant {
	return scene.Tenant{Name: name, Loops: []scene.Loop{{Operations: []scene.Operation{
		{Kind: scene.Kernel, Work: work, DRAM: dram, Bound: bound, Fills: 0.4}}}}}
}

// run looks once a second, and returns the last two looks.
func run(m *Model, seconds int) (before, last *monitor.Contention) {
	for i := range seconds {
		before, last = last, m.Look(time.Duration(i+1)*time.Second, false)
	}
	return before, last
}

func stalled(m *Model, tenant int, at Resource) float64 {
	return float64(m.Truth(tenant).Stalled[at]) / float64(m.Now())
}

// TestLinkIsShared: of two that copy without end each loses half, and three processes of the one leave the other a quarter.
func TestLinkIsShared(t *testing.T) {
	m := New(scene.Scene{Length: time.Minute, Tenants: []scene.Tenant{copies("a", 1), copies("b", 1)}})
	before, last := run(m, 10)
	near(t, "a loses", stalled(m, 0, RX), 0.5, 0.01)
	near(t, "the link carries", last.Devices[0].PCIeRX.Value, 25e9, 1e9)
	for i, s := range last.Streams {
		bytes := s.Copies[source.HostToDevice].Bytes - before.Streams[i].Copies[source.HostToDevice].Bytes
		near(t, "bytes in a second by "+s.Key, float64(bytes), 12.5e9, 0.3e9)
		c := s.Classes[0]
		near(t, "mean duration of "+s.Key, float64(c.Time)/float64(c.Samples), 2*64*mib/25.0, 0.1*2*64*mib/25)
		if len(c.Recent) != mostRecent || c.Operations != c.Samples {
			t.Errorf("%s: %d recent samples, %d operations of %d samples", s.Key, len(c.Recent), c.Operations, c.Samples)
		}
	}
	m = New(scene.Scene{Length: time.Minute, Tenants: []scene.Tenant{copies("a", 1), copies("b", 3)}})
	run(m, 10)
	near(t, "a loses to three processes", stalled(m, 0, RX), 0.75, 0.01)
	near(t, "what b loses to a alone", stalled(m, 1, RX), 0.25, 0.01)

	streams := copies("a", 1)
	streams.Loops[0].Streams = 4
	m = New(scene.Scene{Length: time.Minute, Tenants: []scene.Tenant{streams, copies("b", 1)}})
	_, last = run(m, 10)
	near(t, "b loses to four streams of a process", stalled(m, 1, RX), 0.5, 0.01)
	c := last.Streams[0].Classes[0]
	near(t, "mean duration of one of four", float64(c.Time)/float64(c.Samples), 8*64*mib/25.0, 0.8*64*mib/25)
}

// TestTimeSlices: kernels of two tenants take turns, which is no loss of memory bandwidth, and marks hold others' slices.
func TestTimeSlices(t *testing.T) {
	m := New(scene.Scene{Length: time.Minute, Tenants: []scene.Tenant{kernels("a", 10*time.Millisecond, 0.8, 1), kernels("b", 10*time.Millisecond, 0.8, 1)}})
	_, last := run(m, 10)
	near(t, "a loses of DRAM", stalled(m, 0, DRAM), 0, 0)
	near(t, "a used of DRAM", m.Truth(0).Used[DRAM]/float64(m.Now()), 0.4, 0.01)
	near(t, "the card shows of DRAM", last.Devices[0].DRAM.Value, 0.8, 0.03)
	c := last.Streams[0].Classes[0]
	near(t, "mean duration in ms", (c.Time/time.Duration(c.Samples)).Seconds()*1e3, 19, 1.2)
	near(t, "charged", last.Streams[0].Charged.Seconds(), 5, 0.3)
	near(t, "operations of a sample", float64(c.Operations)/float64(c.Samples), kernelsEvery, 0)
}

// TestOverlap: under MPS two that want 1.6 times the memory take that much longer, as far as they wait for it.
func TestOverlap(t *testing.T) {
	m := New(scene.Scene{Length: time.Minute, Card: scene.Card{Sharing: scene.MPS},
		Tenants: []scene.Tenant{kernels("a", 2*time.Millisecond, 0.8, 1), kernels("b", 2*time.Millisecond, 0.8, 0)}})
	_, last := run(m, 10)
	near(t, "the bound one loses", stalled(m, 0, DRAM), 1-(0.92-0.8)/0.8, 0.02)
	near(t, "the other one loses", stalled(m, 1, DRAM), 0, 0)
	if got := last.Devices[0].Sharing; got != source.SharingMPS {
		t.Errorf("sharing is %q", got)
	}
}

// TestShareIsHeld: a tenant with a share waits before its launches, not in its kernels.
func TestShareIsHeld(t *testing.T) {
	capped := kernels("a", 2*time.Millisecond, 0, 0)
	capped.Share, capped.Loops[0].Operations[0].Fills = 30, 1
	m := New(scene.Scene{Length: time.Minute, Tenants: []scene.Tenant{capped}})
	_, last := run(m, 10)
	near(t, "busy", last.Devices[0].Busy.Value, 0.3, 0.02)
	near(t, "waited", last.Streams[0].Waited.Seconds(), 7, 0.2)
	c := last.Streams[0].Classes[0]
	near(t, "mean duration in ms", (c.Time/time.Duration(c.Samples)).Seconds()*1e3, 2, 0.1)
}

// TestEvents: clocks and links show where they are looked for.
func TestEvents(t *testing.T) {
	s := scene.Scene{Length: time.Minute, Card: scene.Card{Sleeps: true}, Tenants: []scene.Tenant{copies("a", 1), kernels("b", time.Millisecond, 0, 0)},
		Events: []scene.Event{{At: 10 * time.Second, Kind: scene.SetLink, Value: 0.5}, {At: 10 * time.Second, Kind: scene.SetClock, Value: 0.6}}}
	s.Tenants[0].Until = 30 * time.Second
	m := New(s)
	_, last := run(m, 20)
	d := last.Devices[0]
	near(t, "throughput", d.PCIeRX.Value, 12.5e9, 0.5e9)
	if d.LinkWidth != 8 || d.SMClockMHz != 1188 || d.Throttle != source.ThrottlePower {
		t.Errorf("width %d, clock %d MHz, throttled for %d", d.LinkWidth, d.SMClockMHz, d.Throttle)
	}
	near(t, "own doing", stalled(m, 0, RX), 0, 0)
	for i := 21; i <= 35; i++ {
		last = m.Look(time.Duration(i)*time.Second, false)
	}
	d = last.Devices[0]
	near(t, "throughput without copies", d.PCIeRX.Value, floorRate, floorRate*2*floorVaries)
	if d.LinkGeneration != 1 || len(last.Streams) != 1 {
		t.Errorf("generation %d of a link that sleeps, %d streams", d.LinkGeneration, len(last.Streams))
	}
}

// TestQuickLooks have a bandwidth only where the card can tell one so often, and nothing that changes slowly.
func TestQuickLooks(t *testing.T) {
	s := scene.Scene{Length: time.Minute, Tenants: []scene.Tenant{kernels("a", 2*time.Millisecond, 0.5, 0)}}
	m := New(s)
	run(m, 2)
	d := m.Look(2200*time.Millisecond, true).Devices[0]
	near(t, "DRAM", d.DRAM.Value, 0.5, 0.05)
	if !d.DRAM.Known || d.DRAM.Period != 200*time.Millisecond || d.LinkWidth != 0 {
		t.Errorf("%+v", d)
	}
	if m.Look(2250*time.Millisecond, true).Devices[0].DRAM.Known {
		t.Error("a mean over 50 ms is shown")
	}
	s.Card.NoGPM = true
	m = New(s)
	_, last := run(m, 3)
	if d := last.Devices[0]; d.DRAM.Known || !d.MemoryBusy.Known || d.PCIeRX.Period != shortWindow {
		t.Errorf("without GPM: %+v", d)
	}
}

// TestRunsAreRepeatable: one seed, one outcome; another one, another.
func TestRunsAreRepeatable(t *testing.T) {
	looks := func(seed uint64) *monitor.Contention {
		s := scene.Scene{Length: time.Minute, Seed: seed, Tenants: []scene.Tenant{copies("a", 1), kernels("b", time.Millisecond, 0.3, 0.5)}}
		s.Tenants[0].Loops[0].Pause, s.Tenants[1].Again = 3*time.Millisecond, 5*time.Second
		_, last := run(New(s), 20)
		return last
	}
	if difference := cmp.Diff(looks(1), looks(1), cmpopts.EquateErrors()); difference != "" {
		t.Errorf("two runs of one seed differ:\n%s", difference)
	}
	if cmp.Equal(looks(1), looks(2), cmpopts.EquateErrors()) {
		t.Error("runs of two seeds are the same")
	}
	if last := looks(1); len(last.Streams[1].Classes) != 4 || last.Streams[1].Started != Begun+20*time.Second {
		t.Errorf("a tenant that starts anew every 5 s has %d classes, started at %v", len(last.Streams[1].Classes), last.Streams[1].Started-Begun)
	}
}

func BenchmarkHour(b *testing.B) {
	for b.Loop() {
		m := New(scene.Scene{Length: time.Hour, Tenants: []scene.Tenant{copies("a", 1), copies("b", 1)}})
		for at := time.Second; at <= time.Hour; at += time.Second {
			m.Look(at, false)
		}
	}
}
