// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"context"
	"encoding/json"
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

	"github.com/vgpud/vgpud/scripts/e2e/node"
)

const (
	resource     = "nvidia.com/gpu"
	slicesPerGPU = 10
	gpuCount     = 2
	gpuDir       = "/run/gpusim" // where the simulated GPU keeps its state, in the node and in containers
	textfileDir  = "/var/lib/node-exporter"
	libraryDir   = "/usr/lib/x86_64-linux-gnu"
	stopTimeout  = 10 * time.Second
	// backTimeout is how long the node may show fewer slices after a restart of the agent or of kubelet.
	backTimeout = 10 * time.Second
)

// gpus are the node's simulated GPUs.
type gpus struct {
	uuids      []string
	totalBytes uint64 // of each
}

// simStatus is what `gpusim status --json` says, as far as tests read it.
type simStatus struct {
	MonotonicNS int64 `json:"monotonic_ns"` // when it was read
	GPUs        []struct {
		UUID           string `json:"uuid"`
		TotalBytes     uint64 `json:"total_bytes"`
		UsedBytes      uint64 `json:"used_bytes"`
		HighWaterBytes uint64 `json:"high_water_bytes"`
		Clients        []struct {
			PID    int   `json:"pid"`
			BusyNS int64 `json:"busy_ns"`
		} `json:"clients"`
	} `json:"gpus"`
}

func simPath(name string) string { return filepath.Join(env.parts, "sim", name) }

// makeGPUs makes two cards of 80 GiB in the node, with null devices under nvidia's names, and the CDI specification
// that NVIDIA's toolkit would write for them.
func makeGPUs(ctx context.Context) (*gpus, error) {
	n := env.cluster.Node
	names := []string{"nvidiactl", "nvidia-uvm"}
	for i := range gpuCount {
		names = append(names, fmt.Sprintf("nvidia%d", i))
	}
	for _, name := range names {
		if err := node.MakeNullDevice(n.Path("/dev/" + name)); err != nil {
			return nil, err
		}
	}
	if _, err := n.Output(ctx, nil, simPath("gpusim"), "init", "--dir", gpuDir, "--gpus", fmt.Sprint(gpuCount),
		"--memory", "80GiB", "--set", "device_nodes=1"); err != nil {
		return nil, err
	}
	status, err := readSim(ctx)
	if err != nil {
		return nil, err
	}
	g := &gpus{totalBytes: status.GPUs[0].TotalBytes}
	for _, gpu := range status.GPUs {
		g.uuids = append(g.uuids, gpu.UUID)
	}
	return g, g.writeCDI(n)
}

func readSim(ctx context.Context) (status simStatus, err error) {
	out, err := env.cluster.Node.Output(ctx, nil, simPath("gpusim"), "status", "--dir", gpuDir, "--json")
	if err != nil {
		return status, err
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		return status, fmt.Errorf("read the simulator's status: %w", err)
	}
	return status, nil
}

// sliceBytes is the memory of one slice: an equal share, in whole MiB.
func (g *gpus) sliceBytes() uint64 { return g.totalBytes / slicesPerGPU >> 20 << 20 }

// object keeps JSON documents short.
type object = map[string]any

func (g *gpus) writeCDI(n *node.Node) error {
	devices := func(names ...string) (nodes []object) {
		for _, name := range names {
			nodes = append(nodes, object{"path": "/dev/" + name})
		}
		return nodes
	}
	library := func(name string) object {
		return object{"hostPath": simPath(name), "containerPath": filepath.Join(libraryDir, name),
			"options": []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}}
	}
	var all []string
	var cdiDevices []object
	for i, uuid := range g.uuids {
		name := fmt.Sprintf("nvidia%d", i)
		all = append(all, name)
		cdiDevices = append(cdiDevices, object{"name": uuid, "containerEdits": object{"deviceNodes": devices(name)}})
	}
	cdiDevices = append(cdiDevices, object{"name": "all", "containerEdits": object{"deviceNodes": devices(all...)}})
	spec, err := json.MarshalIndent(object{
		"cdiVersion": "0.6.0", "kind": resource, "devices": cdiDevices,
		"containerEdits": object{
			"env":         []string{"NVIDIA_VISIBLE_DEVICES=void"},
			"deviceNodes": devices("nvidiactl", "nvidia-uvm"),
			"mounts": []object{library("libcuda.so.1"), library("libnvidia-ml.so.1"),
				{"hostPath": gpuDir, "containerPath": gpuDir, "options": []string{"rw", "nosuid", "nodev", "rbind"}}},
		},
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(n.Path("/run/cdi"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(n.Path("/run/cdi/nvidia.json"), spec, 0o644)
}

// agent is vgpud on the node.
type agent struct {
	process *node.Process
	flags   map[string]string
}

func newAgent() *agent {
	return &agent{process: env.cluster.Node.NewProcess("vgpud"), flags: map[string]string{
		"resource-name":        resource,
		"slices-per-gpu":       fmt.Sprint(slicesPerGPU),
		"memory-margin":        "0",
		"device-list-strategy": "cdi-cri",
		"library":              filepath.Join(env.parts, "libvgpu.so"),
		"nvml-library":         simPath("libnvidia-ml.so.1"),
		"textfile-dir":         textfileDir,
		"log-level":            "debug",
	}}
}

// start starts the agent with its usual flags, some of them replaced, and returns when it has registered with kubelet
// and all slices can be had.
func (a *agent) start(ctx context.Context, flags map[string]string) error {
	before, err := registrations(ctx)
	if err != nil {
		return err
	}
	if err := a.launch(flags); err != nil {
		return err
	}
	return a.awaitBack(ctx, before)
}

// launch starts the agent and does not wait for anything.
func (a *agent) launch(flags map[string]string) error {
	if err := os.MkdirAll(env.cluster.Node.Path(textfileDir), 0o755); err != nil {
		return err
	}
	merged := maps.Clone(a.flags)
	maps.Copy(merged, flags)
	a.process.Args = []string{filepath.Join(env.parts, "vgpud"), "run"}
	for _, name := range slices.Sorted(maps.Keys(merged)) {
		a.process.Args = append(a.process.Args, "--"+name+"="+merged[name])
	}
	return a.process.Start()
}

func (a *agent) stop(signal syscall.Signal) error { return a.process.Stop(signal, stopTimeout) }

// awaitBack waits until kubelet has had one registration more than before, and all slices can be had.
func (a *agent) awaitBack(ctx context.Context, registrationsBefore int) error {
	return a.await(ctx, "registration and slices", func() (bool, string, error) {
		if n, err := registrations(ctx); err != nil || n <= registrationsBefore {
			return false, fmt.Sprintf("%d registrations", n), err
		}
		return allSlices(ctx)
	})
}

// allSlices says whether both kubelet and the node's status, which lags behind, offer every slice.
func allSlices(ctx context.Context) (bool, string, error) {
	const all = gpuCount * slicesPerGPU
	inKubelet, err := env.cluster.AllocatableDevices(ctx, resource)
	if err != nil {
		return false, "", err
	}
	inStatus, err := env.cluster.Allocatable(ctx, resource)
	now := fmt.Sprintf("kubelet offers %d slices, the node's status %d, of %d", inKubelet, inStatus, all)
	return inKubelet == all && inStatus == all, now, err
}

func (a *agent) await(ctx context.Context, what string, done func() (ok bool, now string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, backTimeout)
	defer cancel()
	for {
		ok, now, err := done()
		switch {
		case err == nil && ok:
			return nil
		case !a.process.Running():
			return fmt.Errorf("wait for %s: vgpud has ended (%s): %s", what, a.process.State(), a.lastWords())
		case ctx.Err() != nil:
			return errors.Join(fmt.Errorf("wait for %s: not within %s: %s: %s", what, backTimeout, now, a.lastWords()), err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// registrations is how often the kubelet that runs now has had our resource registered.
func registrations(ctx context.Context) (int, error) {
	page, err := env.cluster.KubeletMetrics(ctx)
	if err != nil {
		return 0, err
	}
	prefix := `kubelet_device_plugin_registration_total{resource_name="` + resource + `"} `
	for _, line := range strings.Split(page, "\n") {
		if value, ok := strings.CutPrefix(line, prefix); ok {
			n, err := strconv.ParseFloat(value, 64)
			return int(n), err
		}
	}
	return 0, nil
}

// lastWords is the end of the agent's log.
func (a *agent) lastWords() string {
	log, err := os.ReadFile(a.process.LogPath())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return "\n  " + strings.Join(lines[max(0, len(lines)-5):], "\n  ")
}
