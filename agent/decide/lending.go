// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package decide

// Lending: what the active tenants of a GPU leave of it is lent to those of them that are elastic.

// Parts of a GPU.
const (
	lentOut = 0.99 // shares and loans together are at most this much, so that small errors build no queues
	soleUse = 1.01 // what an elastic tenant has that nobody else competes with: it is not to be slowed at all
)

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
	if len(claimants) == 1 && claimants[0].ceiling >= 1 {
		claimants[0].rate = soleUse
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
