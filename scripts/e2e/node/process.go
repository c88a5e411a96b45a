// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Process is a service of the node that tests start, stop and restart. Not safe for concurrent use.
type Process struct {
	Name string   // its log is logs/<Name>.log in the node's folder; restarts append to it
	Args []string // the program (an absolute path) and its arguments
	Env  []string // added to the environment of the test process

	node *Node
	cmd  *exec.Cmd
	done chan struct{}
}

// NewProcess describes a service of the node; nothing runs yet.
func (n *Node) NewProcess(name string, args ...string) *Process {
	return &Process{Name: name, Args: args, node: n}
}

// LogPath is the file with everything that the process wrote.
func (p *Process) LogPath() string { return filepath.Join(p.node.dir, "logs", p.Name+".log") }

// Start starts the process; it is an error if it runs already.
func (p *Process) Start() error {
	if p.Running() {
		return fmt.Errorf("start %s: it runs already", p.Name)
	}
	logFile, err := os.OpenFile(p.LogPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer logFile.Close()
	cmd := exec.Command(p.Args[0], p.Args[1:]...)
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := p.node.Start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	p.cmd, p.done = cmd, done
	return nil
}

// Running says whether the process was started and has not ended.
func (p *Process) Running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// PID is the running process's number, as the test process sees it.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended is closed when the process that was last started has ended.
func (p *Process) Ended() <-chan struct{} { return p.done }

// State says how a process that has ended did so.
func (p *Process) State() string {
	if p.cmd == nil || p.Running() {
		return "running"
	}
	return p.cmd.ProcessState.String()
}

// ExitCode is the exit code of a process that has ended; -1 while it runs, or if a signal ended it.
func (p *Process) ExitCode() int {
	if p.cmd == nil || p.Running() {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

// Stop sends the signal and waits for the end; after the timeout it kills and reports that. A process that does not
// run is no error.
func (p *Process) Stop(signal syscall.Signal, timeout time.Duration) error {
	if !p.Running() {
		return nil
	}
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.Name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(timeout):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("stop %s: still there %s after %s; killed", p.Name, timeout, signal)
	}
}
