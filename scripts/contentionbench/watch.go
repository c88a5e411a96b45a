// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// A row in virtual time: looks at the model as often as the agent looks at its cards, the shipped decide, and beside it the
// rules that are compared, all on the same looks.

package main

import (
	"math"
	"slices"
	"time"

	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/scripts/contentionbench/scene"
	"github.com/vgpud/vgpud/scripts/contentionbench/virtual"
)

// rule says from looks whether the model's card is contended, and who is to blame: the key of an allocation, or "".
type rule interface {
	look(seen *monitor.Contention, concluded contention.Result) (contended bool, antagonist string)
}

// episode is a time in which a rule held the card to be contended.
type episode struct {
	from, to   time.Duration // to: 0 while it lasts
	antagonist string
}

// point is one period of a run, for plots and figures.
type point struct {
	at           time.Duration
	avg10, avg60 float64              // of the victim, the worst resource
	true         float64              // part of the period that it truly lost there
	attributed   map[string][]portion // by resource with traffic: of each tenant
}

// portion is a tenant's part of the card's traffic, as concluded and as it was, by a mean that fades as decide's does.
type portion struct {
	part, truly float64
	known       bool
}

// outcome is what came of a row.
type outcome struct {
	row      row
	real     bool
	length   time.Duration
	episodes map[string][]episode // by rule
	points   []point
	twin     []point // of a row in real time: the same in virtual time
	looks    int
	took     time.Duration // by the clock on the wall, all of it,
	deciding time.Duration // and what of it the shipped decide took
}

// resources are those that the model has, by decide's names.
var resources = map[contention.Resource]virtual.Resource{contention.ResourcePCIeRX: virtual.RX, contention.ResourcePCIeTX: virtual.TX,
	contention.ResourceDRAM: virtual.DRAM}

// watch runs a row.
func watch(r row, rules map[string]rule) outcome {
	began := time.Now()
	model := virtual.New(r.scene)
	o := outcome{row: r, length: r.scene.Length, episodes: map[string][]episode{}}
	var state contention.State
	policy := contention.DefaultPolicy()
	truths := &truth{before: make([]virtual.Truth, len(r.scene.Tenants)), rates: make([][virtual.Resources]float64, len(r.scene.Tenants))}
	last := time.Duration(0)
	var cadence contention.Cadence
	for at := time.Duration(0); at < r.scene.Length; {
		seen := model.Look(at, cadence.Named(at) != nil)
		decided := time.Now()
		var concluded contention.Result
		concluded, state = contention.Judge(seen, policy, state)
		o.deciding += time.Since(decided)
		o.looks++
		for name, law := range rules {
			contended, antagonist := law.look(seen, concluded)
			o.note(name, at, contended, antagonist)
		}
		if concluded.Period && at > last {
			o.points = append(o.points, o.point(model, concluded, truths, at-last))
			last = at
		}
		var wait time.Duration
		cadence, wait = cadence.After(at, concluded, policy)
		at += wait
	}
	o.took = time.Since(began)
	return o
}

// note records what a rule says.
func (o *outcome) note(name string, at time.Duration, contended bool, antagonist string) {
	list := o.episodes[name]
	open := len(list) > 0 && list[len(list)-1].to == 0
	switch {
	case contended && !open:
		o.episodes[name] = append(list, episode{from: at, antagonist: antagonist})
	case !contended && open:
		list[len(list)-1].to = at
	}
}

// truth is what really was, as far as the last period.
type truth struct {
	before []virtual.Truth
	rates  [][virtual.Resources]float64 // used per second, by tenant, over about fadesOver
}

// pass takes in a period, and returns what was true at its end.
func (t *truth) pass(model *virtual.Model, period time.Duration) (now []virtual.Truth) {
	keep := math.Exp(-period.Seconds() / fadesOver.Seconds())
	for i := range t.before {
		now = append(now, model.Truth(i))
		for on := range t.rates[i] {
			rate := (now[i].Used[on] - t.before[i].Used[on]) / period.Seconds()
			t.rates[i][on] = keep*t.rates[i][on] + (1-keep)*rate
		}
	}
	return now
}

// part is a tenant's part of all traffic on a resource.
func (t *truth) part(tenant int, on virtual.Resource) float64 {
	all := 0.0
	for _, rates := range t.rates {
		all += rates[on]
	}
	if all == 0 {
		return 0
	}
	return t.rates[tenant][on] / all
}

// point compares a period with the truth.
func (o *outcome) point(model *virtual.Model, concluded contention.Result, truths *truth, period time.Duration) point {
	p := point{at: model.Now(), attributed: map[string][]portion{}}
	tenants := o.row.scene.Tenants
	slicesOf := map[string]contention.Slice{}
	for _, c := range concluded.Slices {
		slicesOf[c.Key] = c
	}
	now := truths.pass(model, period)
	var device []contention.Attributed
	if len(concluded.GPUs) > 0 {
		device = concluded.GPUs[0].Device
	}
	for name, on := range resources {
		whole, ok := attributedOn(device, name)
		if !ok || whole.Part < leastTraffic {
			continue
		}
		for i, t := range tenants {
			mine := portion{truly: truths.part(i, on)}
			if got, known := attributedOn(slicesOf[virtual.Key(t)].Traffic, name); known && got.Confidence >= confident {
				mine.known, mine.part = true, got.Part/whole.Part
			}
			p.attributed[string(name)] = append(p.attributed[string(name)], mine)
		}
	}
	p.avg10, p.avg60, p.true = o.victim(slicesOf[virtual.Key(tenants[0])], now[0], truths.before[0], float64(period))
	truths.before = now
	return p
}

// victim is the pressure on the first tenant where it is worst, and what it truly lost there.
func (o *outcome) victim(c contention.Slice, now, before virtual.Truth, period float64) (avg10, avg60, truly float64) {
	for name, at := range resources {
		full := c.Pressures[name].Full
		avg10, avg60 = max(avg10, full.Avg10), max(avg60, full.Avg60)
		truly = max(truly, float64(now.Stalled[at]-before.Stalled[at])/period)
	}
	return avg10, avg60, truly
}

// attributedOn is what of a list is on a resource; false if nothing is known of it.
func attributedOn(list []contention.Attributed, name contention.Resource) (contention.Attributed, bool) {
	i := slices.IndexFunc(list, func(a contention.Attributed) bool { return a.Resource == name })
	if i < 0 {
		return contention.Attributed{}, false
	}
	return list[i], list[i].Known
}

// tenantOf is the name of the tenant with that key; "" for none.
func tenantOf(tenants []scene.Tenant, key string) string {
	for _, t := range tenants {
		if key != "" && virtual.Key(t) == key {
			return t.Name
		}
	}
	return key
}
