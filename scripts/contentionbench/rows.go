// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The rows: what is run, and what it is held to. To add one, write it here; it appears in every table and plot.

package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/vgpud/vgpud/scripts/contentionbench/scene"
)

const (
	ms  = time.Millisecond
	s   = time.Second
	mi  = time.Minute
	mib = uint64(1) << 20
)

// row is one line of the table.
type row struct {
	id      string
	title   string
	scene   scene.Scene
	expect  *expectation // nil: no verdict is right
	level   float64      // part of the time that the victim, the first tenant, truly loses while it is disturbed; 0: not looked at
	mixture bool         // it is run for its attribution
	unsure  bool         // its verdict may come late, or not at all
	vague   bool         // activities do not tell its tenants apart: nothing need be told
	untold  span         // in which nobody can tell whose traffic it is
	short   bool         // it belongs to the short form
	plot    bool         // its pressure over time is drawn
}

// span is a part of a scene.
type span struct{ from, to time.Duration }

// expectation is the one verdict that is right.
type expectation struct {
	span
	antagonist string // tenant
}

// Tenants.

func operation(kind scene.Kind, bytes uint64) scene.Operation {
	return scene.Operation{Kind: kind, Bytes: bytes}
}

// trainer copies a batch in, works on it for a moment and copies little back, over and over: PCIe is what it waits for.
func trainer(name string) scene.Tenant {
	return scene.Tenant{Name: name, Loops: []scene.Loop{{Operations: []scene.Operation{operation(scene.HostToDevice, 128*mib),
		{Kind: scene.Kernel, Work: 200 * time.Microsecond}, operation(scene.DeviceToHost, mib)}}}}
}

// loader copies in pieces of 64 MiB in so many processes, with a rest after each.
func loader(name string, processes int, pause time.Duration) scene.Tenant {
	return scene.Tenant{Name: name, Processes: processes, Loops: []scene.Loop{{Pause: pause,
		Operations: []scene.Operation{operation(scene.HostToDevice, 64*mib)}}}}
}

// server works on small requests that come now and then.
func server(name string, pause time.Duration) scene.Tenant {
	return scene.Tenant{Name: name, Loops: []scene.Loop{{Pause: pause, Operations: []scene.Operation{operation(scene.HostToDevice, 4*mib),
		{Kind: scene.Kernel, Work: 2 * ms, DRAM: 0.3, Bound: 0.3}, operation(scene.DeviceToHost, mib)}}}}
}

// solver runs kernels of 2 ms that use so much of the memory's bandwidth, and wait for it for such a part of their time.
func solver(name string, dram, bound float64) scene.Tenant {
	return scene.Tenant{Name: name, Loops: []scene.Loop{{Operations: []scene.Operation{
		{Kind: scene.Kernel, Work: 2 * ms, DRAM: dram, Bound: bound, Fills: 0.3}}}}}
}

// free is the scene without shares of GPU time.
func free(s scene.Scene) scene.Scene {
	for i := range s.Tenants {
		s.Tenants[i].Free = true
	}
	return s
}

// twice is the tenant with two processes.
func twice(t scene.Tenant) scene.Tenant {
	t.Processes = 2
	return t
}

// during is the tenant at work in that span alone.
func during(t scene.Tenant, from, to time.Duration) scene.Tenant {
	for i := range t.Loops {
		t.Loops[i].From, t.Loops[i].Until = from, to
	}
	return t
}

// phases is the tenant with work for `on` of every `on + off`, from a time on.
func phases(t scene.Tenant, from, on, off time.Duration) scene.Tenant {
	for i := range t.Loops {
		t.Loops[i].From, t.Loops[i].On, t.Loops[i].Off = from, on, off
	}
	return t
}

// capped is the tenant with a share in percent.
func capped(t scene.Tenant, share int) scene.Tenant {
	t.Share = share
	return t
}

// When a neighbour comes and goes in rows with a verdict.
var disturbed = span{10 * mi, 40 * mi}

// allRows is the table, in its order.
func allRows() []row {
	var rows []row
	for _, part := range []func() []row{rowsOfTime, rowsOfResource, rowsInnocent, rowsOfClaims, rowsMixed} {
		rows = append(rows, part()...)
	}
	for i := range rows {
		rows[i].scene.Seed = uint64(i + 1)
		if rows[i].scene.Length == 0 {
			rows[i].scene.Length = 60 * mi
		}
	}
	return rows
}

// noise is what is always there, in the rows that differ in time: others that cost the victim some 5 %.
func noise() scene.Tenant { return loader("others", 1, 45*ms) }

// shortened is the row for the short form: its first minutes, or until a while after what it expects, which ends sooner.
func (r row) shortened() row {
	if r.again() {
		return r
	}
	if r.expect == nil {
		r.scene.Length = 12 * mi
		return r
	}
	early := 14 * mi
	expect := *r.expect
	expect.to = early
	r.expect = &expect
	tenants := slices.Clone(r.scene.Tenants)
	for i, t := range tenants {
		loops := slices.Clone(t.Loops)
		for j := range loops {
			if loops[j].Until == disturbed.to {
				loops[j].Until = early
			}
		}
		tenants[i].Loops = loops
	}
	r.scene.Tenants, r.scene.Length = tenants, early+6*mi
	return r
}

// rowsOfTime differ in how much the neighbour disturbs, and when.
func rowsOfTime() []row {
	heavy := func() scene.Tenant { return loader("neighbour", 3, 1600*time.Microsecond) }
	rows := []row{
		{id: "quiet", title: "a trainer, and a server with little traffic", level: 0.01, short: true,
			scene: scene.Scene{Tenants: []scene.Tenant{trainer("victim"), server("neighbour", 20*ms)}}},
		{id: "mild", title: "a neighbour that costs 10 % more all the time", level: 0.13, short: true,
			scene: scene.Scene{Tenants: []scene.Tenant{trainer("victim"), noise(), loader("neighbour", 1, 19*ms)}}},
		{id: "bursts", title: "70 % for 10 s in every minute", short: true, plot: true,
			scene: scene.Scene{Tenants: []scene.Tenant{trainer("victim"), noise(), phases(heavy(), 5*mi, 10*s, 50*s)}}},
		{id: "30s-in-5min", title: "70 % for 30 s in every 5 minutes", short: true, plot: true,
			scene: scene.Scene{Tenants: []scene.Tenant{trainer("victim"), noise(), phases(heavy(), 5*mi, 30*s, 270*s)}}},
		{id: "oscillation", title: "70 % for 20 s, then nothing for 20 s", short: true, plot: true,
			scene: scene.Scene{Tenants: []scene.Tenant{trainer("victim"), noise(), phases(heavy(), 5*mi, 20*s, 20*s)}}},
		{id: "sustained", title: "35 % more than what others cost anyway, from 10 to 40 min", level: 0.40, expect: &expectation{disturbed, "neighbour"}, short: true, plot: true,
			scene: scene.Scene{Tenants: []scene.Tenant{trainer("victim"), noise(), during(loader("neighbour", 1, 1500*time.Microsecond), disturbed.from, disturbed.to)}}},
		{id: "severe", title: "70 % from 10 to 40 min", level: 0.70, expect: &expectation{disturbed, "neighbour"}, short: true, plot: true,
			scene: scene.Scene{Tenants: []scene.Tenant{trainer("victim"), noise(), during(heavy(), disturbed.from, disturbed.to)}}},
	}
	rows = append(rows, row{id: "sustained-alone", title: "35 % from 10 to 40 min, and nothing before, so that avg60 takes 75 s to say 25 %", level: 0.35,
		expect: &expectation{disturbed, "neighbour"},
		scene:  scene.Scene{Tenants: []scene.Tenant{trainer("victim"), during(loader("neighbour", 1, 1600*time.Microsecond), disturbed.from, disturbed.to)}}})
	rows = append(rows, row{id: "again", title: "70 % for 5 min in every 20: comes back, and may be found again",
		scene:  scene.Scene{Length: 2 * 60 * mi, Tenants: []scene.Tenant{trainer("victim"), noise(), phases(heavy(), 10*mi, 5*mi, 15*mi)}},
		expect: &expectation{span{10 * mi, 115 * mi}, "neighbour"}})
	return rows
}

// rowsOfResource are contention on other resources than copies to the card.
func rowsOfResource() []row {
	back := trainer("victim")
	back.Loops[0].Operations[0].Kind, back.Loops[0].Operations[2].Kind = scene.DeviceToHost, scene.HostToDevice
	reader := loader("neighbour", 3, 1300*time.Microsecond)
	reader.Loops[0].Operations[0].Kind = scene.DeviceToHost
	// Real programs rest now and then: the host reads, writes, and waits for others.
	gaps := func(t scene.Tenant, on, off time.Duration) scene.Tenant {
		t.Loops[0].On, t.Loops[0].Off = on, off
		return t
	}
	overlap := func(neighbour scene.Tenant) scene.Scene {
		return scene.Scene{Card: scene.Card{Sharing: scene.MPS}, Tenants: []scene.Tenant{solver("victim", 0.65, 0.95), neighbour}}
	}
	return []row{
		{id: "device-to-host", title: "70 % on copies from the card, from 10 to 40 min", level: 0.70, expect: &expectation{disturbed, "neighbour"},
			scene: scene.Scene{Tenants: []scene.Tenant{back, during(reader, disturbed.from, disturbed.to)}}},
		{id: "dram-overlap", title: "DRAM under MPS: kernels that overlap, with a rest of a second now and then, 57 %, from 10 to 40 min", level: 0.57, short: true, plot: true,
			expect: &expectation{disturbed, "neighbour"}, scene: overlap(gaps(during(twice(solver("neighbour", 0.92, 0.95)), disturbed.from, disturbed.to), 9*s, 900*ms))},
		{id: "dram-free", title: "dram-overlap with GPU time that nobody limits or charges, so that pressure is told a little low",
			expect: &expectation{disturbed, "neighbour"}, scene: free(overlap(gaps(during(twice(solver("neighbour", 0.92, 0.95)), disturbed.from, disturbed.to), 9*s, 900*ms)))},
		{id: "dram-sustained", title: "the same with 37 %, and nothing before", level: 0.37, plot: true,
			expect: &expectation{disturbed, "neighbour"}, scene: overlap(gaps(during(solver("neighbour", 0.92, 0.95), disturbed.from, disturbed.to), 9*s, 900*ms))},
		{id: "dram-no-rest", title: "the same without any rest, so that the card's one counter hardly tells who it is", unsure: true, mixture: true, level: 0.40,
			expect: &expectation{disturbed, "neighbour"}, scene: overlap(during(solver("neighbour", 0.92, 0.95), disturbed.from, disturbed.to))},
		{id: "dram-bursts", title: "DRAM under MPS, 10 s in every minute",
			scene: overlap(phases(solver("neighbour", 0.9, 0.95), 5*mi, 10*s, 50*s))},
		{id: "dram-mild", title: "DRAM under MPS: a neighbour that costs 10 %",
			scene: overlap(during(solver("neighbour", 0.37, 0.5), 10*mi, 0))},
		{id: "no-gpm", title: "70 % on a card that shows PCIe alone, over 20 ms, from 10 to 40 min", level: 0.70,
			expect: &expectation{disturbed, "neighbour"}, scene: scene.Scene{Card: scene.Card{NoGPM: true, Lag: 200 * ms},
				Tenants: []scene.Tenant{trainer("victim"), during(loader("neighbour", 3, 1300*time.Microsecond), disturbed.from, disturbed.to)}}},
	}
}

// rowsInnocent are slow for reasons that are nobody's fault, or one's own.
func rowsInnocent() []row {
	self := loader("victim", 1, 0)
	self.Loops[0].Streams = 4
	later := loader("victim", 1, 0)
	later.Loops = append(later.Loops, later.Loops[0])
	later.Loops[1].Streams, later.Loops[1].From, later.Loops[1].Until = 4, disturbed.from, disturbed.to
	floor := scene.Tenant{Name: "victim", Loops: []scene.Loop{{Pause: 10 * ms, Operations: []scene.Operation{{Kind: scene.Kernel, Work: 5 * ms}}}}}
	turns := func(name string, share int) scene.Tenant { return capped(turning(name), share) }
	hidden := during(loader("device", 3, 0), disturbed.from, disturbed.to)
	hidden.Loops[0].Unseen, hidden.Unnamed = true, true
	clock := func(kind scene.EventKind, value float64, silent bool) []scene.Event {
		return []scene.Event{{At: disturbed.from, Kind: kind, Value: value, Silent: silent}, {At: disturbed.to, Kind: kind, Value: 1, Silent: silent}}
	}
	dvfs := func(sharing scene.Sharing, silent bool) scene.Scene {
		work := func(name string) scene.Tenant {
			t := solver(name, 0.42, 0.3)
			if sharing == scene.TimeSlice {
				t.Loops[0].Operations[0].DRAM = 0.85
			}
			return t
		}
		return scene.Scene{Card: scene.Card{Sharing: sharing}, Tenants: []scene.Tenant{work("victim"), work("neighbour")}, Events: clock(scene.SetClock, 0.55, silent)}
	}
	memory := scene.Scene{Card: scene.Card{Sharing: scene.MPS}, Tenants: []scene.Tenant{solver("victim", 0.62, 0.9), solver("neighbour", 0.25, 0.5)}}
	memory.Events = clock(scene.SetMemory, 0.6, false)
	slowLink := func(value float64) scene.Scene {
		return scene.Scene{Tenants: []scene.Tenant{trainer("victim"), loader("neighbour", 1, 60*ms)}, Events: clock(scene.SetLink, value, true)}
	}
	churn := loader("neighbour", 1, 19*ms)
	churn.Again = 45 * s
	return []row{
		{id: "self", title: "one tenant with four streams of copies, beside a server", short: true,
			scene: scene.Scene{Tenants: []scene.Tenant{self, server("neighbour", 20*ms)}}},
		{id: "self-later", title: "a tenant that goes from one stream of copies to five at 10 min, beside a server",
			scene: scene.Scene{Tenants: []scene.Tenant{later, server("neighbour", 20*ms)}}},
		{id: "time-sharing", vague: true, title: "30 and 60 % of the card's time under caps, kernels that use its memory, nothing else", short: true,
			scene: scene.Scene{Tenants: []scene.Tenant{turns("victim", 30), turns("neighbour", 60)}}},
		{id: "time-slices", title: "a tenant of 60 %; at 10 min one without a cap comes, and takes every second turn",
			scene: scene.Scene{Tenants: []scene.Tenant{turns("victim", 60), during(turns("neighbour", 0), 10*mi, 40*mi)}}},
		{id: "host-code", untold: disturbed, title: "from 10 to 40 min PCIe is full of what no tenant copies: memory of the host that others read", short: true, plot: true,
			scene: scene.Scene{Tenants: []scene.Tenant{trainer("victim"), server("neighbour", 20*ms), hidden}}},
		{id: "dvfs", vague: true, title: "the clock falls to 55 % by the power cap, from 10 to 40 min, under MPS", short: true, plot: true, scene: dvfs(scene.MPS, false)},
		{id: "dvfs-silent", vague: true, title: "the same without a reason by the driver", scene: dvfs(scene.MPS, true)},
		{id: "dvfs-slices", vague: true, title: "the same with time slices", scene: dvfs(scene.TimeSlice, false)},
		{id: "memory-clock", vague: true, title: "the memory's clock falls to 60 %, from 10 to 40 min, under MPS", scene: memory},
		{id: "downtrain", title: "the link is trained down to a half, from 10 to 40 min", short: true, plot: true, scene: slowLink(0.5)},
		{id: "downtrain-more", title: "the link is trained down to a quarter, from 10 to 40 min", scene: slowLink(0.25)},
		{id: "floor", title: "no traffic at all, but for the 20 MB/s that the driver shows", short: true,
			scene: scene.Scene{Tenants: []scene.Tenant{floor, {Name: "neighbour", Loops: floor.Loops}}}},
		{id: "link-sleeps", title: "a link that goes to generation 1 between rare copies",
			scene: scene.Scene{Card: scene.Card{Sleeps: true}, Tenants: []scene.Tenant{loader("victim", 1, 400*ms), loader("neighbour", 1, 400*ms)}}},
		{id: "restarts", title: "a mild neighbour whose process starts anew every 45 s",
			scene: scene.Scene{Tenants: []scene.Tenant{trainer("victim"), churn}}},
	}
}

// rowsOfClaims have tenants that do not tell the truth. What they say of themselves is not enough for a verdict.
func rowsOfClaims() []row {
	liar := trainer("victim")
	liar.Loops[0].Pause, liar.Lies = 20*ms, 3
	return []row{{id: "wolf", title: "a tenant whose library claims that all takes three times as long, on a link that is not full",
		scene: scene.Scene{Tenants: []scene.Tenant{liar, loader("neighbour", 1, 19*ms)}}}}
}

// rowsMixed are mixtures of two to six tenants, whose traffic is to be told apart.
func rowsMixed() []row {
	var rows []row
	name := func(i int) string { return fmt.Sprintf("t%d", i+1) }
	add := func(id, title string, card scene.Card, tenants []scene.Tenant) {
		rows = append(rows, row{id: id, title: title, mixture: true, short: len(tenants) == 3,
			scene: scene.Scene{Length: 15 * mi, Card: card, Tenants: tenants}})
	}
	for _, count := range []int{2, 3, 4, 6} {
		var copies, turns, overlap []scene.Tenant
		for i := range count {
			copies = append(copies, loader(name(i), 1, time.Duration(count*(5+6*i))*ms/2))
			t := solver(name(i), 0.2+0.6*float64((i*3)%count)/float64(count), 0.5)
			t.Loops[0].Operations[0].Work = time.Duration(1+i) * ms
			turns = append(turns, phases(t, 0, time.Duration(3+i)*s, time.Duration(2+2*i)*s))
			o := solver(name(i), (0.1+0.5*float64((i*3)%count)/float64(count))*2/float64(count), 0.3)
			o.Loops[0].Operations[0].Fills = 0.9 / float64(count)
			overlap = append(overlap, phases(o, 0, time.Duration(3+i)*s, time.Duration(2+2*i)*s))
		}
		add(fmt.Sprintf("pcie-%d", count), fmt.Sprintf("copies of %d tenants", count), scene.Card{}, copies)
		add(fmt.Sprintf("dram-slices-%d", count), fmt.Sprintf("kernels of %d tenants that use DRAM more or less, with time slices", count), scene.Card{}, turns)
		add(fmt.Sprintf("dram-mps-%d", count), fmt.Sprintf("the same under MPS, %d tenants", count), scene.Card{Sharing: scene.MPS}, overlap)
	}
	alike := []scene.Tenant{solver("t1", 0.2, 0.3), solver("t2", 0.5, 0.3)}
	rows = append(rows, row{id: "dram-mps-alike", title: "two tenants under MPS that are always active: nothing tells them apart", mixture: true, vague: true, short: true,
		scene: scene.Scene{Length: 15 * mi, Card: scene.Card{Sharing: scene.MPS}, Tenants: alike}})
	return rows
}
