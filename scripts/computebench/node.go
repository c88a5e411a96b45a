// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// A node in real time that runs one scene, and what its card tells of it.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/scripts/benchnode"
	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

// node runs one scene on a card of its own.
type node struct {
	*benchnode.Node
	scene scene.Scene
}

// startNode brings a node up to where its containers can start.
func startNode(ctx context.Context, build string, s scene.Scene) (*node, error) {
	n := &node{scene: s.Filled()}
	var err error
	if n.Node, err = benchnode.Start(ctx, benchnode.Config{Build: build, Sim: n.cardSettings(), Agent: n.agentFlags()}); err != nil {
		return nil, err
	}
	first := 0
	for _, t := range n.scene.Tenants {
		if _, err := n.Admit(ctx, t.Name, t.Share, first); err != nil {
			return nil, errors.Join(err, n.Close())
		}
		first += t.Share
	}
	return n, nil
}

// cardSettings are the scene's card.
func (n *node) cardSettings() []string {
	u := n.scene.Utilization
	settings := []string{"kernel_jitter_permille=50"}
	for _, key := range []struct {
		name  string
		value int64
	}{{"sms", int64(n.scene.SMs)}, {"nvml_sample_ms", u.Period.Milliseconds()}, {"nvml_lag_ms", u.Lag.Milliseconds()}, {"nvml_missing_percent", int64(u.Missing)}} {
		settings = append(settings, key.name+"="+strconv.FormatInt(key.value, 10))
	}
	if n.scene.Sharing == scene.MPS {
		settings = append(settings, "sharing=mps")
	}
	for _, e := range n.scene.Events {
		if e.Kind == scene.CostFactor && e.At == 0 {
			settings = append(settings, "event_scale_permille="+strconv.Itoa(e.Value))
		}
	}
	return settings
}

// agentFlags are the scene's mode.
func (n *node) agentFlags() []string {
	mode, ceiling := "hard", 0
	for _, t := range n.scene.Tenants {
		if t.Mode == scene.Elastic {
			mode, ceiling = "elastic", max(ceiling, t.Ceiling)
		}
	}
	flags := []string{"--compute-mode", mode}
	if ceiling > 0 && ceiling < 100 {
		flags = append(flags, "--compute-ceiling", strconv.Itoa(ceiling))
	}
	return flags
}

// threadsPerSM fill an SM of the simulated card (libvgpu/sim/launch.c).
const threadsPerSM = 2048

var pathNames = map[scene.Path]string{scene.Plain: "launch", scene.Extended: "ex", scene.Cooperative: "cooperative", scene.Graph: "graph"}

// launch starts the tenant's program in its container.
func (n *node) launch(number int) error {
	t := n.scene.Tenants[number]
	load := t.Load
	blocks := load.Blocks
	if load.Fills < 1 {
		blocks = uint64(load.Fills * float64(n.scene.SMs) * threadsPerSM / float64(load.Threads))
	}
	options := []string{fmt.Sprintf("kernel=busy_%dus", load.Kernel.Microseconds()),
		"path=" + pathNames[load.Path], fmt.Sprintf("nodes=%d", load.Nodes), fmt.Sprintf("streams=%d", load.Streams),
		fmt.Sprintf("threads=%d", t.Threads), fmt.Sprintf("processes=%d", t.Processes), fmt.Sprintf("grid=%d", blocks),
		fmt.Sprintf("block=%d", load.Threads)}
	if load.On > 0 {
		options = append(options, fmt.Sprintf("on_ms=%d", load.On.Milliseconds()), fmt.Sprintf("off_ms=%d", load.Off.Milliseconds()))
	}
	return n.Boxes[number].Launch(options...)
}

// reading is what the card knows of its use, at a time.
type reading struct {
	at   time.Duration // CLOCK_MONOTONIC
	card time.Duration
	pids map[int]time.Duration
}

// read asks the card.
func (n *node) read(ctx context.Context) (reading, error) {
	before := limiter.MonotonicNow()
	out, err := n.Control(ctx, "status", "--json")
	if err != nil {
		return reading{}, err
	}
	after := limiter.MonotonicNow()
	var status struct {
		MonotonicNS int64 `json:"monotonic_ns"`
		GPUs        []struct {
			BusyNS  int64 `json:"busy_ns"`
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
	r := reading{at: time.Duration(status.MonotonicNS), card: time.Duration(status.GPUs[0].BusyNS), pids: map[int]time.Duration{}}
	if r.at == 0 {
		r.at = (before + after) / 2
	}
	for _, c := range status.GPUs[0].Clients {
		r.pids[c.PID] = time.Duration(c.BusyNS)
	}
	return r, nil
}
