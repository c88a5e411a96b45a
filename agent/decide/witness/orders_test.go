// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What is done about findings: to whom, and to whom never.

package witness

import (
	"testing"

	"github.com/vgpud/vgpud/agent/decide/steering"
	"github.com/vgpud/vgpud/agent/monitor"
)

func TestWitnessOrders(t *testing.T) {
	s := newOutsideScene()
	s.run(66, "one", "k1").uses(8 * gib)
	s.run(99, "", "k1").uses(8 * gib)
	s.run(88, "none").uses(gib)
	for _, action := range []Action{Report, Freeze, Kill} {
		w := newWitnessRun(t)
		w.policy.Action = action
		w.shares = []steering.Verdict{{Key: "k1", GPUUUID: "GPU-a", Rate: 0.3, Used: 0.9, UsedKnown: true}}
		w.look(s, tenSeconds)
		if action == Report {
			if w.last.Orders != nil {
				t.Errorf("%+v", w.last.Orders)
			}
			continue
		}
		// One for each container, nothing for the host, and not for what is only likely.
		if len(w.last.Orders) != 2 || w.last.Orders[0].Container.ID != "container-none" || w.last.Orders[0].PID != 88 ||
			w.last.Orders[1].Container.ID != "container-one" || w.last.Orders[1].PID != 66 || w.last.Orders[1].StartTime != 7 || w.last.Orders[1].Action != action {
			t.Errorf("%+v", w.last.Orders)
		}
		if w.look(newOutsideScene(), 1); len(w.last.Orders) != 0 {
			t.Errorf("about what is seen no more: %+v", w.last.Orders)
		}
	}
	w := newWitnessRun(t)
	w.policy.Action = Kill
	w.shares = []steering.Verdict{{Key: "k1", GPUUUID: "GPU-a", Rate: 0.3, Used: 0.9, UsedKnown: true}}
	if w.look(newOutsideScene(), 10); len(w.begun) != 1 || len(w.last.Orders) != 0 {
		t.Errorf("%v %+v", w.begun, w.last.Orders)
	}
	w.shares[0].OverShare = true
	if w.look(newOutsideScene(), 1); len(w.last.Orders) != 1 || w.last.Orders[0].PID != 10 {
		t.Errorf("%+v", w.last.Orders)
	}
}

// Nobody is touched for what may be otherwise.
func TestWitnessActsOnWhatIsCertain(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(s outsideScene)
		certain bool
	}{
		"listed without a slot": {func(s outsideScene) { s.run(66, "one", "k1").uses(0) }, true},
		"listed without a slot, beside one with a node": {func(s outsideScene) {
			p := s.run(60, "one", "k1")
			p.Devices, p.Library = true, false
			s.run(66, "one", "k1").uses(0)
		}, true},
		"a node that a parent may have left open": {func(s outsideScene) {
			p := s.run(66, "one", "k1")
			p.Devices, p.Library = true, false
		}, false},
		"calls of some process of the container": {func(s outsideScene) {
			s.allocate("k2", "two", gib, 0).Registers = false
			s.run(66, "two", "k2")
			s.Calls[66] = monitor.Calls{CgroupID: 66, Contexts: 1}
		}, false},
		"beyond the book, within the slice": {func(s outsideScene) { s.Processes[0].Memory[0].UsedBytes = 8 * gib }, false},
		"beyond the slice":                  {func(s outsideScene) { s.Processes[0].Memory[0].UsedBytes = 10 * gib }, true},
		"beyond the slice, in motion": {func(s outsideScene) {
			s.Processes[0].Memory[0].UsedBytes, s.Allocations[0].GPUs[0].Moved = 10*gib, true
		}, true},
	} {
		w, s := newWitnessRun(t), newOutsideScene()
		w.policy.Action = Kill
		c.change(s)
		if w.look(s, tenSeconds); len(w.begun) != 1 || (len(w.last.Orders) == 1) != c.certain {
			t.Errorf("%s: reported %q, orders %+v", name, w.begun, w.last.Orders)
		}
	}
}
