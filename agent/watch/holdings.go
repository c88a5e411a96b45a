// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// holdings.go is what a look knows of allocations beside their traffic: shares from the books, GPU time from the
// last round of steering, and rates, which are differences of two looks.

package watch

import (
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// usedTime sums up what an allocation used of a GPU's time: what was charged is worth more or less of it from time to time.
type usedTime struct {
	charged time.Duration // as of the last look
	used    time.Duration
	waited  time.Duration
	known   bool
}

// add takes what was charged since the last look at the scale that is in force. The first look, and one after new pages,
// counts from zero.
func (u usedTime) add(tenant monitor.Tenant) usedTime {
	if !tenant.Known {
		return u
	}
	if u.known && tenant.Charged >= u.charged {
		delta := tenant.Charged - u.charged
		u.used += time.Duration(float64(delta) * float64(tenant.ScalePPM) / ledger.WholePPM)
	}
	u.charged, u.waited, u.known = tenant.Charged, max(u.waited, tenant.Throttled), true
	return u
}

// tenants are the compute books as the last round of steering saw them.
func (w *Loop) tenants() map[StreamID]monitor.Tenant {
	tenants := map[StreamID]monitor.Tenant{}
	if seen := w.steering().Seen; seen != nil {
		for _, tenant := range seen.Tenants {
			tenants[StreamID{tenant.Key, tenant.GPUUUID}] = tenant
		}
	}
	return tenants
}

// holdings are the shares of all committed allocations.
func (w *Loop) holdings() []monitor.Holding {
	tenants := w.tenants()
	var holdings []monitor.Holding
	held := map[StreamID]bool{}
	for _, record := range w.books.Snapshot() {
		started := w.started(record.Key)
		for _, grant := range record.Grants {
			id := StreamID{record.Key, grant.UUID}
			held[id] = true
			holding := monitor.Holding{Key: record.Key, GPUUUID: grant.UUID, Started: started}
			if grant.Compute.Mode != ledger.ComputeNone {
				holding.Share = float64(grant.Compute.SharePPM) / ledger.WholePPM
			}
			if tenant, steered := tenants[id]; steered {
				w.used[id] = w.used[id].add(tenant)
				holding.Charged, holding.Waited = w.used[id].used, w.used[id].waited
			}
			holdings = append(holdings, holding)
		}
	}
	for id := range w.used {
		if !held[id] {
			delete(w.used, id)
		}
	}
	return holdings
}

// Rates is what an allocation did per second between two looks. Known: there were two in a row.
type Rates struct {
	Copied  [source.Directions]float64 // bytes per second
	Stalled float64                    // seconds per second, of all threads
	Known   bool

	Throttled, Launches *float64 // part of the time, and per second; nil: GPU time is not limited, or its book not known
	at                  time.Duration
	tenant              monitor.Tenant
}

// measureRates compares the streams of a look at all cards with those of the one before.
func (w *Loop) measureRates(seen *monitor.Contention) {
	at, rates := map[StreamID]monitor.Stream{}, map[StreamID]Rates{}
	tenants := w.tenants()
	for _, stream := range seen.Streams {
		id := StreamID{stream.Key, stream.GPUUUID}
		rate := Rates{at: seen.Now, tenant: tenants[id]}
		before, known := w.at[id]
		elapsed := (seen.Now - w.rates[id].at).Seconds()
		if known && before.Known && stream.Known && elapsed > 0 {
			rate.Known = true
			for direction := range stream.Copies {
				rate.Copied[direction] = perSecond(before.Copies[direction].Bytes, stream.Copies[direction].Bytes, elapsed)
			}
			rate.Stalled = max(0, (stream.Stalls.Time-before.Stalls.Time).Seconds()/elapsed)
		}
		if was := w.rates[id].tenant; known && was.Known && rate.tenant.Known && elapsed > 0 {
			throttled := max(0, (rate.tenant.Throttled-was.Throttled).Seconds()/elapsed)
			launches := perSecond(was.Launches, rate.tenant.Launches, elapsed)
			rate.Throttled, rate.Launches = &throttled, &launches
		}
		at[id], rates[id] = stream, rate
	}
	w.at, w.rates = at, rates
}

// perSecond is how fast a counter goes; 0 where it began anew.
func perSecond(before, after uint64, elapsed float64) float64 {
	if after < before {
		return 0
	}
	return float64(after-before) / elapsed
}
