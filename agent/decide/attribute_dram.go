// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The traffic of DRAM by slice. There is one counter for the whole card; it is explained by the GPU time that each slice used
// meanwhile: so much traffic per GPU time of each, and so much per byte that is copied within the card. That can be told only
// while they do different things at different times; what was found then is kept for a while, and used when they do not, as
// long as it still explains the counter.

package decide

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

const (
	columnsMost   = 16   // slices that are told apart
	activeRow     = 0.2  // activity from which a row says something of a slice
	activeRows    = 20   // such rows that are needed
	conditionMost = 50   // of the columns
	oneRow        = 4.0  // weight of a row with one active slice
	idleRow       = 0.02 // activity below which a slice is not active in a row
	baseSpread    = 0.02 // how far the traffic of nobody may be from what was seen while all were idle
	noiseLeast    = 0.003
	errorMost     = 0.05 // standard error of a slice's part, of the whole, with which it is told
	misfitMost    = 0.15 // of the whole: what the slices are told to have, more or less than the counter shows
	idleDRAM      = 0.01 // of the peak, below which there is nothing to tell
	lagGain       = 0.95 // another lag is taken if it leaves so much less
	lagEvery      = 5    // periods

	rememberFor    = 10 * time.Minute // what was found, when it cannot be found anew
	rememberSpread = 0.1              // how far a coefficient has moved after a minute, of itself
)

// coefficient is what is known of one slice's traffic per GPU time, as a part of the peak.
type coefficient struct {
	key   string
	value float64
	error float64
	rows  int           // that said something of it
	found time.Duration // when it was told apart from the others last
	other bool          // it is told from what was found before
}

// dramFit is what a window of looks says. It is not changed once it is made.
type dramFit struct {
	at        time.Duration
	lag       time.Duration
	tries     int
	base      float64       // traffic of nobody
	slices    []coefficient // sorted by key
	perByte   float64       // traffic per byte per second of copies within the card
	known     bool
	why       string // not known, or not surer
	condition float64
	misfit    float64 // standard deviation of what is not explained
	overlap   bool    // slices ran at once
	remember  []coefficient
}

// problem is the regression for one lag.
type problem struct {
	*normal
	columns []string
	copies  bool // the last column but one is of copies
	active  []int
	overlap float64
	mean    float64 // of the counter
}

// fitDRAM explains the DRAM's counter.
func (c *cardTraffic) fitDRAM(now time.Duration) *dramFit {
	last := c.fit
	if last == nil {
		last = &dramFit{}
	}
	made := &dramFit{at: now, lag: last.lag, tries: last.tries + 1, base: last.base, remember: last.remember}
	columns := c.activeColumns()
	switch {
	case c.rows == nil || len(columns) == 0:
		made.why = "nobody used the card"
		return made
	case len(columns) > columnsMost:
		made.why = fmt.Sprintf("more than %d slices are active", columnsMost)
		return made
	}
	best := c.setUp(columns, made.lag)
	if made.tries%lagEvery == 1 {
		best, made.lag = c.align(columns, best, made.lag)
	}
	if best.rows < activeRows {
		made.why = "there are too few looks yet"
		if c.anyBlank() {
			made.why = "what some slice does is not known"
		}
		return made
	}
	made.solve(best, now)
	return made
}

// activeColumns is the slices that used the card in the window.
func (c *cardTraffic) activeColumns() []string {
	if c.rows == nil {
		return nil
	}
	rows := c.rows.rows
	first, last := rows[0], rows[len(rows)-1]
	var columns []string
	for i, key := range last.keys {
		begin := 0.0
		if at := find(first.keys, key); at >= 0 {
			begin = first.used[at]
		}
		if last.used[i]-begin > idleRow*idleRow*(last.at-first.at).Seconds() {
			columns = append(columns, key)
		}
	}
	return columns
}

// anyBlank says whether something is not known in the newest look.
func (c *cardTraffic) anyBlank() bool {
	rows := c.rows.rows
	return rows[len(rows)-1].blank != nil
}

// align finds the lag with which the activity explains the counter best.
func (c *cardTraffic) align(columns []string, best *problem, lag time.Duration) (*problem, time.Duration) {
	least := best.leaves()
	for other := time.Duration(0); other <= lagMost; other += lagStep {
		if other == lag {
			continue
		}
		tried := c.setUp(columns, other)
		if tried.rows < best.rows*9/10 {
			continue
		}
		if left := tried.leaves(); left < least*lagGain {
			best, lag, least = tried, other, left
		}
	}
	return best, lag
}

// leaves is how much per row the best coefficients leave.
func (p *problem) leaves() float64 {
	if p.weight == 0 {
		return math.Inf(1)
	}
	return p.residual(p.solve(nil)) / p.weight
}

// setUp makes the regression of the counter on what slices did so much earlier. Columns: the slices, copies, and one that is
// always 1.
func (c *cardTraffic) setUp(columns []string, lag time.Duration) *problem {
	size := len(columns) + 2
	made := &problem{normal: newNormal(size), columns: columns, active: make([]int, len(columns))}
	begins := rowReader{rows: c.rows.rows, columns: columns, at: make([]int, len(columns))}
	ends := rowReader{rows: c.rows.rows, columns: columns, at: make([]int, len(columns))}
	row, from := make([]float64, size), make([]float64, len(columns))
	newest := c.rows.rows[len(c.rows.rows)-1].at
	for _, look := range c.rows.rows {
		if !look.known || look.read < newest-lookBack {
			continue
		}
		copiedFrom, ok := begins.upTo(look.read-look.period-lag, from)
		if !ok {
			continue
		}
		copiedTo, ok := ends.upTo(look.read-lag, row[:len(columns)])
		if !ok {
			continue
		}
		active, busy := 0, 0.0
		for i := range columns {
			row[i] = max(0, (row[i]-from[i])/look.period.Seconds())
			busy += row[i]
			if row[i] > activeRow {
				made.active[i]++
			}
			if row[i] > idleRow {
				active++
			}
		}
		row[size-2] = max(0, copiedTo-copiedFrom) / look.period.Seconds() / copyScale
		made.copies = made.copies || row[size-2] > 0
		row[size-1] = 1
		weight := 1.0
		if active == 1 {
			weight = oneRow
		}
		made.add(row, look.value, weight)
		made.overlap += weight * max(0, busy-1)
		made.mean += weight * look.value
	}
	made.mirror()
	if made.weight > 0 {
		made.overlap /= made.weight
		made.mean /= made.weight
	}
	return made
}

// copyScale makes the column of copies about as large as the others.
const copyScale = 1e12

// solve finds the coefficients and what they are worth.
func (f *dramFit) solve(p *problem, now time.Duration) {
	noise := 10 * noiseLeast
	for range 2 {
		with := p.clone()
		with.expect(p.size-1, f.base, noise*noise/(baseSpread*baseSpread))
		found := with.solve(nil)
		noise = max(noiseLeast, math.Sqrt(p.residual(found)/max(p.weight, 1)))
	}
	f.misfit, f.overlap = noise, p.overlap > 0.05
	with := p.clone()
	with.expect(p.size-1, f.base, noise*noise/(baseSpread*baseSpread))
	f.condition = with.told(p.copies).condition()
	if f.condition >= conditionMost {
		f.recall(with, p, noise, now)
	}
	found := with.solve(nil)
	inverse, ok := with.withRidge(noise).inverse()
	if !ok {
		f.why = "slices cannot be told apart: they are active at the same times"
		return
	}
	f.perByte = found[p.size-2] / copyScale
	// Errors that follow each other in time count for less than as many that do not.
	spread := noise * math.Sqrt(2)
	f.slices = make([]coefficient, len(p.columns))
	for i, key := range p.columns {
		f.slices[i] = coefficient{key: key, value: found[i], error: spread * math.Sqrt(inverse[i*p.size+i]), rows: p.active[i], found: now,
			other: f.condition >= conditionMost}
	}
	f.known = true
	if f.condition < conditionMost {
		f.keep(now)
	}
}

// told is the part of the columns that have to be told apart, with the constant one taken out of them as far as it is not
// known.
func (n *normal) told(copies bool) *normal {
	size := n.size - 1
	if !copies {
		size--
	}
	made := newNormal(size)
	last := n.size - 1
	for i := range size {
		for j := range size {
			made.gram[i*size+j] = n.gram[i*n.size+j] - n.gram[i*n.size+last]*n.gram[j*n.size+last]/n.gram[last*n.size+last]
		}
	}
	return made
}

// withRidge makes sure that there is an inverse: a coefficient is somewhere from 0 to 1.
func (n *normal) withRidge(noise float64) *normal {
	made := n.clone()
	for i := range made.size {
		made.gram[i*made.size+i] += noise * noise
	}
	return made
}

// recall adds what was found before.
func (f *dramFit) recall(n *normal, p *problem, noise float64, now time.Duration) {
	for _, known := range f.remember {
		i := slices.Index(p.columns, known.key)
		if age := now - known.found; i >= 0 && age < rememberFor {
			moved := rememberSpread * known.value * math.Sqrt(age.Minutes())
			spread := max(noiseLeast, math.Hypot(known.error, moved))
			n.expect(i, known.value, noise*noise/(spread*spread))
		}
	}
}

// keep remembers coefficients that were told apart.
func (f *dramFit) keep(now time.Duration) {
	kept := slices.Clone(f.slices)
	for _, known := range f.remember {
		if now-known.found < rememberFor && !slices.ContainsFunc(kept, func(c coefficient) bool { return c.key == known.key }) &&
			len(kept) < 4*columnsMost {
			kept = append(kept, known)
		}
	}
	f.remember = kept
}

// dramShares is who has which part of the DRAM's traffic, as parts of the peak.
type dramShares struct {
	counted    bool
	known      bool
	why        string
	whole      float64
	confidence float64
	parts      []float64 // by slice
	told       []bool    // by slice
	reasons    []string  // by slice, why not
}

// splitDRAM tells who has which part.
func (c *cardTraffic) splitDRAM(now time.Duration, policy *ContentionPolicy) dramShares {
	made := dramShares{counted: c.dram.knownAt(c.looked), whole: c.dram.slow}
	if !made.counted || c.sharing == monitor.SharingMIG || c.sharing == monitor.SharingExclusive {
		made.why = "the card's memory bandwidth is not known"
		return made
	}
	if c.dram.slow < idleDRAM && c.dram.mean < idleDRAM {
		made.known, made.confidence = true, 1
		return made
	}
	c.fit = c.fitDRAM(now)
	if !c.fit.known {
		made.why = c.fit.why
		return made
	}
	made.fill(c)
	return made
}

// fill works the parts out, and whether they are sure enough.
func (d *dramShares) fill(c *cardTraffic) {
	f := c.fit
	d.parts, d.told, d.reasons = make([]float64, len(c.slices)), make([]bool, len(c.slices)), make([]string, len(c.slices))
	sum, doubt := f.base, 0.0
	for i := range c.slices {
		s := &c.slices[i]
		d.told[i] = true
		at := slices.IndexFunc(f.slices, func(k coefficient) bool { return k.key == s.key })
		copied := f.perByte * copyPasses * s.share[monitor.DeviceToDevice]
		if at < 0 {
			d.parts[i] = copied
			sum += copied
			continue
		}
		known := &f.slices[at]
		d.parts[i] = known.value*s.busy + copied
		sum += d.parts[i]
		wrong := known.error * s.busy / max(d.whole, idleDRAM)
		doubt = max(doubt, wrong)
		switch {
		case wrong > errorMost:
			d.told[i], d.reasons[i] = false, "its activity says too little of its traffic"
			if f.condition >= conditionMost {
				d.reasons[i] = "it is active at the same times as others"
			}
		case known.rows < activeRows && wrong > errorMost/4:
			d.told[i], d.reasons[i] = false, fmt.Sprintf("it was active in fewer than %d looks", activeRows)
		}
		if !d.told[i] && d.why == "" {
			d.why = d.reasons[i]
		}
	}
	if sum > d.whole && sum > 0 {
		for i := range d.parts {
			d.parts[i] *= d.whole / sum
		}
	}
	misfit := math.Abs(sum-d.whole) / max(d.whole, idleDRAM)
	d.known = d.why == ""
	if misfit > misfitMost {
		d.known, d.why = false, "what slices do does not explain the card's counter"
	}
	d.confidence = sane(1 - doubt/errorMost/2 - misfit)
	if f.overlap {
		d.confidence = min(d.confidence, 0.8)
		if d.why == "" {
			d.why = "kernels run at once: a mean over what runs beside"
		}
	}
	if f.condition >= conditionMost {
		d.confidence = min(d.confidence, 0.6)
	}
}

// sharesOf is how the traffic is split as one slice sees it.
func (d *dramShares) sharesOf(all []sliceTraffic, index int) shares {
	if !d.counted || !d.known || len(d.parts) == 0 || d.whole <= 0 {
		return shares{known: d.counted && d.known, why: d.why}
	}
	made := splitBy(all, index, d.whole, d.confidence, func(i int) float64 { return d.parts[i] })
	made.why = d.why
	return made
}

// describe tells the traffic of the card, and what is nobody's.
func (d *dramShares) describe(t *cardShares, gpu *GPUContention) {
	if !d.counted {
		return
	}
	can := t.card.achievable(onDRAM, t.policy)
	gpu.Device = append(gpu.Device, Attributed{Resource: ResourceDRAM, Part: partOf(d.whole, can), Known: true, Confidence: 1})
	rest := d.whole
	for i, part := range d.parts {
		if d.known || d.told[i] {
			rest -= part
		}
	}
	gpu.Unattributed = append(gpu.Unattributed, Attributed{Resource: ResourceDRAM, Part: partOf(max(0, rest), can), Known: true,
		Confidence: 1, Why: d.why})
}

// of tells the traffic of a slice.
func (d *dramShares) of(t *cardShares, index int, found *SliceContention) {
	if !d.counted || !t.card.slices[index].working() {
		return
	}
	made := Attributed{Resource: ResourceDRAM, Why: d.why}
	if len(d.parts) > 0 && d.known {
		made.Part, made.Known, made.Confidence = partOf(d.parts[index], t.card.achievable(onDRAM, t.policy)), true, d.confidence
	}
	found.Traffic = append(found.Traffic, made)
}

// working says whether a slice used the card of late.
func (s *sliceTraffic) working() bool {
	return s.busy > idleRow*idleRow || s.share[monitor.DeviceToDevice] >= 1
}

// quickWish is what is remembered of looking often.
type quickWish struct {
	since time.Duration // when it began; 0: it is not on
	until time.Duration // it is not begun anew before
}

// Times of looking often.
const (
	quickFor   = 2 * time.Minute
	quickRest  = 3 * time.Minute
	quickShort = time.Minute
)

// plan decides whether the card is to be looked at more often: while it matters who has its DRAM's traffic, and that is not
// known yet.
func (c *cardTraffic) plan(now time.Duration, traffic *cardShares, policy *ContentionPolicy) {
	active := 0
	for i := range c.slices {
		if c.slices[i].busy > idleRow {
			active++
		}
	}
	wanted := active >= 2 && c.dram.knownAt(c.looked) && (policy.Attribute || traffic.ratio[onDRAM] >= policy.Quick) &&
		(c.sharing == monitor.SharingMPS || c.sharing == monitor.SharingTimeSliced)
	sure := traffic.dram.known && traffic.dram.confidence >= 0.7
	switch {
	case !wanted || sure && c.wish.since > 0 && now-c.wish.since >= quickShort:
		if c.wish.since > 0 {
			c.wish = quickWish{until: now + quickShort}
		}
	case c.wish.since > 0 && now-c.wish.since >= quickFor:
		c.wish = quickWish{until: now + quickRest}
	case c.wish.since == 0 && now >= c.wish.until && !sure:
		c.wish = quickWish{since: now}
	}
	c.quick = c.wish.since > 0
}
