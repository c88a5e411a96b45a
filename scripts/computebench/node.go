// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// A node in real time: a simulated card, a kubelet and the agent.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin/kubelettest"
	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

const (
	resourceName  = "nvidia.com/gpu"
	slicesPerCard = 100 // so that a share is so many percent
	startTimeout  = time.Minute
	stopTimeout   = 10 * time.Second
)

// node runs one scene on cards of its own.
type node struct {
	dir, build string
	scene      scene.Scene
	uuid       string // of its card
	kubelet    *kubelettest.Kubelet
	agent      *process
	boxes      []*box // by tenant
}

// startNode brings a node up to where its containers can start.
func startNode(ctx context.Context, build string, s scene.Scene) (_ *node, err error) {
	n := &node{build: build, scene: s.Filled()}
	if n.dir, err = os.MkdirTemp("", "cb"); err != nil {
		return nil, fmt.Errorf("start node: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if err := n.insertCard(ctx); err != nil {
		return nil, err
	}
	if n.kubelet, err = kubelettest.Start(filepath.Join(n.dir, "k"), kubelettest.Options{PodResources: true}); err != nil {
		return nil, fmt.Errorf("start kubelet: %w", err)
	}
	if err := n.startAgent(); err != nil {
		return nil, err
	}
	ready, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := n.kubelet.WaitAllocatable(ready, resourceName, slicesPerCard); err != nil {
		return nil, fmt.Errorf("wait for the agent: %w\n%s", err, n.agentLog())
	}
	first := 0
	for i, t := range n.scene.Tenants {
		b, err := n.admit(ctx, i, t, first)
		if err != nil {
			return nil, err
		}
		n.boxes = append(n.boxes, b)
		first += t.Share
	}
	return n, nil
}

func (n *node) sim(name string) string { return filepath.Join(n.build, "sim", name) }

func (n *node) environ(more ...string) []string {
	return append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GPUSIM_DIR=" + filepath.Join(n.dir, "cards"),
		"LD_LIBRARY_PATH=" + filepath.Join(n.build, "sim")}, more...)
}

func (n *node) control(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, n.sim("gpusim"), args...)
	cmd.Env = n.environ()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("gpusim %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// insertCard makes the scene's card.
func (n *node) insertCard(ctx context.Context) error {
	u := n.scene.Utilization
	args := []string{"init", "--dir", filepath.Join(n.dir, "cards"), "--gpus", "1", "--memory", "80GiB", "--set", "kernel_jitter_permille=50"}
	for _, key := range []struct {
		name  string
		value int64
	}{{"sms", int64(n.scene.SMs)}, {"nvml_sample_ms", u.Period.Milliseconds()}, {"nvml_lag_ms", u.Lag.Milliseconds()}, {"nvml_missing_percent", int64(u.Missing)}} {
		args = append(args, "--set", key.name+"="+strconv.FormatInt(key.value, 10))
	}
	if n.scene.Sharing == scene.MPS {
		args = append(args, "--set", "sharing=mps")
	}
	for _, e := range n.scene.Events {
		if e.Kind == scene.CostFactor && e.At == 0 {
			args = append(args, "--set", "event_scale_permille="+strconv.Itoa(e.Value))
		}
	}
	if _, err := n.control(ctx, args...); err != nil {
		return err
	}
	r, err := n.read(ctx)
	n.uuid = r.uuid
	return err
}

func (n *node) startAgent() (err error) {
	mode, ceiling := "hard", 0
	for _, t := range n.scene.Tenants {
		if t.Mode == scene.Elastic {
			mode, ceiling = "elastic", max(ceiling, t.Ceiling)
		}
	}
	args := []string{"run", "--resource-name", resourceName, "--slices-per-gpu", strconv.Itoa(slicesPerCard),
		"--compute-mode", mode, "--kubelet-dir", filepath.Join(n.dir, "k"), "--state-dir", filepath.Join(n.dir, "state"),
		"--pages-dir", filepath.Join(n.dir, "pages"), "--library", filepath.Join(n.build, "libvgpu.so"),
		"--nvml-library", n.sim("libnvidia-ml.so.1")}
	if ceiling > 0 && ceiling < 100 {
		args = append(args, "--compute-ceiling", strconv.Itoa(ceiling))
	}
	log, err := os.OpenFile(filepath.Join(n.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	cmd := preferred(filepath.Join(n.build, "vgpud"), args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = n.environ(), log, log
	n.agent, err = begin(cmd)
	return err
}

// agentLog is the end of what the agent said.
func (n *node) agentLog() string {
	const most = 2000
	text, err := os.ReadFile(filepath.Join(n.dir, "agent.log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}

// reading is what the card knows of its use, at a time.
type reading struct {
	at   time.Duration // CLOCK_MONOTONIC
	uuid string
	card time.Duration
	pids map[int]time.Duration
}

// read asks the card.
func (n *node) read(ctx context.Context) (reading, error) {
	before := limiter.MonotonicNow()
	out, err := n.control(ctx, "status", "--json")
	if err != nil {
		return reading{}, err
	}
	after := limiter.MonotonicNow()
	var status struct {
		MonotonicNS int64 `json:"monotonic_ns"`
		GPUs        []struct {
			UUID    string `json:"uuid"`
			BusyNS  int64  `json:"busy_ns"`
			Clients []struct {
				PID    int   `json:"pid"`
				BusyNS int64 `json:"busy_ns"`
			} `json:"clients"`
		} `json:"gpus"`
	}
	if err := json.Unmarshal(out, &status); err != nil {
		return reading{}, fmt.Errorf("read gpusim status: %w", err)
	}
	if len(status.GPUs) != 1 {
		return reading{}, fmt.Errorf("gpusim shows %d cards, not 1", len(status.GPUs))
	}
	r := reading{at: time.Duration(status.MonotonicNS), uuid: status.GPUs[0].UUID, card: time.Duration(status.GPUs[0].BusyNS), pids: map[int]time.Duration{}}
	if r.at == 0 {
		r.at = (before + after) / 2
	}
	for _, c := range status.GPUs[0].Clients {
		r.pids[c.PID] = time.Duration(c.BusyNS)
	}
	return r, nil
}

// close ends everything and removes the node.
func (n *node) close() error {
	var ending sync.WaitGroup
	for _, b := range n.boxes {
		ending.Go(func() { b.program.end(syscall.SIGKILL) })
	}
	ending.Wait()
	n.agent.end(syscall.SIGTERM)
	var errs []error
	if n.kubelet != nil {
		errs = append(errs, n.kubelet.Close())
	}
	if err := unix.Unmount(filepath.Join(n.dir, "pages"), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, fmt.Errorf("unmount pages: %w", err))
	}
	return errors.Join(append(errs, os.RemoveAll(n.dir))...)
}
