// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// How long calls took, as a histogram for the metrics.

package plugin

import "time"

// durationBounds are the upper bounds of the buckets: Allocate has to answer in milliseconds.
var durationBounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, time.Second, 5 * time.Second,
}

// Durations is a histogram. The zero value is empty; copies are independent.
type Durations struct {
	Count   uint64
	Sum     time.Duration
	buckets [len(durationBounds)]uint64 // how many took no longer than the bound
}

func (d *Durations) add(took time.Duration) {
	d.Count++
	d.Sum += took
	for i, bound := range durationBounds {
		if took <= bound {
			d.buckets[i]++
		}
	}
}

// Buckets maps each upper bound, in seconds, to how many took no longer.
func (d Durations) Buckets() map[float64]uint64 {
	buckets := make(map[float64]uint64, len(durationBounds))
	for i, bound := range durationBounds {
		buckets[bound.Seconds()] = d.buckets[i]
	}
	return buckets
}
