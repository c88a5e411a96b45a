// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What the tests on real processes share: programs on the simulated driver, in control groups and mount namespaces of
// their own, that do what they are told; and probes that are waited for.

package bpf

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/require"
)

// patience is how long something may take on a busy machine that takes a second on an idle one.
const patience = 90 * time.Second

func TestMain(m *testing.M) {
	if stage := os.Getenv(childVariable); stage != "" {
		os.Exit(child(stage))
	}
	code := m.Run()
	if callerDir != "" {
		_ = os.RemoveAll(callerDir)
	}
	os.Exit(code)
}

var (
	callerOnce sync.Once
	callerDir  string
	callerErr  error
)

// callerProgram builds testdata/caller.c once.
func callerProgram(t testing.TB) string {
	t.Helper()
	cc := require.Tool(t, "gcc")
	callerOnce.Do(func() {
		if callerDir, callerErr = os.MkdirTemp("", "vgpud-bpf-"); callerErr != nil {
			return
		}
		out, err := exec.Command(cc, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(callerDir, "caller"), "testdata/caller.c", "-ldl").CombinedOutput()
		if err != nil {
			callerErr = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if callerErr != nil {
		t.Fatalf("build caller: %v", callerErr)
	}
	return filepath.Join(callerDir, "caller")
}

// group is a control group of a test.
type group struct {
	dir string
	id  uint64
}

// hierarchies are where groups of each numbering are made on this machine.
func hierarchy(t testing.TB, n Numbering) string {
	t.Helper()
	candidates := map[Numbering][]string{
		NumberingLegacy:  {"/sys/fs/cgroup/memory"},
		NumberingUnified: {"/sys/fs/cgroup/unified", "/sys/fs/cgroup"},
	}[n]
	for _, dir := range candidates {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			return dir
		}
	}
	require.Need(t, "cgroup-"+string(n), false, "no hierarchy for it is mounted")
	return ""
}

var groupNumber int

func newGroup(t testing.TB, n Numbering) group {
	t.Helper()
	groupNumber++
	dir := filepath.Join(hierarchy(t, n), fmt.Sprintf("vgpud-bpf-%d-%d", os.Getpid(), groupNumber))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatalf("make control group: %v", err)
	}
	t.Cleanup(func() { removeGroup(t, dir) })
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		t.Fatal(err)
	}
	return group{dir: dir, id: stat.Ino}
}

func removeGroup(t testing.TB, dir string) {
	eventually(t, "control group can be removed", func() bool {
		err := os.Remove(dir)
		return err == nil || errors.Is(err, fs.ErrNotExist)
	})
}

func (g group) add(t testing.TB, pid int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		t.Fatalf("join control group: %v", err)
	}
}

// eventually waits for something to become true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in vain for %v: %s", patience, what)
		}
	}
}

// caller is a running testdata/caller.c.
type caller struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Reader
	Pid   int
	ended bool
}

// cards makes an empty directory of simulated cards.
func cards(t testing.TB) string { return t.TempDir() }

// startCaller starts a caller in a mount namespace of its own in which setup, shell commands, has been run.
func startCaller(t testing.TB, cards, setup string) *caller {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-ec", setup+"\nexec "+callerProgram(t))
	cmd.Env = append(os.Environ(), "GPUSIM_DIR="+cards)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start caller: %v", err)
	}
	c := &caller{t: t, cmd: cmd, stdin: stdin, lines: bufio.NewReader(stdout), Pid: cmd.Process.Pid}
	t.Cleanup(c.end)
	c.do("syscalls 1") // until then it is a shell
	return c
}

// end lets it exit and waits for that.
func (c *caller) end() {
	if c.ended {
		return
	}
	c.ended = true
	_ = c.stdin.Close()
	_ = c.cmd.Wait()
}

// do gives a command and returns the number of its answer.
func (c *caller) do(format string, args ...any) int {
	c.t.Helper()
	command := fmt.Sprintf(format, args...)
	if _, err := fmt.Fprintln(c.stdin, command); err != nil {
		c.t.Fatalf("tell caller %q: %v", command, err)
	}
	line, err := c.lines.ReadString('\n')
	number, ok := strings.CutPrefix(strings.TrimSpace(line), "ok ")
	if err != nil || !ok {
		c.t.Fatalf("caller answers %q to %q: %v", line, command, err)
	}
	n, err := strconv.Atoi(number)
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// openProbes opens probes for a test, without a rate cap that matters; it skips where the machine has none.
func openProbes(t testing.TB, options Options) *Probes {
	t.Helper()
	require.Root(t)
	if options.Mode == "" {
		options.Mode = ModeFull
	}
	if options.Cap == 0 {
		options.Cap = 1e8
	}
	if options.Dev == "" {
		options.Dev = "/nowhere"
	}
	options.trace = true
	p, err := Open(options)
	if err != nil {
		require.Need(t, "bpf", false, err.Error())
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close probes: %v", err)
		}
	})
	return p
}

// probedBy returns the probed files that a process has mapped; pid 0: those that are probed ahead.
func probedBy(p *Probes, pid int) []fileID {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.traced[pid]
}

// awaitProbed waits until a process's library is probed. (Others on the machine may use such libraries too.)
func awaitProbed(t testing.TB, p *Probes, pid int) fileID {
	t.Helper()
	eventually(t, fmt.Sprintf("a library of process %d is probed", pid), func() bool { return len(probedBy(p, pid)) > 0 })
	return probedBy(p, pid)[0]
}

// isProbed says whether a file still is.
func isProbed(p *Probes, id fileID) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, ids := range p.traced {
		if slices.Contains(ids, id) {
			return true
		}
	}
	return false
}

// rests says whether only rare calls are probed in a file for now.
func rests(p *Probes, id fileID) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return slices.Contains(p.resting, id)
}

// counted returns a group's counts.
func counted(t testing.TB, p *Probes, id uint64) Group {
	t.Helper()
	groups, err := p.Groups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if g.CgroupID == id {
			return g
		}
	}
	return Group{CgroupID: id}
}

// copyFile makes a file with other identity and the same content.
func copyFile(t testing.TB, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, raw, 0o755); err != nil {
		t.Fatal(err)
	}
}
