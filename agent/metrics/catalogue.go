// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package metrics

import (
	"slices"
	"strconv"

	"github.com/vgpud/vgpud/agent/decide"
	"github.com/vgpud/vgpud/agent/monitor"
)

// kind is the type of a metric in the text format.
type kind string

const (
	gauge     kind = "gauge"
	counter   kind = "counter"
	histogram kind = "histogram"
)

// row describes one metric. To add one: a row here, and `make docs` for docs/metrics.md. Every row with no labels,
// and every label set that is known at start, has a sample from the first write on.
type row struct {
	name    string
	kind    kind
	help    string
	labels  []string
	samples func(View) []sample // nil: the histogram, which is of View.Plugin.Allocate
}

// sample is one series: the values of the row's labels, in their order, and the value.
type sample struct {
	labels []string
	value  float64
}

// sliceLabels are the labels of every metric of what a container holds of one GPU.
var sliceLabels = []string{"allocation", "gpu_uuid", "namespace", "pod", "container"}

// catalogue is every metric of vgpud.prom, in the order of the documentation. The row of dropped series is the last
// one: it counts what was left out of those before it.
func catalogue() []row {
	return slices.Concat(sliceRows(), computeRows(), contentionRows(), gpuRows(), contentionGPURows(), outsideRows(), agentRows())
}

func sliceRows() []row {
	return []row{
		{"vgpud_slice_memory_limit_bytes", gauge, "Device memory that the container may hold on this GPU.",
			sliceLabels, perShare(func(share monitor.Share) float64 { return float64(share.LimitBytes) })},
		{"vgpud_slice_memory_used_bytes", gauge, "Device memory that the container holds on this GPU, by its own book.",
			sliceLabels, perMeasured(func(share monitor.Share) float64 { return float64(share.UsedBytes) })},
		{"vgpud_slice_memory_refusals_total", counter, "Requests for device memory that were refused because of the limit.",
			sliceLabels, perMeasured(func(share monitor.Share) float64 { return float64(share.Refusals) })},
		{"vgpud_slice_memory_allocations_total", counter, "Requests for device memory that were granted.",
			sliceLabels, perMeasured(func(share monitor.Share) float64 { return float64(share.Allocations) })},
		{"vgpud_slice_info", gauge, "Which slices an allocation holds; always 1.",
			slices.Concat([]string{"slice"}, sliceLabels), sliceInfo},
		{"vgpud_allocation_verdict", gauge,
			"1 while the verdict stands: tampered (usage page changed by the container), missing (a page is not there), frozen (its page was damaged: it gets no more memory until its container starts again), over_limit (holds more than granted).",
			[]string{"allocation", "verdict", "namespace", "pod", "container"}, verdicts},
		{"vgpud_tampered_pages_total", counter, "How often a usage page was found changed by its container and restored.",
			nil, single(func(view View) float64 { return float64(view.TamperedTotal) })},
	}
}

func gpuRows() []row {
	return []row{
		{"vgpud_gpu_info", gauge, "Model and index of the GPU; always 1.", []string{"gpu_uuid", "index", "model"}, gpuInfo},
		{"vgpud_gpu_memory_total_bytes", gauge, "Physical memory of the GPU.", []string{"gpu_uuid"},
			perGPU(func(gpu monitor.GPU) (float64, bool) {
				return float64(gpu.TotalBytes), gpu.Health == monitor.GPUReadable
			})},
		{"vgpud_gpu_memory_used_bytes", gauge, "Memory of the GPU in use by any process, as the driver says.", []string{"gpu_uuid"},
			perGPU(func(gpu monitor.GPU) (float64, bool) {
				return float64(gpu.UsedBytes), gpu.Health == monitor.GPUReadable
			})},
		{"vgpud_gpu_memory_usable_bytes", gauge, "Memory of the GPU that can be granted: total less the driver's reserve and the margin.", []string{"gpu_uuid"},
			perGPU(func(gpu monitor.GPU) (float64, bool) { return float64(gpu.UsableBytes), gpu.UsableBytes > 0 })},
		{"vgpud_gpu_memory_held_bytes", gauge, "Memory of the GPU that is granted to containers.", []string{"gpu_uuid"},
			perGPU(func(gpu monitor.GPU) (float64, bool) { return float64(gpu.HeldBytes), gpu.UsableBytes > 0 })},
		{"vgpud_gpu_healthy", gauge, "1 while the GPU is sound and none of its slices is withdrawn; the reason says what is wrong: ok, gpu-lost, gpu-unreadable, gpu-mig, no-usable-memory, recovering, contended, or memory-taken (containers hold more of it than granted).", []string{"gpu_uuid", "reason"}, gpuHealthy},
		{"vgpud_slices", gauge, "Slices of the GPU by state: free, allocated, or withdrawn (not allocated and not offered).", []string{"gpu_uuid", "state"}, slicesByState},
	}
}

func agentRows() []row {
	return []row{
		{"vgpud_plugin_registered", gauge, "1 while the kubelet listens to the list of slices.", nil,
			single(func(view View) float64 { return truth(view.Plugin.Registered) })},
		{"vgpud_plugin_registrations_total", counter, "Attempts to register with the kubelet.", []string{"result"},
			func(view View) []sample {
				return []sample{{[]string{"success"}, float64(view.Plugin.Registrations)}, {[]string{"failure"}, float64(view.Plugin.RegistrationFailures)}}
			}},
		{"vgpud_allocations_total", counter, "Calls of Allocate by the kubelet.", []string{"result"},
			func(view View) []sample {
				return []sample{{[]string{"success"}, float64(view.Plugin.Allocations)}, {[]string{"failure"}, float64(view.Plugin.AllocationFailures)}}
			}},
		{"vgpud_start_refusals_total", counter, "Container starts that were refused because a file that the container needs was not right.", nil,
			single(func(view View) float64 { return float64(view.Plugin.StartRefusals) })},
		{"vgpud_allocate_duration_seconds", histogram, "How long Allocate took to answer.", nil, nil},
		{"vgpud_source_up", gauge, "1 when the source answered the last time it was asked. A source that this agent runs without has no series.", []string{"source"}, sourcesUp},
		{"vgpud_textfile_write_errors_total", counter, "Writes of this file that failed; the older file stayed in place.", nil,
			single(func(view View) float64 { return float64(view.WriteErrors) })},
		{"vgpud_build_info", gauge, "Versions of the agent and of the library that it hands out; always 1.", []string{"version", "revision", "goversion", "library_build_id"},
			func(view View) []sample {
				return []sample{{[]string{view.Build.Version, view.Build.Revision, view.Build.GoVersion, view.Build.LibraryBuildID}, 1}}
			}},
		{"vgpud_last_tick_timestamp_seconds", gauge, "When the observations of this file were made.", nil,
			single(func(view View) float64 { return float64(view.Snapshot.At.UnixNano()) / 1e9 })},
		{"vgpud_dropped_series", gauge, "Series left out of this file because another one had the same labels.", nil,
			single(func(view View) float64 { return float64(view.DroppedSeries) })},
	}
}

func truth(value bool) float64 {
	if value {
		return 1
	}
	return 0
}

func single(value func(View) float64) func(View) []sample {
	return func(view View) []sample { return []sample{{nil, value(view)}} }
}

// sliceLabelValues are the values of sliceLabels, and of those that a row adds.
func sliceLabelValues(allocation, gpuUUID string, owner monitor.Owner, more ...string) []string {
	return append(append([]string{allocation, gpuUUID}, ownerLabels(owner)...), more...)
}

// ownerLabels are namespace, pod and container; empty while the container is not known.
func ownerLabels(owner monitor.Owner) []string {
	return []string{owner.Namespace, owner.Pod, owner.Container}
}

func perShare(value func(monitor.Share) float64) func(View) []sample {
	return perShareIf(func(monitor.Share) bool { return true }, value)
}

// perMeasured leaves out shares whose usage page could not be read: an old number must not look new.
func perMeasured(value func(monitor.Share) float64) func(View) []sample {
	return perShareIf(func(share monitor.Share) bool { return share.Measured }, value)
}

func perShareIf(wanted func(monitor.Share) bool, value func(monitor.Share) float64) func(View) []sample {
	return func(view View) []sample {
		var samples []sample
		for _, allocation := range view.Snapshot.Allocations {
			for _, share := range allocation.GPUs {
				if wanted(share) {
					samples = append(samples, sample{sliceLabelValues(allocation.Key, share.GPUUUID, allocation.Owner), value(share)})
				}
			}
		}
		return samples
	}
}

func sliceInfo(view View) []sample {
	var samples []sample
	for _, allocation := range view.Snapshot.Allocations {
		for _, share := range allocation.GPUs {
			for _, id := range share.SliceIDs {
				labels := append([]string{id}, sliceLabelValues(allocation.Key, share.GPUUUID, allocation.Owner)...)
				samples = append(samples, sample{labels, 1})
			}
		}
	}
	return samples
}

func verdicts(view View) []sample {
	owners := owners(view)
	var samples []sample
	for _, verdict := range view.Decisions.Allocations {
		owner := ownerLabels(owners[verdict.Key])
		samples = append(samples,
			sample{append([]string{verdict.Key, "tampered"}, owner...), truth(verdict.Tampered)},
			sample{append([]string{verdict.Key, "missing"}, owner...), truth(verdict.Missing)},
			sample{append([]string{verdict.Key, "frozen"}, owner...), truth(verdict.Frozen)},
			sample{append([]string{verdict.Key, "over_limit"}, owner...), truth(verdict.OverLimit)})
	}
	return samples
}

func perGPU(value func(monitor.GPU) (float64, bool)) func(View) []sample {
	return func(view View) []sample {
		var samples []sample
		for _, gpu := range view.Snapshot.GPUs {
			if number, known := value(gpu); known {
				samples = append(samples, sample{[]string{gpu.UUID}, number})
			}
		}
		return samples
	}
}

func gpuInfo(view View) []sample {
	var samples []sample
	for _, gpu := range view.Snapshot.GPUs {
		samples = append(samples, sample{[]string{gpu.UUID, strconv.Itoa(gpu.Index), gpu.Model}, 1})
	}
	return samples
}

func gpuHealthy(view View) []sample {
	var samples []sample
	for _, gpu := range view.Decisions.GPUs {
		kept := gpu.Reason == decide.ReasonContended && gpu.Withdraw == 0 // allocated ones, and what the fuse keeps
		samples = append(samples, sample{[]string{gpu.UUID, gpu.Reason}, truth(gpu.Healthy || kept)})
	}
	return samples
}

func slicesByState(view View) []sample {
	var samples []sample
	for _, counts := range view.Slices {
		samples = append(samples,
			sample{[]string{counts.GPUUUID, "free"}, float64(counts.Free)},
			sample{[]string{counts.GPUUUID, "allocated"}, float64(counts.Allocated)},
			sample{[]string{counts.GPUUUID, "withdrawn"}, float64(counts.Withdrawn)})
	}
	return samples
}

func sourcesUp(view View) []sample {
	var samples []sample
	for _, status := range view.Snapshot.Sources {
		if !status.Absent {
			samples = append(samples, sample{[]string{status.Name}, truth(status.Up)})
		}
	}
	if view.Steering.Sampled {
		samples = append(samples, sample{[]string{monitor.SourceUtilization}, truth(view.Steering.SampleUp)})
	}
	for _, status := range view.Outside.Sources {
		if !status.Absent && !isSource(view.Snapshot, status.Name) {
			samples = append(samples, sample{[]string{status.Name}, truth(status.Up)})
		}
	}
	if view.Contention.Counters && view.Contention.Looks > 0 {
		samples = append(samples, sample{[]string{monitor.SourceCounters}, truth(view.Contention.Up)})
	}
	return samples
}

// isSource says whether the tick tells of a source itself.
func isSource(snapshot *monitor.Snapshot, name string) bool {
	return slices.ContainsFunc(snapshot.Sources, func(status monitor.SourceStatus) bool { return status.Name == name })
}
