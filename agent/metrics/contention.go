// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The rows of contention by slice: traffic as containers tell it, what decide made of it, and pressure as in
// /proc/pressure. contention_gpu.go has those of cards. All are of the last look, which is apart from the tick.

package metrics

import (
	"maps"
	"slices"
	"strings"

	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/monitor"
)

func contentionRows() []row {
	resource := slices.Concat(sliceLabels, []string{"resource"})
	pressure := slices.Concat(sliceLabels, []string{"resource", "kind", "window"})
	return []row{
		{"vgpud_slice_copied_bytes_total", counter, "Bytes that the container copied, by direction, by its own count.",
			slices.Concat(sliceLabels, []string{"direction"}), perDirection(func(count monitor.Count) float64 { return float64(count.Bytes) })},
		{"vgpud_slice_copies_total", counter, "Copies by the container, by direction, by its own count.",
			slices.Concat(sliceLabels, []string{"direction"}), perDirection(func(count monitor.Count) float64 { return float64(count.Calls) })},
		{"vgpud_slice_sync_stalled_seconds_total", counter, "Time for which the container's threads waited for the GPU in calls that synchronise, in seconds, summed over its threads, by its own count; its own work is part of it.",
			sliceLabels, perStream(func(stream monitor.Stream) float64 { return stream.Stalls.Time.Seconds() })},
		{"vgpud_slice_pressure_ratio", gauge, "Part of the time that the container lost on the resource because of others, as in Linux' /proc/pressure: some, while at least one of its operations was slowed; full, while all were; over 10, 60 and 300 seconds.",
			pressure, slicePressures},
		{"vgpud_slice_pressure_stalled_seconds_total", counter, "Time that the container lost on the resource because of others, in seconds; see vgpud_slice_pressure_ratio.",
			slices.Concat(sliceLabels, []string{"resource", "kind"}), sliceStalls},
		{"vgpud_slice_bandwidth_estimated_ratio", gauge, "The container's part of what the GPU can carry on the resource, 0 to 1, as attributed to it; missing where it cannot be told.",
			resource, perAttributed(func(part contention.Attributed) (float64, bool) { return part.Part, part.Known })},
		{"vgpud_slice_bandwidth_confidence_ratio", gauge, "How certain vgpud_slice_bandwidth_estimated_ratio is, 0 to 1; 0: unattributed.",
			resource, perAttributed(func(part contention.Attributed) (float64, bool) {
				if !part.Known {
					return 0, true
				}
				return part.Confidence, true
			})},
		{"vgpud_slice_self_limited", gauge, "1 for a resource of which the container uses so much that it is its own antagonist.",
			resource, selfLimited},
		{"vgpud_slice_cut_ratio", gauge, "Part of its GPU time that an antagonist is left with at present, before its GPU is withdrawn.",
			sliceLabels, cuts},
	}
}

// perStream leaves out streams whose usage page could not be read, and those of allocations that the tick does not know.
func perStream(value func(monitor.Stream) float64) func(View) []sample {
	return func(view View) []sample {
		var samples []sample
		eachStream(view, func(stream monitor.Stream, owner monitor.Owner) {
			samples = append(samples, sample{sliceLabelValues(stream.Key, stream.GPUUUID, owner), value(stream)})
		})
		return samples
	}
}

func eachStream(view View, do func(monitor.Stream, monitor.Owner)) {
	if view.Contention.Seen == nil {
		return
	}
	owners := owners(view)
	for _, stream := range view.Contention.Seen.Streams {
		if owner, seen := owners[stream.Key]; seen && stream.Known {
			do(stream, owner)
		}
	}
}

// directionNames are in the order of source.Direction.
var directionNames = []string{"host_to_device", "device_to_host", "device_to_device", "peer_to_peer"}

func perDirection(value func(monitor.Count) float64) func(View) []sample {
	return func(view View) []sample {
		var samples []sample
		eachStream(view, func(stream monitor.Stream, owner monitor.Owner) {
			for direction, name := range directionNames {
				labels := sliceLabelValues(stream.Key, stream.GPUUUID, owner, name)
				samples = append(samples, sample{labels, value(stream.Copies[direction])})
			}
		})
		return samples
	}
}

// eachSlice is for what was concluded of slices that the tick knows.
func eachSlice(view View, do func(contention.Slice, monitor.Owner)) {
	owners := owners(view)
	for _, slice := range view.Contention.Concluded.Slices {
		if owner, seen := owners[slice.Key]; seen {
			do(slice, owner)
		}
	}
}

func slicePressures(view View) []sample {
	var samples []sample
	eachSlice(view, func(slice contention.Slice, owner monitor.Owner) {
		eachPressure(slice.Pressures, func(resource, kind string, averages contention.Averages) {
			for _, window := range windows(averages) {
				labels := sliceLabelValues(slice.Key, slice.GPUUUID, owner, resource, kind, window.name)
				samples = append(samples, sample{labels, window.part})
			}
		})
	})
	return samples
}

func sliceStalls(view View) []sample {
	var samples []sample
	eachSlice(view, func(slice contention.Slice, owner monitor.Owner) {
		eachPressure(slice.Pressures, func(resource, kind string, averages contention.Averages) {
			samples = append(samples, sample{sliceLabelValues(slice.Key, slice.GPUUUID, owner, resource, kind), averages.Total.Seconds()})
		})
	})
	return samples
}

func eachPressure(pressures map[contention.Resource]contention.Pressure, do func(resource, kind string, averages contention.Averages)) {
	for _, resource := range slices.Sorted(maps.Keys(pressures)) {
		do(string(resource), "some", pressures[resource].Some)
		do(string(resource), "full", pressures[resource].Full)
	}
}

type window struct {
	name string
	part float64
}

func windows(averages contention.Averages) []window {
	return []window{{"10s", averages.Avg10}, {"60s", averages.Avg60}, {"300s", averages.Avg300}}
}

func perAttributed(value func(contention.Attributed) (number float64, known bool)) func(View) []sample {
	return func(view View) []sample {
		var samples []sample
		eachSlice(view, func(slice contention.Slice, owner monitor.Owner) {
			for _, part := range slice.Traffic {
				if number, known := value(part); known {
					samples = append(samples, sample{sliceLabelValues(slice.Key, slice.GPUUUID, owner, string(part.Resource)), number})
				}
			}
		})
		return samples
	}
}

func selfLimited(view View) []sample {
	var samples []sample
	eachSlice(view, func(slice contention.Slice, owner monitor.Owner) {
		for _, resource := range slice.SelfLimited {
			samples = append(samples, sample{sliceLabelValues(slice.Key, slice.GPUUUID, owner, string(resource)), 1})
		}
	})
	return samples
}

func cuts(view View) []sample {
	owners := owners(view)
	var samples []sample
	for _, cut := range view.Contention.Health.Cuts {
		if owner, seen := owners[cut.Key]; seen {
			samples = append(samples, sample{sliceLabelValues(cut.Key, cut.GPUUUID, owner), cut.Factor})
		}
	}
	return samples
}

// podName is a container's pod for a label; its key where no pod is known.
func podName(key string, owner monitor.Owner) string {
	if owner.Pod == "" {
		return key
	}
	return strings.TrimPrefix(owner.Namespace+"/"+owner.Pod, "/")
}
