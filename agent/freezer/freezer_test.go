// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The freezer on real processes in real control groups: of cgroup v1 and of v2, where the machine has them.

package freezer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/freezer/freezertest"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/source/procs"
	"github.com/vgpud/vgpud/internal/require"
)

// orderFor is what the witness would say of a container.
func orderFor(t *testing.T, c *freezertest.Cell, action witness.Action) witness.Order {
	t.Helper()
	return orderAt(t, c.ID, c.PID(), action)
}

// orderAt is an order for the container of a process.
func orderAt(t *testing.T, id string, pid int, action witness.Action) witness.Order {
	t.Helper()
	start, err := procs.New("/").StartTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	return witness.Order{Action: action, Container: source.Container{ID: id, PodUID: freezertest.PodUID}, PID: pid, StartTime: start,
		Finding: witness.Finding{Kind: witness.NoSlot, Namespace: "default", Pod: "rogue", PodUID: freezertest.PodUID, Key: "k1", Detail: "it does"}}
}

type freezerTest struct {
	*Freezer
	config Config
	log    *bytes.Buffer
	now    time.Time
}

func newFreezerTest(t *testing.T) *freezerTest {
	t.Helper()
	f := &freezerTest{log: &bytes.Buffer{}, now: time.Unix(1e9, 0)}
	f.config = Config{StatePath: filepath.Join(t.TempDir(), "frozen.json"), Root: "/", Adopt: true,
		Log: slog.New(slog.NewTextHandler(f.log, nil)), Now: func() time.Time { return f.now }}
	f.open(t)
	return f
}

func (f *freezerTest) open(t *testing.T) {
	t.Helper()
	opened, err := Open(f.config)
	if err != nil {
		t.Fatal(err)
	}
	f.Freezer = opened
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
		script, grows := freezertest.Counter(t)
		c := freezertest.NewCell(t, unified, freezertest.ID, script)
		f := newFreezerTest(t)
		f.Apply([]witness.Order{orderFor(t, c, witness.Report)})
		if len(f.View()) != 0 || !grows() {
			t.Fatalf("a report did something: %+v", f.View())
		}
		for range 3 {
			f.Apply([]witness.Order{orderFor(t, c, witness.Freeze)})
			f.Tend(t.Context(), keptPods(freezertest.PodUID))
		}
		if grows() {
			t.Fatalf("it goes on; %s", f.log)
		}
		views := f.View()
		if len(views) != 1 || views[0].Container != freezertest.ID || views[0].Pod != "rogue" || !slices.Equal(views[0].Allocations, []string{"k1"}) ||
			!views[0].Since.Equal(f.now) || !strings.Contains(views[0].Why, "no-slot") {
			t.Errorf("%+v", views)
		}
		if text, err := os.ReadFile(f.config.StatePath); err != nil || !bytes.Contains(text, []byte(freezertest.ID)) {
			t.Errorf("record %s, %v", text, err)
		}
		// By command; and it is spared from then on, also by the next agent.
		if thawed, err := f.Thaw(Named{Container: "d"}); err != nil || thawed != nil {
			t.Errorf("%v, %v", thawed, err)
		}
		if thawed, err := f.Thaw(Named{Container: "c"}); err != nil || !slices.Equal(thawed, []string{freezertest.ID}) || !grows() {
			t.Errorf("%v, %v", thawed, err)
		}
		for range 2 {
			f.Apply([]witness.Order{orderFor(t, c, witness.Freeze), orderFor(t, c, witness.Kill)})
			f.Tend(t.Context(), keptPods(freezertest.PodUID))
			if len(f.View()) != 0 || !grows() {
				t.Errorf("not spared: %+v", f.View())
			}
			f.open(t)
		}
	})
}

func TestThawedWhenItsPodIsGoneOrTheAgentStops(t *testing.T) {
	onBoth(t, func(t *testing.T, unified bool) {
		script, grows := freezertest.Counter(t)
		c := freezertest.NewCell(t, unified, freezertest.ID, script)
		f := newFreezerTest(t)
		f.Apply([]witness.Order{orderFor(t, c, witness.Freeze)})
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
		f.Apply([]witness.Order{orderFor(t, c, witness.Freeze)})
		if len(f.View()) != 0 {
			t.Fatal("frozen again at once")
		}
		f.now = f.now.Add(2 * leftAlone)
		f.Tend(t.Context(), keptPods())
		f.Apply([]witness.Order{orderFor(t, c, witness.Freeze)})
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
				c := freezertest.NewCell(t, unified, freezertest.ID, "exec sleep 1000")
				f := newFreezerTest(t)
				f.Apply([]witness.Order{orderFor(t, c, witness.Freeze)})
				if f.Tend(t.Context(), keptPods(freezertest.PodUID)); len(f.View()) != 1 {
					t.Fatalf("not frozen: %s", f.log)
				}
				if err := syscall.Kill(c.PID(), signal); err != nil {
					t.Fatal(err)
				}
				c.Await("it has ended", func() bool { f.Tend(t.Context(), keptPods(freezertest.PodUID)); return len(c.PIDs()) == 0 })
				if f.Tend(t.Context(), keptPods(freezertest.PodUID)); len(f.View()) != 0 {
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
		c := freezertest.NewCell(t, unified, freezertest.ID, `exec perl -MPOSIX -e '
			sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGTERM, SIGALRM, SIGCHLD)); kill TERM => $$;
			open my $f, ">", "`+path+`"; close $f; sleep 1000'`)
		c.Await("it is ready", func() bool { _, err := os.Stat(path); return err == nil })
		f := newFreezerTest(t)
		f.Apply([]witness.Order{orderFor(t, c, witness.Freeze)})
		for _, signal := range []syscall.Signal{syscall.SIGALRM, syscall.SIGCHLD} {
			if err := syscall.Kill(c.PID(), signal); err != nil {
				t.Fatal(err)
			}
		}
		if f.Tend(t.Context(), keptPods(freezertest.PodUID)); len(f.View()) != 1 {
			t.Errorf("thawed: %s", f.log)
		}
	})
}

// A container can have a timer of its own send it what asks others to end. It is let go on for that once; if it has not ended a
// minute later, only what no process can send itself and live on thaws it.
func TestContainerThatAsksItselfToEnd(t *testing.T) {
	onBoth(t, func(t *testing.T, unified bool) {
		require.Tool(t, "perl")
		path := filepath.Join(t.TempDir(), "ready")
		c := freezertest.NewCell(t, unified, freezertest.ID, `exec perl -MPOSIX -e '
			sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGUSR1, SIGUSR2));
			open my $f, ">", "`+path+`"; close $f; sleep 1 while 1'`)
		c.Await("it is ready", func() bool { _, err := os.Stat(path); return err == nil })
		f := newFreezerTest(t)
		for _, one := range []struct {
			signal syscall.Signal
			frozen int
		}{{syscall.SIGUSR1, 0}, {syscall.SIGUSR2, 1}} {
			f.now = f.now.Add(leftAlone + time.Second)
			f.Apply([]witness.Order{orderFor(t, c, witness.Freeze)})
			if f.Tend(t.Context(), keptPods(freezertest.PodUID)); len(f.View()) != 1 {
				t.Fatalf("not frozen before signal %d: %s", one.signal, f.log)
			}
			if err := syscall.Kill(c.PID(), one.signal); err != nil {
				t.Fatal(err)
			}
			if f.Tend(t.Context(), keptPods(freezertest.PodUID)); len(f.View()) != one.frozen {
				t.Errorf("after signal %d: %+v, want %d", one.signal, f.View(), one.frozen)
			}
		}
		if err := syscall.Kill(c.PID(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		c.Await("it has ended", func() bool { f.Tend(t.Context(), keptPods(freezertest.PodUID)); return len(c.PIDs()) == 0 })
	})
}

func TestFrozenWithGroupsBelow(t *testing.T) {
	onBoth(t, func(t *testing.T, unified bool) {
		script, grows := freezertest.Counter(t)
		c := freezertest.NewCell(t, unified, freezertest.ID, "exec sleep 1000")
		below := filepath.Join(c.Groups[0], "pod"+freezertest.PodUID, strings.Repeat("d", 64))
		for _, directory := range []string{filepath.Dir(below), below} {
			if err := os.Mkdir(directory, 0o755); err != nil {
				t.Fatal(err)
			}
			c.Groups = append(c.Groups, directory)
		}
		nested := exec.Command("/bin/sh", "-c", "echo $$ >"+below+"/cgroup.procs; "+script)
		if err := nested.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { _ = nested.Wait() }() // killed with the group
		c.Await("it runs", grows)
		f := newFreezerTest(t)
		order := orderFor(t, c, witness.Freeze)
		order.PID = nested.Process.Pid
		order.StartTime, _ = procs.New("/").StartTime(order.PID)
		f.Apply([]witness.Order{order})
		if grows() || len(f.View()) != 1 {
			t.Fatalf("%+v %s", f.View(), f.log)
		}
		// Killed as a whole, though it is frozen, and nothing else is.
		other := freezertest.NewCell(t, unified, strings.Repeat("e", 64), "exec sleep 1000")
		f.Apply([]witness.Order{orderFor(t, c, witness.Kill)})
		c.Await("all have ended", func() bool { return len(c.PIDs()) == 0 })
		if len(other.PIDs()) != 1 {
			t.Error("another container was killed")
		}
		if f.Tend(t.Context(), keptPods(freezertest.PodUID)); len(f.View()) != 0 {
			t.Errorf("%+v", f.View())
		}
	})
}

// What an agent that was killed has frozen is adopted or thawed by the next one.
func TestFrozenOutlivesTheAgent(t *testing.T) {
	onBoth(t, func(t *testing.T, unified bool) {
		script, grows := freezertest.Counter(t)
		c := freezertest.NewCell(t, unified, freezertest.ID, script)
		f := newFreezerTest(t)
		f.Apply([]witness.Order{orderFor(t, c, witness.Freeze)})
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
	script, grows := freezertest.Counter(t)
	c := freezertest.NewCell(t, false, freezertest.ID, script)
	f := newFreezerTest(t)
	f.Freezer.config.StatePath = "/proc/nothing/here"
	for range 2 {
		f.Apply([]witness.Order{orderFor(t, c, witness.Freeze)})
	}
	if !grows() || len(f.View()) != 0 {
		t.Errorf("%+v", f.View())
	}
	if count := strings.Count(f.log.String(), "could not act"); count != 1 {
		t.Errorf("said %d times: %s", count, f.log)
	}
}

func TestFreezerTouchesNobodyElse(t *testing.T) {
	c := freezertest.NewCell(t, false, freezertest.ID, "exec sleep 1000")
	f := newFreezerTest(t)
	right := orderFor(t, c, witness.Freeze)
	for name, change := range map[string]func(*witness.Order){
		"another container":   func(o *witness.Order) { o.Container.ID = strings.Repeat("f", 64) },
		"a process before it": func(o *witness.Order) { o.StartTime-- },
		"a process of ours":   func(o *witness.Order) { o.PID = os.Getpid(); o.StartTime, _ = procs.New("/").StartTime(o.PID) },
		"nobody":              func(o *witness.Order) { o.PID = 1 << 22 },
	} {
		for _, action := range []witness.Action{witness.Freeze, witness.Kill} {
			order := right
			order.Action = action
			change(&order)
			f.Apply([]witness.Order{order})
			if len(f.View()) != 0 || len(c.PIDs()) != 1 {
				t.Errorf("%s, %s: %+v", action, name, f.View())
			}
		}
	}
	own := freezeGroup{Mount: "freezer", Path: "/x/" + freezertest.ID}
	if !own.holds("6:freezer:/x/"+freezertest.ID+"/below\n") || own.holds("6:freezer:/x/"+freezertest.ID+"0\n") {
		t.Error("own group is not told from others")
	}
}

func TestFreezerRecordIsChecked(t *testing.T) {
	for name, text := range map[string]string{
		"garbage":         "{",
		"no container":    `{"frozen":[{"id":"x","group":{"mount":"freezer","path":"/system.slice"}}]}`,
		"way out":         `{"frozen":[{"id":"x","group":{"mount":"freezer","path":"/../` + freezertest.ID + `"}}]}`,
		"another mount":   `{"frozen":[{"id":"x","group":{"mount":"../../tmp","path":"/` + freezertest.ID + `"}}]}`,
		"below container": `{"frozen":[{"id":"x","group":{"mount":"freezer","path":"/` + freezertest.ID + `/a"}}]}`,
	} {
		path := filepath.Join(t.TempDir(), "frozen.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Config{StatePath: path, Root: "/", Log: slog.New(slog.DiscardHandler), Now: time.Now}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	// One that is gone is no fault.
	path := filepath.Join(t.TempDir(), "frozen.json")
	text, err := json.Marshal(frozenRecord{Frozen: []frozenContainer{{ID: freezertest.ID, Group: freezeGroup{Mount: "freezer", Path: "/nowhere/" + freezertest.ID}}}})
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, adopt := range []bool{true, false} {
		f, err := Open(Config{StatePath: path, Root: "/", Adopt: adopt, Log: slog.New(slog.DiscardHandler), Now: time.Now})
		if err != nil || len(f.View()) != 0 {
			t.Errorf("adopt %t: %v", adopt, err)
		}
	}
	var nobody *Freezer
	nobody.Apply(nil)
	nobody.Tend(t.Context(), nil)
	if thawed, err := nobody.Thaw(Named{All: true}); thawed != nil || err != nil || nobody.View() != nil || nobody.Close(t.Context()) != nil {
		t.Error("no freezer does something")
	}
}
