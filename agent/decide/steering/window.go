// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package steering

import (
	"math"
	"time"
)

// A whole percent as the driver tells it stands for a range: the use can be so much lower than its middle (see middle), and
// so much higher, whether the driver rounds or cuts off.
const (
	percentBelow = 0.0075
	percentAbove = 0.005
)

// sums are what the marks of a window add up to. GPU times are in seconds; the last period is the one at its end.
type sums struct {
	used, charged, granted float64
	due                    float64       // granted in the periods themselves
	span                   time.Duration // of the periods
	idle                   time.Duration // at the end of the window the GPU had idle time in every period, for so long
	open                   float64       // the largest that was charged and had not run at the end of a period
	launch                 float64       // or at any time
	odd                    bool          // much more was used in the last period than was charged
	queued                 bool          // in the last period work of the tenant may have waited in a queue
	seen                   bool          // in the last period the tenant was seen to use the GPU
	exact                  bool          // alone: estimates follow the mean of what was measured
	hogged                 bool          // the tenant used all of the GPU, and was granted less
}

// window gathers marks of one company, from the last one back. Marks that join each other are a run; only at the ends of
// runs can use and charge be of different periods.
type window struct {
	sums
	foreign     float64
	begins      loose // of all runs but the oldest, which may go on
	ends        loose // of all runs
	first, last mark
	index       int // of first
}

// loose is what can be on the wrong side of several boundaries: squares, for what adds up like chance.
type loose struct{ open2, step2, late float64 }

func (l *loose) add(b boundary) {
	l.open2 += b.open * b.open
	l.step2 += b.step * b.step
	l.late += b.late
}

// add takes in the mark with an index; it is older than those before. current is the scale in force.
func (w *window) add(m mark, index int, current float64) {
	switch {
	case w.span == 0:
		w.start(m, current)
	case w.index != index+1 || !w.first.joined:
		w.begins.add(w.first.begin)
		w.ends.add(m.end)
	}
	span := m.at - m.from
	if !m.full && w.idle == w.span {
		w.idle += span
	}
	w.span += span
	w.used += m.used
	w.charged += m.charged
	w.granted += m.granted
	w.due += m.due
	w.foreign += m.foreign
	w.open = max(w.open, m.begin.open, m.end.open)
	w.launch = max(w.launch, m.launch)
	w.hogged = w.hogged && m.used > unloaded*span.Seconds() && m.granted < m.used
	w.first, w.index = m, index
}

// start begins with the last mark.
func (w *window) start(m mark, current float64) {
	w.last = m
	w.ends.add(m.end)
	w.odd = m.used > unlikely*current*(m.charged+m.begin.open+m.end.step)
	w.queued, w.seen = m.queued, m.used > 0
	w.exact = m.company == alone
	w.hogged = true
}

// evidence is what the marks say together.
func (w *window) evidence() evidence {
	found := evidence{sums: w.sums}
	found.due += w.last.idle - w.first.idle
	found.bill = w.last.end.bill - w.first.begin.bill
	found.whole = w.last.at - w.first.from
	begins := w.begins
	begins.add(w.first.begin)
	span := w.span.Seconds()
	found.before = math.Sqrt(begins.open2) + math.Sqrt(w.ends.step2)
	found.least = max(0, found.used-percentBelow*span-w.ends.late)
	found.low = found.least / (found.charged + found.before)
	found.high = math.Inf(1)
	if after := math.Sqrt(w.ends.open2) + math.Sqrt(begins.step2); found.charged > after {
		found.high = (found.used + percentAbove*span + w.foreign + begins.late) / (found.charged - after)
	}
	return found
}
