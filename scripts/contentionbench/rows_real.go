// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The rows that run in real time. Each scene is said twice: for the model, and as options of `flood` and settings of the
// simulated card; the two are to be the same.

package main

import (
	"fmt"
	"time"

	"github.com/vgpud/vgpud/scripts/contentionbench/scene"
)

// realRow is a row with what runs it in real time.
type realRow struct {
	row
	mode     string     // of GPU time
	programs [][]string // options of flood, by tenant
	sim      []string   // settings of the simulated card
	live     []liveSetting
}

// liveSetting is a change of the card during the scene.
type liveSetting struct {
	at       time.Duration
	settings []string
}

// Times of scenes in real time. Nobody is judged in the first minute of a process.
const (
	realLength = 290 * time.Second
	realFrom   = 80 * time.Second
	realUntil  = 170 * time.Second
)

// realRows are the rows that run in real time.
func realRows() (rows []row) {
	for _, r := range allRealRows() {
		rows = append(rows, r.row)
	}
	return rows
}

// simulator is the card as the model has it: PCIe of generation 4, 25 GB/s each way, bytes that are nowhere.
func (r realRow) simulator() []string {
	settings := append([]string{"model=A100-SXM4-80GB", "memory_backing=none", "copies=timed", "kernel_jitter_permille=50", "gpm=1",
		"dram_reach_permille=920"}, r.sim...)
	if r.scene.Card.Sharing == scene.MPS {
		settings = append(settings, "sharing=mps")
	}
	return settings
}

// copying are the options of a program that copies 64 MiB to the card, over and over, in so many processes, with so many
// copies under way in each.
func copying(processes, streams int) []string {
	options := []string{"kernel=none", "copy=htod", fmt.Sprintf("copy_bytes=%d", 64*mib), "copy_sync=1", fmt.Sprintf("processes=%d", processes)}
	if streams > 1 {
		options = append(options, fmt.Sprintf("copy_streams=%d", streams))
	}
	return options
}

// solving are the options of a program that launches kernels on part of the card, and waits for each.
func solving(kernel string, options ...string) []string {
	// 0.3 of 108 multiprocessors with room for 2048 threads each.
	return append([]string{"kernel=" + kernel, "sync=each", "block=256", fmt.Sprintf("grid=%d", 108*2048*30/100/256)}, options...)
}

func allRealRows() []realRow {
	disturbed := span{realFrom, realUntil}
	rows := []realRow{
		{row: row{id: "real/pcie", title: "copies of three processes beside a victim's, from 80 to 170 s", expect: &expectation{disturbed, "neighbour"}, plot: true,
			scene: scene.Scene{Tenants: []scene.Tenant{loader("victim", 1, 0), during(loader("neighbour", 3, 0), realFrom, realUntil)}}},
			programs: [][]string{copying(1, 1), copying(3, 1)}},
		{row: row{id: "real/dram", title: "kernels that overlap under MPS, and use its memory, from 80 to 170 s", expect: &expectation{disturbed, "neighbour"}, plot: true,
			scene: scene.Scene{Card: scene.Card{Sharing: scene.MPS}, Tenants: []scene.Tenant{long(solver("victim", 0.65, 0.95)), restful(twice(long(solver("neighbour", 0.92, 0.95))))}}},
			programs: [][]string{solving("busy_10ms_dram65_bound95"), solving("busy_10ms_dram92_bound95", "on_ms=9000", "off_ms=900", "processes=2")}},
		{row: row{id: "real/self", title: "four streams of copies of one tenant, beside one with kernels",
			scene: scene.Scene{Tenants: []scene.Tenant{streams(loader("victim", 1, 0), 4), solver("neighbour", 0, 0)}}},
			programs: [][]string{copying(1, 4), solving("busy_2ms")}},
		{row: row{id: "real/time-sharing", title: "30 and 60 % under caps, kernels of 5 ms that use memory",
			scene: scene.Scene{Tenants: []scene.Tenant{capped(turning("victim"), 30), capped(turning("neighbour"), 60)}}},
			mode: "hard", programs: [][]string{{"kernel=busy_5ms_dram85_bound80"}, {"kernel=busy_5ms_dram85_bound80"}}},
		{row: row{id: "real/downtrain", title: "the link is trained down to a half, from 80 to 170 s, with kernels of another tenant beside",
			scene: scene.Scene{Tenants: []scene.Tenant{loader("victim", 1, 0), solver("neighbour", 0, 0)},
				Events: []scene.Event{{At: realFrom, Kind: scene.SetLink, Value: 0.5, Silent: true}, {At: realUntil, Kind: scene.SetLink, Value: 1, Silent: true}}}},
			programs: [][]string{copying(1, 1), solving("busy_2ms")},
			live:     []liveSetting{{realFrom, []string{"link_width=8"}}, {realUntil, []string{"link_width=0"}}}},
	}
	for i := range rows {
		if rows[i].mode == "" {
			rows[i].mode, rows[i].scene = "none", free(rows[i].scene)
		}
		rows[i].scene.Length, rows[i].scene.Seed = realLength, uint64(i+1)
	}
	return rows
}

// long has kernels of 10 ms: on a busy machine the next one comes late, which is to cost it little.
func long(t scene.Tenant) scene.Tenant {
	t.Loops[0].Operations[0].Work = 10 * ms
	return t
}

// restful is the tenant with a rest now and then, at work while it disturbs.
func restful(t scene.Tenant) scene.Tenant {
	t = during(t, realFrom, realUntil)
	t.Loops[0].On, t.Loops[0].Off = 9*s, 900*ms
	return t
}

func streams(t scene.Tenant, count int) scene.Tenant {
	t.Loops[0].Streams = count
	return t
}

// turning launches kernels of 5 ms that fill the card.
func turning(name string) scene.Tenant {
	return scene.Tenant{Name: name, Loops: []scene.Loop{{Operations: []scene.Operation{{Kind: scene.Kernel, Work: 5 * ms, DRAM: 0.85, Bound: 0.8}}}}}
}
