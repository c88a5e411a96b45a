// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// devices_gpm.go reads GPM, the counters that Hopper and later cards have: two samples per card are kept, and a figure is
// the mean over what lies between them, which must be at least 100 ms (NVML's documentation).

package nvml

import (
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/vgpud/vgpud/agent/source"
)

const (
	gpmLeast = 100 * time.Millisecond // between two samples
	gpmMost  = 10 * time.Second       // a mean over more says nothing of now
)

// gpmMiB is the unit of GPM's rates: MiB/s.
const gpmMiB = 1 << 20

// gpmCard are the samples of one card.
type gpmCard struct {
	older, newer nvml.GpmSample
	at           time.Duration // when newer was taken; 0: not yet
	figures      gpmFigures    // of the last pair
	absent       bool          // the card has no GPM
}

// gpmFigures are the means of one pair. The zero value knows nothing.
type gpmFigures struct{ busy, dram, pcieRX, pcieTX, nvlinkRX, nvlinkTX source.Figure }

// hasGPM says whether the library can be asked.
func (r *Reader) hasGPM() bool {
	return r.has["nvmlGpmQueryDeviceSupport"] && r.has["nvmlGpmSampleAlloc"] && r.has["nvmlGpmSampleGet"] &&
		r.has["nvmlGpmSampleFree"] && r.has["nvmlGpmMetricsGet"]
}

// readGPM fills the figures that the card has. Between two samples that would be too close the last pair's stand.
func (r *Reader) readGPM(device nvml.Device, uuid string, sample *source.DeviceSample) {
	if !r.hasGPM() {
		return
	}
	card := r.gpm[uuid]
	if card == nil {
		card = r.openGPM(device)
		r.gpm[uuid] = card
	}
	if card.absent {
		return
	}
	if card.at == 0 || sample.At-card.at >= gpmLeast || sample.At < card.at {
		r.sampleGPM(device, card, sample.At)
	}
	for _, figure := range []struct {
		from source.Figure
		to   *source.Figure
	}{{card.figures.busy, &sample.Busy}, {card.figures.dram, &sample.DRAM}, {card.figures.pcieRX, &sample.PCIeRX},
		{card.figures.pcieTX, &sample.PCIeTX}, {card.figures.nvlinkRX, &sample.NVLinkRX}, {card.figures.nvlinkTX, &sample.NVLinkTX}} {
		if figure.from.Known {
			*figure.to = figure.from
		}
	}
}

// openGPM asks whether a card has GPM, and makes room for its samples.
func (r *Reader) openGPM(device nvml.Device) *gpmCard {
	if support, code := device.GpmQueryDeviceSupport(); code != nvml.SUCCESS || support.IsSupportedDevice == 0 {
		return &gpmCard{absent: true}
	}
	older, code := r.library.GpmSampleAlloc()
	if code != nvml.SUCCESS {
		return &gpmCard{absent: true}
	}
	newer, code := r.library.GpmSampleAlloc()
	if code != nvml.SUCCESS {
		_ = older.Free()
		return &gpmCard{absent: true}
	}
	return &gpmCard{older: older, newer: newer}
}

// sampleGPM takes a sample and works out the figures since the one before.
func (r *Reader) sampleGPM(device nvml.Device, card *gpmCard, now time.Duration) {
	card.older, card.newer = card.newer, card.older
	before := card.at
	card.at, card.figures = 0, gpmFigures{}
	if device.GpmSampleGet(card.newer) != nvml.SUCCESS {
		return
	}
	card.at = now
	period := now - before
	if before == 0 || period < gpmLeast || period > gpmMost {
		return
	}
	get := nvml.GpmMetricsGetType{NumMetrics: 6, Sample1: card.older, Sample2: card.newer}
	for i, id := range []nvml.GpmMetricId{nvml.GPM_METRIC_GRAPHICS_UTIL, nvml.GPM_METRIC_DRAM_BW_UTIL, nvml.GPM_METRIC_PCIE_RX_PER_SEC,
		nvml.GPM_METRIC_PCIE_TX_PER_SEC, nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC} {
		get.Metrics[i].MetricId = uint32(id)
	}
	if r.library.GpmMetricsGet(&get) != nvml.SUCCESS {
		return
	}
	part := func(i int) source.Figure {
		if nvml.Return(get.Metrics[i].NvmlReturn) != nvml.SUCCESS {
			return source.Figure{}
		}
		return percent(get.Metrics[i].Value, period)
	}
	rate := func(i int) source.Figure {
		value := get.Metrics[i].Value
		if nvml.Return(get.Metrics[i].NvmlReturn) != nvml.SUCCESS || !(value >= 0) || math.IsInf(value, 0) {
			return source.Figure{}
		}
		return source.Figure{Value: value * gpmMiB, Period: period, Known: true}
	}
	card.figures = gpmFigures{part(0), part(1), rate(2), rate(3), rate(4), rate(5)}
}

// forgetGPM gives the samples of cards back that are gone.
func (r *Reader) forgetGPM(present map[string]bool) {
	for uuid, card := range r.gpm {
		if !present[uuid] {
			card.free()
			delete(r.gpm, uuid)
		}
	}
}

func (c *gpmCard) free() {
	if !c.absent {
		_, _ = c.older.Free(), c.newer.Free()
	}
}
