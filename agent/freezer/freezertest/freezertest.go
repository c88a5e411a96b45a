// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package freezertest makes containers for tests of freezing and killing: real processes in real control groups, of cgroup v1
// and of v2, where the machine has them.
package freezertest

import (
	"errors"
	"fmt"
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

	"github.com/vgpud/vgpud/agent/source/procs"
	"github.com/vgpud/vgpud/internal/require"
)

// The container of tests that need but one.
const (
	ID     = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
	PodUID = "99999999-2222-3333-4444-555555555555"
)

// Cell is a container as far as a freezer can tell: processes in a control group.
type Cell struct {
	ID     string
	Groups []string // its directories; what a test makes below is added, to be removed with it

	t       *testing.T
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

// RequireHierarchy skips the test where the machine has no control groups of v2, or of v1, to freeze with.
func RequireHierarchy(t *testing.T, unified bool) {
	t.Helper()
	hierarchyOf(t, unified)
}

// NewCell starts a script in a control group of its own, of v2 or v1. The test is skipped where the machine has none; its
// end takes processes and groups away.
func NewCell(t *testing.T, unified bool, id, script string) *Cell {
	t.Helper()
	c := &Cell{t: t, ID: id}
	top := filepath.Join(hierarchyOf(t, unified), fmt.Sprintf("vgpud-freezer-%d", os.Getpid()))
	group := filepath.Join(top, "pod"+PodUID, id)
	if err := os.MkdirAll(group, 0o755); err != nil {
		require.Need(t, "cgroup", false, err.Error())
	}
	c.Groups = []string{group}
	t.Cleanup(func() {
		for _, file := range []string{"freezer.state", "cgroup.freeze"} {
			if held, err := os.OpenFile(filepath.Join(group, file), os.O_WRONLY, 0); err == nil {
				_, _ = held.WriteString(map[bool]string{true: "0", false: "THAWED"}[unified])
				held.Close()
			}
		}
		for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			for _, pid := range c.PIDs() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			for _, directory := range slices.Backward(c.Groups) {
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
	c.Await("its process is in the group", func() bool { return slices.Contains(c.PIDs(), c.PID()) })
	return c
}

// PID is that of the script.
func (c *Cell) PID() int { return c.process.Process.Pid }

// StartTime is when the script started, in clock ticks.
func (c *Cell) StartTime() uint64 {
	c.t.Helper()
	start, err := procs.New("/").StartTime(c.PID())
	if err != nil {
		c.t.Fatal(err)
	}
	return start
}

// PIDs are the processes of its groups.
func (c *Cell) PIDs() (pids []int) {
	for _, group := range c.Groups {
		text, _ := os.ReadFile(filepath.Join(group, "cgroup.procs"))
		for word := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// Await fails the test if something is not so within 20 seconds.
func (c *Cell) Await(what string, done func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("not in time: %s", what)
		}
	}
}

// Counter says makes a script that appends to a file for ever, and says whether it goes on.
func Counter(t *testing.T) (script string, grows func() bool) {
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
