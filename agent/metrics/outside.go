// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The rows of what is seen of containers from outside: calls that probes counted, memory that nobody accounts for, and what
// the witness found.

package metrics

import (
	"maps"
	"slices"

	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/outside"
)

// Events are the Kubernetes Events of this agent. On false: it sends none.
type Events struct {
	On            bool
	Sent, Dropped uint64
}

func outsideRows() []row {
	container := []string{"namespace", "pod", "container"}
	return []row{
		{"vgpud_probes_info", gauge, "How much the eBPF probes see of calls of the driver's library: full, sampled or off, and why not full; always 1.",
			[]string{"mode", "reason"}, ifOutside(func(look outside.View) []sample {
				return []sample{{[]string{look.Probes.Mode, look.Probes.Reason}, 1}}
			})},
		{"vgpud_probes_hit_cost_seconds", gauge, "What one hit of a probe costs the program that is probed, as measured at the start; 0 without probes.", nil,
			single(func(view View) float64 { return view.Outside.Probes.HitCostSeconds })},
		{"vgpud_probes_libraries", gauge, "Files of the driver's library that are probed.", nil,
			single(func(view View) float64 { return float64(view.Outside.Probes.Libraries) })},
		{"vgpud_probes_unobservable_libraries", gauge, "Files of the driver's library that processes use and of which nothing can be probed.", nil,
			single(func(view View) float64 { return float64(view.Outside.Probes.Unobservable) })},
		{"vgpud_container_calls_total", counter, "Calls of the driver's library by the container, as the probes counted them: copies, allocations, synchronisations, contexts, ioctls on the driver's device nodes; missed: over the probes' rate cap.",
			slices.Concat(container, []string{"call"}), containerCalls},
		{"vgpud_container_copied_bytes_total", counter, "Bytes that the container copied, by direction, as the probes counted them; unknown: between unified addresses, where the call does not tell.",
			slices.Concat(container, []string{"direction"}), containerCopies},
		{"vgpud_witness_findings", gauge, "Findings about containers that use a GPU past what they were given, by kind, at present; a container can have several, such as one for each GPU or file. no-slot: a process uses the GPU past the library; memory-beyond-book: it holds more memory than its book says, or than it may; time-beyond-grant: it uses more GPU time than it may; replaced-file: it does not see a file that was mounted into it; no-allocation: it uses a GPU and was given none.", []string{"kind"},
			ifOutside(func(look outside.View) []sample {
				var samples []sample
				for _, kind := range witness.Kinds {
					count := 0
					for _, finding := range look.Findings {
						count += int(truth(finding.Kind == kind))
					}
					samples = append(samples, sample{[]string{string(kind)}, float64(count)})
				}
				return samples
			})},
		{"vgpud_witness_findings_total", counter, "Findings that have begun, by kind; see vgpud_witness_findings.", []string{"kind"},
			ifOutside(func(look outside.View) []sample {
				var samples []sample
				for _, kind := range witness.Kinds {
					samples = append(samples, sample{[]string{string(kind)}, float64(look.Found[kind])})
				}
				return samples
			})},
		{"vgpud_witness_finding_info", gauge, "Which container was found, on which GPU, at present; always 1.", []string{"kind", "gpu_uuid", "namespace", "pod", "container"},
			ifOutside(findingInfo)},
		{"vgpud_gpu_memory_unaccounted_bytes", gauge, "Memory of the GPU that containers hold, as the driver says, and that their books do not have, of those that hold more of it than is tolerated (--witness-overhead).", []string{"gpu_uuid"},
			ifOutside(func(look outside.View) []sample {
				var samples []sample
				for _, uuid := range slices.Sorted(maps.Keys(look.Unaccounted)) {
					samples = append(samples, sample{[]string{uuid}, float64(look.Unaccounted[uuid])})
				}
				return samples
			})},
		{"vgpud_frozen_containers", gauge, "Containers that the agent has frozen (--witness=freeze); vgpud top lists them, vgpud thaw lets them go on.", nil,
			single(func(view View) float64 { return float64(view.Outside.Frozen) })},
		{"vgpud_events_total", counter, "Kubernetes Events, by what became of them: sent, or dropped (too many, refused, or the API server was away for too long).", []string{"result"},
			func(view View) []sample {
				events := view.Events
				if !events.On {
					return nil
				}
				return []sample{{[]string{"sent"}, float64(events.Sent)}, {[]string{"dropped"}, float64(events.Dropped)}}
			}},
	}
}

// ifOutside has series only where this agent looks from outside.
func ifOutside(samplesOf func(outside.View) []sample) func(View) []sample {
	return func(view View) []sample {
		if !view.Outside.On {
			return nil
		}
		return samplesOf(view.Outside)
	}
}

func containerCalls(view View) []sample {
	var samples []sample
	for _, container := range view.Outside.Containers {
		copies := container.Calls.UntoldCopies.Calls
		for _, count := range container.Calls.Copies {
			copies += count.Calls
		}
		for _, one := range []struct {
			name  string
			count uint64
		}{{"copy", copies}, {"allocation", container.Calls.Allocations.Calls}, {"synchronisation", container.Calls.Stalls.Calls},
			{"context", container.Calls.Contexts}, {"ioctl", container.Calls.Ioctls}, {"missed", container.Calls.Missed}} {
			samples = append(samples, sample{[]string{container.Namespace, container.Pod, container.Container, one.name}, float64(one.count)})
		}
	}
	return samples
}

func containerCopies(view View) []sample {
	var samples []sample
	for _, container := range view.Outside.Containers {
		for direction, name := range directionNames {
			labels := []string{container.Namespace, container.Pod, container.Container, name}
			samples = append(samples, sample{labels, float64(container.Calls.Copies[direction].Bytes)})
		}
		labels := []string{container.Namespace, container.Pod, container.Container, "unknown"}
		samples = append(samples, sample{labels, float64(container.Calls.UntoldCopies.Bytes)})
	}
	return samples
}

// findingInfo has one series for each container, GPU and kind: several processes and files of one are one.
func findingInfo(look outside.View) []sample {
	var samples []sample
	seen := map[[5]string]bool{}
	for _, finding := range look.Findings {
		container := finding.ContainerName
		if container == "" {
			container = finding.ContainerID
		}
		pod := finding.Pod
		if pod == "" {
			pod = finding.PodUID
		}
		labels := [5]string{string(finding.Kind), finding.GPUUUID, finding.Namespace, pod, container}
		if !seen[labels] {
			seen[labels] = true
			samples = append(samples, sample{labels[:], 1})
		}
	}
	return samples
}
