// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The node that is measured, and its two phases.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vgpud/vgpud/scripts/benchnode"
)

// slicesPerCard is the agent's default.
const slicesPerCard = 10

// Targets, of the agent at its defaults on eight cards with fifty containers.
const (
	targetPercent = 0.5 // of one core
	targetBytes   = 60 << 20
)

// phase is what the containers do while the agent is measured.
type phase struct {
	name, title string
	options     []string // of flood
}

// phases are all of them, or that of a name.
func phases(name string) []phase {
	all := []phase{
		{"idle", "programs that hold a context and memory, and launch one kernel a day", []string{"kernel=busy_1us", "bytes=1048576", "pause_ms=86400000"}},
		{"light", "each launches ten kernels of 1 ms in a second", []string{"kernel=busy_1ms", "bytes=1048576", "pause_ms=100"}},
	}
	return slices.DeleteFunc(all, func(p phase) bool { return name != "" && p.name != name })
}

// record is one phase.
type record struct {
	Phase      string   `json:"phase"`
	Title      string   `json:"title"`
	Cards      int      `json:"cards"`
	Containers int      `json:"containers"`
	Seconds    float64  `json:"seconds"`
	CPUPercent float64  `json:"cpu_percent"` // of one core, in user and kernel
	User       float64  `json:"user_percent"`
	System     float64  `json:"system_percent"`
	Switches   float64  `json:"context_switches_per_second"`
	RSSBytes   uint64   `json:"rss_bytes"`      // at the end
	PeakBytes  uint64   `json:"rss_peak_bytes"` // since the agent's start
	Threads    int      `json:"threads"`
	Load       *float64 `json:"load_average"`
	Pass       bool     `json:"pass"`
	Samples    int      `json:"profile_samples"`
	Flat       []spot   `json:"profile_flat"` // where the time goes, by itself
	Cum        []spot   `json:"profile_cum"`  // of ours, with all that is called from there
	Kernel     string   `json:"kernel"`
	Go         string   `json:"go"`
}

// soak runs the phases and returns their records.
func soak(ctx context.Context, o options, stdout io.Writer) (records []record, err error) {
	build, err := benchnode.Snapshot(o.build)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(build)) }()
	place, err := os.MkdirTemp("", "ab")
	if err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(place)) }()
	socket := filepath.Join(place, "s")
	for _, p := range phases(o.phase) {
		r, err := runPhase(ctx, o, p, build, place, socket)
		if err != nil {
			return records, fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(stdout, "%-6s %.3f %% of a core (user %.3f, system %.3f) over %.0f s, %.0f switches/s, RSS %.1f MB, peak %.1f MB, %d threads: %s\n", r.Phase,
			r.CPUPercent, r.User, r.System, r.Seconds, r.Switches, float64(r.RSSBytes)/1e6, float64(r.PeakBytes)/1e6, r.Threads, verdict(r))
		for _, spot := range r.Flat {
			fmt.Fprintf(stdout, "       %5.1f %% %5.1f %%  %s\n", spot.Flat, spot.Cum, spot.Function)
		}
		fmt.Fprintln(stdout)
		for _, spot := range r.Cum {
			fmt.Fprintf(stdout, "       %5.1f %% %5.1f %%  %s\n", spot.Flat, spot.Cum, spot.Function)
		}
		records = append(records, r)
	}
	return records, nil
}

func verdict(r record) string {
	if r.Pass {
		return "pass"
	}
	return "FAIL"
}

// runPhase brings a node up, has it settle, measures, and profiles.
func runPhase(ctx context.Context, o options, p phase, build, place, socket string) (r record, err error) {
	flags := append([]string{"--textfile-dir", place, "--control-socket", socket}, o.agent...)
	node, err := benchnode.Start(ctx, benchnode.Config{Build: build, Cards: o.cards, Slices: slicesPerCard, Agent: flags})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	for i := range o.containers {
		box, err := node.AdmitTo(ctx, i%o.cards, fmt.Sprintf("tenant %d", i), 1, i/o.cards)
		if err != nil {
			return r, err
		}
		if err := box.Launch(p.options...); err != nil {
			return r, err
		}
	}
	for i, box := range node.Boxes {
		if _, err := box.Begun(ctx); err != nil {
			return r, fmt.Errorf("tenant %d: %w", i, err)
		}
	}
	if err := rest(ctx, o.warm); err != nil {
		return r, err
	}
	before, err := readUsage(node.AgentPID())
	if err != nil {
		return r, err
	}
	if err := rest(ctx, o.measure); err != nil {
		return r, err
	}
	after, err := readUsage(node.AgentPID())
	if err != nil {
		return r, err
	}
	for i, box := range node.Boxes {
		select {
		case <-box.Program.Done:
			return r, fmt.Errorf("tenant %d ended meanwhile: %w", i, box.Program.Err)
		default:
		}
	}
	r = record{Phase: p.name, Title: p.title, Cards: o.cards, Containers: o.containers, Load: benchnode.LoadAverage(), Kernel: kernelRelease(), Go: runtime.Version()}
	r.fill(before, after)
	if o.profile > 0 {
		if r.Samples, r.Flat, r.Cum, err = profile(ctx, socket, filepath.Join(build, "vgpud"), o.profile); err != nil {
			return r, err
		}
	}
	return r, nil
}

// fill takes in what was used between two readings.
func (r *record) fill(before, after usage) {
	r.Seconds = after.at.Sub(before.at).Seconds()
	percent := func(a, b time.Duration) float64 { return 100 * (b - a).Seconds() / r.Seconds }
	r.User, r.System = percent(before.user, after.user), percent(before.system, after.system)
	r.CPUPercent = r.User + r.System
	r.Switches = float64(after.switches-before.switches) / r.Seconds
	r.RSSBytes, r.PeakBytes, r.Threads = after.rss, after.peak, after.threads
	r.Pass = r.CPUPercent <= targetPercent && r.PeakBytes <= targetBytes
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func kernelRelease() string {
	var name syscall.Utsname
	if syscall.Uname(&name) != nil {
		return ""
	}
	var text strings.Builder
	for _, char := range name.Release {
		if char == 0 {
			break
		}
		text.WriteByte(byte(char))
	}
	return text.String()
}
