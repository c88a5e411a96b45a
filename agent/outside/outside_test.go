// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What the witness finds, what is done about it and what is told of that, and what probes counted. Package freezer has the tests of
// how, package witness those of what it concludes.

package outside

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/freezer"
	"github.com/vgpud/vgpud/agent/freezer/freezertest"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/source"
)

// orderFor is what the witness would say of a container.
func orderFor(t *testing.T, c *freezertest.Cell, action witness.Action) witness.Order {
	t.Helper()
	return witness.Order{Action: action, Container: source.Container{ID: c.ID, PodUID: freezertest.PodUID}, PID: c.PID(), StartTime: c.StartTime(),
		Finding: witness.Finding{Kind: witness.NoSlot, ContainerID: c.ID, PodUID: freezertest.PodUID}}
}

// What is told and shown is what was done, not what was asked for.
func TestWhatWasDoneIsTold(t *testing.T) {
	script, _ := freezertest.Counter(t)
	c := freezertest.NewCell(t, false, freezertest.ID, script)
	log := &bytes.Buffer{}
	f, err := freezer.Open(freezer.Config{StatePath: filepath.Join(t.TempDir(), "frozen.json"), Root: "/", Adopt: true,
		Log: slog.New(slog.NewTextHandler(log, nil)), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	sure := orderFor(t, c, witness.Freeze)
	hopeless := witness.Order{Action: witness.Freeze, Container: source.Container{ID: "e"}, PID: 1 << 22} // no such process
	kept := func(context.Context) (map[string]bool, error) { return map[string]bool{freezertest.PodUID: true}, nil }
	doubtful := witness.Finding{Kind: witness.ReplacedFile, ContainerID: "d"} // no order follows from it
	failing := witness.Finding{Kind: witness.NoSlot, ContainerID: "e"}
	var told []string
	o := &Loop{freezer: f, pods: kept, tell: func(finding witness.Finding, done witness.Action) {
		told = append(told, finding.ContainerID[:1]+" "+string(done))
	}}
	look := func(findings witness.Findings) {
		done := o.act(t.Context(), findings)
		o.announce(findings, done)
		o.done = done
	}
	all := []witness.Finding{sure.Finding, doubtful, failing}
	look(witness.Findings{List: all, Begun: all, Orders: []witness.Order{hopeless}})
	look(witness.Findings{List: all, Orders: []witness.Order{sure, hopeless}}) // it can be frozen only now
	look(witness.Findings{List: all, Orders: []witness.Order{sure, hopeless}})
	if want := []string{"c report", "d report", "e report", "c freeze"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q\n%s", told, want, log)
	}
	// Who was thawed by command is spared, and that is shown.
	if _, err := f.Thaw(freezer.Named{All: true}); err != nil {
		t.Fatal(err)
	}
	look(witness.Findings{List: all, Orders: []witness.Order{sure}})
	if done := WhatWasDone(o.done, sure.Finding); done != witness.Report {
		t.Errorf("spared: %s", done)
	}
	// A kill stays said while the finding does.
	killed := freezertest.NewCell(t, false, strings.Repeat("a", 64), "exec sleep 1000")
	order := orderFor(t, killed, witness.Kill)
	told = nil
	one := []witness.Finding{order.Finding}
	look(witness.Findings{List: one, Begun: one, Orders: []witness.Order{order}})
	look(witness.Findings{List: one})
	if !slices.Equal(told, []string{"a kill"}) || WhatWasDone(o.done, order.Finding) != witness.Kill {
		t.Errorf("told %q, done %v\n%s", told, o.done, log)
	}
	look(witness.Findings{})
	if len(o.done) != 0 {
		t.Errorf("%v is kept of what is over", o.done)
	}
}

// Calls of control groups become those of containers, as far as it is known whose they are.
func TestCallsByContainer(t *testing.T) {
	process := func(pid int, group uint64, pod, id string, keys ...string) monitor.OutsideProcess {
		return monitor.OutsideProcess{Residence: source.Residence{PID: pid, Keys: keys, Container: source.Container{CgroupID: group, PodUID: pod, ID: id}}}
	}
	seen := &monitor.Outside{
		Allocations: []monitor.OutsideAllocation{{Key: "k1", Owner: monitor.Owner{PodUID: "uid-1", Namespace: "md", Pod: "one", Container: "gmx"}}},
		Processes: []monitor.OutsideProcess{process(1, 10, "uid-1", "aa", "k1"), process(2, 11, "uid-1", "aa", "k1"), process(3, 12, "uid-2", "bb"),
			process(4, 13, "uid-3", "cc", "k1"), process(5, 0, "", "")}, // 4: pages of another pod
		Calls: map[uint64]monitor.Calls{10: {Contexts: 1, Missed: 2}, 11: {Contexts: 2}, 12: {Contexts: 3}, 13: {Contexts: 4}, 99: {Contexts: 5}},
	}
	want := []ContainerCalls{
		{Pod: "uid-2", Container: "bb", Calls: monitor.Calls{Contexts: 3}},
		{Pod: "uid-3", Container: "cc", Calls: monitor.Calls{Contexts: 4}},
		{Namespace: "md", Pod: "one", Container: "gmx", Calls: monitor.Calls{Contexts: 3, Missed: 2}},
	}
	if diff := cmp.Diff(want, callsByContainer(seen)); diff != "" {
		t.Error(diff)
	}
}

func TestFilesThatCannotBeProbedAreCountedOnce(t *testing.T) {
	files := []source.Unobservable{{Path: "/a", PID: 7, Processes: 3, Reason: "broken"}, {Path: "/b", PID: 8, Processes: 1, Partial: true, Reason: "lacks"}}
	if got := probesView(source.ProbeStatus{Libraries: 1, Unobservable: files}); got.Unobservable != 1 || got.Libraries != 1 {
		t.Errorf("%+v, want one file that cannot be probed", got)
	}
}
