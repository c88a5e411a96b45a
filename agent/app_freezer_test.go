// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What the witness finds, what is done about it and what is told of that. Package freezer has the tests of how.

package main

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/decide"
	"github.com/vgpud/vgpud/agent/freezer"
	"github.com/vgpud/vgpud/agent/freezer/freezertest"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/source/procs"
)

// orderFor is what the witness would say of a container.
func orderFor(t *testing.T, c *freezertest.Cell, action decide.WitnessAction) decide.WitnessOrder {
	t.Helper()
	start, err := procs.New("/").StartTime(c.PID())
	if err != nil {
		t.Fatal(err)
	}
	return decide.WitnessOrder{Action: action, Container: source.Container{ID: c.ID, PodUID: freezertest.PodUID}, PID: c.PID(), StartTime: start,
		Finding: decide.Finding{Kind: decide.WitnessNoSlot, ContainerID: c.ID, PodUID: freezertest.PodUID}}
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
	sure := orderFor(t, c, decide.WitnessFreeze)
	hopeless := decide.WitnessOrder{Action: decide.WitnessFreeze, Container: source.Container{ID: "e"}, PID: 1 << 22} // no such process
	kept := func(context.Context) (map[string]bool, error) { return map[string]bool{freezertest.PodUID: true}, nil }
	doubtful := decide.Finding{Kind: decide.WitnessReplacedFile, ContainerID: "d"} // no order follows from it
	failing := decide.Finding{Kind: decide.WitnessNoSlot, ContainerID: "e"}
	var told []string
	o := &outsider{freezer: f, pods: kept, tell: func(finding decide.Finding, done decide.WitnessAction) {
		told = append(told, finding.ContainerID[:1]+" "+string(done))
	}}
	look := func(findings decide.Findings) {
		done := o.act(t.Context(), findings)
		o.announce(findings, done)
		o.done = done
	}
	all := []decide.Finding{sure.Finding, doubtful, failing}
	look(decide.Findings{List: all, Begun: all, Orders: []decide.WitnessOrder{hopeless}})
	look(decide.Findings{List: all, Orders: []decide.WitnessOrder{sure, hopeless}}) // it can be frozen only now
	look(decide.Findings{List: all, Orders: []decide.WitnessOrder{sure, hopeless}})
	if want := []string{"c report", "d report", "e report", "c freeze"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q\n%s", told, want, log)
	}
	// Who was thawed by command is spared, and that is shown.
	if _, err := f.Thaw(freezer.Named{All: true}); err != nil {
		t.Fatal(err)
	}
	look(decide.Findings{List: all, Orders: []decide.WitnessOrder{sure}})
	if done := whatWasDone(o.done, sure.Finding); done != decide.WitnessReport {
		t.Errorf("spared: %s", done)
	}
	// A kill stays said while the finding does.
	killed := freezertest.NewCell(t, false, strings.Repeat("a", 64), "exec sleep 1000")
	order := orderFor(t, killed, decide.WitnessKill)
	told = nil
	one := []decide.Finding{order.Finding}
	look(decide.Findings{List: one, Begun: one, Orders: []decide.WitnessOrder{order}})
	look(decide.Findings{List: one})
	if !slices.Equal(told, []string{"a kill"}) || whatWasDone(o.done, order.Finding) != decide.WitnessKill {
		t.Errorf("told %q, done %v\n%s", told, o.done, log)
	}
	look(decide.Findings{})
	if len(o.done) != 0 {
		t.Errorf("%v is kept of what is over", o.done)
	}
}
