// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package nvml

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/source"
)

// noGPM are the functions of GPM, which libraries before 525 lack.
var noGPM = map[string]bool{"nvmlGpmQueryDeviceSupport": true, "nvmlGpmSampleAlloc": true, "nvmlGpmSampleGet": true,
	"nvmlGpmSampleFree": true, "nvmlGpmMetricsGet": true}

// counting is a card whose counters answer.
func counting(uuid string) *mock.Device {
	device := card(uuid)
	device.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 60, Memory: 30}, nvml.SUCCESS }
	device.GetPcieThroughputFunc = func(counter nvml.PcieUtilCounter) (uint32, nvml.Return) {
		return map[nvml.PcieUtilCounter]uint32{nvml.PCIE_UTIL_RX_BYTES: 2000, nvml.PCIE_UTIL_TX_BYTES: 500}[counter], nvml.SUCCESS
	}
	device.GetClockInfoFunc = func(kind nvml.ClockType) (uint32, nvml.Return) {
		return map[nvml.ClockType]uint32{nvml.CLOCK_SM: 1200, nvml.CLOCK_MEM: 2600}[kind], nvml.SUCCESS
	}
	device.GetMaxClockInfoFunc = func(kind nvml.ClockType) (uint32, nvml.Return) {
		return map[nvml.ClockType]uint32{nvml.CLOCK_SM: 1980, nvml.CLOCK_MEM: 2619}[kind], nvml.SUCCESS
	}
	device.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) { return 1 | 4, nvml.SUCCESS } // idle, power
	device.GetCurrPcieLinkGenerationFunc = func() (int, nvml.Return) { return 4, nvml.SUCCESS }
	device.GetMaxPcieLinkGenerationFunc = func() (int, nvml.Return) { return 5, nvml.SUCCESS }
	device.GetCurrPcieLinkWidthFunc = func() (int, nvml.Return) { return 8, nvml.SUCCESS }
	device.GetMaxPcieLinkWidthFunc = func() (int, nvml.Return) { return 16, nvml.SUCCESS }
	device.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_DEFAULT, nvml.SUCCESS }
	device.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS }
	device.GetMPSComputeRunningProcessesFunc = device.GetComputeRunningProcessesFunc
	return device
}

// counter is a reader of a fake library by a clock that the test sets.
func counter(t *testing.T, fake *library, now *time.Duration) *Reader {
	t.Helper()
	reader := newReader(fake, time.Minute, t.TempDir(), time.Now)
	reader.clock = func() (time.Duration, time.Duration) { return *now, *now }
	return reader
}

func devices(t *testing.T, reader *Reader, quick ...string) []source.DeviceSample {
	t.Helper()
	samples, err := reader.Devices(t.Context(), quick)
	if err != nil {
		t.Fatal(err)
	}
	return samples
}

func TestDevices(t *testing.T) {
	now := time.Minute
	lost := counting("GPU-lost")
	lost.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.ERROR_GPU_IS_LOST }
	reader := counter(t, &library{devices: []*mock.Device{counting("GPU-a"), lost, card("")}, missing: noGPM}, &now)
	got := devices(t, reader)
	if len(got) != 2 || got[1].Err == nil || got[1].PCIeRX.Known {
		t.Fatalf("%+v, want one card and one that is lost", got)
	}
	want := source.DeviceSample{
		GPUUUID: "GPU-a", At: now,
		Busy:       source.Figure{Value: 0.6, Period: time.Second, Known: true},
		MemoryBusy: source.Figure{Value: 0.3, Period: time.Second, Known: true},
		PCIeRX:     source.Figure{Value: 2e6, Period: 20 * time.Millisecond, Known: true},
		PCIeTX:     source.Figure{Value: 5e5, Period: 20 * time.Millisecond, Known: true},
		SMClockMHz: 1200, SMClockMaxMHz: 1980, MemoryClockMHz: 2600, MemoryClockMaxMHz: 2619, Throttle: source.ThrottlePower,
		LinkGeneration: 4, LinkGenerationMax: 5, LinkWidth: 8, LinkWidthMax: 16, Sharing: source.SharingTimeSliced,
	}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Error(diff)
	}
	// A quick look is of the cards that are named, and of what changes fast.
	quick := devices(t, reader, "GPU-a", "GPU-x")
	want.SMClockMHz, want.SMClockMaxMHz, want.MemoryClockMHz, want.MemoryClockMaxMHz, want.Throttle = 0, 0, 0, 0, 0
	want.LinkGeneration, want.LinkGenerationMax, want.LinkWidth, want.LinkWidthMax, want.Sharing = 0, 0, 0, 0, ""
	if diff := cmp.Diff([]source.DeviceSample{want}, quick); diff != "" {
		t.Error(diff)
	}
}

// A library that lacks every one of the counters is asked for none; the mocks panic if they are called.
func TestDevicesOfAnOldLibrary(t *testing.T) {
	now := time.Minute
	missing := map[string]bool{}
	for _, name := range counterFunctions {
		missing[name] = true
	}
	got := devices(t, counter(t, &library{devices: []*mock.Device{card("GPU-a")}, missing: missing}, &now))
	if diff := cmp.Diff([]source.DeviceSample{{GPUUUID: "GPU-a", At: now}}, got); diff != "" {
		t.Error(diff)
	}
}

// The older name of a function is used where there is no other.
func TestThrottleReasons(t *testing.T) {
	for reasons, want := range map[uint64]source.Throttle{0: 0, 1: 0, 2: source.ThrottleSetting, 4: source.ThrottlePower,
		8: source.ThrottleHardware, 16: source.ThrottleSync, 32: source.ThrottleThermal, 64: source.ThrottleThermal,
		128: source.ThrottleHardware, 256: source.ThrottleSetting, 1 << 40: 0,
		4 | 64: source.ThrottlePower | source.ThrottleThermal} {
		now := time.Minute
		device := counting("GPU-a")
		device.GetCurrentClocksEventReasonsFunc = nil
		device.GetCurrentClocksThrottleReasonsFunc = func() (uint64, nvml.Return) { return reasons, nvml.SUCCESS }
		missing := map[string]bool{"nvmlDeviceGetCurrentClocksEventReasons": true, "nvmlGpmQueryDeviceSupport": true}
		got := devices(t, counter(t, &library{devices: []*mock.Device{device}, missing: missing}, &now))
		if got[0].Throttle != want {
			t.Errorf("reasons %#x: %#x, want %#x", reasons, got[0].Throttle, want)
		}
	}
}

// Between the two counters that block others get their turn.
func TestThroughputLetsOthersIn(t *testing.T) {
	now, asked := time.Minute, 0
	device := counting("GPU-a")
	device.GetPcieThroughputFunc = func(nvml.PcieUtilCounter) (uint32, nvml.Return) { asked++; return 1, nvml.SUCCESS }
	reader := counter(t, &library{devices: []*mock.Device{device}, missing: noGPM}, &now)
	reader.patience = 5 * time.Second
	others := 0
	reader.clock = func() (time.Duration, time.Duration) {
		if asked > 0 { // between the counters, or after them
			read(t, reader)
			others++
		}
		return now, now
	}
	if devices(t, reader); asked != 2 || others != 2 {
		t.Errorf("%d counters read, %d turns of others, want 2 and 2", asked, others)
	}
}

// hopper is a card with GPM whose library answers with the given values, by metric.
func hopper(values map[nvml.GpmMetricId]float64) (*library, *mock.Device, *int) {
	device, taken := counting("GPU-h"), 0
	device.GpmQueryDeviceSupportFunc = func() (nvml.GpmSupport, nvml.Return) {
		return nvml.GpmSupport{IsSupportedDevice: 1}, nvml.SUCCESS
	}
	device.GpmSampleGetFunc = func(nvml.GpmSample) nvml.Return { taken++; return nvml.SUCCESS }
	fake := &library{devices: []*mock.Device{device}}
	fake.metrics = func(get *nvml.GpmMetricsGetType) nvml.Return {
		if get.Sample1 == get.Sample2 {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		for i := range get.NumMetrics {
			value, known := values[nvml.GpmMetricId(get.Metrics[i].MetricId)]
			if get.Metrics[i].Value = value; !known {
				get.Metrics[i].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
			}
		}
		return nvml.SUCCESS
	}
	return fake, device, &taken
}

func TestGPM(t *testing.T) {
	now := time.Minute
	values := map[nvml.GpmMetricId]float64{nvml.GPM_METRIC_GRAPHICS_UTIL: 80, nvml.GPM_METRIC_DRAM_BW_UTIL: 45.5,
		nvml.GPM_METRIC_PCIE_RX_PER_SEC: 1024, nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: math.NaN()}
	fake, _, taken := hopper(values)
	reader := counter(t, fake, &now)
	first := devices(t, reader)[0]
	if first.DRAM.Known || first.Busy.Period != time.Second || !first.PCIeRX.Known {
		t.Errorf("one sample: %+v, want what the card has without GPM", first)
	}
	now += 50 * time.Millisecond
	if devices(t, reader, "GPU-h"); *taken != 1 {
		t.Errorf("%d samples in 50 ms, want 1", *taken)
	}
	now += 150 * time.Millisecond
	want := source.DeviceSample{GPUUUID: "GPU-h", At: now,
		Busy:       source.Figure{Value: 0.8, Period: 200 * time.Millisecond, Known: true},
		MemoryBusy: source.Figure{Value: 0.3, Period: time.Second, Known: true},
		DRAM:       source.Figure{Value: 0.455, Period: 200 * time.Millisecond, Known: true},
		PCIeRX:     source.Figure{Value: 1 << 30, Period: 200 * time.Millisecond, Known: true},
		PCIeTX:     source.Figure{Value: 5e5, Period: 20 * time.Millisecond, Known: true}, // GPM has none here
	}
	if diff := cmp.Diff([]source.DeviceSample{want}, devices(t, reader, "GPU-h")); diff != "" {
		t.Error(diff)
	}
	now += 99 * time.Millisecond
	if again := devices(t, reader, "GPU-h")[0]; *taken != 2 || again.DRAM != want.DRAM {
		t.Errorf("between two samples: %+v", again.DRAM)
	}
	values[nvml.GPM_METRIC_DRAM_BW_UTIL] = 101
	now += time.Millisecond
	if odd := devices(t, reader, "GPU-h")[0]; odd.DRAM.Known || odd.Busy.Period != 100*time.Millisecond {
		t.Errorf("more than all of the bandwidth: %+v", odd)
	}
	now += time.Minute
	if late := devices(t, reader)[0]; late.Busy.Period != time.Second {
		t.Errorf("a mean over a minute: %+v", late.Busy)
	}
}

// Cards without GPM are asked once; samples are given back with the card and with the library.
func TestGPMIsLetGo(t *testing.T) {
	now := time.Minute
	fake, device, _ := hopper(nil)
	older, asked := counting("GPU-o"), 0
	older.GpmQueryDeviceSupportFunc = func() (nvml.GpmSupport, nvml.Return) {
		asked++
		return nvml.GpmSupport{}, nvml.SUCCESS
	}
	fake.devices = append(fake.devices, older)
	reader := counter(t, fake, &now)
	devices(t, reader)
	devices(t, reader)
	if asked != 1 || fake.samples != 2 || fake.freed != 0 {
		t.Errorf("%d questions, %d samples, %d freed; want 1, 2, 0", asked, fake.samples, fake.freed)
	}
	fake.devices = fake.devices[1:]
	devices(t, reader)
	if fake.freed != 2 {
		t.Errorf("the card is gone: %d freed, want 2", fake.freed)
	}
	fake.devices = []*mock.Device{device}
	devices(t, reader)
	if err := reader.Close(t.Context()); err != nil || fake.freed != 4 {
		t.Errorf("closed: %v, %d freed, want 4", err, fake.freed)
	}
}

// In whatever call the library says that it was let go, it is tried again later.
func TestCountersOfALibraryThatWentAway(t *testing.T) {
	now, clock := time.Minute, time.Unix(1000, 0)
	device := counting("GPU-a")
	reader := counter(t, &library{devices: []*mock.Device{device}, missing: noGPM}, &now)
	reader.now = func() time.Time { return clock }
	devices(t, reader)
	device.GetPcieThroughputFunc = func(nvml.PcieUtilCounter) (uint32, nvml.Return) { return 0, nvml.ERROR_UNINITIALIZED }
	if _, err := reader.Devices(t.Context(), nil); err == nil {
		t.Error("no error")
	}
	if _, err := reader.GPUs(t.Context()); err == nil {
		t.Error("asked again at once")
	}
	device.GetPcieThroughputFunc = func(nvml.PcieUtilCounter) (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	clock = clock.Add(firstRetry)
	if got := devices(t, reader)[0]; got.PCIeRX.Known || !got.Busy.Known {
		t.Errorf("a card without the counter: %+v", got)
	}
}

func TestProcessMemory(t *testing.T) {
	now := time.Minute
	a, b := counting("GPU-a"), counting("GPU-b")
	a.GetMPSComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 9, UsedGpuMemory: 5}}, nvml.SUCCESS
	}
	a.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 1 << 30}, {Pid: 8, UsedGpuMemory: math.MaxUint64}, {Pid: 9, UsedGpuMemory: 5}, {}}, nvml.SUCCESS
	}
	b.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_NO_PERMISSION }
	split := counting("GPU-split") // offered by others
	split.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, 0, nvml.SUCCESS }
	split.GetComputeRunningProcessesFunc = a.GetComputeRunningProcessesFunc
	got, err := counter(t, &library{devices: []*mock.Device{a, b, split}}, &now).ProcessMemory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []source.ProcessMemory{{GPUUUID: "GPU-a", PID: 9, UsedBytes: 5}, {GPUUUID: "GPU-a", PID: 7, UsedBytes: 1 << 30}, {GPUUUID: "GPU-a", PID: 8}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSharing(t *testing.T) {
	process := func(pids ...uint32) func() ([]nvml.ProcessInfo, nvml.Return) {
		var list []nvml.ProcessInfo
		for _, pid := range pids {
			list = append(list, nvml.ProcessInfo{Pid: pid})
		}
		return func() ([]nvml.ProcessInfo, nvml.Return) { return list, nvml.SUCCESS }
	}
	const server, program, hidden, hostile = 100, 101, 102, 103
	container := "0::/kubepods.slice/cri-containerd-" + strings.Repeat("a", 64) + ".scope\n"
	for _, test := range []struct {
		name    string
		change  func(*mock.Device)
		missing string
		want    source.Sharing
	}{
		{"nothing special", func(*mock.Device) {}, "", source.SharingTimeSliced},
		{"split", func(d *mock.Device) {
			d.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, 0, nvml.SUCCESS }
		}, "", source.SharingMIG},
		{"clients of MPS", func(d *mock.Device) { d.GetMPSComputeRunningProcessesFunc = process(program) }, "", source.SharingMPS},
		{"the server of MPS", func(d *mock.Device) {
			d.GetComputeRunningProcessesFunc = process(program, server)
			d.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, nvml.SUCCESS }
		}, "", source.SharingMPS},
		{"one in a container that takes the server's name", func(d *mock.Device) { d.GetComputeRunningProcessesFunc = process(program, hostile) },
			"", source.SharingTimeSliced},
		{"and no list of clients for it", func(d *mock.Device) { d.GetComputeRunningProcessesFunc = process(program, hostile) },
			"nvmlDeviceGetMPSComputeRunningProcesses", source.SharingUnknown},
		{"exclusive", func(d *mock.Device) {
			d.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, nvml.SUCCESS }
		}, "", source.SharingExclusive},
		{"prohibited", func(d *mock.Device) {
			d.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_PROHIBITED, nvml.SUCCESS }
		}, "", source.SharingUnknown},
		{"no mode", func(d *mock.Device) {
			d.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		}, "", source.SharingUnknown},
		{"a process that cannot be seen", func(d *mock.Device) { d.GetComputeRunningProcessesFunc = process(hidden) }, "", source.SharingTimeSliced},
		{"and no list of clients", func(d *mock.Device) { d.GetComputeRunningProcessesFunc = process(hidden) },
			"nvmlDeviceGetMPSComputeRunningProcesses", source.SharingUnknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			now, device := time.Minute, counting("GPU-a")
			test.change(device)
			missing := map[string]bool{"nvmlGpmQueryDeviceSupport": true, test.missing: true}
			reader := counter(t, &library{devices: []*mock.Device{device}, missing: missing}, &now)
			for pid, texts := range map[string][2]string{"100": {"nvidia-cuda-mps\n", "0::/system.slice/mps.service\n"},
				"101": {"python3\n", container}, "103": {"nvidia-cuda-mps\n", container}} {
				directory := filepath.Join(reader.root, "proc", pid)
				if err := os.MkdirAll(directory, 0o755); err != nil {
					t.Fatal(err)
				}
				for i, name := range []string{"comm", "cgroup"} {
					if err := os.WriteFile(filepath.Join(directory, name), []byte(texts[i]), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got := devices(t, reader)[0].Sharing; got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}
