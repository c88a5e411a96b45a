// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package nvml

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/source"
)

// sampler is a card whose samples and whose answer can be set; it notes from when on they were asked for.
type sampler struct {
	*mock.Device
	samples []nvml.ProcessUtilizationSample
	code    nvml.Return
	since   []uint64
}

func newSampler(uuid string) *sampler {
	s := &sampler{Device: card(uuid)}
	s.GetProcessUtilizationFunc = func(since uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		s.since = append(s.since, since)
		return s.samples, s.code
	}
	return s
}

// sampling is a reader of samplers by clocks that the test sets.
func sampling(t *testing.T, wall, monotonic *time.Duration, cards ...*sampler) *Reader {
	t.Helper()
	fake := &library{}
	for _, s := range cards {
		fake.devices = append(fake.devices, s.Device)
	}
	reader := newReader(fake, time.Minute, t.TempDir(), time.Now)
	reader.clock = func() (time.Duration, time.Duration) { return *wall, *monotonic }
	return reader
}

func utilization(t *testing.T, reader *Reader) []source.ProcessUtilization {
	t.Helper()
	samples, err := reader.Utilization(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return samples
}

func TestUtilization(t *testing.T) {
	wall, monotonic := 1700000000*time.Second, 100*time.Second
	stamp := func(ago time.Duration) uint64 { return uint64((wall - ago) / time.Microsecond) }
	busy, idle, split, lost := newSampler("GPU-a"), newSampler("GPU-b"), newSampler("GPU-c"), newSampler("GPU-d")
	busy.samples = []nvml.ProcessUtilizationSample{
		{Pid: 7, TimeStamp: stamp(200 * time.Millisecond), SmUtil: 30, MemUtil: 5},
		{Pid: 8, TimeStamp: stamp(100 * time.Millisecond), SmUtil: 100},
		{Pid: 9, TimeStamp: stamp(2 * time.Second), SmUtil: 50}, // older than was asked for
		{}, // room that was not needed
		{Pid: 9, TimeStamp: stamp(0), SmUtil: 101},                      // no percent
		{Pid: 9, TimeStamp: ^uint64(0), SmUtil: 1},                      // no time
		{Pid: 9, TimeStamp: stamp(-time.Minute), SmUtil: 1},             // of before the time of day was set back
		{Pid: 10, TimeStamp: stamp(-50 * time.Millisecond), SmUtil: 20}, // taken since we looked at the clock
	}
	idle.code, split.code, lost.code = nvml.ERROR_NOT_FOUND, nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_GPU_IS_LOST
	reader := sampling(t, &wall, &monotonic, busy, idle, split, lost)
	want := []source.ProcessUtilization{{GPUUUID: "GPU-a", PID: 7, Busy: 0.3, At: 99800 * time.Millisecond},
		{GPUUUID: "GPU-a", PID: 8, Busy: 1, At: 99900 * time.Millisecond}, {GPUUUID: "GPU-a", PID: 10, Busy: 0.2, At: 100 * time.Second}}
	if diff := cmp.Diff(want, utilization(t, reader)); diff != "" {
		t.Error(diff)
	}
	if got := busy.since[0]; got != stamp(time.Second) {
		t.Errorf("asked for samples since %d, want the last second", got)
	}
}

// Each sample comes once; samples are asked for from the last one on, but not for more than a second back, and the time of
// day may be set at any moment.
func TestUtilizationSince(t *testing.T) {
	wall, monotonic := 1700000000*time.Second, 100*time.Second
	at := func() uint64 { return uint64(wall / time.Microsecond) }
	device := newSampler("GPU-a")
	reader := sampling(t, &wall, &monotonic, device)
	device.samples = []nvml.ProcessUtilizationSample{{Pid: 7, TimeStamp: at(), SmUtil: 30}}
	utilization(t, reader)
	last := at()
	wall += 100 * time.Millisecond
	if again := utilization(t, reader); len(again) != 0 {
		t.Errorf("a sample came twice: %v", again)
	}
	if got := device.since[1]; got != last {
		t.Errorf("asked since %d, want the last sample's %d", got, last)
	}
	for _, step := range []time.Duration{time.Minute, time.Hour, -3 * time.Hour} {
		wall += step
		utilization(t, reader)
		if got, want := device.since[len(device.since)-1], at()-1e6; got != want {
			t.Errorf("after a step of %s: asked since %d, want %d", step, got, want)
		}
	}
	device.samples = []nvml.ProcessUtilizationSample{{Pid: 7, TimeStamp: at(), SmUtil: 40}}
	if samples := utilization(t, reader); len(samples) != 1 || samples[0].At != monotonic {
		t.Errorf("after the clock was set back: %v", samples)
	}
}

// A library without the function is not asked; the mock would panic.
func TestUtilizationOldLibrary(t *testing.T) {
	reader := newReader(&library{devices: []*mock.Device{card("GPU-a")}, missing: map[string]bool{processUtilization: true}},
		time.Minute, t.TempDir(), time.Now)
	if samples := utilization(t, reader); len(samples) != 0 {
		t.Errorf("%v", samples)
	}
}

func TestUtilizationOfALibraryThatWentAway(t *testing.T) {
	device := newSampler("GPU-a")
	device.code = nvml.ERROR_UNINITIALIZED
	now := time.Unix(1000, 0)
	reader := newReader(&library{devices: []*mock.Device{device.Device}}, time.Minute, t.TempDir(), func() time.Time { return now })
	if _, err := reader.Utilization(t.Context()); err == nil {
		t.Error("no error")
	}
	if _, err := reader.GPUs(t.Context()); err == nil {
		t.Error("asked again at once")
	}
	device.code = nvml.SUCCESS
	now = now.Add(firstRetry)
	utilization(t, reader)
}

// A process that appears between the binding's two questions makes it panic; what it would have told comes the next time.
func TestUtilizationWhileProcessesAppear(t *testing.T) {
	wall, monotonic := 1700000000*time.Second, 100*time.Second
	crowded, calm := newSampler("GPU-a"), newSampler("GPU-b")
	told := crowded.GetProcessUtilizationFunc
	crowded.GetProcessUtilizationFunc = func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		room, count := make([]nvml.ProcessUtilizationSample, 1), 2
		return room[:count], nvml.SUCCESS // as the binding does
	}
	sample := nvml.ProcessUtilizationSample{Pid: 7, TimeStamp: uint64(wall / time.Microsecond), SmUtil: 30}
	crowded.samples, calm.samples = []nvml.ProcessUtilizationSample{sample}, []nvml.ProcessUtilizationSample{sample}
	reader := sampling(t, &wall, &monotonic, crowded, calm)
	if samples := utilization(t, reader); len(samples) != 1 || samples[0].GPUUUID != "GPU-b" {
		t.Errorf("%+v, want that of the other card", samples)
	}
	crowded.GetProcessUtilizationFunc = told
	if samples := utilization(t, reader); len(samples) != 1 || samples[0].GPUUUID != "GPU-a" {
		t.Errorf("%+v, want what could not be read before", samples)
	}
}

func TestUtilizationHangs(t *testing.T) {
	stuck := &library{devices: []*mock.Device{newSampler("GPU-a").Device}, hang: make(chan struct{})}
	reader := newReader(stuck, 10*time.Millisecond, t.TempDir(), time.Now)
	if _, err := reader.Utilization(t.Context()); err == nil {
		t.Error("no error")
	}
	close(stuck.hang)
	reader.patience = time.Minute
	utilization(t, reader)
}

func TestSystemClock(t *testing.T) {
	wall, monotonic := systemClock()
	if drift := time.Duration(time.Now().UnixNano()) - wall; drift < 0 || drift > time.Minute || monotonic <= 0 {
		t.Errorf("wall %s, monotonic %s", wall, monotonic)
	}
}
