// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package virtual

import (
	"math"
	"time"

	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

// sample is one reading of NVML's use by process: whole percent of the period that ends at `at`.
type sample struct {
	tenant  int
	context *context
	percent int
	at      time.Duration
}

// nvml shows the use of a card in periods, later than it was, and not always.
type nvml struct {
	model  scene.Utilization
	seed   uint64
	card   *card
	owners map[*context]int // by context, its tenant
	last   time.Duration    // end of the newest period that was read
}

// read returns the samples that have appeared since the last call. A process without use in a period is not in it.
func (n *nvml) read(now time.Duration) []sample {
	if n.model.Absent {
		return nil
	}
	n.card.advance(now)
	var samples []sample
	period := n.model.Period.Truncate(meterStep)
	for end := n.last + period; end+n.model.Lag <= now; end += period {
		n.last = end
		for i, x := range n.card.contexts {
			percent := int(math.Floor(100*float64(x.used.sum(end-period, end))/float64(period) + 0.5))
			if percent > 0 && !n.missing(end, i) {
				samples = append(samples, sample{n.owners[x], x, min(percent, 100), end})
			}
		}
	}
	return samples
}

// missing draws whether a sample is lost; every reader sees the same.
func (n *nvml) missing(at time.Duration, context int) bool {
	x := uint64(at)*0x9e3779b97f4a7c15 ^ (n.seed+uint64(context))*0xbf58476d1ce4e5b9
	x ^= x >> 31
	x *= 0x94d049bb133111eb
	x ^= x >> 29
	return int(x%100) < n.model.Missing
}
