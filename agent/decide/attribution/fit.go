// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package attribution tells the traffic of a card's DRAM by slice. In: the looks at a card of the last two minutes (Window), and
// what was found before (Fit). Out: a Fit. It has no effects. Package contention keeps a window for each card, and makes shares
// and evidence of what Explain finds.
//
// There is one counter for the whole card; it is explained by what each slice did meanwhile: so much traffic per GPU time of
// each, less what its kernels lost in it, and so much per byte that is copied within the card. That can be told only while they
// do different things at different times; what was found then is kept for a while, and used when they do not, as long as it
// still explains the counter. window.go has the looks, problem.go sets the regression up from them, regress.go solves it.
package attribution

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// What looks must show until something is told of a slice. Activity and parts are of 1.
const (
	columnsMost      = 16               // slices that are told apart
	activeRow        = 0.2              // activity from which a row says something of a slice
	ActiveRows       = 20               // such rows that are needed
	lookLeast        = 20 * time.Second // that the rows have to span
	conditionMost    = 50               // of the columns
	oneRow           = 4.0              // weight of a row with one active slice
	IdleRow          = 0.02             // activity below which a slice is not active in a row
	baseSpread       = 0.01             // how far the traffic of nobody may be from what was seen while all were idle
	baseRows         = 5                // rows that show it
	noiseLeast       = 0.003
	ErrorMost        = 0.05 // standard error of a slice's part, of the whole, with which it is told
	apartLeast       = 0.03 // by which the activity of a slice has to differ from that of all others
	apartPart        = 0.1  // and by this part of its own
	unexplainedMost  = 0.35 // of the counter's variance, that slices may leave unexplained
	unexplainedLeast = 0.06 // of its mean, as a standard deviation, from which that matters
	roughMost        = 0.09 // of the counter's root mean square, that may be left unexplained whatever it varies
	MisfitMost       = 0.15 // of the whole: what the slices are told to have, more or less than the counter shows
	IdleDRAM         = 0.01 // of the peak, below which there is nothing to tell
	lagGain          = 0.95 // another lag is taken if it leaves so much less
	timeGain         = 0.6  // and GPU time in the place of what was done in it
	lagEvery         = 5    // regressions

	rememberFor    = time.Hour // what was found, when it cannot be found anew
	rememberMost   = 4 * columnsMost
	rememberSpread = 0.01 // how far a coefficient has moved after a minute, of itself
)

// Coefficient is what is known of one slice's traffic per GPU time, as a part of the peak.
type Coefficient struct {
	Key   string
	Value float64
	Error float64
	Busy  float64       // mean activity
	apart float64       // by how much its activity differs from every mixture of the others'
	Rows  int           // that said something of it
	Found time.Duration // when it was told apart from the others last
	Other bool          // it is told from what was found before
}

// Fit is what a window of looks says. It is not changed once it is made.
type Fit struct {
	At        time.Duration
	lag       time.Duration
	Busy      bool // GPU time explains the counter, not what was done in it
	tries     int
	Base      float64       // traffic of nobody
	Slices    []Coefficient // sorted by key
	PerByte   float64       // traffic per byte per second of copies within the card
	Known     bool
	Why       string // not known, or not surer
	condition float64
	mean      float64 // of the counter
	Misfit    float64 // standard deviation of what is not explained
	Overlap   bool    // slices ran at once
	Shaky     bool    // much of what the counter varies is not explained
	remember  []Coefficient
}

// Explain explains the DRAM's counter, beginning where the last fit ended. w may be nil.
func (w *Window) Explain(last *Fit, now time.Duration) *Fit {
	made := &Fit{At: now, lag: last.lag, Busy: last.Busy, tries: last.tries + 1, Base: last.Base, remember: last.remember}
	columns := w.activeColumns()
	switch {
	case w == nil || len(columns) == 0:
		made.Why = "nobody used the card"
		return made
	case len(columns) > columnsMost:
		made.Why = fmt.Sprintf("more than %d slices are active", columnsMost)
		return made
	}
	best := w.setUp(columns, made.lag)
	if made.tries%lagEvery == 1 {
		best = w.align(columns, best)
	}
	made.lag, made.Busy = best.lag, best.times.leaves() < best.leaves()*timeGain
	if best.rows < ActiveRows || best.until-best.from < lookLeast {
		made.Why = "there are too few looks yet"
		if w.anyBlank() {
			made.Why = "what some slice does is not known"
		}
		return made
	}
	times := best.times
	if made.Busy {
		best.normal = times
	}
	made.solve(best, times, now)
	return made
}

// activeColumns is the slices that used the card in the window.
func (w *Window) activeColumns() []string {
	if w == nil {
		return nil
	}
	rows := w.rows
	first, last := rows[0], rows[len(rows)-1]
	var columns []string
	for i, key := range last.Keys {
		begin := 0.0
		if at := find(first.Keys, key); at >= 0 {
			begin = first.Used[at]
		}
		if last.Used[i]-begin > IdleRow*IdleRow*(last.At-first.At).Seconds() {
			columns = append(columns, key)
		}
	}
	return columns
}

// anyBlank says whether something is not known in the newest look.
func (w *Window) anyBlank() bool {
	rows := w.rows
	return rows[len(rows)-1].Blank != nil
}

// align finds the lag with which the activity explains the counter best.
func (w *Window) align(columns []string, best *problem) *problem {
	least, first := best.leaves(), best
	for lag := time.Duration(0); lag <= lagMost; lag += lagStep {
		if lag == first.lag {
			continue
		}
		tried := w.setUp(columns, lag)
		if tried.rows < first.rows*9/10 {
			continue
		}
		if left := tried.leaves(); left < least*lagGain {
			best, least = tried, left
		}
	}
	return best
}

// solve finds the coefficients and what they are worth. It is by their GPU time that slices have to be told apart (times): how
// fast their kernels are differs too, but that is measured roughly.
func (f *Fit) solve(p *problem, times *normal, now time.Duration) {
	noise := 10 * noiseLeast
	if p.idles >= baseRows {
		f.Base = p.idle / float64(p.idles)
	}
	for range 2 {
		with := p.clone()
		with.expect(p.size-1, f.Base, noise*noise/(baseSpread*baseSpread))
		found := with.solve()
		noise = max(noiseLeast, math.Sqrt(p.residual(found)/max(p.weight, 1)))
	}
	f.Misfit, f.Overlap = noise, p.overlap > 0.05
	with := p.clone()
	with.expect(p.size-1, f.Base, noise*noise/(baseSpread*baseSpread))
	apart := times.clone()
	apart.expect(p.size-1, f.Base, noise*noise/(baseSpread*baseSpread))
	f.condition = max(with.told(p.copies).conditionWithin(conditionMost), apart.told(p.copies).conditionWithin(conditionMost))
	if !f.conclude(with, apart, p, noise, now) {
		f.Why = "slices cannot be told apart: they are active at the same times"
		return
	}
	for i, part := range times.apart(len(p.columns)) {
		f.Slices[i].apart = part
	}
	// Of what the counter varies, most has to be explained: else the activity that is told is not what drove it, and then
	// coefficients are too small, however sure they look.
	varied := p.square/p.weight - p.mean*p.mean
	f.Shaky = noise*noise > unexplainedMost*varied && noise > unexplainedLeast*p.mean || noise*noise > roughMost*roughMost*p.square/p.weight
	if f.condition < conditionMost && !f.Shaky && !slices.ContainsFunc(f.Slices, func(c Coefficient) bool { return c.vague(f.mean) }) {
		f.keep(now)
		return
	}
	// This window says too little. What was found before is used, and of the window only what all are on the mean: what varies
	// is no more than noise.
	f.keep(now)
	with = f.recall(p, noise, now)
	f.conclude(with, with, p, noise, now)
	for i := range f.Slices {
		f.Slices[i].Other = true
	}
}

// conclude finds the coefficients of a window, and how far they can be wrong, by the columns as they are and by those by which
// they have to be told apart; ok is false where there are none.
func (f *Fit) conclude(with, apart *normal, p *problem, noise float64, now time.Duration) (ok bool) {
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
	f.PerByte, f.mean = found[p.size-2]/copyScale, p.mean
	// Errors that follow each other in time count for less than as many that do not.
	spread := noise * math.Sqrt(2)
	f.Slices = make([]Coefficient, len(p.columns))
	for i, key := range p.columns {
		f.Slices[i] = Coefficient{Key: key, Value: found[i], Rows: p.active[i], Found: now,
			Error: spread * math.Sqrt(max(inverse[i*p.size+i], other[i*p.size+i])), Busy: p.sum[i] / p.weight}
	}
	f.Known = true
	return true
}

// vague says whether it is not known well enough to tell who has which part of a mean: its error is large, or it differs so
// little from the others in activity that the roughness of charges may be all of it.
func (c *Coefficient) vague(mean float64) bool {
	return c.Error*max(c.Busy, activeRow) > ErrorMost*max(mean, IdleDRAM) || c.apart < max(apartLeast, apartPart*c.Busy)
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
func (f *Fit) recall(p *problem, noise float64, now time.Duration) *normal {
	made := newNormal(p.size)
	row := make([]float64, p.size)
	for i := range row {
		row[i] = p.gram[i*p.size+p.size-1] / p.weight // means: the last column is always 1
	}
	made.add(row, p.mean, noise*noise/(noiseLeast*noiseLeast))
	made.mirror()
	made.expect(p.size-1, f.Base, noise*noise/(baseSpread*baseSpread))
	for _, known := range f.remember {
		i := slices.Index(p.columns, known.Key)
		if age := now - known.Found; i >= 0 && age < rememberFor {
			spread := known.spread(now)
			made.expect(i, known.Value, noise*noise/(spread*spread))
		}
	}
	return made
}

// keep remembers coefficients that were told apart, each as it was when that was best known.
func (f *Fit) keep(now time.Duration) {
	kept := make([]Coefficient, 0, len(f.Slices)+len(f.remember))
	for _, found := range f.Slices {
		if f.condition < conditionMost && !f.Shaky && !found.vague(f.mean) {
			kept = append(kept, found)
		}
	}
	for _, known := range f.remember {
		at := slices.IndexFunc(kept, func(c Coefficient) bool { return c.Key == known.Key })
		switch {
		case now-known.Found >= rememberFor:
		case at >= 0 && known.spread(now) < kept[at].Error:
			kept[at] = known
		case at < 0 && len(kept) < rememberMost:
			kept = append(kept, known)
		}
	}
	f.remember = kept
}

// spread is how far a coefficient that was found before can be wrong by now.
func (c *Coefficient) spread(now time.Duration) float64 {
	moved := rememberSpread * c.Value * math.Sqrt(max(0, now-c.Found).Minutes())
	return max(noiseLeast, math.Hypot(c.Error, moved))
}
