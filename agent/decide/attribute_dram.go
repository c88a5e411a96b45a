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
	columnsMost      = 16               // slices that are told apart
	activeRow        = 0.2              // activity from which a row says something of a slice
	activeRows       = 20               // such rows that are needed
	lookLeast        = 20 * time.Second // that the rows have to span
	conditionMost    = 50               // of the columns
	oneRow           = 4.0              // weight of a row with one active slice
	idleRow          = 0.02             // activity below which a slice is not active in a row
	baseSpread       = 0.01             // how far the traffic of nobody may be from what was seen while all were idle
	baseRows         = 5                // rows that show it
	noiseLeast       = 0.003
	errorMost        = 0.05             // standard error of a slice's part, of the whole, with which it is told
	apartLeast       = 0.03             // by which the activity of a slice has to differ from that of all others
	apartPart        = 0.1              // and by this part of its own
	unexplainedMost  = 0.35             // of the counter's variance, that slices may leave unexplained
	unexplainedLeast = 0.06             // of its mean, as a standard deviation, from which that matters
	misfitMost       = 0.15             // of the whole: what the slices are told to have, more or less than the counter shows
	idleDRAM         = 0.01             // of the peak, below which there is nothing to tell
	lagGain          = 0.95             // another lag is taken if it leaves so much less
	timeGain         = 0.6              // and GPU time in the place of what was done in it
	fitEvery         = 10 * time.Second // where nothing depends on it
	lagEvery         = 10               // periods

	rememberFor    = time.Hour // what was found, when it cannot be found anew
	rememberMost   = 4 * columnsMost
	rememberSpread = 0.01 // how far a coefficient has moved after a minute, of itself
)

// coefficient is what is known of one slice's traffic per GPU time, as a part of the peak.
type coefficient struct {
	key   string
	value float64
	error float64
	busy  float64       // mean activity
	apart float64       // by how much its activity differs from every mixture of the others'
	rows  int           // that said something of it
	found time.Duration // when it was told apart from the others last
	other bool          // it is told from what was found before
}

// dramFit is what a window of looks says. It is not changed once it is made.
type dramFit struct {
	at        time.Duration
	lag       time.Duration
	busy      bool // GPU time explains the counter, not what was done in it
	tries     int
	base      float64       // traffic of nobody
	slices    []coefficient // sorted by key
	perByte   float64       // traffic per byte per second of copies within the card
	known     bool
	why       string // not known, or not surer
	condition float64
	mean      float64 // of the counter
	misfit    float64 // standard deviation of what is not explained
	overlap   bool    // slices ran at once
	shaky     bool    // much of what the counter varies is not explained
	remember  []coefficient
}

// problem is the regression for one lag.
type problem struct {
	*normal         // by what was done
	times   *normal // by GPU time
	lag     time.Duration
	columns []string
	copies  bool    // the last column but one is of copies
	idle    float64 // the counter's sum in rows in which nobody was active
	idles   int     // such rows

	from, until time.Duration // of the rows
	active      []int
	sum         []float64 // of activity
	overlap     float64
	mean        float64 // of the counter
}

// fitDRAM explains the DRAM's counter.
func (c *cardTraffic) fitDRAM(now time.Duration) *dramFit {
	last := c.fit
	if last == nil {
		last = &dramFit{}
	}
	made := &dramFit{at: now, lag: last.lag, busy: last.busy, tries: last.tries + 1, base: last.base, remember: last.remember}
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
	if made.tries%lagEvery == 1 || made.tries == lagEvery/2 {
		best = c.align(columns, best)
	}
	made.lag, made.busy = best.lag, best.times.leaves() < best.leaves()*timeGain
	if best.rows < activeRows || best.until-best.from < lookLeast {
		made.why = "there are too few looks yet"
		if c.anyBlank() {
			made.why = "what some slice does is not known"
		}
		return made
	}
	times := best.times
	if made.busy {
		best.normal = times
	}
	made.solve(best, times, now)
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
func (c *cardTraffic) align(columns []string, best *problem) *problem {
	least, first := best.leaves(), best
	for lag := time.Duration(0); lag <= lagMost; lag += lagStep {
		if lag == first.lag {
			continue
		}
		tried := c.setUp(columns, lag)
		if tried.rows < first.rows*9/10 {
			continue
		}
		if left := tried.leaves(); left < least*lagGain {
			best, least = tried, left
		}
	}
	return best
}

// leaves is how much per row the best coefficients leave.
func (n *normal) leaves() float64 {
	if n.weight == 0 {
		return math.Inf(1)
	}
	return n.residual(n.solve()) / n.weight
}

// setUp makes the regression of the counter on what slices did so much earlier. Columns: the slices, copies, and one that is
// always 1.
func (c *cardTraffic) setUp(columns []string, lag time.Duration) *problem {
	count := len(columns)
	size := count + 2
	made := &problem{normal: newNormal(size), times: newNormal(size), columns: columns, active: make([]int, count),
		sum: make([]float64, count), lag: lag}
	begins := rowReader{rows: c.rows.rows, columns: columns, at: make([]int, count)}
	ends := rowReader{rows: c.rows.rows, columns: columns, at: make([]int, count)}
	room := make([]float64, 2*size+2*count)
	to := standing{done: room[:size], used: room[size : 2*size]}
	from := standing{done: room[2*size : 2*size+count], used: room[2*size+count:]}
	newest := c.rows.rows[len(c.rows.rows)-1].at
	for _, look := range c.rows.rows {
		if !look.known || look.read < newest-lookBack || !begins.upTo(look.read-look.period-lag, &from) ||
			!ends.upTo(look.read-lag, &to) {
			continue
		}
		made.take(look, &from, &to)
	}
	made.mirror()
	made.times.mirror()
	if made.weight > 0 {
		made.overlap /= made.weight
		made.mean /= made.weight
	}
	return made
}

// take takes in a look; to becomes the row.
func (p *problem) take(look *trafficRow, from, to *standing) {
	span := look.period.Seconds()
	active, busy := 0, 0.0
	for i := range p.columns {
		to.used[i] = max(0, (to.used[i]-from.used[i])/span)
		to.done[i] = max(0, (to.done[i]-from.done[i])/span)
		busy += to.used[i]
		if to.used[i] > activeRow {
			p.active[i]++
		}
		if to.used[i] > idleRow {
			active++
		}
	}
	copied := max(0, to.copied-from.copied) / span / copyScale
	p.copies = p.copies || copied > 0
	for _, row := range [][]float64{to.used, to.done} {
		row[p.size-2], row[p.size-1] = copied, 1
	}
	weight := 1.0
	switch active {
	case 0:
		p.idle += look.value
		p.idles++
	case 1:
		weight = oneRow
	}
	p.add(to.done, look.value, weight)
	p.times.add(to.used, look.value, weight)
	for i := range p.columns {
		p.sum[i] += weight * to.used[i]
	}
	if p.from == 0 {
		p.from = look.read
	}
	p.until = look.read
	p.overlap += weight * max(0, busy-1)
	p.mean += weight * look.value
}

// copyScale makes the column of copies about as large as the others.
const copyScale = 1e12

// solve finds the coefficients and what they are worth. It is by their GPU time that slices have to be told apart (times): how
// fast their kernels are differs too, but that is measured roughly.
func (f *dramFit) solve(p *problem, times *normal, now time.Duration) {
	noise := 10 * noiseLeast
	if p.idles >= baseRows {
		f.base = p.idle / float64(p.idles)
	}
	for range 2 {
		with := p.clone()
		with.expect(p.size-1, f.base, noise*noise/(baseSpread*baseSpread))
		found := with.solve()
		noise = max(noiseLeast, math.Sqrt(p.residual(found)/max(p.weight, 1)))
	}
	f.misfit, f.overlap = noise, p.overlap > 0.05
	with := p.clone()
	with.expect(p.size-1, f.base, noise*noise/(baseSpread*baseSpread))
	apart := times.clone()
	apart.expect(p.size-1, f.base, noise*noise/(baseSpread*baseSpread))
	f.condition = max(with.told(p.copies).condition(), apart.told(p.copies).condition())
	if !f.conclude(with, apart, p, noise, now) {
		f.why = "slices cannot be told apart: they are active at the same times"
		return
	}
	for i, part := range times.apart(len(p.columns)) {
		f.slices[i].apart = part
	}
	// Of what the counter varies, most has to be explained: else the activity that is told is not what drove it, and then
	// coefficients are too small, however sure they look.
	varied := p.square/p.weight - p.mean*p.mean
	f.shaky = noise*noise > unexplainedMost*varied && noise > unexplainedLeast*p.mean
	if f.condition < conditionMost && !f.shaky && !slices.ContainsFunc(f.slices, func(c coefficient) bool { return c.vague(f.mean) }) {
		f.keep(now)
		return
	}
	// This window says too little. What was found before is used, and of the window only what all are on the mean: what varies
	// is no more than noise.
	f.keep(now)
	with = f.recall(p, noise, now)
	f.conclude(with, with, p, noise, now)
	for i := range f.slices {
		f.slices[i].other = true
	}
}

// conclude finds the coefficients of a window, and how far they can be wrong, by the columns as they are and by those by which
// they have to be told apart; ok is false where there are none.
func (f *dramFit) conclude(with, apart *normal, p *problem, noise float64, now time.Duration) (ok bool) {
	found := with.solve()
	inverse, ok := with.withRidge(noise).inverse()
	if !ok {
		return false
	}
	other := inverse
	if apart != with {
		if other, ok = apart.withRidge(noise).inverse(); !ok {
			return false
		}
	}
	f.perByte, f.mean = found[p.size-2]/copyScale, p.mean
	// Errors that follow each other in time count for less than as many that do not.
	spread := noise * math.Sqrt(2)
	f.slices = make([]coefficient, len(p.columns))
	for i, key := range p.columns {
		f.slices[i] = coefficient{key: key, value: found[i], rows: p.active[i], found: now,
			error: spread * math.Sqrt(max(inverse[i*p.size+i], other[i*p.size+i])), busy: p.sum[i] / p.weight}
	}
	f.known = true
	return true
}

// vague says whether it is not known well enough to tell who has which part of a mean: its error is large, or it differs so
// little from the others in activity that the roughness of charges may be all of it.
func (c *coefficient) vague(mean float64) bool {
	return c.error*max(c.busy, activeRow) > errorMost*max(mean, idleDRAM) || c.apart < max(apartLeast, apartPart*c.busy)
}

// apart is by how much each of the first columns differs from every mixture of the others, as a standard deviation.
func (n *normal) apart(count int) []float64 {
	only := newNormal(count)
	for i := range count {
		copy(only.gram[i*count:(i+1)*count], n.gram[i*n.size:])
		only.gram[i*count+i] *= 1 + ridge
		only.gram[i*count+i] += smallest
	}
	found := make([]float64, count)
	inverse, ok := only.inverse()
	for i := range found {
		if ok && n.weight > 0 {
			found[i] = math.Sqrt(1 / (inverse[i*count+i] * n.weight))
		}
	}
	return found
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

// recall is what was found before, and what it has to add up to now.
func (f *dramFit) recall(p *problem, noise float64, now time.Duration) *normal {
	made := newNormal(p.size)
	row := make([]float64, p.size)
	for i := range row {
		row[i] = p.gram[i*p.size+p.size-1] / p.weight // means: the last column is always 1
	}
	made.add(row, p.mean, noise*noise/(noiseLeast*noiseLeast))
	made.mirror()
	made.expect(p.size-1, f.base, noise*noise/(baseSpread*baseSpread))
	for _, known := range f.remember {
		i := slices.Index(p.columns, known.key)
		if age := now - known.found; i >= 0 && age < rememberFor {
			spread := known.spread(now)
			made.expect(i, known.value, noise*noise/(spread*spread))
		}
	}
	return made
}

// keep remembers coefficients that were told apart, each as it was when that was best known.
func (f *dramFit) keep(now time.Duration) {
	kept := make([]coefficient, 0, len(f.slices)+len(f.remember))
	for _, found := range f.slices {
		if f.condition < conditionMost && !f.shaky && !found.vague(f.mean) {
			kept = append(kept, found)
		}
	}
	for _, known := range f.remember {
		at := slices.IndexFunc(kept, func(c coefficient) bool { return c.key == known.key })
		switch {
		case now-known.found >= rememberFor:
		case at >= 0 && known.spread(now) < kept[at].error:
			kept[at] = known
		case at < 0 && len(kept) < rememberMost:
			kept = append(kept, known)
		}
	}
	f.remember = kept
}

// spread is how far a coefficient that was found before can be wrong by now.
func (c *coefficient) spread(now time.Duration) float64 {
	moved := rememberSpread * c.value * math.Sqrt(max(0, now-c.found).Minutes())
	return max(noiseLeast, math.Hypot(c.error, moved))
}

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
func (c *cardTraffic) splitDRAM(now time.Duration, policy *ContentionPolicy) dramShares {
	made := dramShares{counted: c.dram.knownAt(c.looked), whole: c.dram.slow}
	if !made.counted || c.sharing == monitor.SharingMIG || c.sharing == monitor.SharingExclusive {
		made.why = "the card's memory bandwidth is not known"
		return made
	}
	if c.dram.slow < idleDRAM && c.dram.mean < idleDRAM {
		made.known = true
		return made
	}
	if c.fit == nil || made.whole/c.achievable(onDRAM, policy) >= policy.Quick || policy.Attribute || c.pressed() ||
		now-c.fit.at >= fitEvery || now < c.fit.at {
		c.fit = c.fitDRAM(now)
	}
	if !c.fit.known {
		made.why = c.fit.why
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
	sum := f.base
	for i := range c.slices {
		s := &c.slices[i]
		d.of[i] = f.part(s, d.whole)
		sum += d.of[i].part
	}
	if sum > d.whole && sum > 0 {
		for i := range d.of {
			d.of[i].part *= d.whole / sum
		}
	}
	misfit := math.Abs(sum-d.whole) / max(d.whole, idleDRAM)
	d.known = misfit <= misfitMost
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

// part is the part of one slice, of a whole.
func (f *dramFit) part(s *sliceTraffic, whole float64) dramPart {
	made := dramPart{part: f.perByte * copyPasses * s.share[monitor.DeviceToDevice], told: true, confidence: 1}
	at := slices.IndexFunc(f.slices, func(k coefficient) bool { return k.key == s.key })
	if at < 0 {
		return made
	}
	known := &f.slices[at]
	busy := s.effort
	if f.busy {
		busy = s.busy
	}
	made.part += known.value * busy
	wrong := known.error * busy / max(whole, idleDRAM)
	made.confidence = 1 - wrong/errorMost/2
	switch {
	case wrong > errorMost && f.shaky:
		made.told, made.why = false, "what slices are charged does not explain how the card's counter varies"
	case wrong > errorMost && len(f.slices) > 1:
		made.told, made.why = false, "it is active at the same times as others"
	case wrong > errorMost:
		made.told, made.why = false, "its activity says too little of its traffic"
	case known.rows < activeRows && wrong > errorMost/4:
		made.told, made.why = false, fmt.Sprintf("it was active in fewer than %d looks", activeRows)
	case known.other:
		made.confidence, made.why = min(made.confidence, 0.6), "by what was seen before: it is active at the same times as others"
	case f.overlap:
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
func (d *dramShares) describe(t *cardShares, gpu *GPUContention) {
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
func (d *dramShares) tell(t *cardShares, index int, found *SliceContention) {
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
	return d.known && !slices.ContainsFunc(d.of, func(p dramPart) bool { return p.confidence < sureFrom && p.part > errorMost*d.whole })
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
	sureFrom   = 0.5 // confidence that is enough
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
	sure := traffic.dram.sure()
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
