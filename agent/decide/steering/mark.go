// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What one sample period of the driver says of one tenant: a reading is what the driver told, a mark is that beside what
// the tenant charged in the same time.

package steering

import "time"

// reading is one sample period of the driver, with what it says of one tenant.
type reading struct {
	from, at time.Duration
	known    bool    // the length of the driver's periods is known; else it may have begun earlier
	joined   bool    // it begins where the period before ended
	full     bool    // the GPU had no idle time in it
	queued   bool    // the tenant had as much of it as one that always has work waiting
	busy     float64 // part of it that the tenant used
	foreign  float64 // and those who hold no allocation
}

// mark is one reading as it is remembered. GPU times are in seconds.
type mark struct {
	from, at time.Duration
	told     time.Duration // when it was known
	joined   bool          // nothing was used or charged between the mark before and this one
	full     bool          // as in the reading
	queued   bool          // as in the reading
	company  company
	used     float64 // measured
	foreign  float64 // measured of those who hold no allocation; some may be ours that could not be told
	charged  float64
	granted  float64       // since the mark before, if it joins that; else in the period
	due      float64       // granted in the period
	idle     float64       // granted before it, ever, while the tenant did nothing
	total    time.Duration // charged until the end, ever
	launch   float64       // the largest launch that can have been open at any time in it
	begin    boundary
	end      boundary
	// What was used since the last charge until the end, and what was open when that was charged.
	tail, tailOpen float64
}

// boundary is how use and charge can lie on different sides of a moment at which a period begins or ends.
type boundary struct {
	bill float64 // charged at the scales that were in force, less what was granted: ever, until here
	open float64 // can be charged before it and used after it
	late float64 // can be used before it and charged after it
	step float64 // the charge can be wrong by this, because launches are seen in steps
}

// launched says whether it charged enough between two times to be seen by the driver.
func (m *member) launched(from, to time.Duration) bool {
	before, ok := m.history.at(from)
	after, _ := m.history.at(to)
	return ok && scaled(after.charged-before.charged, m.scaleInForce()) > (to-from)/noticed
}

// measure takes in a period: its use goes to the verdicts, and beside what was charged for it to the scale.
func (m *member) measure(r reading) {
	span := (r.at - r.from).Seconds()
	before, ok := m.history.at(r.from)
	after, _ := m.history.at(r.at)
	granted := m.rate * span
	if ok {
		granted = (after.granted - before.granted).Seconds()
	}
	m.usage = m.usage.add(r, granted/span, !ok || after.charged != before.charged || before.open > 0)
	if !ok || m.readable < r.at {
		return // what was charged until then is not known
	}
	m.scale = m.scale.pause(before, m.rate)
	made := m.mark(r, before, after)
	if r.known {
		m.scale = m.scale.learn(made)
	} else {
		m.scale = m.scale.glimpse(made)
	}
}

// mark compares a reading with what is known of the moments at which its period began and ended.
func (m *member) mark(r reading, before, after moment) mark {
	span := (r.at - r.from).Seconds()
	granted := (after.granted - before.granted).Seconds()
	made := mark{from: r.from, at: r.at, told: m.readable, full: r.full, queued: r.queued, company: m.companyOf(before, after),
		used: r.busy * span, foreign: r.foreign * span,
		charged: (after.charged - before.charged).Seconds(), total: after.charged, granted: granted, due: granted,
		begin: m.boundary(before), end: m.boundary(after)}
	made.launch = max(made.begin.open, made.end.open)
	m.join(&made, r, before)
	m.follow(&made, r, after)
	return made
}

// boundary is what can be open at a moment: the launches that may still run, and what could be bought at once before.
func (m *member) boundary(at moment) boundary {
	return boundary{bill: (at.paid - at.granted).Seconds(), open: at.open.Seconds() + m.ahead(), step: at.step.Seconds()}
}

// ahead is how much a tenant can be charged ahead of its rate at present, as estimated cost.
func (m *member) ahead() float64 { return burst.Seconds() * m.rate / m.scaleInForce() }

// join takes over from the mark before, where a new one joins it, what is known better there.
func (m *member) join(made *mark, r reading, before moment) {
	previous, joined := m.scale.before(r, before)
	switch {
	case joined:
		made.joined = true
		made.granted += m.rate * (r.from - previous.at).Seconds()
		made.begin.open, made.begin.late = previous.end.open, previous.end.late
		made.tail, made.tailOpen = previous.tail, previous.tailOpen
	case r.joined && m.scale.rested == r.from:
		made.begin.open = 0
	}
}

// follow tells what may be open at the end of a new mark: charged and still to run, or run and not charged yet.
func (m *member) follow(made *mark, r reading, after moment) {
	if !r.full {
		made.end.open = min(made.end.open, max(0, made.charged)) // the GPU was idle in this period: all of before was done then
	}
	if after.launch > r.from {
		launched, _ := m.history.at(after.launch)
		made.launch = max(made.launch, launched.open.Seconds()+m.ahead())
		made.tail, made.tailOpen = r.busy*(r.at-after.launch).Seconds(), launched.open.Seconds()
	} else {
		made.tail += made.used
	}
	made.end.late = max(0, made.tail-m.scaleInForce()*made.tailOpen)
}
