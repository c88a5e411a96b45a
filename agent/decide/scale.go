// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package decide

import (
	"math"
	"slices"
	"time"
)

// The scale of a tenant is GPU time that it really used, as the driver measures it, per estimated cost that its processes
// charged. It is a property of the estimates and not of the demand, so there is nothing to wind up: it is the quotient of
// two sums over the same time, and all that has to be known is how far each sum can be wrong.
//
//   - The driver tells whole percents of a period (1/6 s to 1 s), some time later (up to 1 s), and now and then nothing.
//   - What is charged at a launch runs afterwards. At both ends of a window the charge can be ahead by a burst and the last
//     large launch; less where the GPU had idle time, for then nothing was left to run.
//   - A launch whose cost is not known yet is charged when it is over: what is used after the last charge may be of one.
//
// From that follow bounds of the scale for every window of periods up to now. The shortest window whose bounds leave the
// scale in force out by a tenth corrects it at once, and what was before that window is forgotten. Within the bounds a
// slow mean over the longest window is followed.
//
// With company the estimates are biased otherwise than alone (other tenants' slices are in the measurements), so there are
// two scales, and the right one is in force again as soon as a neighbour comes or goes.
//
// All that is charged comes from the container, which can write there what it likes; what was used and what was granted do
// not. A tenant that was charged more than its line let it buy, and used more than it was granted, is not believed for a
// minute: then its use alone sets its scale, so that it has what it is granted and pays back what it had more.
//
// No sample, no change: the last known scale stays the best one, for as long as it takes.

// Bounds and times of the scale.
const (
	scaleMin, scaleMax = 0.1, 10
	deadBand           = 1.1              // a scale that is wrong by less is left to the slow mean
	deadBeat           = 2.5              // most that one correction multiplies or divides by
	unlikely           = 2.2              // costs are not that much too low unless the GPU had idle time for idleFor, or it
	unlikelyFor        = 45 * time.Second // shows for so long: a long launch whose cost is not known yet looks the same
	idleFor            = 500 * time.Millisecond
	slowMean           = 300 * time.Millisecond // time constant of the slow mean; the windows are long by themselves
	slowWidth          = 0.4                    // bounds further apart, relative to the scale, say nothing to the slow mean
	percentBelow       = 0.0075                 // use can be that much lower than the middle of its whole percent, see middle,
	percentAbove       = 0.005                  // and so much higher
	hogFactor          = 1.5                    // the scale of who uses more than it is granted, and all there is, rises by this
	hogMargin          = 1.02                   // where that is certain,
	hogPause           = 500 * time.Millisecond // and after a pause that is longer by this each time in a row
	boastOver          = time.Second            // nobody is charged more over so long than it was granted and one launch;
	waryFor            = time.Minute            // who was, and used more, is not believed for so long
	trimDown           = 0.9                    // its scale falls by that much in that time
	marksFor           = 6 * time.Second        // shortest stretch that is kept,
	marksMost          = time.Minute            // and the longest,
	marksLaunches      = 25                     // so that it holds that many of the largest launch
	marksCount         = 400
)

// The two kinds of company, as indices.
const (
	alone = iota
	together
	mixed // neither of them throughout
)

// mark is one sample period of the driver as one tenant saw it. GPU times are in seconds.
type mark struct {
	from, at time.Duration
	told     time.Duration // when that was known
	joined   bool          // nothing was used or charged between the mark before and this one
	company  int
	full     bool    // the GPU had no idle time
	queued   bool    // the tenant had as much of it as one that always has work waiting
	used     float64 // measured
	foreign  float64 // of those who hold no allocation; some may be ours that could not be told
	charged  float64
	total    time.Duration // charged until the end, ever
	granted  float64
	due      float64 // granted in the period
	idle     float64 // granted before it, ever, while the tenant did nothing
	// Charged, at the scales that were in force, less what was granted: ever, until `from` and until `at`.
	billFrom, billAt float64
	// What can be charged before `from` and be used after it, and the same for `at`.
	openFrom, openAt float64
	launch           float64 // the largest that can have been open at any time in it
	// How far charged can be wrong because launches are seen in steps, at `from` and at `at`.
	edgeFrom, edgeAt float64
	// What can be used before and charged after. tail is what was used since the last charge, tailOpen what was open then.
	lateFrom, lateAt, tail, tailOpen float64
}

// scale is what is known of a tenant's scale. Nothing that it refers to is changed.
type scale struct {
	marks  []mark
	known  [mixed]float64       // 0: not known yet
	anchor [mixed]time.Duration // windows do not begin before
	hogs   int                  // corrections in a row because it used all of the GPU
	pure   time.Duration        // end of the last mark that was not mixed
	rested time.Duration        // end of the last mark in which the tenant did nothing
	// Until when the tenant's charges are not believed; and when they lowered its scale last, and from where at most.
	wary, lowered time.Duration
	peak          float64
	idle          float64 // granted, ever, while the tenant did nothing
}

// inForce is the scale for this company. As long as nothing is known of it the estimates are right alone, and as wrong in
// company as they are alone.
func (s scale) inForce(company int) float64 {
	switch {
	case s.known[company] > 0:
		return s.known[company]
	case company == together && s.known[alone] > 0:
		return s.known[alone]
	}
	return 1
}

// learn takes one more mark in.
func (s scale) learn(m mark) scale {
	if m.used == 0 && m.charged == 0 {
		return s.rest(m)
	}
	m.idle = s.idle
	s.marks = append(slices.Clip(slices.Clone(s.marks[s.outdated(m.at):])), m)
	if m.company == mixed {
		return s
	}
	s.pure = m.at
	if !m.full {
		s.hogs = 0
	}
	return s.correct(m.company, m.at-m.from)
}

// before is the last mark, if the next one, for this reading, joins it: it begins where that ends; or nothing was charged
// in between, when nothing was left to run either. While nobody uses a GPU its driver has no samples.
func (s scale) before(next reading, start moment) (last mark, joined bool) {
	if len(s.marks) == 0 {
		return mark{}, false
	}
	last = s.marks[len(s.marks)-1]
	idle := last.openAt == 0 && last.total == start.charged
	return last, idle || next.joined && last.at == next.from
}

// pause takes in that there are no samples since the mark before, at a rate. If nothing was charged, or only at
// the end of it, there was nothing to run.
func (s scale) pause(start moment, rate float64) scale {
	if n := len(s.marks); n > 0 && start.charged-s.marks[n-1].total <= start.open {
		s.idle += max(0, rate*(start.at-max(s.marks[n-1].at, s.rested)).Seconds())
	}
	return s
}

// glimpse takes a mark in whose period may have begun earlier: it can only show that more was used than charged.
func (s scale) glimpse(m mark) scale {
	var seen window
	seen.add(m, 0, s.inForce(m.company%mixed))
	if m.company != mixed {
		current := s.inForce(m.company)
		if corrected, wrong := seen.evidence().correction(current); wrong && corrected > current {
			s.known[m.company], s.anchor[m.company] = corrected, m.at
		}
	}
	return s
}

// rest takes in a mark in which the tenant did nothing: what was charged before has been used before.
func (s scale) rest(m mark) scale {
	s.rested = m.at
	s.idle += m.due
	n := len(s.marks)
	if n == 0 || s.marks[n-1].at != m.from || s.marks[n-1].openAt == 0 && s.marks[n-1].lateAt == 0 {
		return s
	}
	s.marks = slices.Clone(s.marks)
	s.marks[n-1].openAt, s.marks[n-1].lateAt, s.marks[n-1].tail = 0, 0, 0
	return s
}

// outdated is how many of the marks are no longer needed at time now.
func (s scale) outdated(now time.Duration) int {
	largest := 0.0
	for _, m := range s.marks {
		largest = max(largest, m.openAt)
	}
	first, held := len(s.marks), 0.0
	for first > 0 && len(s.marks)-first < marksCount {
		m := s.marks[first-1]
		age := now - m.at
		if age > marksMost || age > marksFor && held >= marksLaunches*largest {
			break
		}
		held += m.charged
		first--
	}
	return first
}

// correct judges all windows of one company that end with the last mark, which lasted span.
func (s scale) correct(company int, span time.Duration) scale {
	current, now := s.inForce(company), s.marks[len(s.marks)-1].at
	var widest evidence
	var gathered window
	for i := len(s.marks) - 1; i >= 0; i-- {
		m := s.marks[i]
		if m.company != company {
			continue
		}
		if m.from < s.anchor[company] {
			break
		}
		gathered.add(m, i, current)
		found := gathered.evidence()
		if found.boasts(current) && (now < s.wary || found.exceeds(current)) {
			return s.doubt(now).trim(company, found)
		}
		if found.hogged && found.hogs(current) && found.span >= time.Duration(s.hogs)*hogPause {
			s.known[company], s.anchor[company] = bounded(current*hogFactor), now
			s.hogs++
			return s
		}
		if corrected, wrong := found.correction(current); wrong && now >= s.wary {
			s.known[company], s.anchor[company] = corrected, m.from
			if corrected < current {
				s = s.lower(current, now)
			}
			return s
		}
		widest = found
	}
	if now < s.wary {
		return s.trim(company, widest)
	}
	s.known[company] = widest.approach(current, span)
	return s
}

// lower notes that charges lowered the scale from what it was.
func (s scale) lower(from float64, now time.Duration) scale {
	if now-s.lowered > waryFor {
		s.peak = 0
	}
	s.peak, s.lowered = max(s.peak, from), now
	return s
}

// doubt begins or prolongs the time in which the tenant's charges are not believed. What they took off its scale before is
// put back.
func (s scale) doubt(now time.Duration) scale {
	if now >= s.wary && now-s.lowered < waryFor {
		for company := range s.known {
			s.known[company] = max(s.known[company], s.peak)
		}
	}
	s.wary = now + waryFor
	return s
}

// trim sets the scale of a tenant that is not believed so that it uses what it is granted, by what the driver says alone.
func (s scale) trim(company int, found evidence) scale {
	if found.whole < boastOver || found.used <= 0 {
		return s
	}
	current := s.inForce(company)
	s.known[company] = bounded(current * min(max(found.used/found.due, trimDown), deadBeat))
	s.known[company^1] = max(s.inForce(company^1), s.known[company])
	s.anchor[company] = s.marks[len(s.marks)-1].told
	return s
}

// evidence is what a window says.
type evidence struct {
	used, charged, granted float64
	bill                   float64       // charged at the scales in force, less granted, with the times without samples
	due                    float64       // granted, with the time in which the tenant did nothing
	whole                  time.Duration // span with that time
	low, high              float64       // bounds of the scale
	span                   time.Duration
	idle                   time.Duration // at the end of it the GPU had idle time in every period, for so long
	odd                    bool          // much more was used in the last period than was charged
	queued                 bool          // in the last period work of the tenant may have waited in a queue
	exact                  bool          // alone: estimates follow the mean of what was measured
	open                   float64       // the largest that was charged and had not run at the end of a period
	launch                 float64       // or at any time
	least                  float64       // used at least, of what was charged by now
	before                 float64       // charged before at most, and not used then
	hogged                 bool          // the tenant used all of the GPU, and was granted less
	seen                   bool          // the tenant was seen to use the GPU in the last period
}

// correction is the scale that a window asks for in the place of current, if it leaves that out.
func (e evidence) correction(current float64) (corrected float64, wrong bool) {
	if e.used <= 0 || e.charged <= 0 {
		return current, false
	}
	middle := e.used / e.charged
	switch {
	case e.low > current*deadBand:
		if (e.odd || middle > current*unlikely) && e.idle < idleFor && e.span < unlikelyFor {
			return current, false // a long launch whose cost is not known yet looks the same
		}
		return bounded(min(math.Sqrt(middle*e.low), current*deadBeat)), true
	case e.high < current/deadBand:
		if e.queued || !e.seen || e.overused(current) {
			return current, false // what is charged waits in a queue, or cannot be told from other processes' use
		}
		return bounded(max(math.Sqrt(middle*e.high), current/deadBeat)), true
	}
	return current, false
}

// hogs says that a tenant used all of the GPU and more than it was granted. Then it works off a queue, and goes on doing so
// whatever the scale is: the quotient does not show how much too low its costs are.
func (e evidence) hogs(current float64) bool {
	return e.least-current*e.before > hogMargin*e.granted && e.used < unlikely*e.granted
}

// approach moves the scale towards what a window says, as far as span is of the time constant: its middle; or one, if
// the estimates should be right and whole percents allow it.
func (e evidence) approach(current float64, span time.Duration) float64 {
	if e.odd || e.used <= 0 || e.charged <= 0 || e.high-e.low > slowWidth*current {
		return current
	}
	gain := 1 - math.Exp(-float64(span)/float64(slowMean))
	middle := e.used / e.charged
	if e.exact && e.used-percentBelow*e.span.Seconds() <= e.charged && e.charged <= e.used+percentAbove*e.span.Seconds() {
		middle = 1
	}
	if middle < current && (e.queued || e.overused(current)) {
		return current // a queue grows, or the charge is not to be believed
	}
	return bounded(current + gain*(middle-current))
}

// boasts says that more was charged than the tenant can have bought.
func (e evidence) boasts(current float64) bool {
	return e.whole >= boastOver && e.bill-current*e.launch > 0.005*e.whole.Seconds()
}

// overused says that the tenant was measured to use more than it was granted, one launch left out: then its costs are not
// too high.
func (e evidence) overused(current float64) bool {
	return e.used-current*e.open > 1.05*e.granted+0.02
}

// exceeds says the same for certain: of a window that is long enough, with the largest launch that can have been in it.
func (e evidence) exceeds(current float64) bool {
	return e.used-current*e.launch > 1.01*e.due+0.01*max(1, e.whole.Seconds())
}

func bounded(scale float64) float64 { return min(max(scale, scaleMin), scaleMax) }

// window sums marks from the last one back.
type window struct {
	sum     evidence // without bounds
	foreign float64
	// Of every end and every beginning of an unbroken run of marks, but the one that goes on.
	ends2, starts2, lateEnds, lateStarts, endEdges2, startEdges2 float64
	first, last                                                  mark
	index                                                        int // of first
}

// add takes the mark at index in, which is older than those before.
func (w *window) add(m mark, index int, current float64) {
	switch {
	case w.sum.span == 0:
		w.sum.queued, w.sum.seen = m.queued, m.used > 0
		w.sum.hogged, w.sum.exact = true, m.company == alone
		w.end(m)
	case w.index != index+1 || !w.first.joined:
		w.starts2 += w.first.openFrom * w.first.openFrom
		w.startEdges2 += w.first.edgeFrom * w.first.edgeFrom
		w.lateStarts += w.first.lateFrom
		w.end(m)
	}
	span := m.at - m.from
	if w.sum.span == 0 {
		w.sum.odd = m.used > unlikely*current*(m.charged+m.openFrom+m.edgeAt)
	}
	w.sum.used += m.used
	w.sum.charged += m.charged
	w.sum.granted += m.granted
	w.sum.due += m.due
	if w.sum.span == 0 {
		w.last = m
	}
	w.sum.open = max(w.sum.open, m.openFrom, m.openAt)
	w.sum.launch = max(w.sum.launch, m.launch)
	w.sum.span += span
	if !m.full && w.sum.idle == w.sum.span-span {
		w.sum.idle = w.sum.span
	}
	w.sum.hogged = w.sum.hogged && m.used > unloaded*span.Seconds() && m.granted < m.used
	w.foreign += m.foreign
	w.first, w.index = m, index
}

// end notes that a run of marks ends with m.
func (w *window) end(m mark) {
	w.ends2 += m.openAt * m.openAt
	w.endEdges2 += m.edgeAt * m.edgeAt
	w.lateEnds += m.lateAt
}

// evidence is what the marks say together. What is open at the ends of runs adds up like chance.
func (w *window) evidence() evidence {
	found := w.sum
	found.due += w.last.idle - w.first.idle
	found.bill = w.last.billAt - w.first.billFrom
	found.whole = w.last.at - w.first.from
	span := w.sum.span.Seconds()
	after := math.Sqrt(w.ends2) + math.Sqrt(w.startEdges2+w.first.edgeFrom*w.first.edgeFrom)
	found.before = math.Sqrt(w.starts2+w.first.openFrom*w.first.openFrom) + math.Sqrt(w.endEdges2)
	found.least = max(0, found.used-percentBelow*span-w.lateEnds)
	found.low = found.least / (found.charged + found.before)
	found.high = math.Inf(1)
	if found.charged > after {
		found.high = (found.used + percentAbove*span + w.foreign + w.lateStarts + w.first.lateFrom) / (found.charged - after)
	}
	return found
}
