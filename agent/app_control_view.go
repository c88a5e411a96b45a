// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// app_control_view.go is what `vgpud top` shows of cards and slices.

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vgpud/vgpud/agent/control"
	"github.com/vgpud/vgpud/agent/decide"
	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/decide/steering"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/watch"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// controlGPU is one card. contention is what metrics tell of watched; nil: contention is not looked for.
func (a *app) controlGPU(gpu monitor.GPU, tick *tickResult, contention watch.View, watched *watch.Looked) control.GPU {
	view := control.GPU{UUID: gpu.UUID, Index: gpu.Index, Model: gpu.Model, MemoryTotalBytes: gpu.TotalBytes, MemoryUsedBytes: gpu.UsedBytes,
		MemoryUsableBytes: gpu.UsableBytes, MemoryHeldBytes: gpu.HeldBytes}
	if contention.Seen != nil {
		for _, device := range contention.Seen.Devices {
			if device.GPUUUID == gpu.UUID {
				controlCounters(&view, device)
			}
		}
	}
	for _, found := range contention.Concluded.GPUs {
		if found.UUID == gpu.UUID {
			controlConcluded(&view, found)
		}
	}
	for _, verdict := range contention.Health.GPUs {
		if verdict.UUID == gpu.UUID {
			view.Contended = verdict.Contended
			view.Note = cmp.Or(verdict.Blind, view.Note)
		}
	}
	if watched != nil {
		if change, known := watched.Changes[gpu.UUID]; known {
			found := change.Evidence
			view.Evidence = &control.Evidence{Time: change.At, Contended: change.Contended, Resource: string(found.Resource), Victim: found.Victim,
				Antagonist: found.Antagonist, Confidence: found.Confidence, Avg10: found.Avg10, Avg60: found.Avg60,
				DeviceRatio: found.DeviceRatio, Samples: found.Samples, Text: found.Text(a.watch.Name)}
		}
	}
	for _, verdict := range tick.decisions.GPUs {
		if verdict.UUID == gpu.UUID {
			since := tick.since[gpu.UUID]
			view.Health = control.Health{Healthy: verdict.Healthy, Reason: verdict.Reason, Detail: gpu.Detail, Hard: verdict.Hard, Since: &since}
		}
	}
	for _, counts := range tick.slices {
		if counts.GPUUUID == gpu.UUID {
			view.Slices = control.Counts{Free: counts.Free, Allocated: counts.Allocated, Withdrawn: counts.Withdrawn}
		}
	}
	return view
}

func controlCounters(view *control.GPU, device monitor.Device) {
	if device.Err != nil {
		view.Note = device.Err.Error()
	}
	view.BusyRatio = controlFigure(device.Busy)
	view.PCIeRXBytesPerSec, view.PCIeTXBytesPerSec = controlFigure(device.PCIeRX), controlFigure(device.PCIeTX)
	view.NVLinkRXBytesPerSec, view.NVLinkTXBytesPerSec = controlFigure(device.NVLinkRX), controlFigure(device.NVLinkTX)
	view.DRAMRatio = controlFigure(device.DRAM)
	view.Sharing = string(device.Sharing)
	for _, reason := range monitor.ThrottleReasons {
		if device.Throttle&reason.Bit != 0 {
			view.Throttle = append(view.Throttle, reason.Name)
		}
	}
	if device.LinkGeneration > 0 && device.LinkWidth > 0 {
		view.Link = fmt.Sprintf("gen%d x%d of gen%d x%d", device.LinkGeneration, device.LinkWidth, device.LinkGenerationMax, device.LinkWidthMax)
	}
}

func controlFigure(figure monitor.Figure) *control.Figure {
	if !figure.Known {
		return nil
	}
	return &control.Figure{Value: figure.Value, PeriodSeconds: figure.Period.Seconds()}
}

// controlConcluded fills what decide made of a card's traffic: parts are of what the card can do, as decide knows it, and means
// over a longer time than the counters' own.
func controlConcluded(view *control.GPU, found contention.GPU) {
	for _, part := range found.Device {
		if !part.Known {
			continue
		}
		to := map[contention.Resource]**control.Figure{contention.ResourceDRAM: &view.DRAMRatio, contention.ResourcePCIeRX: &view.PCIeRXRatio,
			contention.ResourcePCIeTX: &view.PCIeTXRatio}[part.Resource]
		if to == nil {
			continue
		}
		*to = &control.Figure{Value: part.Part, PeriodSeconds: contention.ShareOver.Seconds()}
	}
	for _, resource := range found.Possible {
		view.Possible = append(view.Possible, string(resource))
	}
	view.Pressures = controlPressures(found.Pressures)
	view.Unattributed = controlTraffic(found.Unattributed)
	view.Note = cmp.Or(view.Note, found.Note)
}

func controlPressures(pressures map[contention.Resource]contention.Pressure) []control.Pressure {
	averages := func(of contention.Averages) control.Averages {
		return control.Averages{Avg10: of.Avg10, Avg60: of.Avg60, Avg300: of.Avg300, TotalSeconds: of.Total.Seconds()}
	}
	var list []control.Pressure
	for _, resource := range slices.Sorted(maps.Keys(pressures)) {
		list = append(list, control.Pressure{Resource: string(resource), Some: averages(pressures[resource].Some), Full: averages(pressures[resource].Full)})
	}
	return list
}

func controlTraffic(parts []contention.Attributed) []control.Traffic {
	var list []control.Traffic
	for _, part := range parts {
		one := control.Traffic{Resource: string(part.Resource), Known: part.Known, Confidence: part.Confidence, Why: part.Why}
		if part.Known {
			one.Ratio, one.BytesPerSec = part.Part, part.BytesRate
		}
		list = append(list, one)
	}
	return list
}

// controlSlices are what each allocation holds and does on each card.
func (a *app) controlSlices(tick *tickResult, contention watch.View, watched *watch.Looked) []control.Slice {
	facts := a.sliceFacts(tick, contention, watched)
	var list []control.Slice
	for _, allocation := range tick.snapshot.Allocations {
		for _, share := range allocation.GPUs {
			view := control.Slice{Allocation: allocation.Key, GPUUUID: share.GPUUUID, Namespace: allocation.Owner.Namespace, Pod: allocation.Owner.Pod,
				PodUID: allocation.Owner.PodUID, Container: allocation.Owner.Container, SliceIDs: share.SliceIDs,
				MemoryLimitBytes: share.LimitBytes, MemoryRefusals: share.Refusals, ComputeMode: modeWord(share.Mode),
				ShareGranted: float64(share.SharePPM) / ledger.WholePPM, ShareCeiling: float64(share.CeilingPPM) / ledger.WholePPM,
				Pages: string(allocation.Pages), AllocationAgeSeconds: allocation.Age.Seconds()}
			if share.Measured {
				view.MemoryUsedBytes = &share.UsedBytes
			}
			facts.fill(&view)
			list = append(list, view)
		}
	}
	slices.SortStableFunc(list, func(x, y control.Slice) int {
		return cmp.Or(strings.Compare(x.GPUUUID, y.GPUUUID), strings.Compare(x.Allocation, y.Allocation))
	})
	return list
}

func modeWord(mode monitor.ComputeMode) string {
	switch mode {
	case monitor.ComputeNone:
		return "none"
	case monitor.ComputeElastic:
		return "elastic"
	}
	return "hard"
}

// sliceFacts index what the loops know of slices.
type sliceFacts struct {
	compute   map[watch.StreamID]steering.Verdict
	rates     map[watch.StreamID]watch.Rates
	concluded map[watch.StreamID]contention.Slice
	cuts      map[watch.StreamID]float64
	evidence  map[string]health.Evidence // of contended cards
	verdicts  map[string]decide.AllocationVerdict
	name      func(key string) string
}

func (a *app) sliceFacts(tick *tickResult, judged watch.View, watched *watch.Looked) sliceFacts {
	facts := sliceFacts{compute: map[watch.StreamID]steering.Verdict{}, concluded: map[watch.StreamID]contention.Slice{},
		cuts: map[watch.StreamID]float64{}, evidence: map[string]health.Evidence{}, verdicts: map[string]decide.AllocationVerdict{},
		name: func(key string) string { return key }}
	if a.steer != nil {
		for _, verdict := range a.steer.View().Verdicts {
			facts.compute[watch.StreamID{Key: verdict.Key, GPUUUID: verdict.GPUUUID}] = verdict
		}
	}
	if watched != nil {
		facts.rates, facts.name = watched.Rates, a.watch.Name
	}
	for _, slice := range judged.Concluded.Slices {
		facts.concluded[watch.StreamID{Key: slice.Key, GPUUUID: slice.GPUUUID}] = slice
	}
	for _, cut := range judged.Health.Cuts {
		facts.cuts[watch.StreamID{Key: cut.Key, GPUUUID: cut.GPUUUID}] = cut.Factor
	}
	for _, verdict := range judged.Health.GPUs {
		if verdict.Contended {
			facts.evidence[verdict.UUID] = verdict.Evidence
		}
	}
	for _, verdict := range tick.decisions.Allocations {
		facts.verdicts[verdict.Key] = verdict
	}
	return facts
}

// fill adds what is known of one slice.
func (f sliceFacts) fill(view *control.Slice) {
	id := watch.StreamID{Key: view.Allocation, GPUUUID: view.GPUUUID}
	if verdict, steered := f.compute[id]; steered {
		view.ShareRate = &verdict.Rate
		if verdict.UsedKnown {
			view.ShareUsed = &verdict.Used
		}
		addVerdict(view, verdict.Held, control.VerdictHeld, verdict.Reason)
		addVerdict(view, verdict.OverShare, control.VerdictOverShare, verdict.Reason)
	}
	if rates := f.rates[id]; rates.Known {
		view.HostToDeviceRate, view.DeviceToHostRate = &rates.Copied[source.HostToDevice], &rates.Copied[source.DeviceToHost]
		view.DeviceToDeviceRate, view.PeerToPeerRate = &rates.Copied[source.DeviceToDevice], &rates.Copied[source.PeerToPeer]
		view.SyncStalledRatio = &rates.Stalled
	}
	view.ThrottledRatio, view.LaunchesPerSecond = f.rates[id].Throttled, f.rates[id].Launches
	if found, seen := f.concluded[id]; seen {
		view.Traffic, view.Pressures = controlTraffic(found.Traffic), controlPressures(found.Pressures)
		for _, resource := range found.SelfLimited {
			view.SelfLimited = append(view.SelfLimited, string(resource))
		}
	}
	if factor, cut := f.cuts[id]; cut {
		view.CutRatio = &factor
		addVerdict(view, true, control.VerdictCut, fmt.Sprintf("left with %.0f %% of its GPU time for a while: it slows others", 100*factor))
	}
	if found, contended := f.evidence[view.GPUUUID]; contended {
		addVerdict(view, found.Victim == view.Allocation, control.VerdictVictim, found.Text(f.name))
		addVerdict(view, found.Antagonist == view.Allocation, control.VerdictAntagonist, found.Text(f.name))
	}
	verdict := f.verdicts[view.Allocation]
	addVerdict(view, verdict.OverLimit, control.VerdictOverLimit, verdict.Reason)
	addVerdict(view, verdict.Tampered, control.VerdictTampered, verdict.Reason)
	addVerdict(view, verdict.Frozen, control.VerdictFrozen, verdict.Reason)
}

func addVerdict(view *control.Slice, holds bool, kind, why string) {
	if holds {
		view.Verdicts = append(view.Verdicts, control.Verdict{Kind: kind, Why: why})
	}
}
