// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The node that the tests look at, and a source of views that they steer.

package top

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"go.uber.org/goleak"

	"github.com/vgpud/vgpud/agent/control"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(liveVariable); path != "" {
		liveProgram(path)
		return
	}
	time.Local = time.UTC // pictures have times of day
	goleak.VerifyTestMain(m)
}

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// node is a view with every kind of state in it.
func node() *control.View {
	view := &control.View{
		Version: control.Version, Time: noon, Node: "gpu-node-1", Agent: control.Agent{Version: "devel", Revision: "abc", PID: 4711, StartTime: noon.Add(-time.Hour)},
		Contention: control.Contention{Mode: "health", Preset: "default"}, Probes: control.Probes{Mode: "sampled", Reason: "no CAP_PERFMON"},
		Sources: []control.Source{{Name: "nvml", Up: true}, {Name: "kubelet", Error: "dial: connection refused"},
			{Name: "pods", NotAsked: true, Error: "not asked: the kubelet's record cannot be read"}, {Name: "mps", Absent: true}},
	}
	view.GPUs = []control.GPU{
		{UUID: "GPU-0aaa", Index: 0, Model: "NVIDIA A100-SXM4-80GB", MemoryTotalBytes: 80 << 30, MemoryUsedBytes: 12 << 30, MemoryUsableBytes: 79 << 30,
			MemoryHeldBytes: 24 << 30, BusyRatio: &control.Figure{Value: 0.87, PeriodSeconds: 0.166}, DRAMRatio: &control.Figure{Value: 0.97, PeriodSeconds: 1},
			PCIeRXRatio: &control.Figure{Value: 0.81, PeriodSeconds: 0.02}, PCIeTXRatio: &control.Figure{Value: 0.004, PeriodSeconds: 0.02},
			PCIeRXBytesPerSec: &control.Figure{Value: 20.3e9, PeriodSeconds: 0.02}, PCIeTXBytesPerSec: &control.Figure{Value: 1.2e8, PeriodSeconds: 0.02},
			Sharing: "mps", Possible: []string{"dram", "pcie_rx", "pcie_tx"}, Throttle: []string{"power"}, Link: "gen4 x16 of gen4 x16",
			Health:    control.Health{Reason: "contended", Since: new(noon.Add(-200 * time.Second)), Detail: "others slow the slices on it"},
			Slices:    control.Counts{Allocated: 3, Withdrawn: 7},
			Contended: true,
			Evidence: &control.Evidence{Time: noon.Add(-200 * time.Second), Contended: true, Resource: "dram", Victim: "k1", Antagonist: "k2", Confidence: 0.93,
				Avg10: 0.41, Avg60: 0.33, DeviceRatio: 0.97, Samples: 812},
			Pressures:    []control.Pressure{pressure("dram", 0.41, 0.2), pressure("pcie_rx", 0.02, 0)},
			Unattributed: []control.Traffic{{Resource: "dram", Known: true, Ratio: 0.12, Confidence: 0.7}}},
		{UUID: "GPU-1bbb", Index: 1, Model: "NVIDIA A100-SXM4-80GB", MemoryTotalBytes: 80 << 30, MemoryUsableBytes: 79 << 30, MemoryHeldBytes: 8 << 30,
			BusyRatio: &control.Figure{Value: 0.02, PeriodSeconds: 1}, Sharing: "time-sliced", Possible: []string{"pcie_rx", "pcie_tx"},
			Health: control.Health{Healthy: true, Reason: "ok"}, Slices: control.Counts{Free: 9, Allocated: 1}},
		{UUID: "GPU-2ccc", Index: 2, Model: "NVIDIA T4", Note: "its counters cannot be read",
			Health: control.Health{Reason: "gpu-lost", Hard: true, Detail: "the driver no longer lists it"}, Slices: control.Counts{Withdrawn: 10}},
	}
	view.Slices = []control.Slice{
		{Allocation: "k1", GPUUUID: "GPU-0aaa", Namespace: "ml", Pod: "train-7", PodUID: "uid-1", Container: "main", SliceIDs: []string{"GPU-0aaa::0"}, Pages: "readable",
			MemoryUsedBytes: new(uint64(7 << 30)), MemoryLimitBytes: 8 << 30, ComputeMode: "elastic", ShareGranted: 0.1, ShareCeiling: 1, ShareRate: new(0.35),
			ShareUsed: new(0.33), ThrottledRatio: new(0.02), LaunchesPerSecond: new(1234.5), HostToDeviceRate: new(1.5e9), DeviceToHostRate: new(0.0),
			Traffic:   []control.Traffic{{Resource: "dram", Known: true, Ratio: 0.21, BytesPerSec: 4.2e11, Confidence: 0.93}, {Resource: "pcie_rx", Known: true, Ratio: 0.06, Confidence: 1}},
			Pressures: []control.Pressure{pressure("dram", 0.41, 0.38), pressure("time", 0.9, 0.9)}, Verdicts: []control.Verdict{{Kind: control.VerdictVictim, Why: "dram: 41 % lost"}},
			AllocationAgeSeconds: 4000},
		{Allocation: "k2", GPUUUID: "GPU-0aaa", Namespace: "ml", Pod: "stream-0", Container: "copy", SliceIDs: []string{"GPU-0aaa::1"}, Pages: "readable",
			MemoryUsedBytes: new(uint64(9 << 30)), MemoryLimitBytes: 8 << 30, ComputeMode: "hard", ShareGranted: 0.1, ShareCeiling: 0.1, ShareRate: new(0.05), CutRatio: new(0.5),
			ShareUsed: new(0.12), ThrottledRatio: new(0.97), LaunchesPerSecond: new(12.0), HostToDeviceRate: new(2.5e10),
			Traffic: []control.Traffic{{Resource: "dram", Known: true, Ratio: 0.64, Confidence: 0.93}, {Resource: "pcie_rx", Known: true, Ratio: 0.75, Confidence: 1}},
			Verdicts: []control.Verdict{{Kind: control.VerdictAntagonist, Why: "uses most of dram"}, {Kind: control.VerdictOverLimit, Why: "holds more than its slice"},
				{Kind: control.VerdictCut, Why: "to half of its share"}}, AllocationAgeSeconds: 50},
		{Allocation: "k3", GPUUUID: "GPU-0aaa", PodUID: "0c4e", SliceIDs: []string{"GPU-0aaa::2"}, Pages: "unknown", MemoryLimitBytes: 8 << 30, ComputeMode: "none",
			Traffic: []control.Traffic{{Resource: "dram", Why: "too few periods"}}},
		{Allocation: "k4", GPUUUID: "GPU-1bbb", Namespace: "web", Pod: "infer-of-a-very-long-name-that-does-not-fit-5d9c7b", Container: "server", SliceIDs: []string{"GPU-1bbb::0"},
			Pages: "readable", MemoryUsedBytes: new(uint64(0)), MemoryLimitBytes: 8 << 30, ComputeMode: "elastic", ShareGranted: 0.1, ShareCeiling: 1, ShareUsed: new(0.0),
			ThrottledRatio: new(0.0), LaunchesPerSecond: new(0.0), Pressures: []control.Pressure{pressure("pcie_rx", 0, 0)}},
	}
	view.Findings = []control.Finding{{Kind: "no-slot", Since: noon.Add(-time.Minute), Namespace: "bad", Pod: "miner", Container: "x", PIDs: []int{99, 100}, Command: "a.out",
		Detail: "calls the driver and has no slot", Action: "freeze"}}
	view.Frozen = []control.Frozen{{Container: "3f2a9c", Namespace: "bad", Pod: "miner", Name: "x", Since: noon, Why: "no-slot"}}
	return view
}

func pressure(resource string, some, full float64) control.Pressure {
	averages := func(p float64) control.Averages {
		return control.Averages{Avg10: p, Avg60: p / 2, Avg300: p / 4, TotalSeconds: p * 100}
	}
	return control.Pressure{Resource: resource, Some: averages(some), Full: averages(full)}
}

// crowd is a node of 8 cards and 50 slices.
func crowd() *control.View {
	view := node()
	view.GPUs, view.Slices, view.Findings, view.Frozen, view.Sources = nil, nil, nil, nil, nil
	for i := range 8 {
		view.GPUs = append(view.GPUs, control.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, Model: "H100", Health: control.Health{Healthy: true, Reason: "ok"},
			Slices: control.Counts{Free: 4, Allocated: 6}})
	}
	for i := range 50 {
		view.Slices = append(view.Slices, control.Slice{Allocation: fmt.Sprintf("a%02d", i), GPUUUID: fmt.Sprintf("GPU-%d", i%8), Namespace: "ns", Pod: fmt.Sprintf("pod-%02d", i),
			Container: "c", MemoryUsedBytes: new(uint64(i) << 20), MemoryLimitBytes: 1 << 30, ComputeMode: "hard", ShareUsed: new(float64(i) / 100)})
	}
	return view
}

// agent is a source of views.
type agent struct {
	mu    sync.Mutex
	make  func() *control.View
	fault error
	asked int
}

// View implements Viewer.
func (a *agent) View(ctx context.Context) (*control.View, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	if a.fault != nil {
		return nil, a.fault
	}
	return a.make(), ctx.Err()
}

// shown is a model with a view of the agent, and a clock that tests move.
type shown struct {
	*model
	t     *testing.T
	agent *agent
	at    time.Time
}

func show(t *testing.T, width, height int, view func() *control.View) *shown {
	t.Helper()
	s := &shown{t: t, agent: &agent{make: view}, at: noon.Add(time.Second)}
	s.model = newModel(t.Context(), s.agent, time.Second, func() time.Time { return s.at })
	s.send(tea.WindowSizeMsg{Width: width, Height: height})
	s.look()
	return s
}

func (s *shown) send(msg tea.Msg) tea.Cmd {
	_, command := s.Update(msg)
	return command
}

// look fetches a view, as after a second.
func (s *shown) look() {
	if command := s.fetch(); command != nil {
		s.send(command())
	}
}

// press presses keys: each is a character, or a name such as "enter".
func (s *shown) press(keys ...string) {
	s.t.Helper()
	send := func(key tea.KeyPressMsg) {
		s.send(key)
		s.screen() // bubbletea draws after each message, and what scrolls is known by drawing
	}
	codes := map[string]rune{"enter": tea.KeyEnter, "tab": tea.KeyTab, "esc": tea.KeyEscape, "up": tea.KeyUp, "down": tea.KeyDown, "home": tea.KeyHome,
		"end": tea.KeyEnd, "pgup": tea.KeyPgUp, "pgdown": tea.KeyPgDown, "backspace": tea.KeyBackspace, "space": tea.KeySpace}
	for _, name := range keys {
		if code, named := codes[name]; named {
			send(tea.KeyPressMsg{Code: code})
			continue
		}
		for _, char := range name {
			send(tea.KeyPressMsg{Code: char, Text: string(char)})
		}
	}
}
