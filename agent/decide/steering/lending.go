// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package steering

import "time"

// Lending: what the active tenants of a GPU leave of it is lent to those of them that are elastic.

// Parts of a GPU.
const (
	lentOut = 0.99 // shares and loans together are at most this much, so that small errors build no queues

	// A tenant that nobody else competes with is not to be slowed at all: it has more than the whole. What it queues by
	// that would keep a neighbour waiting, so now and then it has less, until the GPU has idle time.
	soleUse   = 1.002
	soleDrain = 0.97
)

// Times of sole use.
const (
	soleFor  = 3 * time.Second // with more than the whole,
	drainFor = 5 * time.Second // and with less, at most
)

// sole is the use of a GPU by one elastic tenant.
type sole struct {
	since  time.Duration // when its present part began; 0: there is no sole user
	drains bool
}

// next goes on to now. A sample period that began after draining did says whether it is done.
func (s sole) next(is bool, gpu gpuTime, now time.Duration) sole {
	switch {
	case !is:
		return sole{}
	case s.since == 0:
		return sole{since: now}
	case !s.drains && now-s.since >= soleFor && gpu.full && now-gpu.sampled < samplesStale:
		return sole{since: now, drains: true}
	case s.drains && (now-s.since >= drainFor || !gpu.full && gpu.sampled-gpu.period() >= s.since):
		return sole{since: now}
	}
	return s
}

func (s sole) rate() float64 {
	if s.drains {
		return soleDrain
	}
	return soleUse
}

// claimant is one active tenant of a GPU. All fields are parts of the GPU.
type claimant struct {
	share   float64
	ceiling float64 // most that it can have; its share where it is not elastic
	want    float64 // what it is expected to use; 1 where only its rate holds it
	rate    float64 // the answer
}

// lend sets the rates of all claimants. Each has its share, whatever it wants; where the shares are more than the whole, in
// proportion. What is left over, and what those leave who want less than their share, goes to the others by their
// shares: first as far as they want more, then as far as they may have it.
func lend(claimants []*claimant) {
	total := 0.0
	for _, c := range claimants {
		total += c.share
	}
	left := lentOut
	held := make([]float64, len(claimants))
	for i, c := range claimants {
		c.share /= max(1, total)
		c.ceiling = max(c.ceiling, c.share)
		held[i] = min(c.share, c.want)
		left -= held[i]
	}
	left = pour(left, claimants, held, func(c *claimant) float64 { return min(c.ceiling, c.want) })
	pour(left, claimants, held, func(c *claimant) float64 { return c.ceiling })
	for i, c := range claimants {
		c.rate = max(c.share, held[i])
	}
}

// pour adds what is left to what is held, by shares, up to the limit of each, and returns what nobody could take.
func pour(left float64, claimants []*claimant, held []float64, limit func(*claimant) float64) float64 {
	const grain = 1e-9
	for range claimants { // each round but the last fills somebody up
		weights := 0.0
		for i, c := range claimants {
			if held[i]+grain < limit(c) {
				weights += c.share
			}
		}
		if left <= grain || weights == 0 {
			break
		}
		poured := left
		for i, c := range claimants {
			if held[i]+grain < limit(c) {
				more := min(poured*c.share/weights, limit(c)-held[i])
				held[i] += more
				left -= more
			}
		}
	}
	return left
}
