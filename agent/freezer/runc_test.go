// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The freezer on containers of a real runtime: what runc makes on cgroup v1 and on v2 is frozen, and runc can delete it.

package freezer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/freezer/freezertest"
	"github.com/vgpud/vgpud/internal/require"
)

// runcContainer is a container that runc has started.
type runcContainer struct {
	t       *testing.T
	unified bool
	dir     string // of its bundle and runc's state
	top     string // its control group's path, without the pod
	pid     int
}

// endlessProgram waits, and ends by SIGTERM: a first process of a pid namespace gets no signal that it has not asked for.
const endlessProgram = `
#include <signal.h>
#include <unistd.h>
static void end(int signal) { _exit(signal == SIGTERM ? 0 : 1); }
int main(void) {
  signal(SIGTERM, end);
  for (;;) pause();
}
`

// runcStart makes a container with control groups of v2 alone, or of v1.
func runcStart(t *testing.T, unified bool) *runcContainer {
	t.Helper()
	require.Root(t)
	require.Tool(t, "runc")
	freezertest.RequireHierarchy(t, unified)
	c := &runcContainer{t: t, unified: unified, dir: t.TempDir(), top: fmt.Sprintf("/vgpud-runc-%d", os.Getpid())}
	rootfs := filepath.Join(c.dir, "rootfs")
	if err := os.MkdirAll(filepath.Join(rootfs, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(c.dir, "endless.c")
	if err := os.WriteFile(source, []byte(endlessProgram), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(require.Tool(t, "gcc"), "-static", "-o", filepath.Join(rootfs, "endless"), source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c.writeConfig()
	t.Cleanup(c.remove)
	c.runc("run", "--detach", "--pid-file", filepath.Join(c.dir, "pid"), freezertest.ID)
	text, err := os.ReadFile(filepath.Join(c.dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(text), &c.pid); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); !c.asked(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("its program does not ask for SIGTERM")
		}
	}
	return c
}

// asked says whether the program runs, in the place of runc's own, and has asked for SIGTERM. Frozen before, it would never
// see it.
func (c *runcContainer) asked() bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.pid))
	if err != nil {
		c.t.Fatal(err)
	}
	runs := strings.HasPrefix(string(status), "Name:\tendless\n")
	_, rest, _ := strings.Cut(string(status), "SigCgt:")
	var caught uint64
	_, err = fmt.Sscanf(rest, "%x", &caught)
	return err == nil && runs && caught&maskOf(unix.SIGTERM) != 0
}

// writeConfig is what a runtime's client would write: a pid and a mount namespace, and a path as the kubelet names them.
func (c *runcContainer) writeConfig() {
	type object = map[string]any
	config, err := json.Marshal(object{
		"ociVersion": "1.0.2",
		"process":    object{"args": []string{"/endless"}, "cwd": "/", "user": object{"uid": 0, "gid": 0}},
		"root":       object{"path": "rootfs", "readonly": true},
		"mounts":     []object{{"destination": "/proc", "type": "proc", "source": "proc"}},
		"linux": object{
			"cgroupsPath": c.top + "/pod" + freezertest.PodUID + "/" + freezertest.ID,
			"namespaces":  []object{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}},
			"resources":   object{"devices": []object{{"allow": false, "access": "rwm"}}},
		},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(c.dir, "config.json"), config, 0o644)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// try runs runc, where it sees v2 alone if the container is of v2.
func (c *runcContainer) try(arguments ...string) (string, error) {
	program := append([]string{"runc", "--root", filepath.Join(c.dir, "state")}, arguments...)
	if c.unified {
		program = append([]string{"unshare", "--mount", "/bin/sh", "-c", `mount -t cgroup2 none /sys/fs/cgroup && exec "$@"`, "sh"}, program...)
	}
	// The container keeps what it inherits: a file, for a pipe would be waited for.
	said, err := os.Create(filepath.Join(c.dir, "said"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer said.Close()
	cmd := exec.Command(program[0], program[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, said, said
	err = cmd.Run()
	text, _ := os.ReadFile(said.Name())
	return string(text), err
}

func (c *runcContainer) runc(arguments ...string) string {
	c.t.Helper()
	text, err := c.try(arguments...)
	if err != nil {
		c.t.Fatalf("runc %v: %v\n%s", arguments, err, text)
	}
	return text
}

// groups are its control groups that are there.
func (c *runcContainer) groups() (found []string) {
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		paths, _ := filepath.Glob(pattern + c.top + "/pod*/*/cgroup.procs")
		found = append(found, paths...)
	}
	return found
}

// remove takes away what a failed test has left.
func (c *runcContainer) remove() {
	for _, file := range c.groups() {
		_ = os.WriteFile(filepath.Join(filepath.Dir(file), "freezer.state"), []byte("THAWED"), 0)
		_ = os.WriteFile(filepath.Join(filepath.Dir(file), "cgroup.freeze"), []byte("0"), 0)
	}
	_, _ = c.try("delete", "--force", freezertest.ID)
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		for _, below := range []string{"/pod" + freezertest.PodUID + "/" + freezertest.ID, "/pod" + freezertest.PodUID, ""} {
			paths, _ := filepath.Glob(pattern + c.top + below)
			for _, path := range paths {
				if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
					c.t.Errorf("left behind: %v", err)
				}
			}
		}
	}
}

// A container of runc is frozen, and then ended as containerd does it: by a signal, by SIGKILL if it does not help, and then
// by deleting. The agent may even be gone: on v2 SIGKILL ends a frozen process, and on v1 runc thaws what it kills.
func TestRuncDeletesWhatIsFrozen(t *testing.T) {
	for _, row := range []struct {
		name    string
		unified bool
		signals []string
		agent   bool // it is there, and tends
	}{
		{"v1 TERM", false, []string{"TERM"}, true},
		{"v1 KILL", false, []string{"KILL"}, true},
		{"v2 TERM", true, []string{"TERM"}, true},
		{"v2 KILL", true, []string{"KILL"}, true},
		{"v2 KILL without the agent", true, []string{"TERM", "KILL"}, false},
		{"v1 KILL without the agent", false, []string{"TERM", "KILL"}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, f := runcStart(t, row.unified), newFreezerTest(t)
			f.Apply([]witness.Order{orderAt(t, freezertest.ID, c.pid, witness.Freeze)})
			f.Tend(t.Context(), keptPods(freezertest.PodUID))
			if views := f.View(); len(views) != 1 || !f.record.Frozen[0].Group.stopped("/") || f.record.Frozen[0].Group.Unified != row.unified {
				t.Fatalf("frozen: %+v, on record %+v; %s", views, f.record.Frozen, f.log)
			}
			for _, signal := range row.signals {
				c.runc("kill", freezertest.ID, signal)
			}
			stopped := func() bool {
				if row.agent {
					f.Tend(t.Context(), keptPods(freezertest.PodUID))
				}
				return strings.Contains(c.runc("state", freezertest.ID), `"stopped"`)
			}
			for deadline := time.Now().Add(20 * time.Second); !stopped(); time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("runc cannot end it: %s; %s", c.runc("state", freezertest.ID), f.log)
				}
			}
			c.runc("delete", freezertest.ID)
			if left := c.groups(); len(left) != 0 {
				t.Errorf("its control groups are left: %v", left)
			}
			if f.Tend(t.Context(), keptPods(freezertest.PodUID)); len(f.View()) != 0 {
				t.Errorf("on record still: %+v", f.View())
			}
		})
	}
}
