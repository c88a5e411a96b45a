// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the look from outside, of the control socket and of what is told. decide has the tests of what the witness
// concludes, control those of the socket.

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/control"
	"github.com/vgpud/vgpud/agent/decide"
	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/source"
)

// memories answer with what is set.
type memories struct {
	list []source.ProcessMemory
	err  error
}

func (m *memories) ProcessMemory(context.Context) ([]source.ProcessMemory, error) {
	return m.list, m.err
}

// A source from outside that fails is said once and shown, and the others are read.
func TestOutsideSourceFails(t *testing.T) {
	n := newNode(t)
	n.config.Witness, n.config.WitnessOverheadBytes = wordReport, 1<<30
	n.parts.memories = &memories{err: errors.New("no driver")}
	agent := n.start()
	agent.allocatable(20)
	agent.shows(0, "vgpud_source_up", "source="+monitor.SourceMemory)
	agent.shows(1, "vgpud_source_up", "source="+monitor.SourceResidents)
	for _, kind := range witness.Kinds {
		agent.shows(0, "vgpud_witness_findings", "kind="+string(kind))
	}
	if count := strings.Count(agent.log.String(), "source="+monitor.SourceMemory); count != 1 {
		t.Errorf("said %d times:\n%s", count, agent.log)
	}
}

// The control socket tells what the loops know; an agent whose socket cannot be made works on.
func TestControlSocket(t *testing.T) {
	n, q, _ := newWatchedNode(t)
	n.config.ControlSocket = filepath.Join(filepath.Dir(n.config.StateDir), "sock")
	n.config.NodeName = "node-1"
	agent := n.start()
	agent.allocatable(20)
	key, devices := agent.allocate("victim", 1)
	card, _, _ := strings.Cut(devices[0], "::")
	client := control.NewClient(n.config.ControlSocket)
	view := func() *control.View {
		view, err := client.View(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return view
	}
	q.Set(card, "")
	agent.eventually("the card is contended in the view", func() bool {
		for _, gpu := range view().GPUs {
			if gpu.UUID == card {
				return gpu.Contended && gpu.Health.Reason == decide.ReasonContended
			}
		}
		return false
	})
	agent.eventually("rates of a slice that does nothing are 0", func() bool {
		slice := view().Slices[0]
		return slice.LaunchesPerSecond != nil && *slice.LaunchesPerSecond == 0 && slice.ThrottledRatio != nil && slice.HostToDeviceRate != nil
	})
	agent.eventually("the pod is named", func() bool { return len(view().Slices) == 1 && view().Slices[0].Pod == "victim" })
	now := view()
	slice := now.Slices[0]
	if now.Node != "node-1" || now.Agent.PID != os.Getpid() || now.Contention.Mode != contentionHealth || len(now.GPUs) != 2 || now.Probes.Mode != "off" {
		t.Errorf("%+v", now)
	}
	if slice.Allocation != key || slice.ShareGranted != 0.1 || slice.ShareRate == nil || slice.MemoryUsedBytes == nil || slice.ComputeMode != "elastic" {
		t.Errorf("%+v", slice)
	}
	if len(slice.Verdicts) != 1 || slice.Verdicts[0].Kind != control.VerdictVictim || !strings.Contains(slice.Verdicts[0].Why, "victim") {
		t.Errorf("verdicts %+v", slice.Verdicts)
	}
	for _, gpu := range now.GPUs {
		if gpu.UUID != card {
			continue
		}
		if gpu.Evidence == nil || gpu.Evidence.Victim != key || gpu.Link != "" || gpu.PCIeRXBytesPerSec == nil || gpu.DRAMRatio != nil || gpu.Sharing != "time-sliced" {
			t.Errorf("%+v", gpu)
		}
		if gpu.Slices != (control.Counts{Allocated: 1, Withdrawn: 9}) || gpu.Health.Since == nil || time.Since(*gpu.Health.Since) > time.Minute {
			t.Errorf("%+v", gpu)
		}
	}
	if _, err := client.Thaw(t.Context(), control.ThawRequest{All: true}); !errors.Is(err, control.ErrNotFrozen) {
		t.Errorf("thawing nobody: %v", err)
	}
	agent.stop()
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.config.ControlSocket = filepath.Join(blocked, "sock")
	again := n.start()
	again.shows(1, "vgpud_plugin_registered")
	if !strings.Contains(again.log.String(), "no control socket") {
		t.Errorf("log:\n%s", again.log)
	}
}

func TestFilesThatCannotBeProbedAreShown(t *testing.T) {
	files := []source.Unobservable{{Path: "/a", PID: 7, Processes: 3, Reason: "broken"}, {Path: "/b", PID: 8, Processes: 1, Partial: true, Reason: "lacks"}}
	want := []string{"/a (process 7 and 2 others): broken", "/b (process 8): lacks"}
	if got := unobservableTexts(files); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
