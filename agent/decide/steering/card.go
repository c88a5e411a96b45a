// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package steering

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// Times of observing a GPU.
const (
	gpuForgotten    = 10 * time.Minute        // what is known of a GPU without tenants is kept for so long
	longestPeriod   = time.Second             // of the driver's samples,
	shortestPeriod  = time.Second / 6         // and the shortest
	samplesStale    = 2500 * time.Millisecond // two of the longest periods, and the delay of one
	waitRenewed     = 120 * time.Millisecond  // who waits says so at least every 100 ms
	hungry          = 200 * time.Millisecond  // who waited within this time would use more than it has
	wantFalls       = 500 * time.Millisecond  // in which a want falls by a tenant's share, lest rates flap
	purity          = 0.95                    // part of a period that must have had the same company
	mixedFor        = 3 * time.Second         // after this time without a pure period mixed ones are taken
	readableLately  = time.Second             // a tenant that cannot be read keeps what it was lent for so long
	unloaded        = 0.98                    // a GPU that is less busy had idle time
	loaded          = 0.99                    // a GPU that is as busy as this is full for certain
	queueing        = 0.95                    // part of an even division that one with work waiting gets at least of a full GPU
	noticed         = 25                      // the driver shows the use of this part of a period
	unpercent       = 0.0025                  // middle of what a whole percent can mean, rounded or cut off
	usedOver        = time.Second             // over which Used is told
	overShareOver   = 5 * time.Second         // over which use is compared with what was granted
	overShareMargin = 0.02
)

// gpuTime is what is remembered of a GPU.
type gpuTime struct {
	seen    time.Duration    // when it last had a tenant
	sampled time.Duration    // end of the last sample period; 0: none yet
	gaps    [8]time.Duration // between the last sample times; the least is the driver's period
	count   int              // of gaps, ever
	foreign float64          // how busy processes without an allocation kept it in the last period
	full    bool             // it had no idle time in the last period
	sole    sole
}

// period is the driver's sample period, 0 while it is not known.
func (g gpuTime) period() time.Duration {
	known := g.gaps[:min(g.count, len(g.gaps))]
	if len(known) == 0 {
		return 0
	}
	return min(slices.Min(known), longestPeriod)
}

// card is one GPU in one round.
type card struct {
	uuid    string
	now     time.Duration
	policy  Policy
	members []*member
	samples []monitor.Utilization
	gpuTime
}

// join adds a tenant with what is remembered of it.
func (c *card) join(tenant *monitor.Tenant, known tenantTime) *member {
	m := newMember(tenant, known)
	c.members = append(c.members, m)
	return m
}

// steer does one round of a GPU. It says whether GPU time is wanted.
func (c *card) steer() bool {
	for _, m := range c.members {
		m.observe(c.now, c.policy)
	}
	c.measure()
	c.meet()
	c.lend()
	return slices.ContainsFunc(c.members, func(m *member) bool { return m.active })
}

// meet tells every tenant whether it has company: others that are active. When they were so a moment ago, that is not
// certain.
func (c *card) meet() {
	foreign := c.foreign > 0 && c.now-c.sampled < samplesStale
	users, active := 0, 0
	for _, m := range c.members {
		m.user = m.active || m.usedWithin(c.policy.Alone, c.now)
		users += one(m.user)
		active += one(m.active)
	}
	for _, m := range c.members {
		switch {
		case foreign || active > one(m.active):
			m.company, m.surely = together, together
		case users > one(m.user):
			m.company, m.surely = alone, mixed
		default:
			m.company, m.surely = alone, alone
		}
	}
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// lend sets the rates. While nobody wants anything they stay, so that a tenant that comes and goes by itself is not slowed
// each time.
func (c *card) lend() {
	var claimants []*claimant
	var claiming []*member
	for _, m := range c.members {
		if m.active {
			claimants, claiming = append(claimants, m.claim()), append(claiming, m)
		}
	}
	for _, m := range c.members {
		m.rate = min(max(m.rate, m.share), m.most())
		unreadable := m.readable != c.now && (c.now-m.readable > readableLately || len(claimants) > 1)
		if unreadable || len(claimants) > 0 && !m.active {
			m.rate = m.share
		}
	}
	lend(claimants)
	c.sole = c.sole.next(len(claimants) == 1 && claimants[0].ceiling >= 1, c.gpuTime, c.now)
	if c.sole.since > 0 {
		claimants[0].rate = c.sole.rate()
	}
	for i, m := range claiming {
		if m.readable == c.now {
			m.rate = claimants[i].rate
		}
	}
}

// measure takes the driver's samples in, one period after the other.
func (c *card) measure() {
	slices.SortStableFunc(c.samples, func(a, b monitor.Utilization) int { return cmp.Compare(a.At, b.At) })
	for len(c.samples) > 0 {
		at := c.samples[0].At
		length := 1
		for length < len(c.samples) && c.samples[length].At == at {
			length++
		}
		if (c.sampled == 0 || at-c.sampled >= shortestPeriod/4) && at <= c.now && c.now-at <= samplesStale {
			c.measurePeriod(at, c.samples[:length])
		}
		c.samples = c.samples[length:]
	}
}

// measurePeriod takes the samples of one period in.
func (c *card) measurePeriod(at time.Duration, samples []monitor.Utilization) {
	busy, total := byKey(samples)
	from, joined := c.begin(at)
	// A tenant that launched something and has no sample was left out by the driver: what it used is not known.
	missed := func(m *member) bool { return busy[m.tenant.Key] == 0 && m.launched(from, at) }
	c.full = total >= unloaded || slices.ContainsFunc(c.members, missed)
	c.foreign = c.strangers(busy)
	even := queueing / float64(len(busy))
	for _, m := range c.members {
		m.usage.foreign = c.foreign > 0
		if missed(m) {
			m.usage = m.usage.miss(at)
			continue
		}
		part := middle(min(1, busy[m.tenant.Key]))
		m.measure(reading{from: from, at: at, known: c.period() > 0, joined: joined, full: c.full,
			queued: total >= loaded && part >= even, busy: part, foreign: c.foreign})
	}
}

// byKey adds samples up by tenant, those of no tenant under "", and says how busy all of them kept the GPU at most.
func byKey(samples []monitor.Utilization) (busy map[string]float64, total float64) {
	busy = map[string]float64{}
	for _, sample := range samples {
		part := min(1, max(0, sample.Busy))
		if part > 0 {
			busy[sample.Key] += part
			total += part + unpercent
		}
	}
	return busy, total
}

// strangers is how busy those kept the GPU who are no tenants of it.
func (c *card) strangers(busy map[string]float64) float64 {
	foreign := 0.0
	for key, part := range busy {
		if !slices.ContainsFunc(c.members, func(m *member) bool { return m.tenant.Key == key }) {
			foreign += part
		}
	}
	return min(1, foreign)
}

// begin notes the time of a sample and says since when it is. Until the period is known the shortest is taken.
func (c *card) begin(at time.Duration) (from time.Duration, joined bool) {
	gap := at - c.sampled
	first := c.sampled == 0 || gap > samplesStale
	c.sampled = at
	if !first {
		c.gaps[c.count%len(c.gaps)] = gap
		c.count++
	}
	length := c.period()
	switch {
	case length == 0:
		return at - shortestPeriod, false
	case !first && gap <= length+length/2:
		return at - gap, true
	}
	return at - length, false
}

// middle is the middle of what a busy part can mean: the driver tells whole percents.
func middle(busy float64) float64 {
	percent := busy * 100
	if busy <= 0 || busy >= 1 || math.Abs(percent-math.Round(percent)) > 1e-6 {
		return busy
	}
	return busy + unpercent
}
