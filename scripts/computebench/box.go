// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The containers of a node: what the kubelet was given for a tenant, laid out, and the program that runs in it.

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin/kubelettest"
	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

// box is a tenant's container.
type box struct {
	pages   string // directory of its pages, on the host
	env     []string
	script  string // binds its files, then becomes the program that is given as arguments
	program *process
	ready   chan time.Duration // when it began, by CLOCK_MONOTONIC
}

// process is a program that runs beside this one, and ends with it.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // once it is done
}

// precedence is the nice value of what is measured: not how busy the machine is with other things. It has to be set
// for each program, and for the session that the kernel may schedule as one.
const precedence = "-10"

// preferred is a program with precedence.
func preferred(name string, args ...string) *exec.Cmd {
	return exec.Command("nice", append([]string{"-n", precedence, name}, args...)...)
}

// prefer sets the nice value of a process's session. Kernels that do not know of it schedule programs one by one.
func prefer(process, nice string) {
	_ = os.WriteFile(filepath.Join("/proc", process, "autogroup"), []byte(nice), 0)
}

// begin starts a program in a session of its own.
func begin(cmd *exec.Cmd) (*process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	prefer(strconv.Itoa(cmd.Process.Pid), precedence)
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// end sends a signal to the program and all that it started, and waits for it.
func (p *process) end(signal syscall.Signal) {
	if p == nil {
		return
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, signal)
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
	}
}

// admit has the kubelet give a tenant its slices, from the first one on, and lays out its container.
func (n *node) admit(ctx context.Context, number int, t scene.Tenant, first int) (*box, error) {
	var ids []string
	for i := range t.Share {
		ids = append(ids, n.uuid+"::"+strconv.Itoa(first+i))
	}
	pod := kubelettest.Pod{UID: fmt.Sprintf("00000000-0000-4000-8000-%012d", number), Namespace: "default", Name: fmt.Sprintf("tenant-%d", number)}
	allocation, err := n.kubelet.AllocateIDs(ctx, pod, kubelettest.Container{Name: "c"}, resourceName, ids)
	if err != nil {
		return nil, fmt.Errorf("admit %s: %w\n%s", t.Name, err, n.agentLog())
	}
	if _, err := n.kubelet.StartContainer(ctx, pod.UID, "c"); err != nil {
		return nil, fmt.Errorf("start container of %s: %w\n%s", t.Name, err, n.agentLog())
	}
	b := &box{ready: make(chan time.Duration, 1)}
	root := filepath.Join(n.dir, fmt.Sprintf("c%d", number))
	for _, m := range allocation.Response.GetMounts() {
		target := filepath.Join(root, m.GetContainerPath())
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return nil, fmt.Errorf("lay out container: %w", err)
		}
		if err := os.WriteFile(target, nil, 0o644); err != nil {
			return nil, fmt.Errorf("lay out container: %w", err)
		}
		b.script += fmt.Sprintf("mount --bind '%s' '%s' && ", m.GetHostPath(), target)
		switch filepath.Base(target) {
		case limiter.LimitsFile:
			b.pages = filepath.Dir(m.GetHostPath())
		case "libvgpu.so":
			b.env = append(b.env, "LD_PRELOAD="+target)
		}
	}
	b.script += `export "$PRELOAD" && exec "$@"`
	for _, name := range slices.Sorted(maps.Keys(allocation.Response.GetEnvs())) {
		b.env = append(b.env, name+"="+allocation.Response.GetEnvs()[name])
	}
	return b, nil
}

// threadsPerSM fill an SM of the simulated card (libvgpu/sim/launch.c).
const threadsPerSM = 2048

var pathNames = map[scene.Path]string{scene.Plain: "launch", scene.Extended: "ex", scene.Cooperative: "cooperative", scene.Graph: "graph"}

// launch starts the tenant's program in its container: a mount namespace of its own, in which the files of the
// allocation are bound where the container has them.
func (n *node) launch(number int) error {
	t, b := n.scene.Tenants[number], n.boxes[number]
	load := t.Load
	blocks := load.Blocks
	if load.Fills < 1 {
		blocks = uint64(load.Fills * float64(n.scene.SMs) * threadsPerSM / float64(load.Threads))
	}
	args := []string{"sh", "-c", b.script, "sh", n.sim("flood"), fmt.Sprintf("kernel=busy_%dus", load.Kernel.Microseconds()),
		"path=" + pathNames[load.Path], fmt.Sprintf("nodes=%d", load.Nodes), fmt.Sprintf("streams=%d", load.Streams),
		fmt.Sprintf("threads=%d", t.Threads), fmt.Sprintf("processes=%d", t.Processes), fmt.Sprintf("grid=%d", blocks),
		fmt.Sprintf("block=%d", load.Threads)}
	if load.On > 0 {
		args = append(args, fmt.Sprintf("on_ms=%d", load.On.Milliseconds()), fmt.Sprintf("off_ms=%d", load.Off.Milliseconds()))
	}
	cmd := preferred(args[0], args[1:]...)
	cmd.Env = n.environ()
	for _, variable := range b.env {
		if strings.HasPrefix(variable, "LD_PRELOAD=") { // for the program, not for the shell that binds its files
			variable = "PRELOAD=" + variable
		}
		cmd.Env = append(cmd.Env, variable)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start program of %s: %w", t.Name, err)
	}
	cmd.Stdout, cmd.Stderr = in, os.Stderr
	b.program, err = begin(cmd)
	if err := errors.Join(err, in.Close()); err != nil {
		return errors.Join(err, out.Close())
	}
	go b.follow(out)
	return nil
}

// follow waits for the program's line that says that it begins.
func (b *box) follow(out *os.File) {
	defer out.Close()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "ready=1") {
			select {
			case b.ready <- limiter.MonotonicNow():
			default:
			}
		}
	}
}
