// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The freezer's record and what is told of it, without control groups.

package freezer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/freezer/freezertest"
	"github.com/vgpud/vgpud/agent/source"
)

// inRecord is a container with this ID, in a group below root that is frozen.
func inRecord(t *testing.T, root, id string, allocations ...string) frozenContainer {
	t.Helper()
	group := freezeGroup{Path: "/pods/" + id, Unified: true}
	if err := os.MkdirAll(group.directory(root), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cgroup.freeze": "1", "cgroup.events": "frozen 1\n", "cgroup.procs": "1\n"} {
		if err := os.WriteFile(filepath.Join(group.directory(root), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return frozenContainer{ID: id, Group: group, Allocations: allocations, Since: time.Unix(1, 0)}
}

// Whatever signals a container's processes have pending, the record can be read back, and nothing is lost that matters.
func TestFrozenRecordIsBounded(t *testing.T) {
	f := newFreezerTest(t)
	pending := map[int]uint64{}
	for pid := range 1 << 20 {
		pending[pid] = maskOf(unix.SIGALRM) // no request to end
	}
	var few, many frozenContainer
	pending[1<<20] = maskOf(unix.SIGTERM, unix.SIGALRM)
	few.notePending(pending)
	if few.KillOnly || len(few.Pending) != 1 || few.Pending[1<<20] != maskOf(unix.SIGTERM) {
		t.Errorf("kept of few: kill only %t, %d", few.KillOnly, len(few.Pending))
	}
	for pid := range pending {
		pending[pid] = ^uint64(0)
	}
	many.notePending(pending)
	if !many.KillOnly || len(many.Pending) != 0 {
		t.Errorf("kept of many: kill only %t, %d", many.KillOnly, len(many.Pending))
	}
	full := frozenContainer{Pending: map[int]uint64{}}
	for pid := range mostPending {
		full.Pending[1<<22-pid] = endSignals
	}
	for n := range 64 { // a container for every slice of a node
		full.ID = fmt.Sprintf("%064x", n)
		full.Group = freezeGroup{Path: "/pods/" + full.ID, Unified: true}
		f.record.Frozen = append(f.record.Frozen, full)
	}
	if err := f.write(); err != nil {
		t.Fatal(err)
	}
	if record, err := readFrozen(f.config.StatePath); err != nil || len(record.Frozen) != 64 {
		t.Errorf("read back %d containers, %v", len(record.Frozen), err)
	}
	f.record.Frozen[0].Why = strings.Repeat("x", maxFrozenBytes)
	if err := f.write(); err == nil {
		t.Error("a record is written that cannot be read back")
	}
	if _, err := readFrozen(f.config.StatePath); err != nil {
		t.Errorf("the record before is gone: %v", err)
	}
}

// A container whose other signals say nothing is thawed by SIGKILL alone.
func TestContainerThatOnlyKillsEnd(t *testing.T) {
	root := t.TempDir()
	for _, one := range []struct {
		killOnly bool
		pending  uint64
		over     bool
	}{{false, maskOf(unix.SIGTERM), true}, {true, maskOf(unix.SIGTERM), false}, {true, maskOf(unix.SIGKILL), true}, {false, maskOf(unix.SIGALRM), false}} {
		c := inRecord(t, root, freezertest.ID)
		c.KillOnly = one.killOnly
		status := filepath.Join(root, "proc/1/status")
		err := errors.Join(os.MkdirAll(filepath.Dir(status), 0o755), os.WriteFile(status, []byte(fmt.Sprintf("Name:\tx\nShdPnd:\t%016x\n", one.pending)), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		if why := c.over(root); (why != "") != one.over {
			t.Errorf("%+v: %q", one, why)
		}
	}
}

func TestProcessesOfOneFileAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cgroup.procs")
	if err := os.WriteFile(path, []byte("0\n"+strings.Repeat("7\n", 3*mostGroupPID)), 0o600); err != nil {
		t.Fatal(err)
	}
	if pids := processesIn(path, 5); !slices.Equal(pids, []int{7, 7, 7, 7, 7}) {
		t.Errorf("%v", pids)
	}
	group := freezeGroup{}
	root := filepath.Dir(path)
	if err := os.MkdirAll(filepath.Join(root, "sys/fs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(group.directory(root), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, filepath.Join(group.directory(root), "cgroup.procs")); err != nil {
		t.Fatal(err)
	}
	if pids := group.processes(root); len(pids) != mostGroupPID {
		t.Errorf("%d processes", len(pids))
	}
}

// A beginning of any length names the one container that has it.
func TestThawNamesOne(t *testing.T) {
	ids := []string{"3f2a9c" + strings.Repeat("0", 58), "3f2b" + strings.Repeat("0", 60), strings.Repeat("c", 64)}
	for _, one := range []struct {
		request Named
		want    []string
		fault   string
	}{
		{Named{Container: "3f2a9c"}, ids[:1], ""},
		{Named{Container: "c"}, ids[2:], ""},
		{Named{Container: ids[1]}, ids[1:2], ""},
		{Named{Container: "3f2"}, nil, ids[0] + ", " + ids[1]},
		{Named{Container: "f2a9c"}, nil, ""},
		{Named{Container: "k1"}, nil, ""}, // an allocation
		{Named{Allocation: "k1"}, ids[:2], ""},
		{Named{Allocation: "k"}, nil, ""},
		{Named{All: true}, ids, ""},
	} {
		f := newFreezerTest(t)
		f.Freezer.config.Root = t.TempDir()
		f.record.Frozen = []frozenContainer{inRecord(t, f.Freezer.config.Root, ids[0], "k1"), inRecord(t, f.Freezer.config.Root, ids[1], "k1"),
			inRecord(t, f.Freezer.config.Root, ids[2], "k2")}
		f.publish()
		thawed, err := f.Thaw(one.request)
		if !slices.Equal(thawed, one.want) || (err != nil) != (one.fault != "") || err != nil && !strings.Contains(err.Error(), one.fault) {
			t.Errorf("%+v: %v, %v", one.request, thawed, err)
		}
		if left := len(f.View()); left != len(ids)-len(one.want) {
			t.Errorf("%+v: %d are left frozen", one.request, left)
		}
	}
}

// The list of who is frozen waits for nobody who works on it.
func TestFreezerViewDoesNotWait(t *testing.T) {
	f := newFreezerTest(t)
	f.record.Frozen = []frozenContainer{{ID: freezertest.ID}}
	f.publish()
	f.mu.Lock() // as while a container that takes seconds is frozen
	defer f.mu.Unlock()
	if views := f.View(); len(views) != 1 || views[0].Container != freezertest.ID {
		t.Errorf("%+v", views)
	}
}

// orderOf is an order about a container that has no control group.
func orderOf(id string) witness.Order {
	return witness.Order{Action: witness.Freeze, Container: source.Container{ID: id}, PID: 1 << 22}
}

// Faults with containers that have gone are not kept.
func TestFreezerForgetsFaults(t *testing.T) {
	f := newFreezerTest(t)
	for n := range 100 {
		id := fmt.Sprintf("%064x", n)
		for range 2 {
			if done := f.Apply([]witness.Order{orderOf(id)}); len(done) != 0 {
				t.Fatalf("done: %v", done)
			}
		}
	}
	if len(f.said) != 1 || strings.Count(f.log.String(), "could not act") != 100 {
		t.Errorf("%d faults are kept:\n%s", len(f.said), f.log)
	}
	f.Apply(nil)
	if len(f.said) != 0 {
		t.Errorf("%v", f.said)
	}
}

// Those that a round did not come to begin the next one.
func TestFreezerTakesTurns(t *testing.T) {
	f := newFreezerTest(t)
	orders := []witness.Order{orderOf("a"), orderOf("b"), orderOf("c")}
	f.first = "b"
	var order []string
	for _, one := range f.turn(orders) {
		order = append(order, one.Container.ID)
	}
	if !slices.Equal(order, []string{"b", "c", "a"}) || f.first != "" {
		t.Errorf("%v, then %q", order, f.first)
	}
	f.first = "gone"
	if again := f.turn(orders); again[0].Container.ID != "a" {
		t.Errorf("%+v", again)
	}
}
