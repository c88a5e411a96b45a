// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The test binary as another process with fewer rights: it takes them from itself, starts itself anew, opens the probes
// and tells what came of it.

package bpf

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/require"
)

// childVariable holds what the test binary is to do in place of tests.
const childVariable = "VGPUD_BPF_TEST_CHILD"

// confinement is what a child has and lacks.
type confinement struct {
	Caps      []int  // all that it has; nil: whatever the test has
	Refuse    uint32 // errno that a seccomp filter answers to bpf(); 0: no filter
	Memlock   uint64 // limit of locked memory, bytes; 0: as it is
	Types     string // of /sys/kernel/btf: "" as it is, "hidden", "alone" (no modules), "broken module"
	Tracing   string // of /sys/kernel/tracing: "" as it is, "hidden", "read-only"
	UserSpace bool   // in a user namespace of its own

	Dropped bool // rights have been taken: open the probes
	Options Options
}

// outcome is what a child tells.
type outcome struct {
	Error  string // "": probes are at work
	Status Status
	Groups []Group
}

func child(task string) int {
	runtime.LockOSThread()
	var c confinement
	if err := json.Unmarshal([]byte(task), &c); err != nil {
		return childFailed(err)
	}
	if c.Dropped {
		return openAndTell(c.Options)
	}
	if err := c.confine(); err != nil {
		return childFailed(err)
	}
	c.Dropped = true
	next, err := json.Marshal(c)
	if err != nil {
		return childFailed(err)
	}
	self, err := os.Executable()
	if err != nil {
		return childFailed(err)
	}
	if err := os.Setenv(childVariable, string(next)); err != nil {
		return childFailed(err)
	}
	return childFailed(unix.Exec(self, []string{self}, os.Environ()))
}

func childFailed(err error) int {
	fmt.Fprintln(os.Stderr, "child:", err)
	return 3
}

// confine takes rights from this thread, which then becomes another program.
func (c confinement) confine() error {
	if err := c.hideFiles(); err != nil {
		return fmt.Errorf("hide files: %w", err)
	}
	if c.Memlock != 0 {
		limit := unix.Rlimit{Cur: c.Memlock, Max: c.Memlock}
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
			return fmt.Errorf("limit locked memory: %w", err)
		}
	}
	if c.Refuse != 0 {
		if err := refuseBPF(c.Refuse); err != nil {
			return fmt.Errorf("refuse bpf(): %w", err)
		}
	}
	if c.Caps == nil {
		return nil
	}
	for capability := range 64 {
		if slices.Contains(c.Caps, capability) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(capability), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("drop capability %d: %w", capability, err)
		}
	}
	return nil
}

func (c confinement) hideFiles() error {
	if c.Types == "" && c.Tracing == "" {
		return nil
	}
	const types, tracing = "/sys/kernel/btf", "/sys/kernel/tracing"
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		return err
	}
	if c.Types != "" {
		raw, err := os.ReadFile(types + "/vmlinux")
		if err != nil {
			return err
		}
		if err := unix.Mount("none", types, "tmpfs", 0, ""); err != nil {
			return err
		}
		if c.Types != "hidden" {
			if err := os.WriteFile(types+"/vmlinux", raw, 0o444); err != nil {
				return err
			}
		}
		if c.Types == "broken module" { // a header of 24 bytes, and no strings
			broken := []byte{0x9f, 0xeb, 1, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
			if err := os.WriteFile(types+"/broken", broken, 0o444); err != nil {
				return err
			}
		}
	}
	switch c.Tracing {
	case "hidden":
		return errors.Join(unix.Mount("none", tracing, "tmpfs", 0, ""), unix.Mount("none", "/sys/kernel/debug", "tmpfs", 0, ""))
	case "read-only":
		return unix.Mount("none", tracing, "tracefs", unix.MS_RDONLY, "")
	}
	return nil
}

// refuseBPF makes bpf() answer an error, as a container's profile does.
func refuseBPF(errno uint32) error {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	filter := []unix.SockFilter{
		load(0), // the call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_BPF, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | errno},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}

// openAndTell writes the outcome of opening, and for each line that it reads the counts.
func openAndTell(options Options) int {
	options.trace = true
	p, err := Open(options)
	tell := json.NewEncoder(os.Stdout)
	if err != nil {
		if _, known := errors.AsType[*Unavailable](err); !known {
			return childFailed(fmt.Errorf("error of another kind: %w", err))
		}
		_ = tell.Encode(outcome{Error: err.Error()})
		return 0
	}
	_ = tell.Encode(outcome{Status: p.Status()})
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		groups, err := p.Groups()
		if err != nil {
			return childFailed(err)
		}
		_ = tell.Encode(outcome{Status: p.Status(), Groups: groups})
	}
	if err := p.Close(); err != nil {
		return childFailed(err)
	}
	return 0
}

// confined is a running child.
type confined struct {
	t     testing.TB
	stdin io.WriteCloser
	told  *json.Decoder
	first outcome
}

func startConfined(t testing.TB, c confinement) *confined {
	t.Helper()
	require.Root(t)
	if c.Options.Dev == "" {
		c.Options.Dev = "/nowhere"
	}
	c.Options.Mode, c.Options.Cap = ModeFull, 1e8
	task, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childVariable+"="+string(task))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if c.UserSpace {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{Size: 1}}
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start child: %v", err)
	}
	run := &confined{t: t, stdin: stdin, told: json.NewDecoder(stdout)}
	t.Cleanup(func() {
		_ = stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("child: %v", err) // it must never crash
		}
	})
	if err := run.told.Decode(&run.first); err != nil {
		t.Fatalf("child tells nothing: %v", err)
	}
	return run
}

// ask returns the child's counts now.
func (c *confined) ask() outcome {
	c.t.Helper()
	var o outcome
	if _, err := fmt.Fprintln(c.stdin); err != nil {
		c.t.Fatal(err)
	}
	if err := c.told.Decode(&o); err != nil {
		c.t.Fatal(err)
	}
	return o
}

// nullDevices makes a directory with a null device under the driver's name.
func nullDevices(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mknod(filepath.Join(dir, "nvidia0"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	require.Need(t, "mknod", err == nil, fmt.Sprint(err))
	return dir
}
