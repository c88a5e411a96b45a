// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package benchnode is a node in real time for benchmarks: simulated cards, an in-process kubelet, `vgpud run`, and tenants
// in mount namespaces of their own under the preloaded library. It needs root and what `make build` builds.
package benchnode

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

	"github.com/vgpud/vgpud/plugin/kubelettest"
)

const (
	// ResourceName is what the kubelet counts slices as.
	ResourceName = "nvidia.com/gpu"
	// SlicesPerCard is how many slices a card has unless Config has another number: so many that a share is as many percent.
	SlicesPerCard = 100

	startTimeout = time.Minute
	stopTimeout  = 10 * time.Second
)

// Config is what a node is made of.
type Config struct {
	Build  string   // directory with vgpud, libvgpu.so and sim/; see Snapshot
	Cards  int      // 0: 1
	Slices int      // of each card; 0: SlicesPerCard
	Sim    []string // KEY=VALUE of the simulated machine
	Agent  []string // flags of the agent beside the usual ones
}

// Node is one that runs. Its parts end with it.
type Node struct {
	Dir     string
	UUIDs   []string // of its cards
	Kubelet *kubelettest.Kubelet
	Boxes   []*Box // in the order in which they were admitted
	config  Config
	agent   *Process
}

// Start brings a node up to where its containers can start.
func Start(ctx context.Context, c Config) (_ *Node, err error) {
	c.Cards = max(1, c.Cards)
	if c.Slices == 0 {
		c.Slices = SlicesPerCard
	}
	n := &Node{config: c}
	if n.Dir, err = os.MkdirTemp("", "cb"); err != nil {
		return nil, fmt.Errorf("start node: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if err := n.insertCards(ctx); err != nil {
		return nil, err
	}
	if n.Kubelet, err = kubelettest.Start(filepath.Join(n.Dir, "k"), kubelettest.Options{PodResources: true}); err != nil {
		return nil, fmt.Errorf("start kubelet: %w", err)
	}
	if err := n.StartAgent(); err != nil {
		return nil, err
	}
	ready, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := n.Kubelet.WaitAllocatable(ready, ResourceName, c.Cards*c.Slices); err != nil {
		return nil, fmt.Errorf("wait for the agent: %w\n%s", err, n.AgentLog())
	}
	return n, nil
}

func (n *Node) sim(name string) string { return filepath.Join(n.config.Build, "sim", name) }

func (n *Node) environ(more ...string) []string {
	return append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GPUSIM_DIR=" + filepath.Join(n.Dir, "cards"),
		"LD_LIBRARY_PATH=" + filepath.Join(n.config.Build, "sim")}, more...)
}

// Control runs the simulator's control tool, and returns what it says.
func (n *Node) Control(ctx context.Context, args ...string) ([]byte, error) {
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

func (n *Node) insertCards(ctx context.Context) error {
	args := []string{"init", "--dir", filepath.Join(n.Dir, "cards"), "--gpus", strconv.Itoa(n.config.Cards), "--memory", "80GiB"}
	for _, setting := range n.config.Sim {
		args = append(args, "--set", setting)
	}
	if _, err := n.Control(ctx, args...); err != nil {
		return err
	}
	out, err := n.Control(ctx, "status", "--json")
	if err != nil {
		return err
	}
	var status struct {
		GPUs []struct {
			UUID string `json:"uuid"`
		} `json:"gpus"`
	}
	if err := json.Unmarshal(out, &status); err != nil {
		return fmt.Errorf("read gpusim status: %w", err)
	}
	if len(status.GPUs) != n.config.Cards {
		return fmt.Errorf("gpusim shows %d cards, not %d", len(status.GPUs), n.config.Cards)
	}
	for _, gpu := range status.GPUs {
		n.UUIDs = append(n.UUIDs, gpu.UUID)
	}
	return nil
}

// StartAgent starts the agent, after it was stopped.
func (n *Node) StartAgent() (err error) {
	args := []string{"run", "--resource-name", ResourceName, "--slices-per-gpu", strconv.Itoa(n.config.Slices),
		"--kubelet-dir", filepath.Join(n.Dir, "k"), "--state-dir", filepath.Join(n.Dir, "state"),
		"--pages-dir", filepath.Join(n.Dir, "pages"), "--library", filepath.Join(n.config.Build, "libvgpu.so"),
		"--nvml-library", n.sim("libnvidia-ml.so.1")}
	args = append(args, n.config.Agent...)
	log, err := os.OpenFile(n.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	cmd := preferred(filepath.Join(n.config.Build, "vgpud"), args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = n.environ(), log, log
	n.agent, err = begin(cmd)
	return err
}

// AgentPID is the process of the agent that was started last.
func (n *Node) AgentPID() int { return n.agent.PID }

// StopAgent ends the agent with a signal.
func (n *Node) StopAgent(signal syscall.Signal) { n.agent.End(signal) }

func (n *Node) logPath() string { return filepath.Join(n.Dir, "agent.log") }

// AgentLog is the end of what the agent said.
func (n *Node) AgentLog() string {
	const most = 2000
	text, err := os.ReadFile(n.logPath())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}

// Close ends everything and removes the node.
func (n *Node) Close() error {
	var ending sync.WaitGroup
	for _, b := range n.Boxes {
		ending.Go(func() { b.Program.End(syscall.SIGKILL) })
	}
	ending.Wait()
	n.agent.End(syscall.SIGTERM)
	var errs []error
	if n.Kubelet != nil {
		errs = append(errs, n.Kubelet.Close())
	}
	if err := unix.Unmount(filepath.Join(n.Dir, "pages"), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, fmt.Errorf("unmount pages: %w", err))
	}
	return errors.Join(append(errs, os.RemoveAll(n.Dir))...)
}

// Snapshot copies what nodes run out of the build directory, which may be built anew meanwhile. The caller removes it.
func Snapshot(build string) (copied string, err error) {
	if copied, err = os.MkdirTemp("", "benchnode-"); err != nil {
		return "", fmt.Errorf("copy build: %w", err)
	}
	if err := os.Mkdir(filepath.Join(copied, "sim"), 0o755); err != nil {
		return "", fmt.Errorf("copy build: %w", err)
	}
	for _, name := range []string{"vgpud", "libvgpu.so", "sim/gpusim", "sim/flood", "sim/libcuda.so.1", "sim/libnvidia-ml.so.1"} {
		data, err := os.ReadFile(filepath.Join(build, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(copied, name), data, 0o755)
		}
		if err != nil {
			return "", errors.Join(fmt.Errorf("copy build: %w", err), os.RemoveAll(copied))
		}
	}
	return copied, nil
}

// LoadAverage is the machine's load over the last minute; nil if it cannot be told.
func LoadAverage() *float64 {
	var load float64
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil
	}
	if _, err := fmt.Sscan(string(text), &load); err != nil {
		return nil
	}
	return new(load)
}
