// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the directories of the agent, and of the agent as a process: signals and exit codes.

package main

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/metrics"
	"github.com/vgpud/vgpud/internal/logtest"
	"github.com/vgpud/vgpud/internal/require"
)

func TestMountPages(t *testing.T) {
	require.Root(t)
	directory := filepath.Join(shortTemp(t), "run", "pages")
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	if err := mountPages(directory, logger); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(directory, unix.MNT_DETACH) })
	require.Need(t, "mount", !strings.Contains(log.String(), "could not be mounted"), "cannot mount a tmpfs")
	var mount unix.Statfs_t
	if err := unix.Statfs(directory, &mount); err != nil {
		t.Fatal(err)
	}
	if size := mount.Blocks * uint64(mount.Bsize); mount.Type != unix.TMPFS_MAGIC || size != pagesBytes {
		t.Errorf("file system %x of %d bytes, want a tmpfs of %d", mount.Type, size, pagesBytes)
	}
	if info, err := os.Stat(directory); err != nil || info.Mode().Perm() != pagesMode {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	kept := filepath.Join(directory, "kept")
	if err := os.WriteFile(kept, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := mountPages(directory, logger); err != nil { // the next agent
		t.Fatal(err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("the pages of running containers were covered: %v", err)
	}
	// What a container can do to a page is bounded by the mount.
	if err := os.WriteFile(filepath.Join(directory, "grown"), make([]byte, pagesBytes+1), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("growing a page: %v, want ENOSPC", err)
	}
}

func TestPagesDirectoryMustBeOne(t *testing.T) {
	path := filepath.Join(shortTemp(t), "pages")
	if err := os.Symlink(shortTemp(t), path); err != nil {
		t.Fatal(err)
	}
	if err := makePagesDir(path); err == nil {
		t.Error("a symbolic link was used for the pages")
	}
}

func TestLockState(t *testing.T) {
	directory := filepath.Join(shortTemp(t), "state")
	lock, err := lockState(directory)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockState(directory); err == nil || !strings.Contains(err.Error(), "in use by another agent") {
		t.Errorf("a second lock: %v", err)
	}
	lock.Close()
	if err := os.Chmod(filepath.Join(directory, lockFile), 0o644); err != nil { // as an older agent left it
		t.Fatal(err)
	}
	again, err := lockState(directory)
	if err != nil {
		t.Fatalf("after the first has gone: %v", err)
	}
	defer again.Close()
	// Who can open it can lock it, and keep the agent from starting.
	if info, err := os.Stat(filepath.Join(directory, lockFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the lock: %v, %v", info.Mode(), err)
	}
}

// The process that is named holds the lock; what a killed agent wrote is not repeated.
func TestLockHolder(t *testing.T) {
	directory := filepath.Join(shortTemp(t), "state")
	lock, err := lockState(directory)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	for text, holder := range map[string]string{
		strconv.Itoa(os.Getpid()) + "\n": "process " + strconv.Itoa(os.Getpid()), "4194305\n": "unknown", "1\n": "unknown", "": "unknown", "x": "unknown",
	} {
		if err := errors.Join(lock.Truncate(0), os.WriteFile(lock.Name(), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := lockState(directory); err == nil || !strings.Contains(err.Error(), holder) || holder == "unknown" && strings.Contains(err.Error(), "process "+strings.TrimSpace(text)+" ") {
			t.Errorf("lock file with %q: %v, want %s", text, err, holder)
		}
	}
}

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
