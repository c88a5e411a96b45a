// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package node makes a machine within the machine: private mount, pid, network, ipc and uts namespaces whose first
// process is this program again (RunInit). Everything that the end-to-end tests start runs in there; when the first
// process ends, the kernel ends all the rest, mounts included. The first process ends when the test process does,
// however that happens: it waits for the end of a pipe that only the test process holds.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Name is the node's host name, and its name in the cluster.
	Name = "vgpud-e2e"
	// Address is the node's address inside its network namespace (TEST-NET-1: reserved for documentation).
	Address = "192.0.2.10"

	initVariable = "VGPUD_E2E_NODE_DIR" // set in the first process's environment: the node's folder
	upTimeout    = 10 * time.Second
)

// Node is a running set of namespaces. Its methods may be called from several goroutines.
type Node struct {
	dir   string
	init  *exec.Cmd
	alive io.Closer // the pipe's end whose closing ends the first process
	pidfd int
	ended chan struct{}
}

// Start makes the namespaces and sets the node up. Files that outlive the namespaces (/var/lib and /var/log of the
// node) are kept in dir, an absolute path. The caller ends the node with Close.
func Start(dir string) (*Node, error) {
	for _, hidden := range []string{"/var/lib/", "/var/log/", "/run/", "/dev/", "/proc/", "/sys/"} {
		if strings.HasPrefix(dir+"/", hidden) {
			return nil, fmt.Errorf("start node in %s: the node has its own %s; use a working tree elsewhere", dir, hidden)
		}
	}
	logFile, err := os.Create(filepath.Join(dir, "logs", "node.log"))
	if err != nil {
		return nil, fmt.Errorf("start node: %w", err)
	}
	defer logFile.Close()
	ready, readyWrite, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start node: %w", err)
	}
	defer ready.Close()

	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), initVariable+"="+dir)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.ExtraFiles = []*os.File{readyWrite}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, // a Ctrl-C at the terminal is the test process's business
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC |
			unix.CLONE_NEWUTS,
	}
	alive, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start node: %w", err)
	}
	err = cmd.Start()
	readyWrite.Close()
	if err != nil {
		return nil, fmt.Errorf("start node (root is needed): %w", err)
	}
	n := &Node{dir: dir, init: cmd, alive: alive, pidfd: -1, ended: make(chan struct{})}
	go func() { _ = cmd.Wait(); close(n.ended) }()
	if err := n.awaitReady(ready); err != nil {
		return nil, errors.Join(fmt.Errorf("start node (see %s): %w", logFile.Name(), err), n.Close())
	}
	return n, nil
}

func (n *Node) awaitReady(ready *os.File) error {
	if err := ready.SetReadDeadline(time.Now().Add(upTimeout)); err != nil {
		return err
	}
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		return fmt.Errorf("wait for the first process: %w", err)
	}
	fd, err := unix.PidfdOpen(n.init.Process.Pid, 0)
	if err != nil {
		return fmt.Errorf("open first process: %w", err)
	}
	n.pidfd = fd
	return nil
}

// Close ends the node's first process, and with it every process in the node, and waits for that. Idempotent.
func (n *Node) Close() error {
	n.alive.Close()
	select {
	case <-n.ended:
	case <-time.After(upTimeout):
		_ = n.init.Process.Kill()
		<-n.ended
	}
	if n.pidfd >= 0 {
		unix.Close(n.pidfd)
		n.pidfd = -1
	}
	return nil
}

// PID is the first process, as the test process sees it.
func (n *Node) PID() int { return n.init.Process.Pid }

// Path names a file of the node as the test process sees it.
func (n *Node) Path(path string) string {
	return fmt.Sprintf("/proc/%d/root%s", n.init.Process.Pid, path)
}

// Start starts cmd as a process of the node: a child of the calling process, in all of the node's namespaces. Paths
// in cmd are the node's; the working directory is the node's root unless cmd.Dir is set.
func (n *Node) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	const all = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	return n.inside(all, cmd.Start)
}

// Output runs a command in the node to its end and returns its standard output; its standard error is in the error.
func (n *Node) Output(ctx context.Context, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := n.Start(cmd); err != nil {
		return "", fmt.Errorf("start %s in the node: %w", name, err)
	}
	if err := cmd.Wait(); err != nil {
		return stdout.String(), fmt.Errorf("run %s %s in the node: %w: %s", name, strings.Join(args, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// InNetwork runs f, as far as it stays on the calling goroutine, inside the node's network namespace.
func (n *Node) InNetwork(f func() error) error { return n.inside(unix.CLONE_NEWNET, f) }

// DialContext connects from inside the node's network namespace.
func (n *Node) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = n.InNetwork(func() error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// inside runs f on a thread of its own that has joined the node's namespaces. The thread is given up afterwards.
func (n *Node) inside(namespaces int, f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if namespaces&unix.CLONE_NEWNS != 0 {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				result <- fmt.Errorf("unshare working directory: %w", err)
				return
			}
		}
		if err := unix.Setns(n.pidfd, namespaces); err != nil {
			result <- fmt.Errorf("join the node's namespaces: %w", err)
			return
		}
		result <- f()
	}()
	return <-result
}
