// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// From what the witness finds to what is done to a container, in a whole agent: the driver lists processes of real control
// groups, which have no slot in their pod's page.

package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/control"
	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/freezer/freezertest"
	"github.com/vgpud/vgpud/agent/outside"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/plugin/kubelettest"
)

// usedBytes is what the driver says that each holds: no more than it needs for itself.
const usedBytes = 256 << 20

// rogues is a node with a pod, whose containers' processes the driver lists.
type rogues struct {
	*node
	*noticeBoard
	memories *memories
}

func newRogues(t *testing.T, action witness.Action, cells ...*freezertest.Cell) *rogues {
	t.Helper()
	r := &rogues{node: newNode(t), memories: &memories{}}
	board, kubeconfig := openBoard(t)
	r.noticeBoard = board
	for _, c := range cells {
		r.memories.list = append(r.memories.list, source.ProcessMemory{GPUUUID: gpuA, PID: c.PID(), UsedBytes: usedBytes})
	}
	r.config.Witness, r.config.WitnessOverheadBytes = string(action), 1<<30
	r.config.Events, r.config.Kubeconfig, r.config.NodeName = wordAuto, kubeconfig, "node-1"
	r.config.ControlSocket = filepath.Join(filepath.Dir(r.config.StateDir), "sock")
	r.parts.memories, r.parts.procRoot = r.memories, "/"
	return r
}

// admit gives the rogues' pod a slice.
func (r *rogues) admit() {
	r.t.Helper()
	pod := kubelettest.Pod{UID: freezertest.PodUID, Namespace: "md", Name: "rogue"}
	if _, err := r.kubelet.Allocate(r.t.Context(), pod, kubelettest.Container{Name: "gmx"}, r.config.ResourceName, 1); err != nil {
		r.t.Fatal(err)
	}
}

// checkTold fails the test unless each container was told of once, under this reason, with pod and figures.
func (r *rogues) checkTold(reason string, cells ...*freezertest.Cell) {
	r.t.Helper()
	told := r.of(reason)
	if len(told) != len(cells) {
		r.t.Errorf("%d events %s, want %d", len(told), reason, len(cells))
	}
	for _, event := range told {
		if event.Regarding.Kind != "Pod" || event.Regarding.Name != "rogue" || event.Regarding.Namespace != "md" ||
			!strings.Contains(event.Note, string(witness.NoSlot)) || !strings.Contains(event.Note, fmt.Sprintf("%d bytes", usedBytes)) {
			r.t.Errorf("%+v: %s", event.Regarding, event.Note)
		}
	}
}

// Containers that go past the library are frozen, once. One goes on by command and stays spared, one when the agent stops;
// the next agent freezes the latter again, until its pod is gone.
func TestRoguesAreFrozen(t *testing.T) {
	script, grows := freezertest.Counter(t)
	otherScript, otherGrows := freezertest.Counter(t)
	spared := freezertest.NewCell(t, false, freezertest.ID, script)
	other := freezertest.NewCell(t, false, strings.Repeat("d", 64), otherScript)
	r := newRogues(t, witness.Freeze, spared, other)
	agent := r.start()
	agent.allocatable(20)
	r.admit()
	agent.shows(2, "vgpud_frozen_containers")
	if grows() || otherGrows() {
		t.Error("a frozen container goes on")
	}
	client := control.NewClient(r.config.ControlSocket)
	defer client.Close()
	if reply, err := client.Thaw(t.Context(), control.ThawRequest{Container: freezertest.ID}); err != nil || len(reply.Containers) != 1 || reply.Containers[0] != freezertest.ID {
		t.Errorf("%+v, %v", reply, err)
	}
	time.Sleep(2 * outside.Every) // looks, in which it is not frozen again
	agent.shows(1, "vgpud_frozen_containers")
	if !grows() || otherGrows() {
		t.Error("another than the one that was named goes on")
	}
	agent.eventually("the events are sent", func() bool { return len(r.of("GPUContainerFrozen")) >= 2 })
	r.checkTold("GPUContainerFrozen", spared, other)
	agent.stop()
	if !otherGrows() {
		t.Error("the agent has stopped, and a container is frozen")
	}
	for _, c := range []*freezertest.Cell{spared, other} {
		if count := strings.Count(agent.log.String(), `msg="container is frozen" component=freezer container=`+c.ID); count != 1 {
			t.Errorf("container %s was frozen %d times", c.ID, count)
		}
	}

	again := r.start()
	again.shows(1, "vgpud_frozen_containers")
	if otherGrows() || !grows() {
		t.Error("the next agent freezes another")
	}
	if err := r.kubelet.RemovePod(freezertest.PodUID); err != nil {
		t.Fatal(err)
	}
	again.shows(0, "vgpud_frozen_containers")
	if !otherGrows() || !strings.Contains(again.log.String(), "its pod is gone") {
		t.Errorf("its pod is gone; log:\n%s", again.log)
	}
}

// One that is to be killed is, once, and nobody else.
func TestRoguesAreKilled(t *testing.T) {
	rogue := freezertest.NewCell(t, false, freezertest.ID, "exec sleep 1000")
	bystander := freezertest.NewCell(t, false, strings.Repeat("d", 64), "exec sleep 1000")
	r := newRogues(t, witness.Kill, rogue)
	agent := r.start()
	agent.allocatable(20)
	r.admit()
	agent.eventually("it is killed", func() bool { return len(rogue.PIDs()) == 0 })
	agent.eventually("the event is sent", func() bool { return len(r.of("GPUContainerKilled")) > 0 })
	time.Sleep(2 * outside.Every) // looks, in which there is nobody to kill
	r.checkTold("GPUContainerKilled", rogue)
	if len(bystander.PIDs()) != 1 {
		t.Error("another container was killed")
	}
	if count := strings.Count(agent.log.String(), "container is killed"); count != 1 {
		t.Errorf("killed %d times:\n%s", count, agent.log)
	}
	agent.shows(0, "vgpud_frozen_containers")
}

// What is only reported goes on, and is told once.
func TestRoguesAreReported(t *testing.T) {
	script, grows := freezertest.Counter(t)
	rogue := freezertest.NewCell(t, false, freezertest.ID, script)
	r := newRogues(t, witness.Report, rogue)
	agent := r.start()
	agent.allocatable(20)
	r.admit()
	agent.shows(1, "vgpud_witness_findings", "kind="+string(witness.NoSlot))
	agent.eventually("the event is sent", func() bool { return len(r.of("GPULimitBypassed")) > 0 })
	time.Sleep(2 * outside.Every)
	r.checkTold("GPULimitBypassed", rogue)
	if !grows() {
		t.Error("it was stopped")
	}
}
