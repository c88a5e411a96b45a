// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Who has which part of the traffic of DRAM, by what package attribution has found, and how sure that is.

package contention

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/vgpud/vgpud/agent/decide/attribution"
	"github.com/vgpud/vgpud/agent/monitor"
)

// Times between regressions.
const (
	fitOften = 2 * Period
	fitEvery = 10 * time.Second // where nothing depends on them
)

// dramShares is who has which part of the DRAM's traffic, as parts of the peak.
type dramShares struct {
	counted bool
	known   bool // what slices do explains the counter
	why     string
	whole   float64
	of      []dramPart // by slice; none where there is no fit, or no traffic
	ranking ranking
}

// dramPart is the part of one slice.
type dramPart struct {
	part       float64
	told       bool // it is sure enough
	confidence float64
	why        string // it is not told, or not surer
}

// splitDRAM tells who has which part.
func (c *cardTraffic) splitDRAM(now time.Duration, policy *Policy) dramShares {
	made := dramShares{counted: c.dram.knownAt(c.looked), whole: c.dram.slow}
	if !made.counted || c.sharing == monitor.SharingMIG || c.sharing == monitor.SharingExclusive {
		made.why = "the card's memory bandwidth is not known"
		return made
	}
	if c.dram.slow < attribution.IdleDRAM && c.dram.mean < attribution.IdleDRAM {
		made.known = true
		return made
	}
	every := fitEvery
	if made.whole/c.achievable(onDRAM, policy) >= policy.Quick || c.pressed() {
		every = fitOften
	}
	if c.fit == nil || !c.fit.Known || now-c.fit.At >= every || now < c.fit.At {
		last := c.fit
		if last == nil {
			last = &attribution.Fit{Base: c.base}
		}
		c.fit = c.rows.Explain(last, now)
	}
	if !c.fit.Known {
		made.why = c.fit.Why
		return made
	}
	made.fill(c)
	return made
}

// pressed says whether some slice loses time on the card's DRAM.
func (c *cardTraffic) pressed() bool {
	return slices.ContainsFunc(c.slices, func(s sliceTraffic) bool { return s.pressure[onDRAM].some.avg10 > 0 })
}

// fill works the parts out, and whether they are sure enough.
func (d *dramShares) fill(c *cardTraffic) {
	f := c.fit
	d.of = make([]dramPart, len(c.slices))
	sum := f.Base
	for i := range c.slices {
		s := &c.slices[i]
		d.of[i] = fitted(f, s, d.whole)
		sum += d.of[i].part
	}
	if sum > d.whole && sum > 0 {
		for i := range d.of {
			d.of[i].part *= d.whole / sum
		}
	}
	misfit := math.Abs(sum-d.whole) / max(d.whole, attribution.IdleDRAM)
	d.known = misfit <= attribution.MisfitMost
	if !d.known {
		d.why = "what slices do does not explain the card's counter"
	}
	d.ranking = rank(len(d.of), func(i int) float64 { return d.of[i].part })
	for i := range d.of {
		of := &d.of[i]
		of.confidence = sane(of.confidence - misfit)
		if !d.known {
			of.told, of.why = false, d.why
		}
		if !of.told {
			of.confidence = 0
			if d.why == "" {
				d.why = of.why
			}
		}
	}
}

// fitted is the part of one slice, of a whole.
func fitted(f *attribution.Fit, s *sliceTraffic, whole float64) dramPart {
	made := dramPart{part: f.PerByte * copyPasses * s.share[monitor.DeviceToDevice], told: true, confidence: 1}
	at := slices.IndexFunc(f.Slices, func(k attribution.Coefficient) bool { return k.Key == s.key })
	if at < 0 {
		return made
	}
	known := &f.Slices[at]
	busy := s.effort
	if f.Busy {
		busy = s.busy
	}
	made.part += known.Value * busy
	wrong := known.Error * busy / max(whole, attribution.IdleDRAM)
	made.confidence = 1 - wrong/attribution.ErrorMost/2
	switch {
	case wrong > attribution.ErrorMost && f.Shaky:
		made.told, made.why = false, "what slices are charged does not explain how the card's counter varies"
	case wrong > attribution.ErrorMost && len(f.Slices) > 1:
		made.told, made.why = false, "it is active at the same times as others"
	case wrong > attribution.ErrorMost:
		made.told, made.why = false, "its activity says too little of its traffic"
	case known.Rows < attribution.ActiveRows && wrong > attribution.ErrorMost/4:
		made.told, made.why = false, fmt.Sprintf("it was active in fewer than %d looks", attribution.ActiveRows)
	case known.Other:
		made.confidence, made.why = min(made.confidence, 0.6), "by what was seen before: it is active at the same times as others"
	case f.Overlap:
		made.confidence, made.why = min(made.confidence, 0.8), "kernels run at once: a mean over what runs beside"
	}
	return made
}

// sharesOf is how the traffic is split as one slice sees it. It is enough to know what it has itself: what is explained by
// the others is theirs together.
func (d *dramShares) sharesOf(all []sliceTraffic, index int) shares {
	if !d.counted || !d.known || len(d.of) == 0 || d.whole <= 0 {
		return shares{known: d.counted && d.known, why: d.why}
	}
	if own := &d.of[index]; !own.told {
		return shares{why: own.why}
	}
	made, most := d.ranking.split(index, d.whole, func(i int) float64 { return d.of[i].part })
	if most >= 0 && d.of[most].told {
		made.antagonist = all[most].key
		made.confidence *= min(d.of[most].confidence, d.of[index].confidence)
	}
	return made
}

// describe tells the traffic of the card, and what is nobody's.
func (d *dramShares) describe(t *cardShares, gpu *GPU) {
	if !d.counted {
		return
	}
	can := t.card.achievable(onDRAM, t.policy)
	gpu.Device = append(gpu.Device, Attributed{Resource: ResourceDRAM, Part: partOf(d.whole, can), Known: true, Confidence: 1})
	rest := d.whole
	for i := range d.of {
		if d.of[i].told {
			rest -= d.of[i].part
		}
	}
	gpu.Unattributed = append(gpu.Unattributed, Attributed{Resource: ResourceDRAM, Part: partOf(max(0, rest), can), Known: true,
		Confidence: 1, Why: d.why})
}

// tell tells the traffic of a slice.
func (d *dramShares) tell(t *cardShares, index int, found *Slice) {
	if !d.counted || !t.card.slices[index].working() {
		return
	}
	made := Attributed{Resource: ResourceDRAM, Why: d.why}
	if len(d.of) > 0 {
		of := &d.of[index]
		made.Known, made.Confidence, made.Why = of.told, of.confidence, of.why
		if of.told {
			made.Part = partOf(of.part, t.card.achievable(onDRAM, t.policy))
		}
	}
	found.Traffic = append(found.Traffic, made)
}

// sure says whether all that matters is told, with confidence.
func (d *dramShares) sure() bool {
	return d.known && !slices.ContainsFunc(d.of, func(p dramPart) bool { return p.confidence < sureFrom && p.part > attribution.ErrorMost*d.whole })
}

// working says whether a slice used the card of late.
func (s *sliceTraffic) working() bool {
	return s.busy > attribution.IdleRow*attribution.IdleRow || s.share[monitor.DeviceToDevice] >= 1
}

// keepRow remembers a look at a card whose DRAM's counter is known.
func (c *cardTraffic) keepRow(l *look, device *monitor.Device) {
	if l.passed == 0 {
		c.rows = nil // the clock was set, or nobody looked for long
	}
	switch {
	case c.dram.known == 0 || len(c.slices) == 0 || c.sharing == monitor.SharingMIG || c.sharing == monitor.SharingExclusive:
		c.rows = nil
		return
	}
	both := make([]float64, 2*len(c.slices))
	row := &attribution.Look{At: l.now, Used: both[:len(c.slices)], Done: both[len(c.slices):], Copied: c.copied}
	if device != nil && c.dram.known == l.now {
		row.Known, row.Value = true, c.dram.last
		row.Read, row.Period = device.At, device.DRAM.Period
		if row.Read <= 0 || row.Read > l.now || l.now-row.Read > gapMost {
			row.Read = l.now
		}
		if row.Period <= 0 || row.Period > gapMost {
			row.Period = l.passed
		}
	}
	newest := c.rows.NewestKeys()
	same := len(newest) == len(c.slices)
	for i := range c.slices {
		s := &c.slices[i]
		row.Used[i], row.Done[i] = s.used, s.done
		same = same && newest[i] == s.key
		if !s.known || !s.charging && s.worked {
			if row.Blank == nil {
				row.Blank = make([]bool, len(c.slices))
			}
			row.Blank[i] = true
		}
	}
	if same {
		row.Keys = newest
	} else {
		row.Keys = make([]string, len(c.slices))
		for i := range c.slices {
			row.Keys[i] = c.slices[i].key
		}
	}
	c.rows = c.rows.With(row)
}
