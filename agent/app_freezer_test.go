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

	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/freezer"
	"github.com/vgpud/vgpud/agent/freezer/freezertest"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/source/procs"
)

// orderFor is what the witness would say of a container.
func orderFor(t *testing.T, c *freezertest.Cell, action witness.Action) witness.Order {
	t.Helper()
	start, err := procs.New("/").StartTime(c.PID())
	if err != nil {
		t.Fatal(err)
	}
	return witness.Order{Action: action, Container: source.Container{ID: c.ID, PodUID: freezertest.PodUID}, PID: c.PID(), StartTime: start,
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
	o := &outsider{freezer: f, pods: kept, tell: func(finding witness.Finding, done witness.Action) {
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
	if done := whatWasDone(o.done, sure.Finding); done != witness.Report {
		t.Errorf("spared: %s", done)
	}
	// A kill stays said while the finding does.
	killed := freezertest.NewCell(t, false, strings.Repeat("a", 64), "exec sleep 1000")
	order := orderFor(t, killed, witness.Kill)
	told = nil
	one := []witness.Finding{order.Finding}
	look(witness.Findings{List: one, Begun: one, Orders: []witness.Order{order}})
	look(witness.Findings{List: one})
	if !slices.Equal(told, []string{"a kill"}) || whatWasDone(o.done, order.Finding) != witness.Kill {
		t.Errorf("told %q, done %v\n%s", told, o.done, log)
	}
	look(witness.Findings{})
	if len(o.done) != 0 {
		t.Errorf("%v is kept of what is over", o.done)
	}
}
