// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The rows of GPU time. What is granted comes with the tick; what is in force and used is of the last round of steering,
// which is apart from the tick, and missing where nothing is steered.

package metrics

import (
	"slices"

	"github.com/vgpud/vgpud/agent/decide/steering"
	"github.com/vgpud/vgpud/agent/monitor"
)

func computeRows() []row {
	return []row{
		{"vgpud_slice_compute_info", gauge, "How GPU time of the container is limited on this GPU: none, hard (the share is a cap) or elastic (what others leave is lent, up to the ceiling); always 1.",
			slices.Concat(sliceLabels, []string{"mode"}), computeInfo},
		{"vgpud_slice_compute_share_ratio", gauge, "Part of the GPU's time that is granted to the container, 0 to 1.",
			sliceLabels, perLimited(func(share monitor.Share) float64 { return float64(share.SharePPM) / monitor.WholePPM })},
		{"vgpud_slice_compute_ceiling_ratio", gauge, "Most of the GPU's time that the container may use, loans included, 0 to 1.",
			sliceLabels, perLimited(func(share monitor.Share) float64 { return float64(share.CeilingPPM) / monitor.WholePPM })},
		{"vgpud_slice_compute_rate_ratio", gauge, "Part of the GPU's time that the container may use now, loans included, as the agent steers it.",
			sliceLabels, perVerdict(func(verdict steering.Verdict) (float64, bool) { return verdict.Rate, true })},
		{"vgpud_slice_compute_used_ratio", gauge, "Part of the GPU's time that the container used over about the last second, 0 to 1, as the driver (NVML) measured it; missing where it did not.",
			sliceLabels, perVerdict(func(verdict steering.Verdict) (float64, bool) { return verdict.Used, verdict.UsedKnown })},
		{"vgpud_slice_compute_scale_ratio", gauge, "GPU time really used per GPU time that the container's own measurements of its launches come to, as the agent found it by the driver's samples; 1: they agree.",
			sliceLabels, perVerdict(func(verdict steering.Verdict) (float64, bool) { return verdict.Scale, true })},
		{"vgpud_slice_compute_gpu_seconds_total", counter, "GPU time of the container's launches, in seconds, by its own measurements.",
			sliceLabels, perTenant(func(tenant monitor.Tenant) float64 { return tenant.Charged.Seconds() })},
		{"vgpud_slice_compute_throttled_seconds_total", counter, "Time for which the container's threads were kept waiting for GPU time, in seconds, summed over its threads, by its own book.",
			sliceLabels, perTenant(func(tenant monitor.Tenant) float64 { return tenant.Throttled.Seconds() })},
		{"vgpud_slice_compute_degraded_seconds_total", counter, "Time in which the container launched although no agent steered its GPU time, in seconds, by its own book.",
			sliceLabels, perTenant(func(tenant monitor.Tenant) float64 { return tenant.Degraded.Seconds() })},
		{"vgpud_slice_compute_launches_total", counter, "Launches of kernels and graphs by the container, by its own book.",
			sliceLabels, perTenant(func(tenant monitor.Tenant) float64 { return float64(tenant.Launches) })},
		{"vgpud_slice_compute_verdict", gauge, "1 while the verdict stands: over_share (the driver measured for 10 s that the container used more than it may) or held (the container waited for GPU time for at least half of the last minute).",
			slices.Concat(sliceLabels, []string{"verdict"}), computeVerdicts},
		{"vgpud_compute_rounds_total", counter, "Rounds of steering GPU time; none where it is not limited.", nil,
			single(func(view View) float64 { return float64(view.Steering.Rounds) })},
	}
}

// owners indexes the containers of a view by allocation.
func owners(view View) map[string]monitor.Owner {
	byKey := map[string]monitor.Owner{}
	for _, allocation := range view.Snapshot.Allocations {
		byKey[allocation.Key] = allocation.Owner
	}
	return byKey
}

// perLimited leaves out shares whose GPU time is not limited.
func perLimited(value func(monitor.Share) float64) func(View) []sample {
	return perShareIf(func(share monitor.Share) bool { return share.Mode != monitor.ComputeNone }, value)
}

func computeInfo(view View) []sample {
	var samples []sample
	for _, allocation := range view.Snapshot.Allocations {
		for _, share := range allocation.GPUs {
			labels := sliceLabelValues(allocation.Key, share.GPUUUID, allocation.Owner, modeName(share.Mode))
			samples = append(samples, sample{labels, 1})
		}
	}
	return samples
}

// modeName is the operator's word for a mode.
func modeName(mode monitor.ComputeMode) string {
	switch mode {
	case monitor.ComputeNone:
		return "none"
	case monitor.ComputeElastic:
		return "elastic"
	}
	return "hard"
}

// perVerdict has a series for each verdict whose value is known, of allocations that the tick has seen.
func perVerdict(value func(steering.Verdict) (number float64, known bool)) func(View) []sample {
	return func(view View) []sample {
		owners := owners(view)
		var samples []sample
		for _, verdict := range view.Steering.Verdicts {
			owner, seen := owners[verdict.Key]
			if number, known := value(verdict); known && seen {
				samples = append(samples, sample{sliceLabelValues(verdict.Key, verdict.GPUUUID, owner), number})
			}
		}
		return samples
	}
}

// perTenant leaves out tenants whose usage page could not be read: an old number must not look new.
func perTenant(value func(monitor.Tenant) float64) func(View) []sample {
	return func(view View) []sample {
		if view.Steering.Seen == nil {
			return nil
		}
		owners := owners(view)
		var samples []sample
		for _, tenant := range view.Steering.Seen.Tenants {
			if owner, seen := owners[tenant.Key]; seen && tenant.Known {
				samples = append(samples, sample{sliceLabelValues(tenant.Key, tenant.GPUUUID, owner), value(tenant)})
			}
		}
		return samples
	}
}

func computeVerdicts(view View) []sample {
	owners := owners(view)
	var samples []sample
	for _, verdict := range view.Steering.Verdicts {
		if owner, seen := owners[verdict.Key]; seen {
			samples = append(samples,
				sample{sliceLabelValues(verdict.Key, verdict.GPUUUID, owner, "over_share"), truth(verdict.OverShare)},
				sample{sliceLabelValues(verdict.Key, verdict.GPUUUID, owner, "held"), truth(verdict.Held)})
		}
	}
	return samples
}
