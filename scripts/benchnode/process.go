// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package benchnode

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// precedence is the nice value of what is measured: not how busy the machine is with other things. It has to be set
// for each program, and for the session that the kernel may schedule as one.
const precedence = "-10"

// Process is a program that runs beside this one, and ends with it.
type Process struct {
	PID  int
	Done chan struct{} // closed when it has ended
	Err  error         // once it is done
}

// preferred is a program with precedence.
func preferred(name string, args ...string) *exec.Cmd {
	return exec.Command("nice", append([]string{"-n", precedence, name}, args...)...)
}

// Prefer gives this program precedence, for readings that are to be in time, until what it returns is called.
func Prefer() (end func()) {
	prefer("self", precedence)
	return func() { prefer("self", "0") }
}

// prefer sets the nice value of a process's session. Kernels that do not know of it schedule programs one by one.
func prefer(process, nice string) {
	_ = os.WriteFile(filepath.Join("/proc", process, "autogroup"), []byte(nice), 0)
}

// begin starts a program in a session of its own.
func begin(cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	prefer(strconv.Itoa(cmd.Process.Pid), precedence)
	p := &Process{PID: cmd.Process.Pid, Done: make(chan struct{})}
	go func() {
		p.Err = cmd.Wait()
		close(p.Done)
	}()
	return p, nil
}

// End sends a signal to the program and all that it started, and waits for it. A nil process has ended.
func (p *Process) End(signal syscall.Signal) {
	if p == nil {
		return
	}
	_ = syscall.Kill(-p.PID, signal)
	select {
	case <-p.Done:
	case <-time.After(stopTimeout):
		_ = syscall.Kill(-p.PID, syscall.SIGKILL)
		<-p.Done
	}
}
