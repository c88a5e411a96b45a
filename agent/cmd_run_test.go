// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the agent as a process: signals and exit codes.

package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/metrics"
	"github.com/vgpud/vgpud/internal/logtest"
)

// vgpudRun prepares `vgpud run` on a node's directories.
func vgpudRun(t *testing.T, n *node, arguments ...string) (*exec.Cmd, *logtest.Buffer) {
	t.Helper()
	log := &logtest.Buffer{}
	command := exec.Command(os.Args[0], append([]string{"run", "--kubelet-dir=" + n.config.KubeletDir, "--state-dir=" + n.config.StateDir,
		"--pages-dir=" + n.config.PagesDir, "--textfile-dir=" + n.config.TextfileDir, "--library=" + n.config.Library,
		"--nvml-library=/nonexistent/libnvidia-ml.so.1", "--tick-interval=100ms"}, arguments...)...)
	command.Env = append(os.Environ(), beVgpud+"=1")
	command.Stderr = log
	t.Cleanup(func() { _ = unix.Unmount(n.config.PagesDir, unix.MNT_DETACH) })
	return command, log
}

// SIGTERM and SIGINT end the agent with exit code 0 within seconds, in order; a driver is not needed for any of it.
func TestRunStopsOnSignals(t *testing.T) {
	for _, number := range []unix.Signal{unix.SIGTERM, unix.SIGINT} {
		t.Run(unix.SignalName(number), func(t *testing.T) {
			n := newNode(t)
			command, log := vgpudRun(t, n)
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			textfile := filepath.Join(n.config.TextfileDir, metrics.FileName)
			for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				if value, found := n.value("vgpud_plugin_registered"); found && value == 1 {
					break
				}
				if time.Now().After(deadline) {
					_ = command.Process.Kill()
					t.Fatalf("the agent does not come up:\n%s", log)
				}
			}
			begin := time.Now()
			if err := command.Process.Signal(number); err != nil {
				t.Fatal(err)
			}
			if code := exitCode(t, command.Wait()); code != 0 {
				t.Errorf("exit code %d\n%s", code, log)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("stopping took %v", took)
			}
			if _, err := os.Stat(textfile); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the metrics file after the stop: %v", err)
			}
		})
	}
}

// A bad name is refused at start with the rule, the exit code says so, and no Register is sent.
func TestRunRefusesBadConfiguration(t *testing.T) {
	n := newNode(t)
	for _, flag := range []string{"--resource-name=vgpu", "--resource-name=kubernetes.io/vgpu", "--slices-per-gpu=0", "--slices-per-gpu=two",
		"--memory-margin=50%", "--no-such-flag=1"} {
		command, log := vgpudRun(t, n, flag)
		if code := exitCode(t, command.Run()); code != 1 {
			t.Errorf("%s: exit code %d", flag, code)
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
		if got := log.String(); !strings.HasPrefix(got, "vgpud: ") || !strings.Contains(got, name) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: stderr %q, want one line that names the option", flag, got)
		}
	}
	if attempts := n.kubelet.Attempts(); attempts != 0 {
		t.Errorf("%d registrations", attempts)
	}
}

func TestRunPrintsConfiguration(t *testing.T) {
	n := newNode(t)
	command, _ := vgpudRun(t, n, "--print-config", "--slices-per-gpu=4")
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"slices-per-gpu: 4\n", "resource-name: nvidia.com/gpu\n", "tick-interval: 100ms\n"} {
		if !strings.Contains(string(out), line) {
			t.Errorf("%q lacks %q", out, line)
		}
	}
	if _, err := os.Stat(n.config.StateDir); !errors.Is(err, fs.ErrNotExist) {
		t.Error("printing touched the state directory")
	}
}
