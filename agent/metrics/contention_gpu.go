// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The rows of contention by card: its own counters, each with the period that the driver takes it over, and whether it is
// contended.

package metrics

import (
	"slices"
	"time"

	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/watch"
)

// gpmLeast tells figures of GPM from those of the driver's older counters: they are means over no less.
const gpmLeast = 100 * time.Millisecond

func contentionGPURows() []row { return slices.Concat(counterRows(), stateRows(), verdictRows()) }

// counterRows are what the card's counters have of its work and traffic.
func counterRows() []row {
	gpu := []string{"gpu_uuid"}
	rate := func(value func(monitor.Device) monitor.Figure) func(View) []sample {
		return perDevice(func(device monitor.Device) []sample {
			figure := value(device)
			return known(figure, sample{[]string{device.GPUUUID, figureSource(figure)}, figure.Value})
		})
	}
	return []row{
		{"vgpud_gpu_busy_ratio", gauge, "Part of the time in which a kernel ran on the GPU, 0 to 1, as the driver says.", gpu,
			perDevice(func(device monitor.Device) []sample {
				return known(device.Busy, sample{[]string{device.GPUUUID}, device.Busy.Value})
			})},
		{"vgpud_gpu_memory_busy_ratio", gauge, "Part of the time in which the GPU's memory was accessed at all, 0 to 1, as the driver says; no bandwidth.", gpu,
			perDevice(func(device monitor.Device) []sample {
				return known(device.MemoryBusy, sample{[]string{device.GPUUUID}, device.MemoryBusy.Value})
			})},
		{"vgpud_gpu_dram_bandwidth_ratio", gauge, "Part of the peak bandwidth of the GPU's memory that was used, 0 to 1; missing where the card has no counter (GPM, Hopper and later).", []string{"gpu_uuid", "source"},
			rate(func(device monitor.Device) monitor.Figure { return device.DRAM })},
		{"vgpud_gpu_pcie_receive_bytes_per_second", gauge, "PCIe traffic from the host to the GPU, by its own counter; source: gpm, or throughput, which sees 20 ms of each look.", []string{"gpu_uuid", "source"},
			rate(func(device monitor.Device) monitor.Figure { return device.PCIeRX })},
		{"vgpud_gpu_pcie_transmit_bytes_per_second", gauge, "PCIe traffic from the GPU to the host, as vgpud_gpu_pcie_receive_bytes_per_second.", []string{"gpu_uuid", "source"},
			rate(func(device monitor.Device) monitor.Figure { return device.PCIeTX })},
		{"vgpud_gpu_nvlink_receive_bytes_per_second", gauge, "NVLink traffic to the GPU over all its links, by its own counter.", []string{"gpu_uuid", "source"},
			rate(func(device monitor.Device) monitor.Figure { return device.NVLinkRX })},
		{"vgpud_gpu_nvlink_transmit_bytes_per_second", gauge, "NVLink traffic from the GPU over all its links, by its own counter.", []string{"gpu_uuid", "source"},
			rate(func(device monitor.Device) monitor.Figure { return device.NVLinkTX })},
		{"vgpud_gpu_sampling_period_seconds", gauge, "Time over which a figure of the GPU's counters is a mean, as the driver takes it.", []string{"gpu_uuid", "figure"},
			perDevice(periods)},
	}
}

// stateRows are how the card is shared and linked, and what slows it.
func stateRows() []row {
	gpu := []string{"gpu_uuid"}
	return []row{
		{"vgpud_gpu_sharing_info", gauge, "How the GPU is shared: time-sliced, mps, exclusive, mig or unknown; always 1.", []string{"gpu_uuid", "mode"},
			perDevice(func(device monitor.Device) []sample {
				mode := string(device.Sharing)
				if mode == "" {
					mode = "unknown"
				}
				return []sample{{[]string{device.GPUUUID, mode}, 1}}
			})},
		{"vgpud_gpu_pcie_link_lanes", gauge, "Lanes of the GPU's PCIe link that are in use.", gpu, perLink(func(d monitor.Device) uint32 { return d.LinkWidth })},
		{"vgpud_gpu_pcie_link_lanes_max", gauge, "Lanes that the GPU's PCIe link could have here.", gpu, perLink(func(d monitor.Device) uint32 { return d.LinkWidthMax })},
		{"vgpud_gpu_pcie_link_generation", gauge, "Generation that the GPU's PCIe link runs at; an idle card may lower it by itself.", gpu, perLink(func(d monitor.Device) uint32 { return d.LinkGeneration })},
		{"vgpud_gpu_pcie_link_generation_max", gauge, "Generation that the GPU's PCIe link could run at here.", gpu, perLink(func(d monitor.Device) uint32 { return d.LinkGenerationMax })},
		{"vgpud_gpu_sm_clock_hertz", gauge, "Clock of the multiprocessors.", gpu, perLink(func(d monitor.Device) uint32 { return d.SMClockMHz }).times(1e6)},
		{"vgpud_gpu_throttled", gauge, "1 while the GPU runs slower than it could for this reason: power, thermal, hardware, sync or setting.", []string{"gpu_uuid", "reason"},
			perDevice(throttles)},
	}
}

// verdictRows are what follows from the figures.
func verdictRows() []row {
	gpu := []string{"gpu_uuid"}
	resource := []string{"gpu_uuid", "resource"}
	return []row{
		{"vgpud_gpu_bandwidth_ratio", gauge, "Part of what the GPU can carry on the resource that was used over about the last 30 s, 0 to 1.", resource,
			perConcluded(func(gpu contention.GPU) []sample { return attributed(gpu.UUID, gpu.Device) })},
		{"vgpud_gpu_bandwidth_unattributed_ratio", gauge, "Part of what the GPU can carry on the resource that was used and is no container's, 0 to 1.", resource,
			perConcluded(func(gpu contention.GPU) []sample { return attributed(gpu.UUID, gpu.Unattributed) })},
		{"vgpud_gpu_pressure_ratio", gauge, "Part of the time that the GPU's containers lost on the resource because of each other, weighted by how busy they were; see vgpud_slice_pressure_ratio.", []string{"gpu_uuid", "resource", "kind", "window"},
			perConcluded(gpuPressures)},
		{"vgpud_gpu_contention_possible", gauge, "1 for each resource on which contention can be told, in the way in which the GPU is shared.", resource,
			perConcluded(func(gpu contention.GPU) []sample {
				var samples []sample
				for _, resource := range gpu.Possible {
					samples = append(samples, sample{[]string{gpu.UUID, string(resource)}, 1})
				}
				return samples
			})},
		{"vgpud_gpu_contended", gauge, "1 while the GPU counts as contended.", gpu,
			func(view View) []sample {
				var samples []sample
				for _, verdict := range view.Contention.Health.GPUs {
					samples = append(samples, sample{[]string{verdict.UUID}, truth(verdict.Contended)})
				}
				return samples
			}},
		{"vgpud_gpu_contention_info", gauge, "Who is slowed, on what and by whom, while the GPU counts as contended; the value is the confidence in the antagonist, 0 to 1.",
			[]string{"gpu_uuid", "resource", "victim", "antagonist"}, contentionInfo},
		{"vgpud_gpu_contention_transitions_total", counter, "How often the GPU became contended or recovered, and an antagonist was given less GPU time (cut) or had it back (uncut).",
			[]string{"gpu_uuid", "kind"}, moves},
		{"vgpud_contention_looks_total", counter, "Looks at the traffic of cards and containers; none where contention is off.", nil,
			single(func(view View) float64 { return float64(view.Contention.Looks) })},
	}
}

func known(figure monitor.Figure, one sample) []sample {
	if !figure.Known {
		return nil
	}
	return []sample{one}
}

// figureSource is the counter that a rate is of.
func figureSource(figure monitor.Figure) string {
	if figure.Period >= gpmLeast {
		return "gpm"
	}
	return "throughput"
}

// perDevice leaves out cards that could not be read.
func perDevice(samplesOf func(monitor.Device) []sample) func(View) []sample {
	return func(view View) []sample {
		if view.Contention.Seen == nil {
			return nil
		}
		var samples []sample
		for _, device := range view.Contention.Seen.Devices {
			if device.Err == nil {
				samples = append(samples, samplesOf(device)...)
			}
		}
		return samples
	}
}

func periods(device monitor.Device) []sample {
	var samples []sample
	for _, figure := range []struct {
		name string
		of   monitor.Figure
	}{{"busy", device.Busy}, {"memory_busy", device.MemoryBusy}, {"dram", device.DRAM}, {"pcie_receive", device.PCIeRX},
		{"pcie_transmit", device.PCIeTX}, {"nvlink_receive", device.NVLinkRX}, {"nvlink_transmit", device.NVLinkTX}} {
		samples = append(samples, known(figure.of, sample{[]string{device.GPUUUID, figure.name}, figure.of.Period.Seconds()})...)
	}
	return samples
}

// samplesOf is a row's function, which can be scaled.
type samplesOf func(View) []sample

// times multiplies every value.
func (s samplesOf) times(factor float64) func(View) []sample {
	return func(view View) []sample {
		samples := s(view)
		for i := range samples {
			samples[i].value *= factor
		}
		return samples
	}
}

// perLink leaves out what is not known, which is 0.
func perLink(value func(monitor.Device) uint32) samplesOf {
	return perDevice(func(device monitor.Device) []sample {
		if value(device) == 0 {
			return nil
		}
		return []sample{{[]string{device.GPUUUID}, float64(value(device))}}
	})
}

func throttles(device monitor.Device) []sample {
	var samples []sample
	for _, reason := range monitor.ThrottleReasons {
		samples = append(samples, sample{[]string{device.GPUUUID, reason.Name}, truth(device.Throttle&reason.Bit != 0)})
	}
	return samples
}

func perConcluded(samplesOf func(contention.GPU) []sample) func(View) []sample {
	return func(view View) []sample {
		var samples []sample
		for _, gpu := range view.Contention.Concluded.GPUs {
			samples = append(samples, samplesOf(gpu)...)
		}
		return samples
	}
}

func attributed(uuid string, parts []contention.Attributed) []sample {
	var samples []sample
	for _, part := range parts {
		if part.Known {
			samples = append(samples, sample{[]string{uuid, string(part.Resource)}, part.Part})
		}
	}
	return samples
}

func gpuPressures(gpu contention.GPU) []sample {
	var samples []sample
	eachPressure(gpu.Pressures, func(resource, kind string, averages contention.Averages) {
		for _, window := range windows(averages) {
			samples = append(samples, sample{[]string{gpu.UUID, resource, kind, window.name}, window.part})
		}
	})
	return samples
}

func contentionInfo(view View) []sample {
	owners := owners(view)
	var samples []sample
	for _, verdict := range view.Contention.Health.GPUs {
		if !verdict.Contended {
			continue
		}
		found := verdict.Evidence
		antagonist := ""
		if found.Antagonist != "" {
			antagonist = podName(found.Antagonist, owners[found.Antagonist])
		}
		samples = append(samples, sample{[]string{verdict.UUID, string(found.Resource), podName(found.Victim, owners[found.Victim]), antagonist}, found.Confidence})
	}
	return samples
}

// transitionKinds are all kinds of changes.
var transitionKinds = []health.TransitionKind{health.TransitionContended, health.TransitionRecovered, health.TransitionCut, health.TransitionUncut}

// moves has a series of every kind for each card that is looked at, so that the first change is an increase.
func moves(view View) []sample {
	var samples []sample
	for _, gpu := range view.Contention.Concluded.GPUs {
		for _, kind := range transitionKinds {
			samples = append(samples, sample{[]string{gpu.UUID, string(kind)}, float64(view.Contention.Moved[watch.Move{GPUUUID: gpu.UUID, Kind: kind}])})
		}
	}
	return samples
}
