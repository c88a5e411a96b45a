// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package steering

import (
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
// No sample, no change: the last known scale stays the best one, for as long as it takes.
//
// To read in this order: mark.go, what one period says; window.go and evidence.go, what periods say together; this file,
// what follows; distrust.go, what a container may have made up.

// Bounds of the scale, and what is kept to know it.
const (
	scaleMin, scaleMax = 0.1, 10 // estimates are not wrong by more; a scale beyond is damage

	// The scale of who uses more than it is granted, and all there is, rises by this factor, and again after a pause that
	// is longer by hogPause each time in a row: what it had queued before has to run first.
	hogFactor = 1.5
	hogPause  = 500 * time.Millisecond

	// Marks are kept for marksFor at least; longer, until they hold marksLaunches of the largest launch, so that its ends
	// weigh little; but not longer than marksMost, nor more than marksCount.
	marksFor      = 6 * time.Second
	marksMost     = time.Minute
	marksLaunches = 25
	marksCount    = 400
)

// scale is what is known of a tenant's scale. Nothing that it refers to is changed.
type scale struct {
	marks  []mark                   // oldest first
	known  [companies]float64       // 0: not known yet
	anchor [companies]time.Duration // windows do not begin before
	hogs   int                      // corrections in a row because it used all of the GPU
	pure   time.Duration            // end of the last mark that was not mixed
	rested time.Duration            // end of the last mark in which the tenant did nothing
	idle   float64                  // granted, ever, while it did nothing
	distrust
}

// inForce is the scale for this company. As long as nothing is known of it the estimates are right alone, and as wrong in
// company as they are alone.
func (s scale) inForce(kind company) float64 {
	switch {
	case s.known[kind] > 0:
		return s.known[kind]
	case kind == together && s.known[alone] > 0:
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
	idle := last.end.open == 0 && last.total == start.charged
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
	if m.company == mixed {
		return s
	}
	var seen window
	current := s.inForce(m.company)
	seen.add(m, 0, current)
	if corrected, wrong := seen.evidence().correction(current); wrong && corrected > current {
		s.known[m.company], s.anchor[m.company] = corrected, m.at
	}
	return s
}

// rest takes in a mark in which the tenant did nothing: what was charged before has been used before.
func (s scale) rest(m mark) scale {
	s.rested = m.at
	s.idle += m.due
	n := len(s.marks)
	if n == 0 || s.marks[n-1].at != m.from || s.marks[n-1].end.open == 0 && s.marks[n-1].end.late == 0 {
		return s
	}
	s.marks = slices.Clone(s.marks)
	s.marks[n-1].end.open, s.marks[n-1].end.late, s.marks[n-1].tail = 0, 0, 0
	return s
}

// outdated is how many of the marks are no longer needed at time now.
func (s scale) outdated(now time.Duration) int {
	largest := 0.0
	for _, m := range s.marks {
		largest = max(largest, m.end.open)
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

// correct judges all windows of one company that end with the last mark, which lasted span. The shortest that says
// something decides.
func (s scale) correct(kind company, span time.Duration) scale {
	current := s.inForce(kind)
	var gathered window
	var found evidence
	for i, m := range slices.Backward(s.marks) {
		if m.company != kind {
			continue
		}
		if m.from < s.anchor[kind] {
			break
		}
		gathered.add(m, i, current)
		found = gathered.evidence()
		if decided, enough := s.judge(kind, found, m.from); enough {
			return decided
		}
	}
	if s.marks[len(s.marks)-1].at < s.wary {
		return s.trim(kind, found)
	}
	s.known[kind] = found.approach(current, span)
	return s
}

// judge says what follows from one window, which begins at from, and whether that is enough to look at no longer one.
func (s scale) judge(kind company, found evidence, from time.Duration) (decided scale, enough bool) {
	current, now := s.inForce(kind), s.marks[len(s.marks)-1].at
	if found.boasts(current) && (now < s.wary || found.exceeds(current)) {
		return s.doubt(now).trim(kind, found), true
	}
	if found.hogs(current) && found.span >= time.Duration(s.hogs)*hogPause {
		s.known[kind], s.anchor[kind] = bounded(current*hogFactor), now
		s.hogs++
		return s, true
	}
	corrected, wrong := found.correction(current)
	if !wrong || now < s.wary {
		return s, false
	}
	s.known[kind], s.anchor[kind] = corrected, from
	if corrected < current {
		s.distrust = s.lower(current, now)
	}
	return s, true
}

func bounded(scale float64) float64 { return min(max(scale, scaleMin), scaleMax) }
