// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package nvml

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/internal/require"
)

// library is a scripted management library.
type library struct {
	init    nvml.Return
	count   nvml.Return
	devices []*mock.Device
	missing map[string]bool // functions that it does not export
	inits   int
	hang    chan struct{} // reads wait for it when set

	samples, freed int                                       // of GPM
	metrics        func(*nvml.GpmMetricsGetType) nvml.Return // nil: none
}

func (l *library) Init() nvml.Return     { l.inits++; return l.init }
func (l *library) Shutdown() nvml.Return { return nvml.SUCCESS }
func (l *library) Extensions() nvml.ExtendedInterface {
	return &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
		if l.missing[name] {
			return errors.New("undefined symbol")
		}
		return nil
	}}
}
func (l *library) DeviceGetCount() (int, nvml.Return) {
	if l.hang != nil {
		<-l.hang
	}
	return len(l.devices), l.count
}
func (l *library) DeviceGetHandleByIndex(index int) (nvml.Device, nvml.Return) {
	return l.devices[index], nvml.SUCCESS
}

func (l *library) GpmSampleAlloc() (nvml.GpmSample, nvml.Return) {
	l.samples++
	return &mock.GpmSample{FreeFunc: func() nvml.Return { l.freed++; return nvml.SUCCESS }}, nvml.SUCCESS
}
func (l *library) GpmMetricsGet(get *nvml.GpmMetricsGetType) nvml.Return { return l.metrics(get) }

// card is a mock that panics on every call that is not set here.
func card(uuid string) *mock.Device {
	return &mock.Device{
		GetUUIDFunc:    func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
		GetNameFunc:    func() (string, nvml.Return) { return "Model " + uuid, nvml.SUCCESS },
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{Domain: 0, Bus: 0x3b, Device: 1}, nvml.SUCCESS },
		GetMigModeFunc: func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED },
		GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) {
			return nvml.Memory_v2{Total: 1000, Reserved: 10, Used: 5}, nvml.SUCCESS
		},
	}
}

func read(t *testing.T, reader *Reader) []source.GPU {
	t.Helper()
	gpus, err := reader.GPUs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return gpus
}

func TestReadsCards(t *testing.T) {
	root := t.TempDir()
	slot := filepath.Join(root, "sys/bus/pci/devices/0000:3b:01.0")
	if err := os.MkdirAll(slot, 0o755); err != nil {
		t.Fatal(err)
	}
	reader := newReader(&library{devices: []*mock.Device{card("GPU-a")}}, time.Minute, root, time.Now)
	want := []source.GPU{{UUID: "GPU-a", Model: "Model GPU-a", TotalBytes: 1000, ReservedBytes: 10, UsedBytes: 5, NUMANode: -1}}
	if diff := cmp.Diff(want, read(t, reader)); diff != "" {
		t.Error(diff)
	}
	for text, node := range map[string]int{"1\n": 1, "0\n": 0, "-1\n": -1, "x": -1} {
		if err := os.WriteFile(filepath.Join(slot, "numa_node"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := read(t, reader)[0].NUMANode; got != node {
			t.Errorf("numa_node %q: node %d, want %d", text, got, node)
		}
	}
}

// A library that lacks the newer functions is used without them; the mocks panic if they are called.
func TestOldLibrary(t *testing.T) {
	device := card("GPU-a")
	device.GetMemoryInfo_v2Func, device.GetMigModeFunc = nil, nil
	device.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 900, Used: 1}, nvml.SUCCESS }
	reader := newReader(&library{devices: []*mock.Device{device}, missing: map[string]bool{"nvmlDeviceGetMemoryInfo_v2": true,
		"nvmlDeviceGetMigMode": true}}, time.Minute, t.TempDir(), time.Now)
	if got := read(t, reader)[0]; got.TotalBytes != 900 || got.ReservedBytes != 0 || got.Err != nil {
		t.Errorf("%+v", got)
	}
}

func TestCardsInTrouble(t *testing.T) {
	lost, broken, mig, nameless := card("GPU-lost"), card("GPU-broken"), card("GPU-mig"), card("")
	lost.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, nvml.ERROR_GPU_IS_LOST }
	broken.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, nvml.ERROR_UNKNOWN }
	mig.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS }
	reader := newReader(&library{devices: []*mock.Device{lost, broken, nameless, mig, card("GPU-good")}}, time.Minute, t.TempDir(), time.Now)
	gpus := read(t, reader)
	if len(gpus) != 4 {
		t.Fatalf("%d cards, want the 4 that have a UUID", len(gpus))
	}
	if !errors.Is(gpus[0].Err, source.ErrGPULost) {
		t.Errorf("lost card: %v", gpus[0].Err)
	}
	if gpus[1].Err == nil || errors.Is(gpus[1].Err, source.ErrGPULost) || gpus[1].TotalBytes != 0 {
		t.Errorf("broken card: %+v", gpus[1])
	}
	if !errors.Is(gpus[2].Err, source.ErrMIG) {
		t.Errorf("card in MIG mode: %v", gpus[2].Err)
	}
	if gpus[3].Err != nil || gpus[3].Index != 4 {
		t.Errorf("good card beside bad ones: %+v", gpus[3])
	}
}

// A library that comes late, goes away and returns; it is not asked more often than the back-off says.
func TestLateLibrary(t *testing.T) {
	now := time.Unix(1000, 0)
	late := &library{init: nvml.ERROR_LIBRARY_NOT_FOUND, devices: []*mock.Device{card("GPU-a")}}
	reader := newReader(late, time.Minute, t.TempDir(), func() time.Time { return now })
	for range 100 {
		if _, err := reader.GPUs(t.Context()); err == nil || !strings.Contains(err.Error(), "not found") {
			t.Fatalf("without a library: %v", err)
		}
		now = now.Add(time.Second)
	}
	if late.inits < 5 || late.inits > 9 {
		t.Errorf("%d attempts in 100 s, want 5 to 9 (1, 2, 4, 8, 16, 30 s apart)", late.inits)
	}
	late.init = nvml.SUCCESS
	now = now.Add(lastRetry)
	read(t, reader)
	late.count = nvml.ERROR_DRIVER_NOT_LOADED
	if _, err := reader.GPUs(t.Context()); err == nil {
		t.Error("a driver that went away was not noticed")
	}
	late.count = nvml.SUCCESS
	now = now.Add(firstRetry)
	read(t, reader)
}

// A call that hangs costs the caller no more than its patience, and nothing piles up behind it.
func TestHangingLibrary(t *testing.T) {
	stuck := &library{devices: []*mock.Device{card("GPU-a")}, hang: make(chan struct{})}
	reader := newReader(stuck, 20*time.Millisecond, t.TempDir(), time.Now)
	for range 3 {
		if _, err := reader.GPUs(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want the deadline", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := reader.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("closing: %v", err)
	}
	close(stuck.hang)
	reader.patience = time.Minute
	if got := read(t, reader); len(got) != 1 {
		t.Errorf("after the hang: %+v", got)
	}
	if err := reader.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestMissingLibraryFile(t *testing.T) {
	reader := New(filepath.Join(t.TempDir(), "libnvidia-ml.so.1"), time.Minute, time.Now)
	if _, err := reader.GPUs(t.Context()); err == nil || !strings.Contains(err.Error(), "--nvml-library") {
		t.Errorf("error %v does not say what to look at", err)
	}
}

// The same with the real loader: a driver that is installed while the agent runs is found. The simulated driver
// stands for it.
func TestLibraryIsInstalledLater(t *testing.T) {
	simulated := filepath.Join(require.Sim(t), "libnvidia-ml.so.1")
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	simulation := t.TempDir()
	if err := os.WriteFile(filepath.Join(simulation, "config"), []byte("gpus = 2\nmemory = 80GiB\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GPUSIM_DIR", simulation)
	now := time.Unix(1000, 0)
	reader := New(path, time.Minute, func() time.Time { return now })
	if _, err := reader.GPUs(t.Context()); err == nil {
		t.Fatal("a library that is not there was loaded")
	}
	if err := os.Symlink(simulated, path); err != nil {
		t.Fatal(err)
	}
	now = now.Add(lastRetry)
	gpus := read(t, reader)
	if len(gpus) != 2 || gpus[1].TotalBytes != 80<<30 || gpus[1].Err != nil || !strings.HasPrefix(gpus[1].UUID, "GPU-") {
		t.Errorf("%+v", gpus)
	}
	if err := reader.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
