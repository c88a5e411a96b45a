// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The witness over real processes on the simulated GPU: whom the driver lists, and whom it finds in the usage pages.

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/outside"
	"github.com/vgpud/vgpud/internal/require"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// alone runs a test in a process of its own, since NVML remembers the first machine that it saw, or since it is to have less
// than others: wrapper is a command that starts it. True: this is that process.
func alone(t *testing.T, wrapper ...string) bool {
	t.Helper()
	const variable = "VGPUD_TEST_ALONE"
	if os.Getenv(variable) != "" {
		return true
	}
	line := append(slices.Clone(wrapper), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=3m")
	command := exec.Command(line[0], line[1:]...)
	command.Env = append(os.Environ(), variable+"=1")
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// resident starts a program where the pages of an allocation are mounted beside the library, as in its container, and
// waits for its first line. It runs until the test ends.
func (n *node) resident(key, preload string, command ...string) (pid int) {
	n.t.Helper()
	directory := n.t.TempDir()
	there := filepath.Join(directory, "alloc", key)
	script := "mount --make-rprivate /; mkdir -p " + there + "; ln -s " + n.config.Library + " " + directory + "/libvgpu.so"
	for _, file := range []string{limiter.LimitsFile, limiter.UsageFile} {
		script += fmt.Sprintf("; touch %[1]s/%[3]s; mount --bind %[2]s/%[3]s %[1]s/%[3]s", there, n.pages(key), file)
	}
	if preload != "" {
		preload = "LD_PRELOAD=" + filepath.Join(directory, preload)
	}
	build := require.Sim(n.t)
	program := exec.Command("/bin/sh", "-ec", script+"; exec env "+preload+" LD_LIBRARY_PATH="+build+" "+strings.Join(command, " "))
	program.Stderr = os.Stderr
	program.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	output, err := program.StdoutPipe()
	if err == nil {
		err = program.Start()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = program.Process.Kill()
		_ = program.Wait()
	})
	if line, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		n.t.Fatalf("%v says %q: %v", command, line, err)
	}
	return program.Process.Pid
}

// A program that has a context and nothing else, and one that launches what nobody limits, are in the page like any other;
// one without the library is not.
func TestWitnessFindsContextsInPages(t *testing.T) {
	require.Root(t)
	if !alone(t) {
		return
	}
	n := newNode(t)
	n.config.NVMLLibrary = filepath.Join(require.Sim(t), "libnvidia-ml.so.1")
	n.config.Witness, n.config.WitnessOverheadBytes, n.config.ComputeMode = wordReport, 1<<30, ledger.ComputeNone
	n.parts.gpus, n.parts.procRoot = nil, "/"
	simulation := t.TempDir()
	if err := os.WriteFile(filepath.Join(simulation, "config"), []byte("memory = 80GiB\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GPUSIM_DIR", simulation)
	agent := n.start()
	agent.allocatable(10)
	key, _ := agent.allocate("p", 1)
	client, flood := filepath.Join(require.Sim(t), "client"), filepath.Join(require.Sim(t), "flood")
	honest := []int{n.resident(key, "libvgpu.so", client, "context"), n.resident(key, "libvgpu.so", flood, "kernel=busy_1ms", "seconds=100")}
	time.Sleep(3 * outside.Every)
	agent.shows(0, "vgpud_witness_findings", "kind="+string(witness.NoSlot))
	cheat := n.resident(key, "", client, "context")
	agent.shows(1, "vgpud_witness_findings", "kind="+string(witness.NoSlot))
	if text := agent.log.String(); !strings.Contains(text, fmt.Sprintf("pid=%d ", cheat)) {
		t.Errorf("the witness names another than %d:\n%s", cheat, text)
	}
	for _, pid := range honest {
		if strings.Contains(agent.log.String(), fmt.Sprintf("pid=%d ", pid)) {
			t.Errorf("the witness accuses %d", pid)
		}
	}
}
