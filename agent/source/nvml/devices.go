// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// devices.go reads the counters of a card's traffic. What they are means over: utilisation, between a sixth of a second and
// a second, by the card (NVML's documentation; the longest is stated); PCIe throughput, 20 ms, for which the call blocks;
// GPM, what lies between two samples of ours. Where a card has GPM, its figures take the place of the others.

package nvml

import (
	"context"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/vgpud/vgpud/agent/source"
)

var _ source.Devices = (*Reader)(nil)

// Periods of the driver's own figures.
const (
	ratesPeriod      = time.Second
	throughputPeriod = 20 * time.Millisecond
)

// throughputUnit is NVML's KB/s.
const throughputUnit = 1000

// counterFunctions are what devices.go and its companions call. Each is looked up first: one that the library lacks would
// end the process.
var counterFunctions = []string{
	"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPcieThroughput", "nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo",
	"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons",
	"nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration",
	"nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth",
	"nvmlDeviceGetComputeMode", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses",
	"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmSampleFree", "nvmlGpmMetricsGet",
}

// Devices implements source.Devices. Each call of the library that blocks takes a turn of its own, so that the samples of
// steering and the tick come in between. A card that is in trouble, or was taken away meanwhile, has an error in its place.
func (r *Reader) Devices(ctx context.Context, quick []string) ([]source.DeviceSample, error) {
	samples, err := ask(ctx, r, "read counters", func() ([]source.DeviceSample, error) { return r.readCounters(quick) })
	if err != nil {
		return nil, err
	}
	for i := range samples {
		sample := &samples[i]
		for _, direction := range []struct {
			figure  *source.Figure
			counter nvml.PcieUtilCounter
		}{{&sample.PCIeRX, nvml.PCIE_UTIL_RX_BYTES}, {&sample.PCIeTX, nvml.PCIE_UTIL_TX_BYTES}} {
			if direction.figure.Known || sample.Err != nil || !r.hasThroughput.Load() {
				continue
			}
			figure, err := ask(ctx, r, "read PCIe throughput", func() (source.Figure, error) {
				return r.readThroughput(sample.GPUUUID, direction.counter)
			})
			if err != nil {
				return nil, err
			}
			*direction.figure = figure
			_, sample.At = r.clock()
		}
	}
	return samples, nil
}

// readCounters reads what does not block, of the cards that are named, or of all; it runs with the turn held.
func (r *Reader) readCounters(quick []string) ([]source.DeviceSample, error) {
	devices, err := r.devices()
	if err != nil {
		return nil, err
	}
	r.hasThroughput.Store(r.has["nvmlDeviceGetPcieThroughput"])
	var samples []source.DeviceSample
	present := map[string]bool{}
	for _, opened := range devices {
		uuid, code := opened.device.GetUUID()
		if code == nvml.ERROR_UNINITIALIZED {
			return nil, r.giveUp(codeError("read counters", code))
		}
		if code != nvml.SUCCESS || uuid == "" {
			continue
		}
		present[uuid] = true
		if quick != nil && !slices.Contains(quick, uuid) {
			continue
		}
		samples = append(samples, r.readCard(opened.device, uuid, quick == nil))
	}
	r.forgetGPM(present)
	return samples, nil
}

// readCard reads one card: with all, also what changes seldom.
func (r *Reader) readCard(device nvml.Device, uuid string, all bool) source.DeviceSample {
	sample := source.DeviceSample{GPUUUID: uuid}
	_, sample.At = r.clock()
	if r.has["nvmlDeviceGetUtilizationRates"] {
		rates, code := device.GetUtilizationRates()
		switch {
		case code == nvml.SUCCESS:
			sample.Busy, sample.MemoryBusy = percent(float64(rates.Gpu), ratesPeriod), percent(float64(rates.Memory), ratesPeriod)
		case code != nvml.ERROR_NOT_SUPPORTED && code != nvml.ERROR_NOT_FOUND:
			sample.Err = codeError("read utilization", code)
			return sample
		}
	}
	r.readGPM(device, uuid, &sample)
	if all {
		r.readClocks(device, &sample)
		r.readLink(device, &sample)
		sample.Sharing = r.sharing(device)
	}
	return sample
}

// percent is a figure of the library's percent; none where that is no such number.
func percent(value float64, period time.Duration) source.Figure {
	if !(value >= 0 && value <= 100) {
		return source.Figure{}
	}
	return source.Figure{Value: value / 100, Period: period, Known: true}
}

// readThroughput reads the bytes of one direction; it runs with the turn held, and blocks for throughputPeriod. The library
// may have been let go and loaded again since the card was opened, so it is opened anew.
func (r *Reader) readThroughput(uuid string, counter nvml.PcieUtilCounter) (source.Figure, error) {
	devices, err := r.devices()
	if err != nil || !r.has["nvmlDeviceGetPcieThroughput"] {
		return source.Figure{}, err
	}
	for _, opened := range devices {
		if found, code := opened.device.GetUUID(); code != nvml.SUCCESS || found != uuid {
			continue
		}
		value, code := opened.device.GetPcieThroughput(counter)
		if code == nvml.ERROR_UNINITIALIZED {
			return source.Figure{}, r.giveUp(codeError("read PCIe throughput", code))
		}
		if code != nvml.SUCCESS {
			return source.Figure{}, nil
		}
		return source.Figure{Value: float64(value) * throughputUnit, Period: throughputPeriod, Known: true}, nil
	}
	return source.Figure{}, nil
}

// readClocks fills clocks, and why they are lower than they could be.
func (r *Reader) readClocks(device nvml.Device, sample *source.DeviceSample) {
	for _, clock := range []struct {
		kind     nvml.ClockType
		now, max *uint32
	}{{nvml.CLOCK_SM, &sample.SMClockMHz, &sample.SMClockMaxMHz}, {nvml.CLOCK_MEM, &sample.MemoryClockMHz, &sample.MemoryClockMaxMHz}} {
		if r.has["nvmlDeviceGetClockInfo"] {
			if value, code := device.GetClockInfo(clock.kind); code == nvml.SUCCESS {
				*clock.now = value
			}
		}
		if r.has["nvmlDeviceGetMaxClockInfo"] {
			if value, code := device.GetMaxClockInfo(clock.kind); code == nvml.SUCCESS {
				*clock.max = value
			}
		}
	}
	var reasons uint64
	var code nvml.Return
	switch {
	case r.has["nvmlDeviceGetCurrentClocksEventReasons"]:
		reasons, code = device.GetCurrentClocksEventReasons()
	case r.has["nvmlDeviceGetCurrentClocksThrottleReasons"]: // its older name
		reasons, code = device.GetCurrentClocksThrottleReasons()
	}
	if code == nvml.SUCCESS {
		sample.Throttle = throttle(reasons)
	}
}

// throttleBits are the library's reasons and ours. Not among them: an idle card, which runs as slowly as it likes.
var throttleBits = []struct {
	bit uint64
	our source.Throttle
}{
	{nvml.ClocksThrottleReasonApplicationsClocksSetting, source.ThrottleSetting},
	{nvml.ClocksThrottleReasonDisplayClockSetting, source.ThrottleSetting},
	{nvml.ClocksThrottleReasonSwPowerCap, source.ThrottlePower},
	{nvml.ClocksThrottleReasonHwSlowdown, source.ThrottleHardware},
	{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, source.ThrottleHardware},
	{nvml.ClocksThrottleReasonSyncBoost, source.ThrottleSync},
	{nvml.ClocksThrottleReasonSwThermalSlowdown, source.ThrottleThermal},
	{nvml.ClocksThrottleReasonHwThermalSlowdown, source.ThrottleThermal},
}

func throttle(reasons uint64) source.Throttle {
	var set source.Throttle
	for _, known := range throttleBits {
		if reasons&known.bit != 0 {
			set |= known.our
		}
	}
	return set
}

// readLink fills generation and width of the PCIe link. An idle card may train its link down by itself, to save power.
func (r *Reader) readLink(device nvml.Device, sample *source.DeviceSample) {
	for _, value := range []struct {
		function string
		read     func() (int, nvml.Return)
		to       *uint32
	}{
		{"nvmlDeviceGetCurrPcieLinkGeneration", device.GetCurrPcieLinkGeneration, &sample.LinkGeneration},
		{"nvmlDeviceGetMaxPcieLinkGeneration", device.GetMaxPcieLinkGeneration, &sample.LinkGenerationMax},
		{"nvmlDeviceGetCurrPcieLinkWidth", device.GetCurrPcieLinkWidth, &sample.LinkWidth},
		{"nvmlDeviceGetMaxPcieLinkWidth", device.GetMaxPcieLinkWidth, &sample.LinkWidthMax},
	} {
		if !r.has[value.function] {
			continue
		}
		if number, code := value.read(); code == nvml.SUCCESS && number > 0 {
			*value.to = uint32(number)
		}
	}
}
