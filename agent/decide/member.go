// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package decide

import (
	"math"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// tenantTime is what is remembered of a tenant.
type tenantTime struct {
	known    bool // it was there in the round before
	history  history
	scale    scale
	usage    usage
	rate     float64 // in force, as it was last decided
	company  int     // alone or together: which scale is in force
	surely   int     // the same, or mixed where that is not certain: in the moments after a neighbour went, as in SteerPolicy.Alone
	want     float64 // what it is expected to use
	active   bool
	since    time.Duration // when it became active
	readable time.Duration // when its usage page was last read
}

// member is one tenant in one round.
type member struct {
	tenant         *monitor.Tenant
	share, ceiling float64
	user           bool // it may have used the GPU of late
	tenantTime
}

func newMember(tenant *monitor.Tenant, known tenantTime) *member {
	m := &member{tenant: tenant, tenantTime: known}
	m.share = min(max(float64(tenant.SharePPM)/ppm, 1.0/100), 1)
	m.ceiling = m.share
	if tenant.Mode == monitor.ComputeElastic {
		m.ceiling = min(max(float64(tenant.CeilingPPM)/ppm, m.share), 1)
	}
	if !m.known {
		m.rate = max(m.share, min(float64(tenant.RatePPM)/ppm, m.most()))
		if tenant.ScalePPM > 0 && tenant.ScalePPM != ppm { // of the agent before this one
			inherited := bounded(float64(tenant.ScalePPM) / ppm)
			m.scale.known = [mixed]float64{inherited, inherited}
		}
	}
	m.tenantTime.known = true
	return m
}

func (m *member) id() tenantID { return tenantID{m.tenant.GPUUUID, m.tenant.Key} }

// most is the highest rate that it can have.
func (m *member) most() float64 {
	if m.ceiling >= 1 {
		return soleUse
	}
	return m.ceiling
}

func (m *member) scaleInForce() float64 { return m.scale.inForce(m.company) }

// observe takes in what the pages say.
func (m *member) observe(now time.Duration, policy SteerPolicy) {
	if !m.tenant.Known {
		m.activate(true, now)
		m.want = 1
		return
	}
	passed := time.Duration(0)
	if len(m.history) > 0 {
		passed = now - m.history[len(m.history)-1].at
	}
	m.readable = now
	m.history = m.history.add(now, min(max(m.tenant.Charged, 0), math.MaxInt64/4), m.rate, m.scaleInForce(), m.surely)
	m.usage = m.usage.wait(now, m.tenant.Throttled, policy.HeldAfter)
	m.activate(m.wantedWithin(policy.Active, now) || m.running() > 0, now)
	m.expect(passed, now)
}

// activate notes since when it is active.
func (m *member) activate(active bool, now time.Duration) {
	if active && !m.active {
		m.since = now
	}
	m.active = active
}

// wantedWithin says whether it asked for GPU time of late, or still waits for it: it has a debt then.
func (m *member) wantedWithin(span, now time.Duration) bool {
	return m.tenant.Wanted > 0 && m.tenant.Wanted >= now-span || m.tenant.Debt > 0 && m.waitedWithin(waitRenewed, now)
}

func (m *member) waitedWithin(span, now time.Duration) bool {
	return m.tenant.Waited > 0 && m.tenant.Waited >= now-span
}

// running is how much of what it charged may still have to run; 0 for small remainders.
func (m *member) running() time.Duration {
	if len(m.history) == 0 {
		return 0
	}
	open := scaled(m.history[len(m.history)-1].open, m.scaleInForce())
	if open < historyGrain {
		return 0
	}
	return open
}

// usedWithin says whether it may have used the GPU of late.
func (m *member) usedWithin(span, now time.Duration) bool {
	return !m.tenant.Known || m.wantedWithin(span, now) || m.running() > 0 || m.usage.seenBusy(now)
}

// expect judges what it will use: all it can get if it waits, or has just come; else what it used lately and a tenth of its
// share more. An expectation rises at once and falls slowly.
func (m *member) expect(passed, now time.Duration) {
	want := 1.0
	if !m.waitedWithin(hungry, now) && now-m.since >= hungry {
		charged := max(m.history.chargeRate(now, 60*time.Millisecond), m.history.chargeRate(now, 200*time.Millisecond))
		use := charged * m.scaleInForce()
		want = use + 0.1*max(m.share, use)
	}
	fallen := m.want - m.share*float64(passed)/float64(wantFalls)
	m.want = min(1, max(want, fallen))
	if now-m.since >= overShareOver {
		m.want = min(m.want, max(m.share, m.usage.most(now)))
	}
}

// claim is what it has to be given of the GPU.
func (m *member) claim() *claimant {
	c := &claimant{share: m.share, ceiling: m.ceiling, want: m.want}
	if !m.tenant.Known {
		c.ceiling = m.share
	}
	return c
}

// reading is one sample period of the driver, with what it says of one tenant.
type reading struct {
	from, at time.Duration
	joined   bool
	full     bool
	queued   bool
	busy     float64
	foreign  float64
	known    bool // the driver's period is known; else it may have begun earlier
}

// launched says whether it charged enough between two times to be seen by the driver.
func (m *member) launched(from, to time.Duration) bool {
	before, ok := m.history.at(from)
	after, _ := m.history.at(to)
	return ok && scaled(after.charged-before.charged, m.scaleInForce()) > (to-from)/noticed
}

// measure compares what was used in a period with what was charged for it.
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
		return
	}
	mk := mark{from: r.from, at: r.at, told: m.readable, full: r.full, queued: r.queued, used: r.busy * span, foreign: r.foreign * span,
		charged: (after.charged - before.charged).Seconds(), granted: granted, due: granted,
		billFrom: (before.paid - before.granted).Seconds(), billAt: (after.paid - after.granted).Seconds()}
	m.scale = m.scale.pause(before, m.rate)
	mk.company = m.companyOf(before, after)
	m.bound(&mk, r, before, after)
	if r.known {
		m.scale = m.scale.learn(mk)
	} else {
		m.scale = m.scale.glimpse(mk)
	}
}

// companyOf tells what company a tenant had between two moments.
func (m *member) companyOf(before, after moment) int {
	span := after.at - before.at
	lonely, shared := after.company[alone]-before.company[alone], after.company[together]-before.company[together]
	switch {
	case lonely >= scaled(span, purity):
		return alone
	case shared >= scaled(span, purity):
		return together
	case after.at-m.scale.pure < mixedFor:
		return mixed
	case lonely > shared:
		return alone
	}
	return together
}

// bound says what may be charged and used in different periods.
func (m *member) bound(mk *mark, r reading, before, after moment) {
	current := m.scaleInForce()
	ahead := burst.Seconds() * m.rate / current
	mk.edgeFrom, mk.edgeAt = before.step.Seconds(), after.step.Seconds()
	mk.openFrom, mk.openAt = before.open.Seconds()+ahead, after.open.Seconds()+ahead
	mk.launch = max(mk.openFrom, mk.openAt)
	mk.total = after.charged
	if previous, joined := m.scale.before(r, before); joined {
		mk.joined = true
		mk.granted += m.rate * (r.from - previous.at).Seconds()
		mk.openFrom, mk.lateFrom, mk.tail, mk.tailOpen = previous.openAt, previous.lateAt, previous.tail, previous.tailOpen
	} else if r.joined && m.scale.rested == r.from {
		mk.openFrom = 0
	}
	if !r.full {
		mk.openAt = min(mk.openAt, max(0, mk.charged)) // the GPU was idle in this period: all of before was done then
	}
	if after.launch > r.from {
		launched, _ := m.history.at(after.launch)
		mk.launch = max(mk.launch, launched.open.Seconds()+ahead)
		mk.tail, mk.tailOpen = r.busy*(r.at-after.launch).Seconds(), launched.open.Seconds()
	} else {
		mk.tail += mk.used
	}
	mk.lateAt = max(0, mk.tail-current*mk.tailOpen)
}

// publish is the rate that is to be in force. Loans and scales go in steps of a thousandth, so that noise is not published.
func (m *member) publish() Rate {
	rate := thousandths(m.rate)
	if share := uint32(math.Round(m.share * ppm)); m.rate <= m.share || rate < share {
		rate = uint32(math.Round(m.rate * ppm))
	}
	return Rate{Key: m.tenant.Key, GPUUUID: m.tenant.GPUUUID, PPM: rate, ScalePPM: thousandths(m.scaleInForce()), Alone: m.surely == alone}
}

func thousandths(part float64) uint32 { return uint32(math.Round(part*1000)) * (ppm / 1000) }
