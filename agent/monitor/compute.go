// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package monitor

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/source"
)

// Compute is what one round of steering saw of the GPUs' time. It is apart from the Snapshot because it is made many times
// a second. Times are CLOCK_MONOTONIC. Nobody changes it once it is made. Tenants are sorted by GPU and key, without
// duplicates; samples by GPU, time and key.
type Compute struct {
	Now     time.Duration
	Tenants []Tenant
	Samples []Utilization // new since the last round
}

// WholePPM is a whole GPU in the unit of shares; see package source.
const WholePPM = source.WholePPM

// ComputeMode is how the GPU time of an allocation is limited; see package source.
type ComputeMode = source.ComputeMode

// The modes.
const (
	ComputeNone    = source.ComputeNone
	ComputeHard    = source.ComputeHard
	ComputeElastic = source.ComputeElastic
)

// Tenant is one allocation on one GPU; see source.ComputeUsage for its fields.
type Tenant = source.ComputeUsage

// Utilization is how busy the processes of one allocation kept a GPU together in one sample period of the driver.
type Utilization struct {
	Key     string // "": processes that hold no allocation
	GPUUUID string
	Busy    float64       // 0 to 1
	At      time.Duration // end of the period
}

// samePeriod is how far apart the times of samples of one period can lie; periods are at least twice as long.
const samePeriod = time.Second / 12

// CollectCompute merges what the pages and the driver say at time now: samples of processes become samples of that of their
// allocations, by keys, which is a tenant of the GPU. A process without one is foreign there.
func CollectCompute(now time.Duration, tenants []source.ComputeUsage, samples []source.ProcessUtilization,
	keys map[int][]string) *Compute {
	compute := &Compute{Now: now, Tenants: slices.Clone(tenants)}
	slices.SortStableFunc(compute.Tenants, func(a, b Tenant) int {
		return cmp.Or(strings.Compare(a.GPUUUID, b.GPUUUID), strings.Compare(a.Key, b.Key))
	})
	compute.Tenants = slices.CompactFunc(compute.Tenants, func(a, b Tenant) bool {
		return a.GPUUUID == b.GPUUUID && a.Key == b.Key
	})
	ordered := slices.DeleteFunc(slices.Clone(samples), func(s source.ProcessUtilization) bool { return !(s.Busy >= 0) })
	slices.SortStableFunc(ordered, func(a, b source.ProcessUtilization) int {
		return cmp.Or(strings.Compare(a.GPUUUID, b.GPUUUID), cmp.Compare(a.At, b.At))
	})
	for len(ordered) > 0 {
		first, length := ordered[0], 1
		for length < len(ordered) && ordered[length].GPUUUID == first.GPUUUID && ordered[length].At-first.At < samePeriod {
			length++
		}
		compute.Samples = append(compute.Samples, compute.sumPeriod(ordered[:length], keys)...)
		ordered = ordered[length:]
	}
	return compute
}

// sumPeriod sums the samples of one period of one GPU over the processes of each allocation, sorted by key.
func (c *Compute) sumPeriod(samples []source.ProcessUtilization, keys map[int][]string) []Utilization {
	busy := map[string]float64{}
	for _, sample := range samples {
		busy[c.tenantOf(sample.GPUUUID, keys[sample.PID])] += sample.Busy
	}
	last := samples[len(samples)-1]
	var sums []Utilization
	for _, key := range slices.Sorted(maps.Keys(busy)) {
		sums = append(sums, Utilization{Key: key, GPUUUID: last.GPUUUID, Busy: min(1, busy[key]), At: last.At})
	}
	return sums
}

// tenantOf is the first of the keys that is a tenant of the GPU; "" if none is.
func (c *Compute) tenantOf(uuid string, keys []string) string {
	for _, key := range keys {
		if slices.ContainsFunc(c.Tenants, func(t Tenant) bool { return t.GPUUUID == uuid && t.Key == key }) {
			return key
		}
	}
	return ""
}
