// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Rules that others use, or that one would write first, on the same looks. None of them is told who shares the card, why
// something is slow, or whether the card is busy, but for the one that looks at nothing else.

package main

import (
	"math"
	"time"

	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/monitor"
)

// Names of rules.
const (
	ruleDefault = "vgpud default"
	ruleFast    = "vgpud fast"
	rule20      = "avg10 > 20 %"
	rule30      = "avg10 > 30 %"
	ruleDwell   = "20/10 %, 20/60/120 s"
	ruleDevice  = "device > 90 %"
	ruleOutlier = "2σ, 3 in 5 min"
)

// peerNames are in the order of tables.
var peerNames = []string{rule20, rule30, ruleDwell, ruleDevice, ruleOutlier}

func peers() map[string]rule {
	return map[string]rule{
		rule20:      &threshold{high: 0.20, low: 0.20},
		rule30:      &threshold{high: 0.30, low: 0.30},
		ruleDwell:   &threshold{high: 0.20, low: 0.10, dwell: 20 * time.Second, calm: 60 * time.Second, hold: 120 * time.Second},
		ruleDevice:  &deviceAlert{},
		ruleOutlier: &outlierRule{},
	}
}

const (
	learnSamples = 50  // of a class, before it is judged
	peerLink     = 0.9 // of the highest throughput seen so far
)

// profile is what a class of operations took when it was new, per operation.
type profile struct {
	samples, operations uint64
	time                time.Duration
	mean, deviation     float64 // ns; of the first samples
	ready               bool
}

// slowness keeps profiles of all classes.
type slowness struct {
	classes map[classKey]*profile
	at      time.Duration
}

type classKey struct {
	stream string
	id     uint64
}

// step calls each with every class that has new samples and is known: how long its samples took on average since the last
// look, and how many operations they stand for. It returns the time since the last look.
func (s *slowness) step(seen *monitor.Contention, each func(stream string, p *profile, mean float64, operations uint64)) time.Duration {
	if s.classes == nil {
		s.classes = map[classKey]*profile{}
	}
	for _, stream := range seen.Streams {
		for _, c := range stream.Classes {
			key := classKey{stream.Key, c.ID}
			p := s.classes[key]
			if p == nil {
				p = &profile{}
				s.classes[key] = p
			}
			if fresh := c.Samples - p.samples; p.ready && fresh > 0 {
				each(stream.Key, p, float64(c.Time-p.time)/float64(fresh), c.Operations-p.operations)
			}
			if !p.ready && c.Samples >= learnSamples {
				p.learn(c)
			}
			p.samples, p.operations, p.time = c.Samples, c.Operations, c.Time
		}
	}
	passed := seen.Now - s.at
	s.at = seen.Now
	return passed
}

// learn takes the mean of all samples until now, and the deviation of the newest ones, for what is usual.
func (p *profile) learn(c monitor.Class) {
	p.ready, p.mean = true, float64(c.Time)/float64(c.Samples)
	for _, d := range c.Recent {
		p.deviation += (float64(d) - p.mean) * (float64(d) - p.mean)
	}
	p.deviation = math.Sqrt(p.deviation / float64(max(1, len(c.Recent))))
}

// threshold holds the card to be contended when some tenant's operations took longer than when they were new, for more
// than `high` of the time by a mean over ten seconds, until it is less than `low`; with times to wait for either.
type threshold struct {
	high, low         float64
	dwell, calm, hold time.Duration
	slow              slowness
	avg               map[string]float64
	contended         bool
	since, changed    time.Duration
	streak            bool
	who               suspects
}

func (t *threshold) look(seen *monitor.Contention, _ contention.Result) (bool, string) {
	if t.avg == nil {
		t.avg = map[string]float64{}
	}
	lost := map[string]float64{}
	passed := t.slow.step(seen, func(stream string, p *profile, mean float64, operations uint64) {
		lost[stream] += max(0, mean-p.mean) * float64(operations)
	})
	worst, victim := 0.0, ""
	for _, stream := range seen.Streams {
		keep := math.Exp(-passed.Seconds() / 10)
		x := min(1, lost[stream.Key]/float64(max(1, passed)))
		t.avg[stream.Key] = t.avg[stream.Key]*keep + x*(1-keep)
		if t.avg[stream.Key] > worst {
			worst, victim = t.avg[stream.Key], stream.Key
		}
	}
	wants := worst > t.high
	if t.contended {
		wants = worst > t.low
	}
	switch {
	case wants == t.contended:
		t.streak = false
	case !t.streak:
		t.streak, t.since = true, seen.Now
	}
	wait := t.dwell
	if t.contended {
		wait = t.calm
	}
	if t.streak && seen.Now-t.since >= wait && (!t.contended || seen.Now-t.changed >= t.hold) {
		t.contended, t.streak, t.changed = !t.contended, false, seen.Now
	}
	return t.contended, t.who.loudest(seen, victim)
}

// suspects are what tenants did of late.
type suspects struct {
	before map[string]float64
	of     map[string]float64 // a mean that fades over 30 s
	at     time.Duration
}

// loudest is who of the others did most of late, in bytes copied and GPU time: whom one would blame. It is to be called at
// each look.
func (s *suspects) loudest(seen *monitor.Contention, victim string) (key string) {
	if s.before == nil {
		s.before, s.of = map[string]float64{}, map[string]float64{}
	}
	keep := math.Exp(-(seen.Now - s.at).Seconds() / 30)
	s.at = seen.Now
	most := 0.0
	for _, stream := range seen.Streams {
		did := float64(stream.Charged)
		for _, c := range stream.Copies {
			did += float64(c.Bytes)
		}
		s.of[stream.Key] = keep*s.of[stream.Key] + did - s.before[stream.Key]
		s.before[stream.Key] = did
		if stream.Key != victim && s.of[stream.Key] > most {
			most, key = s.of[stream.Key], stream.Key
		}
	}
	return key
}

// deviceAlert is an alert on the card's own counters, as exporters of them make possible: memory, or either direction of
// the link, above nine tenths of its best for 30 s.
type deviceAlert struct {
	best  float64
	above time.Duration // since then; 0: not
	who   suspects
}

func (d *deviceAlert) look(seen *monitor.Contention, _ contention.Result) (bool, string) {
	who := d.who.loudest(seen, "")
	full := false
	for _, card := range seen.Devices {
		for _, f := range []monitor.Figure{card.PCIeRX, card.PCIeTX} {
			d.best = max(d.best, f.Value)
			full = full || (f.Known && f.Value > peerLink*d.best && f.Value > 1e9)
		}
		full = full || (card.DRAM.Known && card.DRAM.Value > 0.9*0.92)
	}
	if !full {
		d.above = 0
		return false, ""
	}
	if d.above == 0 {
		d.above = seen.Now
	}
	return seen.Now-d.above >= 30*time.Second, who
}

// outlierRule follows a published law for processors: an operation is an outlier when it takes more than two deviations
// longer than is usual for it, and three looks with outliers in five minutes make a victim.
type outlierRule struct {
	slow  slowness
	found map[string][]time.Duration
	who   suspects
}

func (o *outlierRule) look(seen *monitor.Contention, _ contention.Result) (bool, string) {
	if o.found == nil {
		o.found = map[string][]time.Duration{}
	}
	outliers := map[string]bool{}
	o.slow.step(seen, func(stream string, p *profile, mean float64, _ uint64) {
		outliers[stream] = outliers[stream] || mean > p.mean+2*max(p.deviation, 0.02*p.mean)
	})
	for _, stream := range seen.Streams {
		list := o.found[stream.Key]
		for len(list) > 0 && seen.Now-list[0] > 5*time.Minute {
			list = list[1:]
		}
		if outliers[stream.Key] {
			list = append(list, seen.Now)
		}
		o.found[stream.Key] = list
	}
	victim := ""
	for _, stream := range seen.Streams {
		if len(o.found[stream.Key]) >= 3 && victim == "" {
			victim = stream.Key
		}
	}
	return victim != "", o.who.loudest(seen, victim)
}
