// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The freezer on real processes in real control groups: of cgroup v1 and of v2, where the machine has them.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/control"
	"github.com/vgpud/vgpud/agent/decide"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/source/procs"
	"github.com/vgpud/vgpud/internal/require"
)

const (
	frozenID  = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
	frozenPod = "99999999-2222-3333-4444-555555555555"
)

// cell is a container as far as the freezer can tell: processes in a control group.
type cell struct {
	t       *testing.T
	id      string
	unified bool
	groups  []string // its directories
	process *exec.Cmd
}

// hierarchyOf is where control groups of a version are made.
func hierarchyOf(t *testing.T, unified bool) string {
	t.Helper()
	require.Root(t)
	choices := []string{"/sys/fs/cgroup/freezer"}
	if unified {
		choices = []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"}
	}
	for _, mount := range choices {
		var fileSystem unix.Statfs_t
		if err := unix.Statfs(mount, &fileSystem); err == nil && fileSystem.Type == map[bool]int64{true: unix.CGROUP2_SUPER_MAGIC, false: unix.CGROUP_SUPER_MAGIC}[unified] {
			return mount
		}
	}
	require.Need(t, "cgroup", false, fmt.Sprintf("none of %v is a hierarchy of this version", choices))
	return ""
}

// newCell starts a script in a control group of its own.
func newCell(t *testing.T, unified bool, id, script string) *cell {
	t.Helper()
	c := &cell{t: t, id: id, unified: unified}
	top := filepath.Join(hierarchyOf(t, unified), fmt.Sprintf("vgpud-freezer-%d", os.Getpid()))
	group := filepath.Join(top, "pod"+frozenPod, id)
	if err := os.MkdirAll(group, 0o755); err != nil {
		require.Need(t, "cgroup", false, err.Error())
	}
	c.groups = []string{group}
	t.Cleanup(func() {
		for _, file := range []string{"freezer.state", "cgroup.freeze"} {
			if held, err := os.OpenFile(filepath.Join(group, file), os.O_WRONLY, 0); err == nil {
				_, _ = held.WriteString(map[bool]string{true: "0", false: "THAWED"}[unified])
				held.Close()
			}
		}
		for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			for _, pid := range c.pids() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			for _, directory := range slices.Backward(c.groups) {
				_ = os.Remove(directory)
			}
			if _, err := os.Stat(group); errors.Is(err, os.ErrNotExist) {
				break
			}
		}
		_ = os.Remove(filepath.Dir(group))
		_ = os.Remove(top)
	})
	c.process = exec.Command("/bin/sh", "-c", "echo $$ >"+group+"/cgroup.procs; "+script)
	c.process.Stderr = os.Stderr
	if err := c.process.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = c.process.Wait() }() // it ends when the group is thawed, see above
	c.await("its process is in the group", func() bool { return slices.Contains(c.pids(), c.pid()) })
	return c
}

func (c *cell) pid() int { return c.process.Process.Pid }

func (c *cell) pids() (pids []int) {
	for _, group := range c.groups {
		text, _ := os.ReadFile(filepath.Join(group, "cgroup.procs"))
		for word := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func (c *cell) await(what string, done func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("not in time: %s", what)
		}
	}
}

// order is what the witness would say of it.
func (c *cell) order(action decide.WitnessAction) decide.WitnessOrder {
	c.t.Helper()
	start, err := procs.New("/").StartTime(c.pid())
	if err != nil {
		c.t.Fatal(err)
	}
	return decide.WitnessOrder{Action: action, Container: monitor.Container{ID: c.id, PodUID: frozenPod}, PID: c.pid(), StartTime: start,
		Finding: decide.Finding{Kind: decide.WitnessNoSlot, Namespace: "default", Pod: "rogue", PodUID: frozenPod, Key: "k1", Detail: "it does"}}
}

// counts says whether the cell's process goes on: it appends to a file.
func counter(t *testing.T) (script string, grows func() bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "count")
	size := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	return "while :; do echo x >>" + path + "; sleep 0.01; done", func() bool {
		before := size()
		for range 40 {
			time.Sleep(10 * time.Millisecond)
			if size() > before {
				return true
			}
		}
		return false
	}
}

type freezerTest struct {
	*freezer
	config freezerConfig
	log    *bytes.Buffer
	now    time.Time
}

func newFreezerTest(t *testing.T) *freezerTest {
	t.Helper()
	f := &freezerTest{log: &bytes.Buffer{}, now: time.Unix(1e9, 0)}
	f.config = freezerConfig{StatePath: filepath.Join(t.TempDir(), "frozen.json"), Root: "/", Adopt: true,
		Log: slog.New(slog.NewTextHandler(f.log, nil)), Now: func() time.Time { return f.now }}
	f.open(t)
	return f
}

func (f *freezerTest) open(t *testing.T) {
	t.Helper()
	opened, err := openFreezer(f.config)
	if err != nil {
		t.Fatal(err)
	}
	f.freezer = opened
}

func keptPods(uids ...string) func(context.Context) (map[string]bool, error) {
	kept := map[string]bool{}
	for _, uid := range uids {
		kept[uid] = true
	}
	return func(context.Context) (map[string]bool, error) { return kept, nil }
}

// onBoth runs a test with each version of control groups.
func onBoth(t *testing.T, test func(t *testing.T, unified bool)) {
	t.Run("v1", func(t *testing.T) { test(t, false) })
	t.Run("v2", func(t *testing.T) { test(t, true) })
}

func TestFreezeAndThaw(t *testing.T) {
	onBoth(t, func(t *testing.T, unified bool) {
		script, grows := counter(t)
		c := newCell(t, unified, frozenID, script)
		f := newFreezerTest(t)
		f.Apply([]decide.WitnessOrder{c.order(decide.WitnessReport)})
		if len(f.View()) != 0 || !grows() {
			t.Fatalf("a report did something: %+v", f.View())
		}
		for range 3 {
			f.Apply([]decide.WitnessOrder{c.order(decide.WitnessFreeze)})
			f.Tend(t.Context(), keptPods(frozenPod))
		}
		if grows() {
			t.Fatalf("it goes on; %s", f.log)
		}
		views := f.View()
		if len(views) != 1 || views[0].Container != frozenID || views[0].Pod != "rogue" || !slices.Equal(views[0].Allocations, []string{"k1"}) ||
			!views[0].Since.Equal(f.now) || !strings.Contains(views[0].Why, "no-slot") {
			t.Errorf("%+v", views)
		}
		if text, err := os.ReadFile(f.config.StatePath); err != nil || !bytes.Contains(text, []byte(frozenID)) {
			t.Errorf("record %s, %v", text, err)
		}
		// By command; and it is spared from then on, also by the next agent.
		if thawed, err := f.Thaw(control.ThawRequest{Container: "d"}); err != nil || thawed != nil {
			t.Errorf("%v, %v", thawed, err)
		}
		if thawed, err := f.Thaw(control.ThawRequest{Container: "c"}); err != nil || !slices.Equal(thawed, []string{frozenID}) || !grows() {
			t.Errorf("%v, %v", thawed, err)
		}
		for range 2 {
			f.Apply([]decide.WitnessOrder{c.order(decide.WitnessFreeze), c.order(decide.WitnessKill)})
			f.Tend(t.Context(), keptPods(frozenPod))
			if len(f.View()) != 0 || !grows() {
				t.Errorf("not spared: %+v", f.View())
			}
			f.open(t)
		}
	})
}

func TestThawedWhenItsPodIsGoneOrTheAgentStops(t *testing.T) {
	onBoth(t, func(t *testing.T, unified bool) {
		script, grows := counter(t)
		c := newCell(t, unified, frozenID, script)
		f := newFreezerTest(t)
		f.Apply([]decide.WitnessOrder{c.order(decide.WitnessFreeze)})
		f.Tend(t.Context(), func(context.Context) (map[string]bool, error) {
			return nil, errors.New("the kubelet's directory cannot be read")
		})
		if grows() || len(f.View()) != 1 {
			t.Fatal("thawed because nothing is known")
		}
		f.Tend(t.Context(), keptPods("another"))
		if !grows() || len(f.View()) != 0 {
			t.Fatal("not thawed though its pod is gone")
		}
		f.Apply([]decide.WitnessOrder{c.order(decide.WitnessFreeze)})
		if len(f.View()) != 0 {
			t.Fatal("frozen again at once")
		}
		f.now = f.now.Add(2 * leftAlone)
		f.Tend(t.Context(), keptPods())
		f.Apply([]decide.WitnessOrder{c.order(decide.WitnessFreeze)})
		if grows() || len(f.View()) != 1 {
			t.Fatal("not frozen again after a while")
		}
		for range 2 {
			if err := f.Close(t.Context()); err != nil || !grows() {
				t.Fatalf("the agent has stopped, and it is frozen: %v", err)
			}
		}
	})
}

// A frozen container that a runtime asks to end does end: by SIGTERM, as the kubelet begins, and by SIGKILL.
func TestFrozenContainerCanBeEnded(t *testing.T) {
	onBoth(t, func(t *testing.T, unified bool) {
		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGQUIT} {
			t.Run(signal.String(), func(t *testing.T) {
				c := newCell(t, unified, frozenID, "exec sleep 1000")
				f := newFreezerTest(t)
				f.Apply([]decide.WitnessOrder{c.order(decide.WitnessFreeze)})
				if f.Tend(t.Context(), keptPods(frozenPod)); len(f.View()) != 1 {
					t.Fatalf("not frozen: %s", f.log)
				}
				if err := syscall.Kill(c.pid(), signal); err != nil {
					t.Fatal(err)
				}
				c.await("it has ended", func() bool { f.Tend(t.Context(), keptPods(frozenPod)); return len(c.pids()) == 0 })
				if f.Tend(t.Context(), keptPods(frozenPod)); len(f.View()) != 0 {
					t.Errorf("%+v", f.View())
				}
			})
		}
	})
}

// Signals that waited before it was frozen, and those that clocks and children send, do not thaw it.
func TestOldAndOwnSignalsDoNotThaw(t *testing.T) {
	onBoth(t, func(t *testing.T, unified bool) {
		require.Tool(t, "perl")
		path := filepath.Join(t.TempDir(), "ready")
		c := newCell(t, unified, frozenID, `exec perl -MPOSIX -e '
			sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGTERM, SIGALRM, SIGCHLD)); kill TERM => $$;
			open my $f, ">", "`+path+`"; close $f; sleep 1000'`)
		c.await("it is ready", func() bool { _, err := os.Stat(path); return err == nil })
		f := newFreezerTest(t)
		f.Apply([]decide.WitnessOrder{c.order(decide.WitnessFreeze)})
		for _, signal := range []syscall.Signal{syscall.SIGALRM, syscall.SIGCHLD} {
			if err := syscall.Kill(c.pid(), signal); err != nil {
				t.Fatal(err)
			}
		}
		if f.Tend(t.Context(), keptPods(frozenPod)); len(f.View()) != 1 {
			t.Errorf("thawed: %s", f.log)
		}
	})
}

func TestFrozenWithGroupsBelow(t *testing.T) {
	onBoth(t, func(t *testing.T, unified bool) {
		script, grows := counter(t)
		c := newCell(t, unified, frozenID, "exec sleep 1000")
		below := filepath.Join(c.groups[0], "pod"+frozenPod, strings.Repeat("d", 64))
		for _, directory := range []string{filepath.Dir(below), below} {
			if err := os.Mkdir(directory, 0o755); err != nil {
				t.Fatal(err)
			}
			c.groups = append(c.groups, directory)
		}
		nested := exec.Command("/bin/sh", "-c", "echo $$ >"+below+"/cgroup.procs; "+script)
		if err := nested.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { _ = nested.Wait() }() // killed with the group
		c.await("it runs", grows)
		f := newFreezerTest(t)
		order := c.order(decide.WitnessFreeze)
		order.PID = nested.Process.Pid
		order.StartTime, _ = procs.New("/").StartTime(order.PID)
		f.Apply([]decide.WitnessOrder{order})
		if grows() || len(f.View()) != 1 {
			t.Fatalf("%+v %s", f.View(), f.log)
		}
		// Killed as a whole, though it is frozen, and nothing else is.
		other := newCell(t, unified, strings.Repeat("e", 64), "exec sleep 1000")
		f.Apply([]decide.WitnessOrder{c.order(decide.WitnessKill)})
		c.await("all have ended", func() bool { return len(c.pids()) == 0 })
		if len(other.pids()) != 1 {
			t.Error("another container was killed")
		}
		if f.Tend(t.Context(), keptPods(frozenPod)); len(f.View()) != 0 {
			t.Errorf("%+v", f.View())
		}
	})
}

// What an agent that was killed has frozen is adopted or thawed by the next one.
func TestFrozenOutlivesTheAgent(t *testing.T) {
	onBoth(t, func(t *testing.T, unified bool) {
		script, grows := counter(t)
		c := newCell(t, unified, frozenID, script)
		f := newFreezerTest(t)
		f.Apply([]decide.WitnessOrder{c.order(decide.WitnessFreeze)})
		before := f.View()
		f.open(t)
		if after := f.View(); grows() || len(after) != 1 || !after[0].Since.Equal(before[0].Since) || after[0].Why != before[0].Why {
			t.Fatalf("%+v", after)
		}
		f.config.Adopt = false
		f.open(t)
		if !grows() || len(f.View()) != 0 {
			t.Fatalf("%+v", f.View())
		}
		f.open(t)
		if len(f.View()) != 0 {
			t.Errorf("%+v", f.View())
		}
	})
}

// Frozen before the record of it was written would be frozen for ever after a crash.
func TestNobodyIsFrozenWithoutARecord(t *testing.T) {
	script, grows := counter(t)
	c := newCell(t, false, frozenID, script)
	f := newFreezerTest(t)
	f.freezer.config.StatePath = "/proc/nothing/here"
	for range 2 {
		f.Apply([]decide.WitnessOrder{c.order(decide.WitnessFreeze)})
	}
	if !grows() || len(f.View()) != 0 {
		t.Errorf("%+v", f.View())
	}
	if count := strings.Count(f.log.String(), "could not act"); count != 1 {
		t.Errorf("said %d times: %s", count, f.log)
	}
}

func TestFreezerTouchesNobodyElse(t *testing.T) {
	c := newCell(t, false, frozenID, "exec sleep 1000")
	f := newFreezerTest(t)
	right := c.order(decide.WitnessFreeze)
	for name, change := range map[string]func(*decide.WitnessOrder){
		"another container":   func(o *decide.WitnessOrder) { o.Container.ID = strings.Repeat("f", 64) },
		"a process before it": func(o *decide.WitnessOrder) { o.StartTime-- },
		"a process of ours":   func(o *decide.WitnessOrder) { o.PID = os.Getpid(); o.StartTime, _ = procs.New("/").StartTime(o.PID) },
		"nobody":              func(o *decide.WitnessOrder) { o.PID = 1 << 22 },
	} {
		for _, action := range []decide.WitnessAction{decide.WitnessFreeze, decide.WitnessKill} {
			order := right
			order.Action = action
			change(&order)
			f.Apply([]decide.WitnessOrder{order})
			if len(f.View()) != 0 || len(c.pids()) != 1 {
				t.Errorf("%s, %s: %+v", action, name, f.View())
			}
		}
	}
	own := freezeGroup{Mount: "freezer", Path: "/x/" + frozenID}
	if !own.holds("6:freezer:/x/"+frozenID+"/below\n") || own.holds("6:freezer:/x/"+frozenID+"0\n") {
		t.Error("own group is not told from others")
	}
}

func TestFreezerRecordIsChecked(t *testing.T) {
	for name, text := range map[string]string{
		"garbage":         "{",
		"no container":    `{"frozen":[{"id":"x","group":{"mount":"freezer","path":"/system.slice"}}]}`,
		"way out":         `{"frozen":[{"id":"x","group":{"mount":"freezer","path":"/../` + frozenID + `"}}]}`,
		"another mount":   `{"frozen":[{"id":"x","group":{"mount":"../../tmp","path":"/` + frozenID + `"}}]}`,
		"below container": `{"frozen":[{"id":"x","group":{"mount":"freezer","path":"/` + frozenID + `/a"}}]}`,
	} {
		path := filepath.Join(t.TempDir(), "frozen.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openFreezer(freezerConfig{StatePath: path, Root: "/", Log: slog.New(slog.DiscardHandler), Now: time.Now}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	// One that is gone is no fault.
	path := filepath.Join(t.TempDir(), "frozen.json")
	text, err := json.Marshal(frozenRecord{Frozen: []frozenContainer{{ID: frozenID, Group: freezeGroup{Mount: "freezer", Path: "/nowhere/" + frozenID}}}})
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, adopt := range []bool{true, false} {
		f, err := openFreezer(freezerConfig{StatePath: path, Root: "/", Adopt: adopt, Log: slog.New(slog.DiscardHandler), Now: time.Now})
		if err != nil || len(f.View()) != 0 {
			t.Errorf("adopt %t: %v", adopt, err)
		}
	}
	var nobody *freezer
	nobody.Apply(nil)
	nobody.Tend(t.Context(), nil)
	if thawed, err := nobody.Thaw(control.ThawRequest{All: true}); thawed != nil || err != nil || nobody.View() != nil || nobody.Close(t.Context()) != nil {
		t.Error("no freezer does something")
	}
}
