// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The program that keeps a card busy.

package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Kernels of the two programs: of different length, so that counting launches would not do.
const (
	shortKernel = "kernel=busy_200us"
	longKernel  = "kernel=busy_500us"
)

// flood is a program that keeps a card busy until it is stopped.
type flood struct {
	cmd *exec.Cmd
	pid int // of the process that launches
}

// flood prepares the program in the container.
func (b *container) flood(ctx context.Context, kernel string) *exec.Cmd {
	return client(ctx, filepath.Join(b.cards.libs, "flood"), b.cards.environ(append(b.env, "LD_PRELOAD="+b.preload)...), kernel, "seconds=30")
}

// startFlood returns once the program says that it launches.
func startFlood(cmd *exec.Cmd) (*flood, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start flood: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start flood: %w", err)
	}
	f := &flood{cmd: cmd}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "ready=") {
			continue
		}
		pid, err := value(parseLines(lines.Text()), "pid", "", "")
		if err != nil {
			return nil, errors.Join(err, f.stop())
		}
		f.pid = int(pid)
		return f, nil
	}
	return nil, errors.Join(errNoValue, f.stop())
}

// stop ends the program; that it was ended by a signal is no fault.
func (f *flood) stop() error {
	if err := f.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop flood: %w", err)
	}
	err := f.cmd.Wait()
	if exit, failed := errors.AsType[*exec.ExitError](err); failed {
		status, known := exit.Sys().(syscall.WaitStatus)
		if known && (status.Signaled() && status.Signal() == syscall.SIGTERM || status.ExitStatus() == 128+int(syscall.SIGTERM)) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("stop flood: %w", err)
	}
	return nil
}
