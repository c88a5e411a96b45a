// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// child.go runs the command of vgpud exec: in our process group, on our terminal and files, so that job
// control and pipelines work as if we were not there. Signals that are sent to us are passed on. What the terminal
// sends (interrupt, quit) reaches the whole foreground group by itself and is not passed on a second time.
//
// We are the reaper of what the command leaves behind (PR_SET_CHILD_SUBREAPER): so it is known, and not guessed from the
// process table, whether processes of the slice still run when the command has ended.

package standalone

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// runChild starts program with arguments[0] as its own name, waits, and returns its exit code: 128+n when signal n
// ended it. left says that processes which it started still run.
func runChild(program string, arguments, environ []string) (code int, left bool, err error) {
	signals := make(chan os.Signal, 16)
	for _, number := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM} {
		if !signal.Ignored(number) { // under nohup the command shall ignore it, too
			signal.Notify(signals, number)
		}
	}
	defer signal.Stop(signals)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return ExitSetup, false, fmt.Errorf("become the reaper of the command's processes: %w", err)
	}
	process, err := os.StartProcess(program, arguments, &os.ProcAttr{
		Env: environ, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return ExitNotFound, false, fmt.Errorf("start command: %w", err)
		}
		return ExitNotExecutable, false, fmt.Errorf("start command: %w", err)
	}
	ended := make(chan struct{})
	go forward(signals, process, ended)
	status, err := awaitChild(process.Pid)
	close(ended)
	if err != nil {
		return ExitSetup, true, fmt.Errorf("wait for command: %w", err)
	}
	left = descendantsLeft()
	if status.Signaled() {
		return 128 + int(status.Signal()), left, nil
	}
	return status.ExitStatus(), left, nil
}

// awaitChild waits until the process has ended, and reaps those that come to us in the meantime.
func awaitChild(pid int) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(-1, &status, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return status, err
		case ended == pid:
			return status, nil
		}
	}
}

// descendantsLeft reaps what has ended and says whether any other process of the command runs.
func descendantsLeft() bool {
	for {
		ended, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return !errors.Is(err, unix.ECHILD)
		case ended == 0:
			return true
		}
	}
}

// forward passes signals on until the command has ended.
func forward(signals <-chan os.Signal, process *os.Process, ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case number := <-signals:
			if (number == unix.SIGINT || number == unix.SIGQUIT) && inForeground() {
				continue
			}
			_ = process.Signal(number) // it may have ended by itself
		}
	}
}

// inForeground says whether the terminal sends its signals to our process group.
func inForeground() bool {
	terminal, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer terminal.Close()
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
