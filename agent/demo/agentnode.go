// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopGrace is how long the agent may take to stop in order.
const stopGrace = 10 * time.Second

// errAgentEnded is why a demo is cut short.
var errAgentEnded = errors.New("the agent ended by itself")

// agentNode is the real agent: `vgpud run` as a process of its own, on the simulated cards.
type agentNode struct {
	options Options
	dir     string
	cards   cards
	ended   context.CancelCauseFunc // called when the agent ends before it was told to

	cmd      *exec.Cmd // nil unless it runs
	stopping atomic.Bool
	done     chan error
}

// textfileDir is where the agent writes its metrics.
func textfileDir(dir string) string { return filepath.Join(dir, "textfile") }

// pagesRoot is the agent's directory of pages. As root the agent mounts a small tmpfs there, as it does on a node.
func pagesRoot(dir string) string { return filepath.Join(dir, "pages") }

// unmount takes that tmpfs away, if there is one: the agent leaves it to the containers that it outlives.
func unmount(dir string) error {
	err := unix.Unmount(pagesRoot(dir), unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount pages: %w", err)
	}
	return nil
}

func (a *agentNode) logPath() string { return filepath.Join(a.dir, "agent.log") }

func (a *agentNode) start(_ context.Context, kubeletDir string) (err error) {
	if err := os.MkdirAll(textfileDir(a.dir), 0o755); err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	log, err := os.Create(a.logPath())
	if err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	// Not bound to ctx: whatever happens, stop ends it, in order if it can.
	cmd := exec.Command(a.options.Program, "run",
		"--resource-name", resourceName,
		"--slices-per-gpu", strconv.Itoa(slicesPerCard),
		"--kubelet-dir", kubeletDir,
		"--state-dir", filepath.Join(a.dir, "state"),
		"--pages-dir", pagesRoot(a.dir),
		"--library", a.options.Library,
		"--nvml-library", filepath.Join(a.options.SimDir, "libnvidia-ml.so.1"),
		"--textfile-dir", textfileDir(a.dir),
		"--tick-interval", "200ms")
	cmd.Env = a.cards.environ()
	cmd.Stdout, cmd.Stderr = log, log
	// A terminal's Ctrl-C is for the demo. A demo that is killed takes the agent with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	a.cmd, a.done = cmd, make(chan error, 1)
	go func() {
		err := cmd.Wait()
		if !a.stopping.Load() {
			a.ended(fmt.Errorf("%w: %s", errAgentEnded, cmd.ProcessState))
		}
		a.done <- err
	}()
	return nil
}

// lastLines is the end of the agent's log.
func (a *agentNode) lastLines() string {
	const most = 10
	text, err := os.ReadFile(a.logPath())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

func (a *agentNode) fail(ctx context.Context) (string, error) {
	status, err := a.cards.status(ctx)
	if err != nil {
		return "", err
	}
	last := len(status) - 1
	return status[last].UUID, a.cards.lose(ctx, last)
}

func (a *agentNode) explain() string { return "the agent's last lines:\n" + a.lastLines() }

func (a *agentNode) recover(ctx context.Context) error { return a.cards.restore(ctx) }

func (a *agentNode) stop() error {
	if a.cmd == nil {
		return nil
	}
	process := a.cmd.Process
	a.cmd = nil
	a.stopping.Store(true)
	err := process.Signal(syscall.SIGTERM)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	kill := time.AfterFunc(stopGrace, func() { _ = process.Kill() })
	defer kill.Stop()
	if err = errors.Join(err, <-a.done); err != nil {
		return fmt.Errorf("stop agent: %w", err)
	}
	return nil
}
