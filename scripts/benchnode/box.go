// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The containers of a node: what the kubelet was given for a tenant, laid out, and the program that runs in it.

package benchnode

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin/kubelettest"
)

// Box is a tenant's container.
type Box struct {
	Pages   string   // directory of its pages, on the host
	Program *Process // nil before Launch
	Pod     kubelettest.Pod
	node    *Node
	env     []string
	script  string             // binds its files, then becomes the program that is given as arguments
	ready   chan time.Duration // when it began, by CLOCK_MONOTONIC
}

// Admit has the kubelet give a tenant so many slices of the first card, from one on, and lays out its container.
func (n *Node) Admit(ctx context.Context, name string, count, first int) (*Box, error) {
	return n.AdmitTo(ctx, 0, name, count, first)
}

// AdmitTo is Admit with slices of another card than the first.
func (n *Node) AdmitTo(ctx context.Context, card int, name string, count, first int) (*Box, error) {
	var ids []string
	for i := range count {
		ids = append(ids, n.UUIDs[card]+"::"+strconv.Itoa(first+i))
	}
	number := len(n.Boxes)
	pod := kubelettest.Pod{UID: fmt.Sprintf("00000000-0000-4000-8000-%012d", number), Namespace: "default", Name: fmt.Sprintf("tenant-%d", number)}
	allocation, err := n.Kubelet.AllocateIDs(ctx, pod, kubelettest.Container{Name: "c"}, ResourceName, ids)
	if err != nil {
		return nil, fmt.Errorf("admit %s: %w\n%s", name, err, n.AgentLog())
	}
	if _, err := n.Kubelet.StartContainer(ctx, pod.UID, "c"); err != nil {
		return nil, fmt.Errorf("start container of %s: %w\n%s", name, err, n.AgentLog())
	}
	b := &Box{Pod: pod, node: n, ready: make(chan time.Duration, 1)}
	root := filepath.Join(n.Dir, fmt.Sprintf("c%d", number))
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
			b.Pages = filepath.Dir(m.GetHostPath())
		case "libvgpu.so":
			b.env = append(b.env, "LD_PRELOAD="+target)
		}
	}
	b.script += `export "$PRELOAD" && exec "$@"`
	for _, name := range slices.Sorted(maps.Keys(allocation.Response.GetEnvs())) {
		b.env = append(b.env, name+"="+allocation.Response.GetEnvs()[name])
	}
	b.env = append(b.env, "CUDA_VISIBLE_DEVICES="+n.UUIDs[card]) // as if the toolkit had left the other cards out
	n.Boxes = append(n.Boxes, b)
	return b, nil
}

// Launch starts `flood` with these options in the container: a mount namespace of its own, in which the files of the
// allocation are bound where the container has them.
func (b *Box) Launch(options ...string) error {
	args := append([]string{"-c", b.script, "sh", b.node.sim("flood")}, options...)
	cmd := preferred("sh", args...)
	cmd.Env = b.node.environ()
	for _, variable := range b.env {
		if strings.HasPrefix(variable, "LD_PRELOAD=") { // for the program, not for the shell that binds its files
			variable = "PRELOAD=" + variable
		}
		cmd.Env = append(cmd.Env, variable)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start flood: %w", err)
	}
	cmd.Stdout, cmd.Stderr = in, os.Stderr
	b.Program, err = begin(cmd)
	if err := errors.Join(err, in.Close()); err != nil {
		return errors.Join(err, out.Close())
	}
	go b.follow(out)
	return nil
}

// follow waits for the program's line that says that it begins.
func (b *Box) follow(out *os.File) {
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

// Begun waits until the program begins, and returns when that was, by CLOCK_MONOTONIC.
func (b *Box) Begun(ctx context.Context) (time.Duration, error) {
	select {
	case at := <-b.ready:
		return at, nil
	case <-b.Program.Done:
		return 0, fmt.Errorf("it ended: %w", b.Program.Err)
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-time.After(startTimeout):
		return 0, errors.New("it does not begin")
	}
}

// Sleep sleeps until a time by CLOCK_MONOTONIC.
func Sleep(ctx context.Context, until time.Duration) error {
	select {
	case <-time.After(until - limiter.MonotonicNow()):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
