// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The rows: what is run, and what it is held to.

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

// row is one line of the table.
type row struct {
	id       string
	title    string
	scene    scene.Scene
	criteria scene.Criteria
	peers    bool // the peers' laws run it, too
	real     bool // it is run in real time, too,
	whole    bool // and not cut short there
	short    bool // it belongs to the short form
	plot     bool // its shares over time are drawn
}

const (
	us = time.Microsecond
	ms = time.Millisecond
	s  = time.Second
)

// flood is a tenant with a share that launches without end.
func flood(name string, share int, kernel time.Duration) scene.Tenant {
	return scene.Tenant{Name: name, Share: share, Mode: scene.Hard, Load: scene.Load{Kernel: kernel}}
}

// whole is the span of a whole scene with targets in percent; negative: not looked at.
func whole(length time.Duration, percent ...float64) scene.Span {
	return span(0, length, percent...)
}

func span(from, to time.Duration, percent ...float64) scene.Span {
	for i := range percent {
		percent[i] /= 100
	}
	return scene.Span{From: from, To: to, Targets: percent}
}

// steady is what a row with one target for each tenant, from the start to the end, is held to.
func steady(length time.Duration, percent ...float64) scene.Criteria {
	return scene.Criteria{Means: []scene.Span{whole(length, percent...)}, MeanError: new(1.0)}
}

// spaced is a duration as people write it: 20 µs.
func spaced(d time.Duration) string {
	text := d.String()
	digits := strings.LastIndexAny(text, "0123456789") + 1
	return text[:digits] + " " + text[digits:]
}

// allRows is the table, in its order.
func allRows() []row {
	var rows []row
	for _, part := range []func() []row{rowsA1, rowsA2A3, rowsA4, rowsA5A6, rowsA7, rowsA8, rowsA9A12, rowsCards, rowsTenants, rowsNVML} {
		rows = append(rows, part()...)
	}
	for i := range rows {
		rows[i].scene.Seed = uint64(i + 1)
	}
	return rows
}

func rowsA1() []row {
	var rows []row
	for _, cap := range []int{10, 25, 30, 50, 75, 90} {
		for _, kernel := range []time.Duration{20 * us, 200 * us, 2 * ms, 20 * ms} {
			c := steady(60*s, float64(cap))
			c.P95, c.Overshoot = new(3.0), new(5.0)
			rows = append(rows, row{
				id: fmt.Sprintf("A1/%d/%v", cap, kernel), title: fmt.Sprintf("one tenant, %d %%, kernels of %s", cap, spaced(kernel)),
				scene: scene.Scene{Length: 60 * s, Tenants: []scene.Tenant{flood("tenant", cap, kernel)}}, criteria: c, peers: true,
				real:  (cap == 30 && kernel >= 200*us) || (cap == 75 && kernel == 2*ms),
				short: cap == 30 && kernel == 2*ms,
			})
		}
	}
	return rows
}

// pair is a row with saturated tenants.
func pair(id, title string, sms int, tenants ...scene.Tenant) row {
	r := row{id: id, title: title, scene: scene.Scene{Length: 60 * s, SMs: sms, Tenants: tenants}, peers: true}
	var targets []float64
	for _, t := range tenants {
		targets = append(targets, float64(t.Share))
	}
	r.criteria = steady(60*s, targets...)
	r.criteria.Jain = new(0.999)
	return r
}

func rowsA2A3() []row {
	var rows []row
	for _, kernel := range []time.Duration{200 * us, 20 * ms} {
		rows = append(rows,
			pair(fmt.Sprintf("A2/30-70/%v", kernel), fmt.Sprintf("30 and 70 %%, kernels of %s", spaced(kernel)), 188, flood("30", 30, kernel), flood("70", 70, kernel)),
			pair(fmt.Sprintf("A2/10-90/%v", kernel), fmt.Sprintf("10 and 90 %%, kernels of %s", spaced(kernel)), 188, flood("10", 10, kernel), flood("90", 90, kernel)),
			pair(fmt.Sprintf("A2/20-30-50/%v", kernel), fmt.Sprintf("20, 30 and 50 %%, kernels of %s", spaced(kernel)), 188, flood("20", 20, kernel), flood("30", 30, kernel), flood("50", 50, kernel)))
	}
	unequal := pair("A3/unequal", "20 % in kernels of 2 ms × 128 blocks, 60 % in 0.1 ms × 4096 blocks", 188, flood("20", 20, 2*ms), flood("60", 60, 100*us))
	unequal.scene.Tenants[0].Load.Blocks, unequal.scene.Tenants[1].Load.Blocks = 128, 4096
	grid := pair("A3/grid", "40 and 60 %, kernels of 1 ms, of 65536 and of 64 blocks", 188, flood("40", 40, ms), flood("60", 60, ms))
	grid.scene.Tenants[0].Load.Blocks, grid.scene.Tenants[1].Load.Blocks = 65536, 64
	rows[0].real, rows[1].real, rows[2].real, rows[3].plot, rows[3].real, rows[3].whole = true, true, true, true, true, true
	rows[0].short = true
	return append(rows, unequal, grid)
}

func rowsA4() []row {
	var rows []row
	for _, kernel := range []time.Duration{200 * us, 2 * ms, 20 * ms} {
		steps := []scene.Span{span(0, 20*s, 60), span(20*s, 40*s, 30), span(40*s, 60*s, 60)}
		rows = append(rows, row{
			id: fmt.Sprintf("A4/%v", kernel), title: fmt.Sprintf("the share steps 60 → 30 → 60 %%, kernels of %s", spaced(kernel)),
			scene: scene.Scene{Length: 60 * s, Tenants: []scene.Tenant{flood("tenant", 60, kernel)}, Events: []scene.Event{
				{At: 20 * s, Kind: scene.SetShare, Value: 30}, {At: 40 * s, Kind: scene.SetShare, Value: 60}}},
			criteria: scene.Criteria{Means: steps, Steps: steps[1:], Both: true, Within: 2 * s, MeanError: new(1.0),
				Settle: new(1.0), Overshoot: new(5.0)},
			peers: true, real: kernel == 2*ms, plot: kernel == 2*ms, short: kernel == 2*ms,
		})
	}
	return rows
}

func rowsA5A6() []row {
	var rows []row
	add := func(id, title string, load scene.Load, mean float64, cap int) *row {
		c := steady(60*s, float64(cap))
		c.MeanError, c.P95 = new(mean), new(3.0)
		t := flood("tenant", cap, 0)
		t.Load = load
		rows = append(rows, row{id: id, title: fmt.Sprintf("%s, %d %%", title, cap), peers: true, criteria: c,
			scene: scene.Scene{Length: 60 * s, Tenants: []scene.Tenant{t}}})
		return &rows[len(rows)-1]
	}
	add("A5/graph-1", "replays of a graph of one kernel of 2 ms", scene.Load{Kernel: 2 * ms, Path: scene.Graph, Nodes: 1}, 1, 30).real = true
	graph := add("A5/graph-100", "replays of a graph of 100 kernels of 0.1 ms", scene.Load{Kernel: 100 * us, Path: scene.Graph, Nodes: 100}, 1, 30)
	graph.real, graph.plot, graph.short = true, true, true
	add("A5/cooperative", "cooperative launches of 1 ms", scene.Load{Kernel: ms, Path: scene.Cooperative}, 1, 30).real = true
	add("A5/extended", "launches by cuLaunchKernelEx of 1 ms", scene.Load{Kernel: ms, Path: scene.Extended}, 1, 30).real = true
	for _, streams := range []int{1, 4, 16} {
		r := add(fmt.Sprintf("A6/%d", streams), fmt.Sprintf("kernels of 1 ms that fill 0.3 of the card, on %d streams", streams),
			scene.Load{Kernel: ms, Streams: streams, Fills: 0.3}, 2, 40)
		r.criteria.P95 = nil
		r.real = streams == 4
	}
	return rows
}

func rowsA7() []row {
	var rows []row
	for _, permille := range []int{500, 2000} {
		for _, at := range []time.Duration{0, 20 * s} {
			event := scene.Event{At: at, Kind: scene.CostFactor, Value: permille}
			steps := []scene.Span{span(at, 60*s, 50)}
			rows = append(rows, row{
				id:    fmt.Sprintf("A7/%g/%v", float64(permille)/1000, at),
				title: fmt.Sprintf("costs are measured at %g times the truth from %s on, 50 %%, kernels of 2 ms", float64(permille)/1000, spaced(at)),
				scene: scene.Scene{Length: 60 * s, Tenants: []scene.Tenant{flood("tenant", 50, 2*ms)}, Events: []scene.Event{event}},
				criteria: scene.Criteria{Means: []scene.Span{span(at+2*s, 60*s, 50)}, Steps: steps, MeanError: new(1.0),
					Settle: new(2.0)},
				peers: true, real: at == 0, plot: at == 20*s, short: permille == 500 && at == 20*s,
			})
		}
	}
	return rows
}

// onOff is the scene of A8: one tenant with work for 2 s of every 4, one always.
func onOff(mode scene.Mode, lender, borrower int) scene.Scene {
	a, b := flood("on and off", lender, 2*ms), flood("steady", borrower, 2*ms)
	a.Mode, b.Mode = mode, mode
	a.Load.On, a.Load.Off = 2*s, 2*s
	return scene.Scene{Length: 60 * s, Tenants: []scene.Tenant{a, b}}
}

// bothOn are the spans of an on-off scene in which both have work, less the first of each that the return takes.
func bothOn(less time.Duration, percent ...float64) []scene.Span {
	var spans []scene.Span
	targets := span(0, 0, percent...).Targets
	for from := time.Duration(0); from < 60*s; from += 4 * s {
		spans = append(spans, scene.Span{From: from + less, To: from + 2*s, Targets: targets})
	}
	return spans
}

func rowsA8() []row {
	// Over whole periods: the lender has its part of the half that it has work in; the borrower that and all of the rest.
	lent := func(id, title string, lender, borrower int) row {
		a := 100 * float64(lender) / float64(lender+borrower)
		return row{id: id, title: title, scene: onOff(scene.Elastic, lender, borrower), peers: true,
			criteria: scene.Criteria{Means: []scene.Span{whole(60*s, a/2, (100-a)/2+50)}, MeanError: new(2.0), Busy: new(97.0),
				Reach: new(100.0), LenderAt: 0.9 * float64(lender) / 100, Split: new(2.0), BothOn: bothOn(0, a, 100-a)}}
	}
	rows := []row{
		lent("A8/lent", "elastic: 50 % on and off every 2 s, 30 % steady", 50, 30),
		lent("A8/lent-70", "elastic: 70 % on and off every 2 s, 30 % steady", 70, 30),
		{id: "A8/hard", title: "hard: 50 % on and off every 2 s, 30 % steady", scene: onOff(scene.Hard, 50, 30), peers: true,
			criteria: scene.Criteria{Means: []scene.Span{whole(60*s, 25, 30)}, MeanError: new(1.0), Reach: new(100.0), LenderAt: 0.45,
				Split: new(1.0), BothOn: bothOn(0, 50, 30)}},
	}
	rows[0].real, rows[0].plot, rows[0].short, rows[2].real, rows[1].real = true, true, true, true, true
	both := pair("A8/both-on", "elastic: 50 and 30 %, both always on", 0, flood("50", 50, 2*ms), flood("30", 30, 2*ms))
	both.criteria = scene.Criteria{Means: []scene.Span{whole(60*s, 62.5, 37.5)}, MeanError: new(2.0), Busy: new(97.0)}
	both.scene.Tenants[0].Mode, both.scene.Tenants[1].Mode = scene.Elastic, scene.Elastic
	both.real = true
	return append(rows, both)
}

// collectiveAlone is what a round of the collective tenant takes without a share: 10 ms of kernels, 0.5 ms of meeting, and
// what the slower rank is late.
const collectiveAlone = 10541 * us

func rowsA9A12() []row {
	long := row{id: "A9/200ms", title: "kernels of 200 ms, 25 %", scene: scene.Scene{Length: 60 * s,
		Tenants: []scene.Tenant{flood("tenant", 25, 200*ms)}}, criteria: steady(60*s, 25)}
	long.criteria.MeanError = new(2.0)
	longer := row{id: "A9/2s", title: "kernels of 2 s with a wait after each, 20 %, 120 s", scene: scene.Scene{Length: 120 * s,
		Tenants: []scene.Tenant{flood("tenant", 20, 2*s)}}, criteria: steady(120*s, 20)}
	longer.scene.Tenants[0].Load.Duty = 1
	longer.criteria.MeanError, longer.criteria.Longest = new(2.0), new(10.1)

	agent := pair("A10/agent", "30 and 70 %; the agent is killed at 20 s, another starts at 40 s", 0, flood("30", 30, 2*ms), flood("70", 70, 2*ms))
	agent.peers, agent.scene.Events = false, []scene.Event{{At: 20 * s, Kind: scene.StopAgent}, {At: 40 * s, Kind: scene.StartAgent}}
	agent.criteria.P95 = new(3.0)
	clock := pair("A10/clock", "30 and 70 %; the wall clock jumps back an hour at 20 s, and on two at 40 s", 0, flood("30", 30, 2*ms), flood("70", 70, 2*ms))
	clock.peers, clock.scene.Events = false, []scene.Event{{At: 20 * s, Kind: scene.StepClock, Value: -3600e3}, {At: 40 * s, Kind: scene.StepClock, Value: 7200e3}}
	clock.criteria.P95 = new(3.0)
	kill := row{id: "A10/kill", title: "one of three processes of a container is killed in the middle of a launch, 30 %",
		scene: scene.Scene{Length: 60 * s, Tenants: []scene.Tenant{flood("tenant", 30, 2*ms)},
			Events: []scene.Event{{At: 20 * s, Kind: scene.KillOne}}}, criteria: steady(60*s, 30)}
	kill.scene.Tenants[0].Processes = 3
	kill.criteria.P95, kill.criteria.Longest = new(3.0), new(1.0)

	below := row{id: "A11/below", title: "waits for each launch of 2 ms, busy 80 % of the time, cap 90 %", scene: scene.Scene{Length: 60 * s,
		Tenants: []scene.Tenant{flood("tenant", 90, 2*ms)}}, criteria: steady(60*s, -1)}
	below.scene.Tenants[0].Load.Duty = 0.8
	below.criteria.MeanError, below.criteria.Throttled = nil, new(0.0)

	rank := flood("ranks", 40, 2*ms)
	rank.Load.Path, rank.Threads = scene.Collective, 2
	group := row{id: "A12/collective", title: "two ranks on two cards that meet after every 10 ms of kernels, 40 % of each",
		scene: scene.Scene{Length: 60 * s, Cards: 2, Tenants: []scene.Tenant{rank}}, criteria: steady(60*s, 40)}
	group.criteria.MeanError, group.criteria.Slowdown, group.criteria.Alone = new(2.0), new(2.75), collectiveAlone
	return []row{long, longer, agent, clock, kill, below, group}
}

func rowsCards() []row {
	var rows []row
	for _, sms := range []int{20, 68, 132, 188} {
		r := pair(fmt.Sprintf("S1/%d-SMs", sms), fmt.Sprintf("50 %% of a card of %d SMs, kernels of 20 ms", sms), sms, flood("tenant", 50, 20*ms))
		r.criteria.P95, r.criteria.Jain = new(3.0), nil
		r.real, r.plot = sms == 188, sms == 188
		rows = append(rows, r)
	}
	mps := pair("S2/mps", "30 and 60 % under MPS, kernels of 1 ms that fill 0.4 of the card", 0, flood("30", 30, ms), flood("60", 60, ms))
	mps.scene.Sharing, mps.peers = scene.MPS, false
	mps.scene.Tenants[0].Load.Fills, mps.scene.Tenants[1].Load.Fills = 0.4, 0.4
	mps.criteria.MeanError, mps.real = new(2.0), true
	full := pair("S2/mps-full", "30 and 60 % under MPS, kernels of 1 ms that fill the card", 0, flood("30", 30, ms), flood("60", 60, ms))
	full.scene.Sharing, full.peers, full.criteria.MeanError = scene.MPS, false, new(2.0)
	return append(rows, mps, full)
}

func rowsTenants() []row {
	processes := row{id: "T1/processes", title: "four processes of one container, 40 %, kernels of 2 ms",
		scene: scene.Scene{Length: 60 * s, Tenants: []scene.Tenant{flood("tenant", 40, 2*ms)}}, criteria: steady(60*s, 40)}
	processes.scene.Tenants[0].Processes = 4
	processes.criteria.P95, processes.real = new(3.0), true
	fair := processes
	fair.id, fair.title, fair.real = "T1/fair", "four processes of one container, 40 %, kernels of 0.2, 1, 5 and 25 ms", false
	fair.scene.Tenants = []scene.Tenant{flood("tenant", 40, 200*us)}
	fair.scene.Tenants[0].Processes, fair.scene.Tenants[0].Load.Longer = 4, 5
	fair.criteria.Processes = new(0.99)
	threads := row{id: "T1/threads", title: "eight threads of one process, 40 %, kernels of 0.2 ms",
		scene: scene.Scene{Length: 60 * s, Tenants: []scene.Tenant{flood("tenant", 40, 200*us)}}, criteria: steady(60*s, 40)}
	threads.scene.Tenants[0].Threads = 8
	threads.criteria.P95 = new(3.0)

	neighbour := flood("neighbour", 50, 2*ms)
	neighbour.Load.On, neighbour.Load.Off = 2*s, 2*s
	coming := pair("T2/neighbour", "hard: 30 % steady, kernels of 5 ms; a neighbour of 50 % comes and goes every 2 s", 0, flood("30", 30, 5*ms), neighbour)
	coming.criteria = steady(60*s, 30, -1)
	coming.criteria.P95, coming.peers = new(3.0), false

	ceiling := onOff(scene.Elastic, 30, 20)
	ceiling.Tenants[1].Ceiling = 50
	capped := row{id: "T3/ceiling", title: "elastic: 30 % on and off every 2 s, 20 % steady with a ceiling of 50 %", scene: ceiling}
	capped.criteria = scene.Criteria{Means: []scene.Span{whole(60*s, 30, 45)}, MeanError: new(2.0), Reach: new(100.0), LenderAt: 0.27}
	alone := row{id: "T3/alone", title: "elastic: 30 %, alone on the card", scene: scene.Scene{Length: 60 * s,
		Tenants: []scene.Tenant{flood("tenant", 30, 200*us)}}, criteria: steady(60*s, 100)}
	alone.scene.Tenants[0].Mode = scene.Elastic
	alone.criteria.Busy, alone.real = new(99.0), true
	start := pair("T4/start", "the first second after a start: 20 %, kernels of 20 ms, beside 80 %", 0, flood("80", 80, 2*ms), flood("20", 20, 20*ms))
	start.scene.Tenants[1].From, start.peers = 10*s, false
	start.criteria = scene.Criteria{Means: []scene.Span{span(10*s, 60*s, 80, 20)}, MeanError: new(1.0), Overshoot: new(5.0)}
	return []row{processes, fair, threads, coming, capped, alone, start}
}

func rowsNVML() []row {
	var rows []row
	add := func(id, title string, u scene.Utilization, mean float64) {
		r := pair(id, title+": 30 and 70 %, kernels of 20 ms", 0, flood("30", 30, 20*ms), flood("70", 70, 20*ms))
		r.scene.Utilization, r.peers = u, false
		r.criteria.MeanError = new(mean)
		rows = append(rows, r)
	}
	add("N1/sixth", "NVML's period is 1/6 s", scene.Utilization{Period: s / 6}, 1)
	add("N1/second", "NVML's period is 1 s", scene.Utilization{Period: s}, 1)
	add("N1/lag", "NVML lags by 0.5 s and loses 30 % of its samples", scene.Utilization{Lag: s / 2, Missing: 30}, 1)
	absent := row{id: "N2/absent", title: "no figures by process: 30 %, kernels of 2 ms, alone", scene: scene.Scene{Length: 60 * s,
		Utilization: scene.Utilization{Absent: true}, Tenants: []scene.Tenant{flood("tenant", 30, 2*ms)}}, criteria: steady(60*s, 30)}
	absent.criteria.MeanError, absent.criteria.P95 = new(1.0), new(3.0)
	both := pair("N2/absent-pair", "no figures by process: 30 and 60 %, kernels of 2 ms", 0, flood("30", 30, 2*ms), flood("60", 60, 2*ms))
	both.scene.Utilization.Absent, both.peers, both.criteria.Jain = true, false, nil
	both.criteria.MeanError = new(3.0)
	for _, factor := range []int{500, 2000} {
		slow := row{id: fmt.Sprintf("N3/second-%g", float64(factor)/1000),
			title: fmt.Sprintf("NVML's period is 1 s, costs are measured at %g times the truth from 20 s on, 50 %%", float64(factor)/1000),
			scene: scene.Scene{Length: 60 * s, Utilization: scene.Utilization{Period: s}, Tenants: []scene.Tenant{flood("tenant", 50, 2*ms)},
				Events: []scene.Event{{At: 20 * s, Kind: scene.CostFactor, Value: factor}}},
			criteria: scene.Criteria{Means: []scene.Span{span(24*s, 60*s, 50)}, Steps: []scene.Span{span(20*s, 60*s, 50)}, MeanError: new(1.0),
				Settle: new(4.0)}}
		rows = append(rows, slow)
	}
	return append(rows, absent, both)
}
