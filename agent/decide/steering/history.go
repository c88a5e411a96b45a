// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package steering

import (
	"sort"
	"time"
)

// Bounds of a history.
const (
	// historyKept is longer than a sample period (up to 1 s) and its delay (up to 1 s) together.
	historyKept = 2600 * time.Millisecond
	// historyGrain is the least distance of two moments.
	historyGrain = 10 * time.Millisecond
	// historyRoom is for how many more moments there is room in a new one.
	historyRoom = 16
	// burst is how much a tenant can be ahead of its rate, as time at that rate (VGPU_BURST_NS).
	burst = 20 * time.Millisecond
	// chargeBelieved is more than any launch takes; a charge above it is damage.
	chargeBelieved = time.Hour
	// slowdown is how much longer work is believed to take among neighbours than alone, for the bound of what still runs.
	slowdown = 3
)

// moment is what was known of a tenant at one time.
type moment struct {
	at      time.Duration
	charged time.Duration // estimated cost of all launches until then
	granted time.Duration // integral of the rate in force until then
	paid    time.Duration // what it was charged at the scales in force until then
	// For how long the tenant was surely alone until then, and surely not.
	company [companies]time.Duration
	open    time.Duration // of the charged, at most so much may not have run yet: the last large launch
	launch  time.Duration // when charged last changed
	step    time.Duration // by how much it may be wrong: what was charged between this moment's neighbours
}

// history is the recent past of a tenant in steps of a round, oldest first. Between two moments everything is taken for
// even. Nothing in it is changed once it is there: adding makes a new one.
type history []moment

// add appends what is known now, with the rate and the scale that were in force since the last moment, and the company then.
// It begins anew when the charge was reset.
func (h history) add(now, charged time.Duration, rate, scale float64, kind company) history {
	if len(h) == 0 {
		return history{{at: now, charged: charged, launch: now - historyKept}}
	}
	last := h[len(h)-1]
	step, passed := charged-last.charged, now-last.at
	if charged < h[0].charged || step > chargeBelieved || passed < 0 || passed > historyKept {
		return history{{at: now, charged: charged, launch: now, granted: last.granted, paid: last.paid}}
	}
	next := moment{at: now, charged: charged, launch: last.launch,
		granted: last.granted + scaled(passed, rate), paid: last.paid + scaled(step, scale),
		company: last.company, open: max(0, last.open-passed/slowdown)}
	if kind != mixed {
		next.company[kind] += passed
	}
	if step != 0 {
		next.open, next.launch = max(next.open, step, -step), now
	}
	kept := h
	if n := len(h); n > 1 {
		before := h[n-2]
		if last.isBetween(before, next) || now-before.at < historyGrain {
			kept = h[:n-1] // the last moment says nothing that its neighbours do not
			next.open = max(next.open, last.open)
		}
	}
	first := 0
	for first+1 < len(kept) && kept[first+1].at < now-historyKept {
		first++
	}
	return kept[first:].with(next, len(kept) == len(h))
}

// with appends a moment, in place where there is room behind the last one that no other round has taken: it is zero then.
func (h history) with(next moment, last bool) history {
	if n := len(h); last && n < cap(h) && h[:n+1][n] == (moment{}) {
		return append(h, next)
	}
	longer := make(history, len(h), 2*len(h)+historyRoom)
	copy(longer, h)
	return append(longer, next)
}

// at is what was known at a time, between its neighbours; ok is false for a time before the first moment.
func (h history) at(t time.Duration) (known moment, ok bool) {
	i := sort.Search(len(h), func(i int) bool { return h[i].at >= t })
	switch {
	case len(h) == 0, i == 0 && h[0].at > t:
		return moment{}, false
	case i == len(h):
		last := h[i-1]
		last.open = max(0, last.open-(t-last.at)/slowdown)
		last.at = t
		return last, true
	case h[i].at == t:
		return h[i], true
	}
	a, b := h[i-1], h[i]
	part := float64(t-a.at) / float64(b.at-a.at)
	between := func(a, b time.Duration) time.Duration { return a + scaled(b-a, part) }
	known = moment{at: t, charged: between(a.charged, b.charged),
		granted: between(a.granted, b.granted), paid: between(a.paid, b.paid),
		open: max(a.open, b.open), launch: min(b.launch, t), step: max(b.charged-a.charged, a.charged-b.charged)}
	for kind := range known.company {
		known.company[kind] = between(a.company[kind], b.company[kind])
	}
	return known, true
}

// chargeRate is the estimated cost per time over the last stretch, 0 where it does not go back so far.
func (h history) chargeRate(now, stretch time.Duration) float64 {
	from, ok := h.at(now - stretch)
	if !ok || len(h) == 0 {
		return 0
	}
	return max(0, float64(h[len(h)-1].charged-from.charged)/float64(stretch))
}

// isBetween says that a moment lies on the line between two others.
func (m moment) isBetween(a, b moment) bool {
	if a.charged != b.charged || a.charged != m.charged || m.open != 0 || a.at == b.at {
		return false
	}
	part := float64(m.at-a.at) / float64(b.at-a.at)
	for kind := range m.company {
		if !near(m.company[kind]-a.company[kind], scaled(b.company[kind]-a.company[kind], part)) {
			return false
		}
	}
	return near(m.granted-a.granted, scaled(b.granted-a.granted, part))
}

// near allows for rounding.
func near(a, b time.Duration) bool { return max(a-b, b-a) <= time.Microsecond }

func scaled(d time.Duration, factor float64) time.Duration {
	return time.Duration(float64(d) * factor)
}
