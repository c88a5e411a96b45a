// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package steering

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
	company  company // alone or together: which scale is in force
	surely   company // the same, or mixed where that is not certain: within Policy.Alone after a neighbour went
	want     float64 // what it is expected to use
	active   bool
	since    time.Duration // when it became active
	readable time.Duration // when its usage page was last read
}

// member is one tenant in one round.
type member struct {
	tenant         *monitor.Tenant
	share, ceiling float64 // what it may have now,
	granted        float64 // and its share when it is not cut
	user           bool    // it may have used the GPU of late
	tenantTime
}

func newMember(tenant *monitor.Tenant, known tenantTime) *member {
	m := &member{tenant: tenant, tenantTime: known}
	m.share = min(max(float64(tenant.SharePPM)/ppm, 1.0/100), 1)
	m.granted, m.ceiling = m.share, m.share
	if tenant.Mode == monitor.ComputeElastic {
		m.ceiling = min(max(float64(tenant.CeilingPPM)/ppm, m.share), 1)
	}
	if !m.known {
		m.rate = max(m.share, min(float64(tenant.RatePPM)/ppm, m.most()))
		if tenant.ScalePPM > 0 && tenant.ScalePPM != ppm { // of the agent before this one
			inherited := bounded(float64(tenant.ScalePPM) / ppm)
			m.scale.known = [companies]float64{inherited, inherited}
		}
	}
	m.known = true
	return m
}

// leastCut is what a cut leaves of a share at least; and never less than the least share that there is.
const leastCut = 0.1

// cut takes what it may have down to a part of its share, loans included, while a cut of it is in force. What it leaves is
// lent as usual.
func (m *member) cut(cuts []Cut, now time.Duration) {
	for _, cut := range cuts {
		if cut.Key == m.tenant.Key && cut.GPUUUID == m.tenant.GPUUUID && now < cut.Until && cut.Factor < 1 {
			m.share = min(m.granted, max(m.granted*max(cut.Factor, leastCut), 1.0/100))
			m.ceiling = m.share
		}
	}
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
func (m *member) observe(now time.Duration, policy Policy) {
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

// What a tenant that does not wait is expected to use: the larger of its use over two stretches, so that a rise is followed
// within three rounds and the pause between two batches does not look like an end; and a tenth more, so that it need not
// wait to show that it wants more.
const (
	usedShort = 60 * time.Millisecond
	usedLong  = 200 * time.Millisecond
	wantMore  = 0.1
)

// expect judges what it will use: all it can get if it waits, or has just come; else what it used lately and a little more.
// An expectation rises at once and falls slowly. Whoever was active for long is held against what the driver saw.
func (m *member) expect(passed, now time.Duration) {
	want := 1.0
	if !m.waitedWithin(hungry, now) && now-m.since >= hungry {
		charged := max(m.history.chargeRate(now, usedShort), m.history.chargeRate(now, usedLong))
		use := charged * m.scaleInForce()
		want = use + wantMore*max(m.share, use)
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

// publish is the rate that is to be in force. Loans and scales go in steps of a thousandth, so that noise is not published.
func (m *member) publish() Rate {
	rate := thousandths(m.rate)
	if share := uint32(math.Round(m.share * ppm)); m.rate <= m.share || rate < share {
		rate = uint32(math.Round(m.rate * ppm))
	}
	return Rate{Key: m.tenant.Key, GPUUUID: m.tenant.GPUUUID, PPM: rate, ScalePPM: thousandths(m.scaleInForce()),
		Alone: m.surely == alone}
}

func thousandths(part float64) uint32 { return uint32(math.Round(part*1000)) * (ppm / 1000) }
