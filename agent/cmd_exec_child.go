// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// cmd_exec_child.go runs the command of vgpud exec: in our process group, on our terminal and files, so that job
// control and pipelines work as if we were not there. Signals that are sent to us are passed on. What the terminal
// sends (interrupt, quit) reaches the whole foreground group by itself and is not passed on a second time.

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// runChild starts program with arguments[0] as its own name, waits, and returns its exit code: 128+n when signal n
// ended it.
func runChild(program string, arguments, environ []string) (int, error) {
	signals := make(chan os.Signal, 16)
	for _, number := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM} {
		if !signal.Ignored(number) { // under nohup the command shall ignore it, too
			signal.Notify(signals, number)
		}
	}
	defer signal.Stop(signals)
	process, err := os.StartProcess(program, arguments, &os.ProcAttr{
		Env: environ, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return exitNotFound, fmt.Errorf("start command: %w", err)
		}
		return exitNotExecutable, fmt.Errorf("start command: %w", err)
	}
	ended := make(chan struct{})
	go forward(signals, process, ended)
	state, err := process.Wait()
	close(ended)
	if err != nil {
		return exitSetup, fmt.Errorf("wait for command: %w", err)
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return state.ExitCode(), nil
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
