// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
)

// Cards of the demo's node: two of the kind that people share.
const (
	cardCount  = 2
	cardMemory = "80GiB"
)

// nvmlGPUIsLost is NVML_ERROR_GPU_IS_LOST: what a driver answers when a card has fallen off the bus.
const nvmlGPUIsLost = 15

// cards are the simulated GPUs of this demo: state in a directory of its own, shared by every process that has
// GPUSIM_DIR in its environment.
type cards struct {
	dir  string // GPUSIM_DIR
	libs string // the simulated driver's libraries, and the control tool gpusim
	env  []string
}

// cardStatus is the simulator's own account of one card.
type cardStatus struct {
	UUID      string `json:"uuid"`
	Model     string `json:"model"`
	Total     uint64 `json:"total_bytes"`
	Used      uint64 `json:"used_bytes"`
	HighWater uint64 `json:"high_water_bytes"`

	Clients []cardClient `json:"clients,omitempty"`
}

// cardClient is what a card knows of one process.
type cardClient struct {
	PID  int    `json:"pid"`
	Busy uint64 `json:"busy_ns"` // for how long the card ran its work
}

// cardsStatus is the account of all cards at one moment.
type cardsStatus struct {
	Monotonic uint64       `json:"monotonic_ns"`
	GPUs      []cardStatus `json:"gpus"`
}

// environ is the environment of a program that uses the cards: the simulated driver is found first.
func (c cards) environ(more ...string) []string {
	env := append([]string{}, c.env...)
	env = append(env, "GPUSIM_DIR="+c.dir, "LD_LIBRARY_PATH="+c.libs)
	return append(env, more...)
}

func (c cards) control(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.libs, "gpusim"), args...)
	cmd.Env = c.environ()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("gpusim %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// insert creates the cards.
func (c cards) insert(ctx context.Context) ([]cardStatus, error) {
	_, err := c.control(ctx, "init", "--dir", c.dir, "--gpus", strconv.Itoa(cardCount), "--memory", cardMemory)
	if err != nil {
		return nil, err
	}
	return c.status(ctx)
}

func (c cards) status(ctx context.Context) ([]cardStatus, error) {
	status, err := c.read(ctx)
	return status.GPUs, err
}

func (c cards) read(ctx context.Context) (cardsStatus, error) {
	var status cardsStatus
	out, err := c.control(ctx, "status", "--json")
	if err != nil {
		return status, err
	}
	if err := json.Unmarshal(out, &status); err != nil {
		return status, fmt.Errorf("read gpusim status: %w", err)
	}
	if len(status.GPUs) != cardCount {
		return status, fmt.Errorf("gpusim shows %d cards, %d were asked for", len(status.GPUs), cardCount)
	}
	return status, nil
}

// lose makes the driver answer for one card that it is lost, from the next reading on.
func (c cards) lose(ctx context.Context, index int) error {
	for _, call := range []string{"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"} {
		if _, err := c.control(ctx, "fault", "set", "--call", call, "--gpu", strconv.Itoa(index),
			"--result", strconv.Itoa(nvmlGPUIsLost)); err != nil {
			return err
		}
	}
	return nil
}

// restore takes every fault back.
func (c cards) restore(ctx context.Context) error {
	_, err := c.control(ctx, "fault", "clear")
	return err
}
