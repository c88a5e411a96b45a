// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package scene

import "time"

// Track is GPU time used since the scene began, read every Step: Used[i] at i·Step.
type Track struct {
	Step time.Duration
	Used []time.Duration
}

// At is the GPU time used until then, with a straight line between readings.
func (t Track) At(at time.Duration) time.Duration {
	if len(t.Used) == 0 || at <= 0 {
		return 0
	}
	i := int(at / t.Step)
	if i+1 >= len(t.Used) {
		return t.Used[len(t.Used)-1]
	}
	part := float64(at-time.Duration(i)*t.Step) / float64(t.Step)
	return t.Used[i] + time.Duration(part*float64(t.Used[i+1]-t.Used[i]))
}

// Share is the part of the time between the two that was used, 0..1.
func (t Track) Share(from, to time.Duration) float64 {
	if to <= from {
		return 0
	}
	return float64(t.At(to)-t.At(from)) / float64(to-from)
}

// Outcome is what came of a scene.
type Outcome struct {
	Tenants []Track // by tenant; of the first card
	Card    Track   // time in which the first card worked for anybody
	Claims  []Claims
	Took    time.Duration // by the clock on the wall, to run it
}

// Claims is what a tenant's own limiter tells of the run.
type Claims struct {
	Throttled   time.Duration // threads kept waiting, summed
	LongestWait time.Duration // of one launch
	Rounds      int           // collectives done, and the like
	Jain        float64       // fairness index of GPU time among the tenant's processes
}
